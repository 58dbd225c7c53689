/* Value trees of optimizers: building them, and the checks with which every operation begins. */
#include "optim/tree.h"

#include <inttypes.h>

#include "base/cursor.h"
#include "optim/tree_pack.h"
#include "tessera/box.h"
#include "tessera/catalog.h"
#include "tessera/sys/box.h"
#include "tessera/sys/number_text.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

void tsr_tree_drop(tsr_tree *tree)
{
    tsr_vec_free(&tree->items);
}

tsr_status tsr_tree_add(tsr_tree *tree, const tsr_value *item, tsr_error *err)
{
    if (!item) return TSR_E_NOMEM;
    const tsr_value **slot = tsr_vec_push(&tree->items, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = item;
    return TSR_OK;
}

tsr_status tsr_tree_put_key(tsr_tree *tree, const tsr_value *key, const tsr_value *value, tsr_error *err)
{
    TSR_TRY(tsr_tree_add(tree, key, err));
    return tsr_tree_add(tree, value, err);
}

tsr_status tsr_tree_put(tsr_tree *tree, tsr_str key, const tsr_value *value, tsr_error *err)
{
    return tsr_tree_put_key(tree, tsr_value_str(tree->arena, key, err), value, err);
}

tsr_status tsr_tree_finish(tsr_tree *tree, tsr_value_kind kind, const tsr_value **out, tsr_error *err)
{
    size_t count = tree->items.count;
    const tsr_value **items = tsr_arena_array(tree->arena, count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    if (count) memcpy(items, tree->items.items, count * sizeof *items);
    tree->items.count = 0;
    *out = tsr_value_items(tree->arena, kind, items, count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_tree_optim(const tsr_value *state, const tsr_value *groups, tsr_arena *arena, const tsr_value **out,
                          tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(arena, 4, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    items[0] = tsr_value_str(arena, TSR_STR("state"), err);
    items[1] = state;
    items[2] = tsr_value_str(arena, TSR_STR("param_groups"), err);
    items[3] = groups;
    *out = items[0] && items[2] ? tsr_value_items(arena, TSR_VALUE_DICT, items, groups ? 4 : 2, err) : NULL;
    return *out ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_check_state(const tsr_value *key, const tsr_value *state, tsr_error *err)
{
    TSR_FAIL_IF(state->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "optim: the state of '%.*s' is a %s; expected a dict",
                TSR_STR_ARG(key->kind == TSR_VALUE_STR ? key->text : TSR_STR("(a number)")), tsr_value_kind_name(state));
    return TSR_OK;
}

const tsr_value *tsr_group_params(const tsr_value *group)
{
    return tsr_value_get(group, TSR_STR("params"));
}

tsr_status tsr_group_with_params(const tsr_value *group, const tsr_value *params, tsr_arena *arena, const tsr_value **out,
                                 tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(arena, group->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < group->count; i += 2) {
        items[i] = group->items[i];
        items[i + 1] = tsr_is_key(group->items[i], "params") ? params : group->items[i + 1];
    }
    *out = tsr_value_items(arena, TSR_VALUE_DICT, items, group->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

const char *tsr_value_kind_name(const tsr_value *value)
{
    static const char *const names[] = {"None",       "bool",  "int",    "int",    "float", "complex",
                                        "str",        "bytes", "list",   "tuple",  "set",   "dict",
                                        "torch.Size", "dtype", "device", "tensor", "name",  "object"};
    return names[value->kind];
}

static tsr_str or_unknown(tsr_str text)
{
    return text.data ? text : TSR_STR("?");
}

tsr_str tsr_shape_brief(uint32_t ndim, const uint64_t *shape, tsr_arena *arena)
{
    tsr_str text = TSR_STR("[");
    for (uint32_t d = 0; d < ndim && text.data; d++)
        text = tsr_arena_format(arena, NULL, "%.*s%s%" PRIu64, TSR_STR_ARG(text), d ? ", " : "", shape[d]);
    return or_unknown(text.data ? tsr_arena_format(arena, NULL, "%.*s]", TSR_STR_ARG(text)) : text);
}

tsr_str tsr_value_brief(const tsr_value *value, tsr_arena *arena)
{
    const tsr_entry *e = value->kind == TSR_VALUE_TENSOR ? value->as.tensor : NULL;
    char number[TSR_REAL_TEXT];
    switch (value->kind) {
    case TSR_VALUE_NONE: return TSR_STR("None");
    case TSR_VALUE_BOOL: return value->as.boolean ? TSR_STR("True") : TSR_STR("False");
    case TSR_VALUE_INT: return or_unknown(tsr_arena_format(arena, NULL, "%" PRId64, value->as.integer));
    case TSR_VALUE_FLOAT:
        return or_unknown(tsr_arena_str(arena, tsr_str_from(tsr_real_text(value->as.real, 17, number)), NULL));
    case TSR_VALUE_STR: return or_unknown(tsr_arena_format(arena, NULL, "'%.*s'", TSR_STR_ARG(value->text)));
    case TSR_VALUE_TENSOR:
        return or_unknown(tsr_arena_format(arena, NULL, "a %s tensor %.*s", tsr_dtype_describe(e->dtype)->name,
                                           TSR_STR_ARG(tsr_shape_brief(e->ndim, e->shape, arena))));
    default: return or_unknown(tsr_arena_format(arena, NULL, "a %s of %zu", tsr_value_kind_name(value), value->count));
    }
}

tsr_status tsr_optim_take_apart(const tsr_value *optim, bool groups, tsr_optim_parts *out, tsr_error *err)
{
    TSR_FAIL_IF(optim->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT,
                "optim: expected a dict with 'state' and 'param_groups', found %s", tsr_value_kind_name(optim));
    *out = (tsr_optim_parts){tsr_value_get(optim, TSR_STR("state")), tsr_value_get(optim, TSR_STR("param_groups"))};
    TSR_FAIL_IF(!out->state || out->state->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT,
                "optim: the state dict has no dict 'state'");
    if (!out->groups && !groups) return TSR_OK;
    TSR_FAIL_IF(!out->groups || out->groups->kind != TSR_VALUE_LIST, err, TSR_E_FORMAT,
                "optim: the state dict has no list 'param_groups'");
    for (size_t i = 0; i < out->groups->count; i++) {
        const tsr_value *group = out->groups->items[i],
                        *params = group->kind == TSR_VALUE_DICT ? tsr_group_params(group) : NULL;
        TSR_FAIL_IF(!params || params->kind != TSR_VALUE_LIST, err, TSR_E_FORMAT,
                    "optim: param_groups[%zu] has no list 'params'", i);
    }
    return TSR_OK;
}

tsr_status tsr_key_text(const tsr_value *key, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    switch (key->kind) {
    case TSR_VALUE_STR: *out = key->text; return TSR_OK;
    case TSR_VALUE_INT: *out = tsr_arena_format(arena, err, "%" PRId64, key->as.integer); break;
    case TSR_VALUE_BOOL: *out = key->as.boolean ? TSR_STR("True") : TSR_STR("False"); break;
    case TSR_VALUE_NONE: *out = TSR_STR("None"); break;
    default:
        *out = (tsr_str){NULL, 0};
        return tsr_fail(err, TSR_E_UNSUPPORTED, "optim: a key is a %s; only strings and ints can be flattened",
                        tsr_value_kind_name(key));
    }
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

bool tsr_is_key(const tsr_value *key, const char *text)
{
    return key->kind == TSR_VALUE_STR && tsr_str_equal(key->text, tsr_str_from(text));
}

bool tsr_same_bytes(const tsr_entry *a, const tsr_entry *b)
{
    if (a == b) return true;
    if (a->chunk_count != 1 || b->chunk_count != 1 || a->chunks->file != b->chunks->file) return false;
    const tsr_view *x = a->chunks->view, *y = b->chunks->view;
    bool plain = (!x || !x->strides) && (!y || !y->strides); /* scalars and contiguous tensors, such as options */
    return plain && (x ? x->byte_offset : a->chunks->byte_offset) == (y ? y->byte_offset : b->chunks->byte_offset);
}

bool tsr_same_value(const tsr_value *a, const tsr_value *b)
{
    if (a == b) return true;
    if (tsr_value_match(a, b, 64, 4096) != TSR_SAME) return false;
    return a->kind != TSR_VALUE_TENSOR || tsr_same_bytes(a->as.tensor, b->as.tensor);
}

bool tsr_key_equal(const tsr_value *a, const tsr_value *b)
{
    if (a->kind != b->kind) return false;
    return a->kind == TSR_VALUE_STR ? tsr_str_equal(a->text, b->text)
                                    : a->kind == TSR_VALUE_INT && a->as.integer == b->as.integer;
}

/* ---- packing ---- */

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
    fits = fits && begin <= all && rows <= all - begin && tsr_add_u64(p->byte_at, bytes, &end);
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
    tsr_cursor cursor;
    uint32_t file;
    const tsr_unpacked_into *into;
    tsr_arena *arena; /* into->arena */
    tsr_vec stack;    /* opened */
} unpacking;

static tsr_status take_text(unpacking *u, tsr_str *out, tsr_error *err)
{
    uint64_t size = tsr_cursor_u64(&u->cursor);
    const uint8_t *data = size <= SIZE_MAX ? tsr_cursor_take(&u->cursor, (size_t)size) : NULL;
    if (!data) return tsr_raise(err, TSR_E_FORMAT, u->cursor.at, "optim: a rank sent a truncated string");
    *out = tsr_arena_str(u->arena, (tsr_str){(const char *)data, (size_t)size}, err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static double take_real(unpacking *u)
{
    uint64_t bits = tsr_cursor_u64(&u->cursor);
    double real;
    memcpy(&real, &bits, sizeof real);
    return real;
}

static tsr_status take_scalar(unpacking *u, tsr_chunk *chunk, size_t size, tsr_error *err)
{
    const uint8_t *data = tsr_cursor_take(&u->cursor, size);
    TSR_FAIL_AT(!data, err, TSR_E_FORMAT, u->cursor.at, "optim: a rank sent a truncated tensor");
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
    entry->dtype = (tsr_dtype)tsr_cursor_u32(&u->cursor);
    entry->ndim = tsr_cursor_u32(&u->cursor);
    TSR_FAIL_AT(entry->ndim > TSR_MAX_NDIM || entry->dtype >= TSR_DTYPE_COUNT, err, TSR_E_FORMAT, u->cursor.at,
                "optim: a rank sent a tensor of %" PRIu32 " dimensions", entry->ndim);
    uint64_t *numbers = tsr_arena_array(u->arena, 3 * (size_t)entry->ndim, sizeof *numbers, err), *sizes, elements;
    if (!numbers) return TSR_E_NOMEM;
    sizes = numbers + 2 * (size_t)entry->ndim;
    for (uint32_t d = 0; d < entry->ndim; d++) sizes[d] = numbers[entry->ndim + d] = tsr_cursor_u64(&u->cursor);
    entry->shape = numbers + entry->ndim;
    *chunk = (tsr_chunk){.offsets = numbers, .sizes = sizes, .file = u->file};
    *out = entry;
    if (entry->ndim) {
        numbers[0] = tsr_cursor_u64(&u->cursor);
        sizes[0] = tsr_cursor_u64(&u->cursor);
    }
    bool fits = tsr_entry_elements(entry, &elements) && tsr_box_volume((tsr_box){entry->ndim, NULL, sizes}, &elements) &&
                tsr_mul_u64(elements, tsr_dtype_size(entry->dtype), &chunk->byte_length);
    fits = fits && (!entry->ndim || (numbers[0] <= entry->shape[0] && sizes[0] <= entry->shape[0] - numbers[0]));
    TSR_FAIL_AT(!fits, err, TSR_E_FORMAT, u->cursor.at, "optim: a rank sent a tensor that is too large");
    if (entry->ndim == 0) return take_scalar(u, chunk, (size_t)chunk->byte_length, err);
    chunk->byte_offset = tsr_cursor_u64(&u->cursor);
    return TSR_OK;
}

static tsr_status take_container(unpacking *u, tsr_value *v, tsr_error *err)
{
    uint8_t flags = tsr_cursor_u8(&u->cursor);
    v->ordered_dict = flags & 1;
    v->called = flags >> 1 & 1;
    if (v->kind == TSR_VALUE_OBJECT || v->variant == TSR_VARIANT_DEFAULTDICT) TSR_TRY(take_text(u, &v->text, err));
    uint64_t count = tsr_cursor_u64(&u->cursor);
    TSR_FAIL_AT(count > tsr_cursor_left(&u->cursor) || (v->kind == TSR_VALUE_DICT && count % 2), err, TSR_E_FORMAT,
                u->cursor.at, "optim: a rank sent %" PRIu64 " items in %zu bytes", count, tsr_cursor_left(&u->cursor));
    const tsr_value **items = tsr_arena_array(u->arena, (size_t)count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    v->items = items;
    v->count = (size_t)count;
    if (count == 0) return TSR_OK;
    TSR_FAIL_AT(u->stack.count >= u->into->host->limits.depth, err, TSR_E_LIMIT, u->cursor.at,
                "optim: nested deeper than %" PRIu32, u->into->host->limits.depth);
    opened *top = tsr_vec_push(&u->stack, err);
    if (!top) return TSR_E_NOMEM;
    *top = (opened){items, 0, (size_t)count};
    return TSR_OK;
}

static tsr_status take_value(unpacking *u, const tsr_value **slot, tsr_error *err)
{
    const uint8_t kind = tsr_cursor_u8(&u->cursor), variant = tsr_cursor_u8(&u->cursor);
    TSR_FAIL_AT(u->cursor.failed || kind > TSR_VALUE_OBJECT || variant > TSR_VARIANT_DEFAULTDICT, err, TSR_E_FORMAT,
                u->cursor.at, "optim: a rank sent a value of an unknown kind");
    tsr_value *v = tsr_value_new(u->arena, (tsr_value_kind)kind, err);
    if (!v) return TSR_E_NOMEM;
    v->variant = (tsr_value_variant)variant;
    *slot = v;
    switch (v->kind) {
    case TSR_VALUE_NONE: return TSR_OK;
    case TSR_VALUE_BOOL: v->as.boolean = tsr_cursor_u8(&u->cursor); return TSR_OK;
    case TSR_VALUE_INT: v->as.integer = (int64_t)tsr_cursor_u64(&u->cursor); return TSR_OK;
    case TSR_VALUE_FLOAT: v->as.real = take_real(u); return TSR_OK;
    case TSR_VALUE_COMPLEX:
        v->as.complex.re = take_real(u);
        v->as.complex.im = take_real(u);
        return TSR_OK;
    case TSR_VALUE_DTYPE: v->as.dtype = (tsr_dtype)tsr_cursor_u32(&u->cursor); return TSR_OK;
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
    unpacking u = {tsr_cursor_on(bytes), file, into, into->arena, tsr_vec_of(into->host->allocator, sizeof(opened))};
    tsr_status status = take_value(&u, out, err);
    while (status == TSR_OK && u.stack.count) {
        opened *top = (opened *)u.stack.items + u.stack.count - 1;
        if (top->next == top->count) u.stack.count--;
        else status = take_value(&u, &top->items[top->next++], err);
    }
    if (status == TSR_OK && (u.cursor.failed || tsr_cursor_left(&u.cursor)))
        status = tsr_raise(err, TSR_E_FORMAT, u.cursor.at, "optim: the value tree of a rank has the wrong size");
    tsr_vec_free(&u.stack);
    return status;
}
