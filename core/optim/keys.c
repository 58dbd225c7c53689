/* Converts between parameter ids and FQNs, for whole state dicts.
 *
 * An optimizer numbers its parameters 0, 1, 2, … in the order of its groups. Only the order of the parameters inside the
 * groups connects a number with a name; tsr_optim_name_groups finds that order. */
#include "tessera/optim.h"
#include "tessera/sys/map.h"
#include "tessera/sys/optim_forms.h"
#include "tessera/sys/optim_tree.h"
#include "tessera/sys/params.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"
#include "tessera/sys/vec.h"

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
