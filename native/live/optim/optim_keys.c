/* Converts the keys of parameters in optimizers' state dicts between numbers and names. See optimizer.h. */
#include "tessera/sys/catalog.h"
#include "tessera/sys/optimizer.h"

#include <stdlib.h>

#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/try.h"

/* ---- what an optimizer was created with ---- */

typedef struct naming {
    const tsr_modules *modules;
    tsr_arena *arena;
    tsr_state_item *items; /* named_parameters() */
    size_t count;
    tsr_map *places; /* tensor → its index in `items` */
    bool *taken;     /* indexed like `items` */
} naming;

/* A key that is equal for all names of one tensor. */
static tsr_str tensor_key(const naming *n, const tsr_module_tensor *const *tensor, tsr_error *err)
{
    const tsr_str identity = (*tensor)->identity;
    if (identity.size) return tsr_arena_format(n->arena, err, "=%.*s", TSR_STR_ARG(identity));
    return (tsr_str){(const char *)tensor, sizeof *tensor};
}

static tsr_status index_params(naming *n, const tsr_host *host, tsr_error *err)
{
    TSR_TRY(tsr_fqn_named_parameters(n->modules, host, n->arena, &n->items, &n->count, err));
    n->taken = tsr_arena_array(n->arena, n->count, sizeof *n->taken, err);
    if (!n->taken) return TSR_E_NOMEM;
    for (size_t i = 0; i < n->count; i++) {
        const tsr_str key = tensor_key(n, &n->items[i].tensor, err);
        if (!key.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_map_put(n->places, key, (uint32_t)i, NULL, NULL, err));
    }
    return TSR_OK;
}

static tsr_status take_param(naming *n, const tsr_value *param, tsr_str *out, tsr_error *err)
{
    const tsr_str name = tsr_arena_format(n->arena, err, "%.*s", TSR_STR_ARG(param->text));
    if (!name.data) return TSR_E_NOMEM;
    const tsr_module_tensor *tensor = tsr_modules_find(n->modules, name.data);
    const tsr_str key = tensor ? tensor_key(n, &tensor, err) : TSR_STR("");
    if (tensor && !key.data) return TSR_E_NOMEM;
    const uint32_t place = tensor ? tsr_map_get(n->places, key, UINT32_MAX) : UINT32_MAX;
    TSR_FAIL_IF(place == UINT32_MAX, err, TSR_E_NOT_FOUND,
                "optim: the optimizer's input lists '%.*s', which is not a parameter of the model", TSR_STR_ARG(name));
    TSR_FAIL_IF(n->taken[place], err, TSR_E_USAGE, "optim: the optimizer's input lists '%.*s' twice", TSR_STR_ARG(name));
    n->taken[place] = true;
    *out = n->items[place].raw;
    return TSR_OK;
}

static bool is_list(const tsr_value *value)
{
    return value->kind == TSR_VALUE_LIST || value->kind == TSR_VALUE_TUPLE;
}

