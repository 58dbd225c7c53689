#include "live/optim/tree_pack.h"

#include <inttypes.h>

#include "tessera/box.h"
#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/try.h"

typedef struct visit {
    const tsr_value *value;
    size_t next; /* item to pack */
} visit;

typedef struct packing {
    const tsr_live *live;
    const tsr_host *host;
    tsr_vec *bytes;
    tsr_vec *tensors;
    tsr_vec stack; /* visit */
    uint64_t visited;
    uint64_t byte_at;
} packing;

static tsr_status put(packing *p, const void *data, size_t size, tsr_error *err)
{
    return tsr_vec_append(p->bytes, data, size, err);
}

static tsr_status put_number(packing *p, uint64_t number, unsigned size, tsr_error *err)
{
    uint8_t le[8];
    tsr_store_le(le, number, size);
    return put(p, le, size, err);
}

static tsr_status put_real(packing *p, double real, tsr_error *err)
{
    uint64_t bits;
    memcpy(&bits, &real, sizeof bits);
    return put_number(p, bits, 8, err);
}

static tsr_status put_text(packing *p, tsr_str text, tsr_error *err)
{
    TSR_TRY(put_number(p, text.size, 8, err));
    return put(p, text.data, text.size, err);
}

/* Packs the rows of a tensor that the rank has: those of its chunk, or all. */
static tsr_status put_tensor(packing *p, const tsr_entry *entry, tsr_error *err)
{
    uint64_t bytes = 0, end;
    bool fits = tsr_entry_bytes(entry, &bytes);
    const bool part = entry->ndim && entry->chunk_count == 1;
    const uint64_t all = entry->ndim ? entry->shape[0] : 0, begin = part ? entry->chunks->offsets[0] : 0,
                   rows = part ? entry->chunks->sizes[0] : all;
    if (part && all) bytes = bytes / all * rows;
    fits = fits && begin <= all && rows <= all - begin && !__builtin_add_overflow(p->byte_at, bytes, &end);
    TSR_FAIL_IF(!fits || tsr_dtype_size(entry->dtype) == 0 || entry->ndim > TSR_MAX_NDIM, err, TSR_E_UNSUPPORTED,
                "optim: '%.*s' is too large, or its dtype is not byte-aligned", TSR_STR_ARG(entry->fqn));
    TSR_TRY(put_text(p, entry->fqn, err));
    TSR_TRY(put_number(p, entry->dtype, 4, err));
    TSR_TRY(put_number(p, entry->ndim, 4, err));
    for (uint32_t d = 0; d < entry->ndim; d++) TSR_TRY(put_number(p, entry->shape[d], 8, err));
    if (entry->ndim == 0) return put(p, p->live->bytes(p->live->ctx, entry), (size_t)bytes, err);
    TSR_TRY(put_number(p, begin, 8, err));
    TSR_TRY(put_number(p, rows, 8, err));
    TSR_TRY(put_number(p, p->byte_at, 8, err));
    tsr_packed_tensor *tensor = tsr_vec_push(p->tensors, err);
    if (!tensor) return TSR_E_NOMEM;
    *tensor = (tsr_packed_tensor){entry, p->byte_at, bytes};
    p->byte_at = end;
    return TSR_OK;
}

static tsr_status put_head(packing *p, const tsr_value *v, tsr_error *err)
{
    TSR_TRY(put_number(p, v->kind, 1, err));
    TSR_TRY(put_number(p, v->variant, 1, err));
    switch (v->kind) {
    case TSR_VALUE_NONE: return TSR_OK;
    case TSR_VALUE_BOOL: return put_number(p, v->as.boolean, 1, err);
    case TSR_VALUE_INT: return put_number(p, (uint64_t)v->as.integer, 8, err);
    case TSR_VALUE_FLOAT: return put_real(p, v->as.real, err);
    case TSR_VALUE_DTYPE: return put_number(p, v->as.dtype, 4, err);
    case TSR_VALUE_TENSOR: return put_tensor(p, v->as.tensor, err);
    case TSR_VALUE_COMPLEX: TSR_TRY(put_real(p, v->as.complex.re, err)); return put_real(p, v->as.complex.im, err);
    case TSR_VALUE_BIGINT:
    case TSR_VALUE_STR:
    case TSR_VALUE_BYTES:
    case TSR_VALUE_DEVICE:
    case TSR_VALUE_GLOBAL: return put_text(p, v->text, err);
    case TSR_VALUE_LIST:
    case TSR_VALUE_TUPLE:
    case TSR_VALUE_SET:
    case TSR_VALUE_SIZE:
    case TSR_VALUE_DICT:
    case TSR_VALUE_OBJECT: break;
    }
    TSR_TRY(put_number(p, (unsigned)v->ordered_dict | (unsigned)v->called << 1, 1, err));
    if (v->kind == TSR_VALUE_OBJECT || v->variant == TSR_VARIANT_DEFAULTDICT) TSR_TRY(put_text(p, v->text, err));
    return put_number(p, v->count, 8, err);
}

