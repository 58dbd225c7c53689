/* Value trees of optimizers: building them, and the checks with which every operation begins. */
#include "tessera/sys/optim_tree.h"

#include <inttypes.h>

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
