/* The walks are stacks in memory, so a tree that is nested deeply needs no deep calls. */
#include "live/tensor/value_pack.h"

#include <inttypes.h>

#include "tessera/sys/catalog.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/try.h"

/* ---- packing ---- */

typedef struct visit {
    const tsr_value *value;
    size_t next; /* item to pack */
} visit;

typedef struct packing {
    const tsr_limits *limits;
    tsr_pack_tensor_fn *tensor;
    void *ctx;
    tsr_vec *out;
    tsr_vec stack; /* visit */
    uint64_t visited;
} packing;

tsr_status tsr_pack_number(tsr_vec *out, uint64_t number, unsigned size, tsr_error *err)
{
    uint8_t le[8];
    tsr_store_le(le, number, size);
    return tsr_vec_append(out, le, size, err);
}

static tsr_status put_real(tsr_vec *out, double real, tsr_error *err)
{
    uint64_t bits;
    memcpy(&bits, &real, sizeof bits);
    return tsr_pack_number(out, bits, 8, err);
}

tsr_status tsr_pack_text(tsr_vec *out, tsr_str text, tsr_error *err)
{
    TSR_TRY(tsr_pack_number(out, text.size, 8, err));
    return tsr_vec_append(out, text.data, text.size, err);
}

static bool has_text(const tsr_value *v)
{
    return v->kind == TSR_VALUE_OBJECT || v->variant == TSR_VARIANT_DEFAULTDICT || v->variant == TSR_VARIANT_SUBCLASS;
}

static tsr_status put_head(packing *p, const tsr_value *v, tsr_error *err)
{
    tsr_vec *out = p->out;
    TSR_TRY(tsr_pack_number(out, v->kind, 1, err));
    TSR_TRY(tsr_pack_number(out, v->variant, 1, err));
    switch (v->kind) {
    case TSR_VALUE_NONE: return TSR_OK;
    case TSR_VALUE_BOOL: return tsr_pack_number(out, v->as.boolean, 1, err);
    case TSR_VALUE_INT: return tsr_pack_number(out, (uint64_t)v->as.integer, 8, err);
    case TSR_VALUE_FLOAT: return put_real(out, v->as.real, err);
    case TSR_VALUE_DTYPE: return tsr_pack_number(out, v->as.dtype, 4, err);
    case TSR_VALUE_TENSOR: return p->tensor(p->ctx, v, p->stack.count, out, err);
    case TSR_VALUE_COMPLEX: TSR_TRY(put_real(out, v->as.complex.re, err)); return put_real(out, v->as.complex.im, err);
    case TSR_VALUE_BIGINT:
    case TSR_VALUE_STR:
    case TSR_VALUE_BYTES:
    case TSR_VALUE_DEVICE:
    case TSR_VALUE_GLOBAL: return tsr_pack_text(out, v->text, err);
    case TSR_VALUE_LIST:
    case TSR_VALUE_TUPLE:
    case TSR_VALUE_SET:
    case TSR_VALUE_SIZE:
    case TSR_VALUE_DICT:
    case TSR_VALUE_OBJECT: break;
    }
    TSR_TRY(tsr_pack_number(out, (unsigned)v->ordered_dict | (unsigned)v->called << 1, 1, err));
    if (has_text(v)) TSR_TRY(tsr_pack_text(out, v->text, err));
    return tsr_pack_number(out, v->count, 8, err);
}

static tsr_status enter(packing *p, const tsr_value *v, tsr_error *err)
{
    TSR_FAIL_IF(++p->visited > p->limits->expansion, err, TSR_E_LIMIT, "more than %" PRIu64 " values", p->limits->expansion);
    TSR_TRY(put_head(p, v, err));
    if (v->count == 0) return TSR_OK;
    TSR_FAIL_IF(p->stack.count >= p->limits->depth, err, TSR_E_LIMIT, "nested deeper than %" PRIu32, p->limits->depth);
    visit *top = tsr_vec_push(&p->stack, err);
    if (!top) return TSR_E_NOMEM;
    *top = (visit){v, 0};
    return TSR_OK;
}

tsr_status tsr_pack_tree(const tsr_value *tree, const tsr_host *host, tsr_pack_tensor_fn *tensor, void *ctx, tsr_vec *out,
                         tsr_error *err)
{
    packing p = {&host->limits, tensor, ctx, out, tsr_vec_of(host->allocator, sizeof(visit)), 0};
    tsr_status status = enter(&p, tree, err);
    while (status == TSR_OK && p.stack.count) {
        visit *top = (visit *)p.stack.items + p.stack.count - 1;
        if (top->next == top->value->count) p.stack.count--;
        else status = enter(&p, top->value->items[top->next++], err);
    }
    tsr_vec_free(&p.stack);
    return status;
}

/* ---- unpacking ---- */

typedef struct opened {
    const tsr_value **items;
    size_t next, count;
} opened;

typedef struct unpacking {
    tsr_packed_bytes from;
    const tsr_limits *limits;
    tsr_unpack_tensor_fn *tensor;
    void *ctx;
    tsr_vec stack; /* opened */
} unpacking;