static tsr_status enter(packing *p, const tsr_value *v, tsr_error *err)
{
    TSR_FAIL_IF(++p->visited > p->host->limits.expansion, err, TSR_E_LIMIT, "optim: more than %" PRIu64 " values",
                p->host->limits.expansion);
    TSR_TRY(put_head(p, v, err));
    if (v->count == 0) return TSR_OK;
    TSR_FAIL_IF(p->stack.count >= p->host->limits.depth, err, TSR_E_LIMIT, "optim: nested deeper than %" PRIu32,
                p->host->limits.depth);
    visit *top = tsr_vec_push(&p->stack, err);
    if (!top) return TSR_E_NOMEM;
    *top = (visit){v, 0};
    return TSR_OK;
}

tsr_status tsr_tree_pack(const tsr_value *tree, const tsr_live *live, const tsr_host *host, tsr_vec *bytes, tsr_vec *tensors,
                         tsr_error *err)
{
    packing p = {live, host, bytes, tensors, tsr_vec_of(host->allocator, sizeof(visit)), 0, 0};
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
    tsr_str bytes;
    size_t at;
    bool failed; /* something was read beyond the end */
    uint32_t file;
    const tsr_unpacked_into *into;
    tsr_arena *arena; /* into->arena */
    tsr_vec stack;    /* opened */
} unpacking;

/* NULL beyond the end. */
static const uint8_t *take(unpacking *u, uint64_t size)
{
    u->failed = u->failed || size > u->bytes.size - u->at;
    if (u->failed) return NULL;
    u->at += (size_t)size;
    return (const uint8_t *)u->bytes.data + u->at - size;
}

/* 0 beyond the end, so it is enough to check `failed` once after several numbers. */
static uint64_t take_number(unpacking *u, unsigned bytes)
{
    const uint8_t *data = take(u, bytes);
    return data ? tsr_load_le(data, bytes) : 0;
}