static tsr_status take_params(naming *n, const tsr_value *list, size_t group, tsr_name_list *out, tsr_error *err)
{
    tsr_str *names = tsr_arena_array(n->arena, list->count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (size_t i = 0; i < list->count; i++) {
        TSR_FAIL_IF(list->items[i]->kind != TSR_VALUE_STR, err, TSR_E_USAGE,
                    "optim: parameter %zu of group %zu of the optimizer's input is a %s; expected the name of a parameter",
                    i, group, tsr_value_kind_name(list->items[i]));
        TSR_TRY(take_param(n, list->items[i], &names[i], err));
    }
    *out = (tsr_name_list){names, list->count};
    return TSR_OK;
}

static tsr_status take_group(naming *n, const tsr_value *group, size_t number, tsr_name_list *out, tsr_error *err)
{
    const tsr_value *params = tsr_value_get(group, TSR_STR("params"));
    TSR_FAIL_IF(!params, err, TSR_E_USAGE,
                "optim: group %zu of the optimizer's input has no \"params\", the list of its parameters", number);
    TSR_FAIL_IF(!is_list(params), err, TSR_E_USAGE,
                "optim: \"params\" of group %zu of the optimizer's input is a %s; expected a list", number,
                tsr_value_kind_name(params));
    return take_params(n, params, number, out, err);
}

static tsr_status take_input(naming *n, const tsr_value *input, tsr_group_names *out, tsr_error *err)
{
    TSR_FAIL_IF(!is_list(input), err, TSR_E_USAGE,
                "optim: the optimizer's input is a %s; expected a list of parameters or of param groups",
                tsr_value_kind_name(input));
    TSR_FAIL_IF(input->count == 0, err, TSR_E_USAGE, "optim: the optimizer's input is empty");
    const tsr_value_kind kind = input->items[0]->kind;
    for (size_t i = 0; i < input->count; i++)
        TSR_FAIL_IF(input->items[i]->kind != kind || (kind != TSR_VALUE_STR && kind != TSR_VALUE_DICT), err, TSR_E_USAGE,
                    "optim: item %zu of the optimizer's input is a %s; expected parameters only, or param groups only", i,
                    tsr_value_kind_name(input->items[i]));
    const bool grouped = kind == TSR_VALUE_DICT;
    const size_t count = grouped ? input->count : 1;
    tsr_name_list *lists = tsr_arena_array(n->arena, count, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    *out = (tsr_group_names){lists, count};
    if (!grouped) return take_params(n, input, 0, lists, err);
    for (size_t g = 0; g < count; g++) TSR_TRY(take_group(n, input->items[g], g, &lists[g], err));
    return TSR_OK;
}

static tsr_status take_all(naming *n, tsr_group_names *out, tsr_error *err)
{
    tsr_str *names = tsr_arena_array(n->arena, n->count, sizeof *names, err);
    tsr_name_list *list = tsr_arena_array(n->arena, 1, sizeof *list, err);
    if (!names || !list) return TSR_E_NOMEM;
    for (size_t i = 0; i < n->count; i++) names[i] = n->items[i].raw;
    *list = (tsr_name_list){names, n->count};
    *out = (tsr_group_names){list, 1};
    return TSR_OK;
}

tsr_status tsr_optim_input_names(const tsr_value *input, const tsr_modules *modules, const tsr_host *host, tsr_arena *arena,
                                 tsr_group_names *out, tsr_error *err)
{
    naming n = {.modules = modules, .arena = arena, .places = tsr_map_new(host->allocator, 0, err)};
    tsr_status status = n.places ? index_params(&n, host, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = input ? take_input(&n, input, out, err) : take_all(&n, out, err);
    tsr_map_free(n.places);
    return status;
}

/* ---- changing keys ---- */

bool tsr_optim_is_named(const tsr_value *raw)
{
    const tsr_value *state = raw->kind == TSR_VALUE_DICT ? tsr_value_get(raw, TSR_STR("state")) : NULL;
    return state && state->kind == TSR_VALUE_DICT && state->count && state->items[0]->kind == TSR_VALUE_STR;
}

typedef struct rekeying {
    const tsr_rekeying *how;
    tsr_arena *arena;
    tsr_str *names; /* by number */
    size_t count;
    tsr_map *numbers; /* name → number */
} rekeying;

static tsr_status index_names(rekeying *r, tsr_error *err)
{
    const tsr_group_names *names = r->how->names;
    size_t count = 0;
    for (size_t g = 0; g < names->count; g++) count += names->groups[g].count;
    r->names = tsr_arena_array(r->arena, count, sizeof *r->names, err);
    if (!r->names) return TSR_E_NOMEM;
    for (size_t g = 0; g < names->count; g++) {
        for (size_t p = 0; p < names->groups[g].count; p++) {
            tsr_str *name = &r->names[r->count];
            bool fresh;
            *name = names->groups[g].names[p];
            if (!r->how->raw_names) TSR_TRY(tsr_flat_clean_name(*name, r->arena, name, err));
            TSR_TRY(tsr_map_put(r->numbers, *name, (uint32_t)r->count++, NULL, &fresh, err));
            TSR_FAIL_IF(!fresh, err, TSR_E_FORMAT, "optim: the param groups list '%.*s' twice", TSR_STR_ARG(*name));
        }
    }
    return TSR_OK;
}

/* The number that a key refers to, or UINT32_MAX. */
static uint32_t number_of(const rekeying *r, const tsr_value *key)
{
    if (r->how->to_names)
        return key->kind == TSR_VALUE_INT && key->as.integer >= 0 && (uint64_t)key->as.integer < r->count
                   ? (uint32_t)key->as.integer
                   : UINT32_MAX;
    return key->kind == TSR_VALUE_STR ? tsr_map_get(r->numbers, key->text, UINT32_MAX) : UINT32_MAX;
}

static const tsr_value *new_key(const rekeying *r, uint32_t number, tsr_error *err)
{
    return r->how->to_names ? tsr_value_str(r->arena, r->names[number], err) : tsr_value_int(r->arena, number, err);
}

static tsr_status raise_unknown(const rekeying *r, const char *where, const tsr_value *key, tsr_error *err)
{
    return tsr_fail(err, TSR_E_NOT_FOUND, "optim: %s %s, which is not a parameter of the optimizer", where,
                    tsr_value_brief(key, r->arena).data);
}

static tsr_status rekey_state(const rekeying *r, const tsr_value *state, const tsr_value **out, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(r->arena, state->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < state->count; i += 2) {
        const uint32_t number = number_of(r, state->items[i]);
        items[i] = state->items[i];
        items[i + 1] = state->items[i + 1];
        if (number == UINT32_MAX && r->how->keep_others) continue;
        if (number == UINT32_MAX) return raise_unknown(r, "there is state for", state->items[i], err);
        if (!(items[i] = new_key(r, number, err))) return TSR_E_NOMEM;
    }
    *out = tsr_value_items(r->arena, TSR_VALUE_DICT, items, state->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* Compares two strings, or two nonnegative numbers. */
static int by_key(const void *a, const void *b)
{
    const tsr_value *x = *(const tsr_value *const *)a, *y = *(const tsr_value *const *)b;
    if (x->kind == TSR_VALUE_STR) return tsr_str_compare(x->text, y->text);
    return (x->as.integer > y->as.integer) - (x->as.integer < y->as.integer);
}

static tsr_status rekey_params(const rekeying *r, const tsr_value *params, const tsr_value **out, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(r->arena, params->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < params->count; i++) {
        const uint32_t number = number_of(r, params->items[i]);
        if (number == UINT32_MAX) return raise_unknown(r, "a param group lists", params->items[i], err);
        if (!(items[i] = new_key(r, number, err))) return TSR_E_NOMEM;
    }
    if (params->count && (r->how->to_names || !r->how->keep_others)) qsort(items, params->count, sizeof *items, by_key);
    *out = tsr_value_items(r->arena, TSR_VALUE_LIST, items, params->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status rekey_groups(const rekeying *r, const tsr_value *groups, const tsr_value **out, tsr_error *err)
{
    const tsr_value **list = tsr_arena_array(r->arena, groups->count, sizeof *list, err);
    for (size_t g = 0; list && g < groups->count; g++) {
        const tsr_value *group = groups->items[g], *params = NULL;
        TSR_TRY(rekey_params(r, tsr_group_params(group), &params, err));
        TSR_TRY(tsr_group_with_params(group, params, r->arena, &list[g], err));
    }
    *out = list ? tsr_value_items(r->arena, TSR_VALUE_LIST, list, groups->count, err) : NULL;
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* Sets *done if the keys are already of the requested kind. Rejects a mixture of names and numbers. */
static tsr_status check_kinds(const rekeying *r, const tsr_value *state, bool *done, tsr_error *err)
{
    size_t names = 0, numbers = 0;
    for (size_t i = 0; i < state->count; i += 2) {
        names += state->items[i]->kind == TSR_VALUE_STR;
        numbers += state->items[i]->kind == TSR_VALUE_INT;
    }
    TSR_FAIL_IF((names && names < state->count / 2) || (numbers && numbers < state->count / 2), err, TSR_E_FORMAT,
                "optim: the state has keys of several kinds; expected only names, or only numbers");
    *done = (r->how->to_names ? names : numbers) == state->count / 2;
    return TSR_OK;
}

static tsr_status run(rekeying *r, const tsr_value *state_dict, const tsr_value **out, tsr_error *err)
{
    tsr_optim_parts parts;
    const tsr_value *state = NULL, *groups = NULL;
    bool done = false;
    TSR_TRY(tsr_optim_take_apart(state_dict, !r->how->keep_others, &parts, err));
    if (!r->how->keep_others) TSR_TRY(check_kinds(r, parts.state, &done, err));
    *out = state_dict;
    if (done) return TSR_OK;
    TSR_TRY(index_names(r, err));
    TSR_TRY(rekey_state(r, parts.state, &state, err));
    if (parts.groups) TSR_TRY(rekey_groups(r, parts.groups, &groups, err));
    return tsr_tree_optim(state, groups, r->arena, out, err);
}

tsr_status tsr_optim_rekey(const tsr_value *state_dict, const tsr_rekeying *how, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err)
{
    rekeying r = {.how = how, .arena = arena, .numbers = tsr_map_new(host->allocator, 0, err)};
    const tsr_status status = r.numbers ? run(&r, state_dict, out, err) : TSR_E_NOMEM;
    tsr_map_free(r.numbers);
    return status;
}
