/* Value trees of optimizers: building them, and the checks with which every operation begins. */
#include <inttypes.h>

#include "tessera/catalog.h"
#include "tessera/optim.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* ---- keys ---- */

/* Converts between parameter ids and FQNs, for whole state dicts.
 *
 * An optimizer numbers its parameters 0, 1, 2, … in the order of its groups. Only the order of the parameters inside the
 * groups connects a number with a name; tsr_optim_name_groups finds that order. */

/* Maps old keys, as text, to new keys. */
typedef struct id_exchange {
    tsr_arena *arena;
    tsr_map *places; /* text of the old key → index in `keys` */
    tsr_vec keys;    /* const tsr_value *: new keys */
} id_exchange;

static tsr_status add_key(id_exchange *r, const tsr_value *old, const tsr_value *new, tsr_error *err)
{
    tsr_str text;
    bool fresh;
    if (!new) return TSR_E_NOMEM;
    TSR_TRY(tsr_key_text(old, r->arena, &text, err));
    TSR_TRY(tsr_map_put(r->places, text, (uint32_t)r->keys.count, NULL, &fresh, err));
    TSR_FAIL_IF(!fresh, err, TSR_E_FORMAT, "optim: parameter '%.*s' occurs twice in the param groups", TSR_STR_ARG(text));
    const tsr_value **slot = tsr_vec_push(&r->keys, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = new;
    return TSR_OK;
}

static tsr_status exchange_state_keys(id_exchange *r, const tsr_value *state, const tsr_value **out, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(r->arena, state->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < state->count; i += 2) {
        tsr_str text;
        TSR_TRY(tsr_key_text(state->items[i], r->arena, &text, err));
        uint32_t place = tsr_map_get(r->places, text, UINT32_MAX);
        TSR_FAIL_IF(place == UINT32_MAX, err, TSR_E_FORMAT,
                    "optim: there is state for '%.*s', which is not in any param group", TSR_STR_ARG(text));
        items[i] = ((const tsr_value **)r->keys.items)[place];
        items[i + 1] = state->items[i + 1];
    }
    *out = tsr_value_items(r->arena, TSR_VALUE_DICT, items, state->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* Gives every parameter of every group its new key: its name in `names`, or its number if `names` is NULL. */
static tsr_status exchange_group_keys(id_exchange *r, const tsr_value *groups, const tsr_name_list *names,
                                      const tsr_value **out, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(r->arena, groups->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    int64_t number = 0;
    for (size_t g = 0; g < groups->count; g++) {
        const tsr_value *params = tsr_group_params(groups->items[g]);
        TSR_FAIL_IF(names && names[g].count != params->count, err, TSR_E_FORMAT,
                    "optim: param_groups[%zu] has %zu parameters, but %zu names", g, params->count, names[g].count);
        const tsr_value **keys = tsr_arena_array(r->arena, params->count, sizeof *keys, err);
        if (!keys) return TSR_E_NOMEM;
        for (size_t i = 0; i < params->count; i++) {
            keys[i] = names ? tsr_value_str(r->arena, names[g].names[i], err) : tsr_value_int(r->arena, number++, err);
            TSR_TRY(add_key(r, params->items[i], keys[i], err));
        }
        const tsr_value *list = tsr_value_items(r->arena, TSR_VALUE_LIST, keys, params->count, err);
        if (!list) return TSR_E_NOMEM;
        TSR_TRY(tsr_group_with_params(groups->items[g], list, r->arena, &items[g], err));
    }
    *out = tsr_value_items(r->arena, TSR_VALUE_LIST, items, groups->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status rekey(const tsr_value *optim, const tsr_name_list *names, const tsr_host *host, tsr_arena *arena,
                        const tsr_value **out, tsr_error *err)
{
    tsr_optim_parts parts;
    TSR_TRY(tsr_optim_take_apart(optim, true, &parts, err));
    id_exchange r = {arena, tsr_map_new(host->allocator, 0, err), tsr_vec_of(host->allocator, sizeof(const tsr_value *))};
    const tsr_value *state = NULL, *groups = NULL;
    tsr_status status = r.places ? exchange_group_keys(&r, parts.groups, names, &groups, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = exchange_state_keys(&r, parts.state, &state, err);
    if (status == TSR_OK) status = tsr_tree_optim(state, groups, arena, out, err);
    tsr_vec_free(&r.keys);
    tsr_map_free(r.places);
    return status;
}

tsr_status tsr_optim_to_fqn(const tsr_value *native, tsr_group_names names, const tsr_host *host, tsr_arena *arena,
                            const tsr_value **out, tsr_error *err)
{
    tsr_optim_parts parts;
    TSR_TRY(tsr_optim_take_apart(native, true, &parts, err));
    TSR_FAIL_IF(names.count != parts.groups->count, err, TSR_E_FORMAT,
                "optim: there are %zu param groups, but names for %zu", parts.groups->count, names.count);
    return rekey(native, names.groups, host, arena, out, err);
}

tsr_status tsr_optim_to_id(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                           tsr_error *err)
{
    return rekey(nested, NULL, host, arena, out, err);
}

/* ---- finding names ---- */

/* Reads `param_names`, which optimizers save if they were created with named parameters. */
static tsr_status names_in_group(const tsr_value *group, size_t number, tsr_arena *arena, tsr_name_list *out, bool *found,
                                 tsr_error *err)
{
    const tsr_value *names = tsr_value_get(group, TSR_STR("param_names"));
    *found = names && names->kind == TSR_VALUE_LIST;
    if (!*found) return TSR_OK;
    tsr_str *texts = tsr_arena_array(arena, names->count, sizeof *texts, err);
    if (!texts) return TSR_E_NOMEM;
    for (size_t i = 0; i < names->count; i++) {
        TSR_FAIL_IF(names->items[i]->kind != TSR_VALUE_STR, err, TSR_E_FORMAT,
                    "optim: param_names[%zu] of group %zu is a %s", i, number, tsr_value_kind_name(names->items[i]));
        texts[i] = names->items[i]->text;
    }
    *out = (tsr_name_list){texts, names->count};
    return TSR_OK;
}

/* Replaces saved names, which are raw, by their FQNs. */
static tsr_status canonicalize(const tsr_modules *modules, tsr_name_list *list, tsr_arena *arena, tsr_error *err)
{
    tsr_str *texts = tsr_arena_array(arena, list->count, sizeof *texts, err);
    if (!texts) return TSR_E_NOMEM;
    for (size_t i = 0; i < list->count; i++) {
        tsr_name name;
        TSR_TRY(tsr_fqn_resolve(modules, list->names[i], NULL, arena, &name, err));
        TSR_FAIL_IF(name.fqn_count != 1, err, TSR_E_FORMAT,
                    "optim: '%.*s' represents %zu parameters; unshard its state first", TSR_STR_ARG(list->names[i]),
                    name.fqn_count);
        texts[i] = name.fqns[0];
    }
    list->names = texts;
    return TSR_OK;
}

static tsr_status names_in_order(const tsr_modules *modules, size_t wanted, const tsr_host *host, tsr_arena *arena,
                                 tsr_name_list *out, tsr_error *err)
{
    tsr_state_item *items;
    size_t count, trainable = 0;
    TSR_TRY(tsr_fqn_named_parameters(modules, host, arena, &items, &count, err));
    for (size_t i = 0; i < count; i++) trainable += items[i].tensor->requires_grad;
    TSR_FAIL_IF(wanted != count && wanted != trainable, err, TSR_E_FORMAT,
                "optim: the param group has %zu parameters, but the module tree has %zu (%zu with gradients)", wanted, count,
                trainable);
    tsr_str *names = tsr_arena_array(arena, wanted, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (wanted == count || items[i].tensor->requires_grad) names[at++] = items[i].raw;
    }
    *out = (tsr_name_list){names, wanted};
    return TSR_OK;
}

typedef struct namer {
    const tsr_value *groups;
    const tsr_modules *modules;
    const tsr_host *host;
    tsr_arena *arena;
} namer;

/* Names the parameters of a group that no document lists. */
static tsr_status name_group(const namer *n, size_t at, tsr_name_list *out, tsr_error *err)
{
    const tsr_value *group = n->groups->items[at];
    bool found;
    TSR_TRY(names_in_group(group, at, n->arena, out, &found, err));
    TSR_FAIL_IF(!found && n->groups->count != 1, err, TSR_E_USAGE,
                "optim: %zu param groups have no param_names; list the parameters of each group under \"groups\" in the "
                "module tree document",
                n->groups->count);
    if (!found) TSR_TRY(names_in_order(n->modules, tsr_group_params(group)->count, n->host, n->arena, out, err));
    return canonicalize(n->modules, out, n->arena, err);
}

tsr_status tsr_optim_name_groups(const tsr_value *native, const tsr_group_naming *how, const tsr_host *host,
                                 tsr_arena *arena, tsr_group_names *out, tsr_error *err)
{
    tsr_optim_parts parts;
    TSR_TRY(tsr_optim_take_apart(native, true, &parts, err));
    const size_t count = parts.groups->count;
    TSR_FAIL_IF(how->listed.groups && how->listed.count != count, err, TSR_E_FORMAT,
                "optim: there are %zu param groups, but the module tree document lists %zu", count, how->listed.count);
    *out = how->listed;
    if (how->listed.groups) return TSR_OK;
    tsr_name_list *lists = tsr_arena_array(arena, count, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    const namer n = {parts.groups, how->modules, host, arena};
    for (size_t i = 0; i < count; i++) TSR_TRY(name_group(&n, i, &lists[i], err));
    *out = (tsr_group_names){lists, count};
    return TSR_OK;
}

/* ---- tree ---- */

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
        items[i + 1] = tsr_is_params(group->items[i]) ? params : group->items[i + 1];
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

bool tsr_is_params(const tsr_value *key)
{
    return key->kind == TSR_VALUE_STR && tsr_str_equal(key->text, TSR_STR("params"));
}

bool tsr_key_equal(const tsr_value *a, const tsr_value *b)
{
    if (a->kind != b->kind) return false;
    return a->kind == TSR_VALUE_STR ? tsr_str_equal(a->text, b->text)
                                    : a->kind == TSR_VALUE_INT && a->as.integer == b->as.integer;
}