static tsr_status take_text(unpacking *u, tsr_str *out, tsr_error *err)
{
    const uint64_t size = take_number(u, 8);
    const uint8_t *data = take(u, size);
    if (!data) return tsr_raise(err, TSR_E_FORMAT, u->at, "optim: a rank sent a truncated string");
    *out = tsr_arena_str(u->arena, (tsr_str){(const char *)data, (size_t)size}, err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static double take_real(unpacking *u)
{
    uint64_t bits = take_number(u, 8);
    double real;
    memcpy(&real, &bits, sizeof real);
    return real;
}

static tsr_status take_scalar(unpacking *u, tsr_chunk *chunk, size_t size, tsr_error *err)
{
    const uint8_t *data = take(u, size);
    TSR_FAIL_AT(!data, err, TSR_E_FORMAT, u->at, "optim: a rank sent a truncated tensor");
    chunk->file = u->into->scalar_file;
    chunk->byte_offset = u->into->scalars->count;
    return tsr_vec_append(u->into->scalars, data, size, err);
}

static tsr_status take_tensor(unpacking *u, const tsr_entry **out, tsr_error *err)
{
    tsr_entry *entry = TSR_ARENA_NEW(u->arena, tsr_entry, err);
    tsr_chunk *chunk = TSR_ARENA_NEW(u->arena, tsr_chunk, err);
    if (!entry || !chunk) return TSR_E_NOMEM;
    *entry = (tsr_entry){.kind = TSR_ENTRY_TENSOR, .chunks = chunk, .chunk_count = 1};
    TSR_TRY(take_text(u, &entry->fqn, err));
    entry->dtype = (tsr_dtype)take_number(u, 4);
    entry->ndim = (uint32_t)take_number(u, 4);
    TSR_FAIL_AT(entry->ndim > TSR_MAX_NDIM || entry->dtype >= TSR_DTYPE_COUNT, err, TSR_E_FORMAT, u->at,
                "optim: a rank sent a tensor of %" PRIu32 " dimensions", entry->ndim);
    uint64_t *numbers = tsr_arena_array(u->arena, 3 * (size_t)entry->ndim, sizeof *numbers, err), *sizes, elements;
    if (!numbers) return TSR_E_NOMEM;
    sizes = numbers + 2 * (size_t)entry->ndim;
    for (uint32_t d = 0; d < entry->ndim; d++) sizes[d] = numbers[entry->ndim + d] = take_number(u, 8);
    entry->shape = numbers + entry->ndim;
    *chunk = (tsr_chunk){.offsets = numbers, .sizes = sizes, .file = u->file};
    *out = entry;
    if (entry->ndim) {
        numbers[0] = take_number(u, 8);
        sizes[0] = take_number(u, 8);
    }
    bool fits = tsr_entry_elements(entry, &elements) && tsr_box_volume((tsr_box){entry->ndim, NULL, sizes}, &elements) &&
                !__builtin_mul_overflow(elements, (uint64_t)tsr_dtype_size(entry->dtype), &chunk->byte_length);
    fits = fits && (!entry->ndim || (numbers[0] <= entry->shape[0] && sizes[0] <= entry->shape[0] - numbers[0]));
    TSR_FAIL_AT(!fits, err, TSR_E_FORMAT, u->at, "optim: a rank sent a tensor that is too large");
    if (entry->ndim == 0) return take_scalar(u, chunk, (size_t)chunk->byte_length, err);
    chunk->byte_offset = take_number(u, 8);
    return TSR_OK;
}

static tsr_status take_container(unpacking *u, tsr_value *v, tsr_error *err)
{
    const uint64_t flags = take_number(u, 1);
    v->ordered_dict = flags & 1;
    v->called = flags >> 1 & 1;
    if (v->kind == TSR_VALUE_OBJECT || v->variant == TSR_VARIANT_DEFAULTDICT) TSR_TRY(take_text(u, &v->text, err));
    uint64_t count = take_number(u, 8);
    TSR_FAIL_AT(count > u->bytes.size - u->at || (v->kind == TSR_VALUE_DICT && count % 2), err, TSR_E_FORMAT, u->at,
                "optim: a rank sent %" PRIu64 " items in %zu bytes", count, u->bytes.size - u->at);
    const tsr_value **items = tsr_arena_array(u->arena, (size_t)count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    v->items = items;
    v->count = (size_t)count;
    if (count == 0) return TSR_OK;
    TSR_FAIL_AT(u->stack.count >= u->into->host->limits.depth, err, TSR_E_LIMIT, u->at, "optim: nested deeper than %" PRIu32,
                u->into->host->limits.depth);
    opened *top = tsr_vec_push(&u->stack, err);
    if (!top) return TSR_E_NOMEM;
    *top = (opened){items, 0, (size_t)count};
    return TSR_OK;
}

static tsr_status take_value(unpacking *u, const tsr_value **slot, tsr_error *err)
{
    const uint64_t kind = take_number(u, 1), variant = take_number(u, 1);
    TSR_FAIL_AT(u->failed || kind > TSR_VALUE_OBJECT || variant > TSR_VARIANT_DEFAULTDICT, err, TSR_E_FORMAT, u->at,
                "optim: a rank sent a value of an unknown kind");
    tsr_value *v = tsr_value_new(u->arena, (tsr_value_kind)kind, err);
    if (!v) return TSR_E_NOMEM;
    v->variant = (tsr_value_variant)variant;
    *slot = v;
    switch (v->kind) {
    case TSR_VALUE_NONE: return TSR_OK;
    case TSR_VALUE_BOOL: v->as.boolean = take_number(u, 1) != 0; return TSR_OK;
    case TSR_VALUE_INT: v->as.integer = (int64_t)take_number(u, 8); return TSR_OK;
    case TSR_VALUE_FLOAT: v->as.real = take_real(u); return TSR_OK;
    case TSR_VALUE_COMPLEX:
        v->as.complex.re = take_real(u);
        v->as.complex.im = take_real(u);
        return TSR_OK;
    case TSR_VALUE_DTYPE: v->as.dtype = (tsr_dtype)take_number(u, 4); return TSR_OK;
    case TSR_VALUE_TENSOR: return take_tensor(u, &v->as.tensor, err);
    case TSR_VALUE_BIGINT:
    case TSR_VALUE_STR:
    case TSR_VALUE_BYTES:
    case TSR_VALUE_DEVICE:
    case TSR_VALUE_GLOBAL: return take_text(u, &v->text, err);
    default: return take_container(u, v, err);
    }
}

tsr_status tsr_tree_unpack(tsr_str bytes, uint32_t file, const tsr_unpacked_into *into, const tsr_value **out,
                           tsr_error *err)
{
    unpacking u = {bytes, 0, false, file, into, into->arena, tsr_vec_of(into->host->allocator, sizeof(opened))};
    tsr_status status = take_value(&u, out, err);
    while (status == TSR_OK && u.stack.count) {
        opened *top = (opened *)u.stack.items + u.stack.count - 1;
        if (top->next == top->count) u.stack.count--;
        else status = take_value(&u, &top->items[top->next++], err);
    }
    if (status == TSR_OK && (u.failed || u.at < u.bytes.size))
        status = tsr_raise(err, TSR_E_FORMAT, u.at, "optim: the value tree of a rank has the wrong size");
    tsr_vec_free(&u.stack);
    return status;
}