const uint8_t *tsr_packed_take(tsr_packed_bytes *from, uint64_t size)
{
    from->failed = from->failed || size > from->rest.size;
    if (from->failed) return NULL;
    const char *data = from->rest.data;
    from->rest = (tsr_str){data + size, from->rest.size - (size_t)size};
    return (const uint8_t *)data;
}

uint64_t tsr_packed_number(tsr_packed_bytes *from, unsigned size)
{
    const uint8_t *data = tsr_packed_take(from, size);
    return data ? tsr_load_le(data, size) : 0;
}

static double take_real(tsr_packed_bytes *from)
{
    const uint64_t bits = tsr_packed_number(from, 8);
    double real;
    memcpy(&real, &bits, sizeof real);
    return real;
}

tsr_status tsr_packed_text(tsr_packed_bytes *from, tsr_str *out, tsr_error *err)
{
    const uint64_t size = tsr_packed_number(from, 8);
    const uint8_t *data = tsr_packed_take(from, size);
    TSR_FAIL_IF(!data, err, TSR_E_FORMAT, "a rank sent a truncated string");
    *out = tsr_arena_str(from->arena, (tsr_str){(const char *)data, (size_t)size}, err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status take_container(unpacking *u, tsr_value *v, tsr_error *err)
{
    tsr_packed_bytes *from = &u->from;
    const uint64_t flags = tsr_packed_number(from, 1);
    v->ordered_dict = flags & 1;
    v->called = flags >> 1 & 1;
    if (has_text(v)) TSR_TRY(tsr_packed_text(from, &v->text, err));
    const uint64_t count = tsr_packed_number(from, 8);
    TSR_FAIL_IF(count > from->rest.size || (v->kind == TSR_VALUE_DICT && count % 2), err, TSR_E_FORMAT,
                "a rank sent %" PRIu64 " items in %zu bytes", count, from->rest.size);
    const tsr_value **items = tsr_arena_array(from->arena, (size_t)count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    v->items = items;
    v->count = (size_t)count;
    if (count == 0) return TSR_OK;
    TSR_FAIL_IF(u->stack.count >= u->limits->depth, err, TSR_E_LIMIT, "nested deeper than %" PRIu32, u->limits->depth);
    opened *top = tsr_vec_push(&u->stack, err);
    if (!top) return TSR_E_NOMEM;
    *top = (opened){items, 0, (size_t)count};
    return TSR_OK;
}

static tsr_status take_value(unpacking *u, const tsr_value **slot, tsr_error *err)
{
    tsr_packed_bytes *from = &u->from;
    const uint64_t kind = tsr_packed_number(from, 1), variant = tsr_packed_number(from, 1);
    TSR_FAIL_IF(from->failed || kind > TSR_VALUE_OBJECT || variant > TSR_VARIANT_SUBCLASS, err, TSR_E_FORMAT,
                "a rank sent a value of an unknown kind");
    tsr_value *v = tsr_value_new(from->arena, (tsr_value_kind)kind, err);
    if (!v) return TSR_E_NOMEM;
    v->variant = (tsr_value_variant)variant;
    *slot = v;
    switch (v->kind) {
    case TSR_VALUE_NONE: return TSR_OK;
    case TSR_VALUE_BOOL: v->as.boolean = tsr_packed_number(from, 1) != 0; return TSR_OK;
    case TSR_VALUE_INT: v->as.integer = (int64_t)tsr_packed_number(from, 8); return TSR_OK;
    case TSR_VALUE_FLOAT: v->as.real = take_real(from); return TSR_OK;
    case TSR_VALUE_COMPLEX:
        v->as.complex.re = take_real(from);
        v->as.complex.im = take_real(from);
        return TSR_OK;
    case TSR_VALUE_DTYPE: v->as.dtype = (tsr_dtype)tsr_packed_number(from, 4); return TSR_OK;
    case TSR_VALUE_TENSOR: return u->tensor(u->ctx, from, v, err);
    case TSR_VALUE_BIGINT:
    case TSR_VALUE_STR:
    case TSR_VALUE_BYTES:
    case TSR_VALUE_DEVICE:
    case TSR_VALUE_GLOBAL: return tsr_packed_text(from, &v->text, err);
    default: return take_container(u, v, err);
    }
}

tsr_status tsr_unpack_tree(tsr_str bytes, const tsr_host *host, tsr_unpack_tensor_fn *tensor, void *ctx, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err)
{
    unpacking u = {{bytes, false, arena}, &host->limits, tensor, ctx, tsr_vec_of(host->allocator, sizeof(opened))};
    tsr_status status = take_value(&u, out, err);
    while (status == TSR_OK && u.stack.count) {
        opened *top = (opened *)u.stack.items + u.stack.count - 1;
        if (top->next == top->count) u.stack.count--;
        else status = take_value(&u, &top->items[top->next++], err);
    }
    if (status == TSR_OK && (u.from.failed || u.from.rest.size))
        status = tsr_fail(err, TSR_E_FORMAT, "a rank sent a value of the wrong size");
    tsr_vec_free(&u.stack);
    return status;
}
