/* Merges several optimizers into one state dict, and splits off each one's part again (the end of `_get_optim_state_dict`,
 * and `_split_optim_state_dict`, of PyTorch 2.13). */
#include "optim/tree.h"
#include "tessera/optim.h"
#include "tessera/sys/map.h"
#include "tessera/sys/optim_live.h"
#include "tessera/sys/params.h"
#include "tessera/sys/try.h"

typedef struct merging {
    tsr_tree state, groups;
    tsr_map *seen; /* parameter → anything */
    tsr_arena *arena;
} merging;

static tsr_status add_part(merging *m, const tsr_value *part, tsr_error *err)
{
    tsr_optim_parts p;
    TSR_TRY(tsr_optim_take_apart(part, true, &p, err));
    for (size_t i = 0; i < p.state->count; i += 2) {
        tsr_str name;
        bool fresh;
        TSR_TRY(tsr_key_text(p.state->items[i], m->arena, &name, err));
        TSR_TRY(tsr_map_put(m->seen, name, 0, NULL, &fresh, err));
        TSR_FAIL_IF(!fresh, err, TSR_E_FORMAT, "optim: two optimizers have state for '%.*s'", TSR_STR_ARG(name));
        TSR_TRY(tsr_tree_put_key(&m->state, p.state->items[i], p.state->items[i + 1], err));
    }
    for (size_t i = 0; i < p.groups->count; i++) TSR_TRY(tsr_tree_add(&m->groups, p.groups->items[i], err));
    return TSR_OK;
}

tsr_status tsr_optim_merge(const tsr_value *const *parts, size_t count, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err)
{
    merging m = {tsr_tree_on(host, arena), tsr_tree_on(host, arena), tsr_map_new(host->allocator, 0, err), arena};
    const tsr_value *state = NULL, *groups = NULL;
    tsr_status status = m.seen ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < count && status == TSR_OK; i++) status = add_part(&m, parts[i], err);
    if (status == TSR_OK) status = tsr_tree_finish(&m.state, TSR_VALUE_DICT, &state, err);
    if (status == TSR_OK) status = tsr_tree_finish(&m.groups, TSR_VALUE_LIST, &groups, err);
    if (status == TSR_OK) status = tsr_tree_optim(state, groups, arena, out, err);
    tsr_map_free(m.seen);
    tsr_tree_drop(&m.groups);
    tsr_tree_drop(&m.state);
    return status;
}

/* ---- split ---- */

#define NOWHERE UINT32_MAX

typedef struct splitting {
    const tsr_optim_parts *saved;
    const tsr_params *params;
    bool strict;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_map *state_of; /* FQN → index of its pair in saved->state */
    tsr_map *group_of; /* FQN → index of its group in saved->groups */
    uint32_t *target;  /* index of a saved group → group of the optimizer, or NOWHERE */
    tsr_tree state;
} splitting;

static tsr_status index_saved(splitting *s, tsr_error *err)
{
    const tsr_value *state = s->saved->state, *groups = s->saved->groups;
    for (size_t i = 0; i < state->count; i += 2) {
        if (state->items[i]->kind == TSR_VALUE_STR)
            TSR_TRY(tsr_map_put(s->state_of, state->items[i]->text, (uint32_t)i, NULL, NULL, err));
    }
    for (size_t g = 0; g < groups->count; g++) {
        const tsr_value *params = tsr_group_params(groups->items[g]);
        s->target[g] = NOWHERE;
        for (size_t i = 0; i < params->count; i++) {
            if (params->items[i]->kind == TSR_VALUE_STR)
                TSR_TRY(tsr_map_put(s->group_of, params->items[i]->text, (uint32_t)g, NULL, NULL, err));
        }
    }
    return TSR_OK;
}

/* Takes the state of a parameter under one of its names, and assigns its saved group to `group`. */
static tsr_status take_name(splitting *s, const tsr_param *param, tsr_str fqn, uint32_t group, tsr_tree *names,
                            tsr_error *err)
{
    uint32_t saved_group = tsr_map_get(s->group_of, fqn, NOWHERE);
    if (param->shared && saved_group == NOWHERE) return TSR_OK; /* it was saved under another of its names */
    TSR_TRY(tsr_tree_add(names, tsr_value_str(s->arena, fqn, err), err));
    if (saved_group != NOWHERE) s->target[saved_group] = group;
    if (!param->tensor->requires_grad) return TSR_OK;
    uint32_t at = tsr_map_get(s->state_of, fqn, NOWHERE);
    if (at != NOWHERE) return tsr_tree_put_key(&s->state, s->saved->state->items[at], s->saved->state->items[at + 1], err);
    TSR_FAIL_IF(s->strict, err, TSR_E_NOT_FOUND, "optim: no state was saved for '%.*s', which requires gradients",
                TSR_STR_ARG(fqn));
    return TSR_OK;
}

/* Assigns the only saved group without parameters to a group of the optimizer that has none. */
static tsr_status take_empty(splitting *s, uint32_t group, size_t group_count, tsr_error *err)
{
    uint32_t found = NOWHERE, count = 0;
    for (uint32_t g = 0; g < s->saved->groups->count; g++) {
        if (tsr_group_params(s->saved->groups->items[g])->count) continue;
        found = g;
        count++;
    }
    TSR_FAIL_IF(count != 1, err, TSR_E_FORMAT,
                "optim: group %u of the optimizer has no parameters, which requires exactly one such group in the saved "
                "state; found %u",
                group, count);
    TSR_FAIL_IF(s->saved->groups->count != group_count, err, TSR_E_FORMAT,
                "optim: group %u of the optimizer has no parameters, which is only supported with one optimizer; %zu groups "
                "were saved, but it has %zu",
                group, s->saved->groups->count, group_count);
    s->target[found] = group;
    return TSR_OK;
}

/* dict[key] = value. If several saved groups belong to one group of the optimizer, the last one wins, as in PyTorch. */
static tsr_status set_option(tsr_tree *dict, const tsr_value *key, const tsr_value *value, tsr_error *err)
{
    const tsr_value **items = dict->items.items;
    for (size_t i = 0; i < dict->items.count; i += 2) {
        if (!tsr_key_equal(items[i], key)) continue;
        items[i + 1] = value;
        return TSR_OK;
    }
    return tsr_tree_put_key(dict, key, value, err);
}

static tsr_status put_options(splitting *s, uint32_t group, tsr_tree *dict, tsr_error *err)
{
    for (size_t g = 0; g < s->saved->groups->count; g++) {
        const tsr_value *saved = s->saved->groups->items[g];
        for (size_t k = 0; s->target[g] == group && k < saved->count; k += 2) {
            if (!tsr_is_key(saved->items[k], "params")) TSR_TRY(set_option(dict, saved->items[k], saved->items[k + 1], err));
        }
    }
    return TSR_OK;
}

static tsr_status split_group(splitting *s, const tsr_optimizer *optimizer, uint32_t group, tsr_tree *names, tsr_error *err)
{
    const tsr_optimizer_group *own = &optimizer->groups[group];
    for (size_t i = 0; i < own->count; i++) {
        const tsr_param *param = tsr_params_at(s->params, own->params[i]);
        for (size_t f = 0; f < param->fqn_count; f++) TSR_TRY(take_name(s, param, param->fqns[f], group, names, err));
    }
    return own->count ? TSR_OK : take_empty(s, group, optimizer->group_count, err);
}

static tsr_status build_group(splitting *s, uint32_t group, const tsr_value *names, const tsr_value **out, tsr_error *err)
{
    tsr_tree dict = tsr_tree_on(s->host, s->arena);
    tsr_status status = tsr_tree_put(&dict, TSR_STR("params"), names, err);
    if (status == TSR_OK) status = put_options(s, group, &dict, err);
    if (status == TSR_OK) status = tsr_tree_finish(&dict, TSR_VALUE_DICT, out, err);
    tsr_tree_drop(&dict);
    return status;
}

static tsr_status split(splitting *s, const tsr_optimizer *optimizer, const tsr_value **out, tsr_error *err)
{
    const tsr_value **groups = tsr_arena_array(s->arena, optimizer->group_count, sizeof *groups, err);
    if (!groups || !s->target) return TSR_E_NOMEM;
    TSR_TRY(index_saved(s, err));
    for (uint32_t g = 0; g < optimizer->group_count; g++) { /* names first, because options need the names of every group */
        tsr_tree names = tsr_tree_on(s->host, s->arena);
        tsr_status status = split_group(s, optimizer, g, &names, err);
        if (status == TSR_OK) status = tsr_tree_finish(&names, TSR_VALUE_LIST, &groups[g], err);
        tsr_tree_drop(&names);
        if (status != TSR_OK) return status;
    }
    for (uint32_t g = 0; g < optimizer->group_count; g++) TSR_TRY(build_group(s, g, groups[g], &groups[g], err));
    const tsr_value *state, *list = tsr_value_items(s->arena, TSR_VALUE_LIST, groups, optimizer->group_count, err);
    if (!list) return TSR_E_NOMEM;
    TSR_TRY(tsr_tree_finish(&s->state, TSR_VALUE_DICT, &state, err));
    return tsr_tree_optim(state, list, s->arena, out, err);
}

tsr_status tsr_optim_split(const tsr_value *saved, const tsr_split *how, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err)
{
    tsr_optim_parts parts;
    TSR_TRY(tsr_optim_take_apart(saved, true, &parts, err));
    bool ids = true; /* also true if there is no state at all */
    for (size_t i = 0; i < parts.state->count; i += 2) ids = ids && parts.state->items[i]->kind == TSR_VALUE_INT;
    if (ids) {
        *out = saved;
        return TSR_OK;
    }
    splitting s = {&parts,
                   how->params,
                   how->strict,
                   host,
                   arena,
                   tsr_map_new(host->allocator, 0, err),
                   tsr_map_new(host->allocator, 0, err),
                   tsr_arena_array(arena, parts.groups->count, sizeof(uint32_t), err),
                   tsr_tree_on(host, arena)};
    tsr_status status = s.state_of && s.group_of ? split(&s, how->optimizer, out, err) : TSR_E_NOMEM;
    tsr_tree_drop(&s.state);
    tsr_map_free(s.group_of);
    tsr_map_free(s.state_of);
    return status;
}
