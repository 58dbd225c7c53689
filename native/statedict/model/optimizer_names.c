/* Names of a live optimizer's parameters, and its state dict by number. */
#include "statedict/model/optimizer_names.h"

/* ---- names ---- */

static tsr_status first_names(tsr_optimizer_names *out, tsr_error *err)
{
    const tsr_modules *modules = out->model->modules;
    tsr_state_item *named;
    size_t count;
    TSR_TRY(tsr_fqn_named_parameters(modules, out->host, out->arena, &named, &count, err));
    for (size_t i = 0; i < count; i++)
        TSR_TRY(tsr_model_fqn(modules, named[i].raw, out->arena, &out->first[named[i].tensor_id], NULL, err));
    return TSR_OK;
}

tsr_status tsr_optimizer_names_of(const tsr_model *model, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
                                  tsr_optimizer_names *out, tsr_error *err)
{
    *out = (tsr_optimizer_names){.model = model, .host = host, .arena = arena};
    if (tsr_fsdp_is_in(model->modules)) {
        TSR_TRY(tsr_fsdp_optimizers_of(model, comm, host, arena, &out->fsdp, err));
        out->ids = out->fsdp->bound->ids;
        out->held = out->fsdp->bound->held;
        out->first = out->fsdp->names;
        return TSR_OK;
    }
    TSR_TRY(tsr_tensor_ids_of(model->modules, host, arena, &out->ids, err));
    TSR_TRY(tsr_model_held(model, &out->ids, arena, &out->held, err));
    out->first = tsr_arena_array(arena, out->ids.count, sizeof *out->first, err);
    return out->first ? first_names(out, err) : TSR_E_NOMEM;
}

void tsr_optimizer_names_free(tsr_optimizer_names *names)
{
    if (names->fsdp) tsr_fsdp_optimizers_free(names->fsdp);
    else tsr_tensor_ids_free(&names->ids);
}

tsr_status tsr_optimizer_unit_names(const tsr_optimizer_names *names, const tsr_model_optimizer *optimizer, tsr_arena *arena,
                                    tsr_name_list **out, tsr_error *err)
{
    tsr_name_list *lists = *out = tsr_arena_array(arena, optimizer->group_count, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    for (size_t g = 0; g < optimizer->group_count; g++) {
        const tsr_model_group *group = &optimizer->groups[g];
        tsr_str *list = tsr_arena_array(arena, group->count, sizeof *list, err);
        if (!list) return TSR_E_NOMEM;
        for (size_t p = 0; p < group->count; p++) {
            uint32_t id;
            TSR_TRY(tsr_optimizer_param_id(names, &group->params[p], &id, err));
            list[p] = names->first[id];
        }
        lists[g] = (tsr_name_list){list, group->count};
    }
    return TSR_OK;
}

const tsr_module_tensor *tsr_optimizer_param_of(const tsr_optimizer_names *names, const tsr_model_param *param)
{
    return param->of || !param->name ? param->of : tsr_modules_find(names->model->modules, param->name);
}

tsr_status tsr_optimizer_param_id(const tsr_optimizer_names *names, const tsr_model_param *param, uint32_t *id,
                                  tsr_error *err)
{
    const tsr_module_tensor *of = tsr_optimizer_param_of(names, param);
    *id = of ? tsr_tensor_ids_get(&names->ids, &of) : TSR_NO_ID;
    if (*id == TSR_NO_ID || !names->first[*id].data) {
        const tsr_str name = param->of ? param->of->name : tsr_str_from(param->name ? param->name : "");
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "the optimizer's parameter '%.*s' is not one of the model's",
                         TSR_STR_ARG(name));
    }
    TSR_FAIL_IF(!names->held[*id], err, TSR_E_USAGE, "the model has no tensor for '%.*s'", TSR_STR_ARG(names->first[*id]));
    return TSR_OK;
}

/* ---- by number ---- */

static const tsr_value *native_group(const tsr_model_group *group, size_t first, tsr_arena *arena, tsr_error *err)
{
    const size_t options = group->options->count;
    const tsr_value **items = tsr_arena_array(arena, options + 2, sizeof *items, err);
    const tsr_value **params = tsr_arena_array(arena, group->count, sizeof *params, err);
    if (!items || !params) return NULL;
    for (size_t p = 0; p < group->count; p++)
        if (!(params[p] = tsr_value_int(arena, (int64_t)(first + p), err))) return NULL;
    if (options) memcpy(items, group->options->items, options * sizeof *items);
    items[options] = tsr_value_str(arena, TSR_STR("params"), err);
    items[options + 1] = tsr_value_items(arena, TSR_VALUE_LIST, params, group->count, err);
    return items[options] && items[options + 1] ? tsr_value_items(arena, TSR_VALUE_DICT, items, options + 2, err) : NULL;
}

static const tsr_value *optimizer_dict(const tsr_value *state, const tsr_value *groups, tsr_arena *arena, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(arena, 4, sizeof *items, err);
    if (!items || !state || !groups) return NULL;
    items[0] = tsr_value_str(arena, TSR_STR("state"), err);
    items[1] = state;
    items[2] = tsr_value_str(arena, TSR_STR("param_groups"), err);
    items[3] = groups;
    return items[0] && items[2] ? tsr_value_items(arena, TSR_VALUE_DICT, items, 4, err) : NULL;
}

tsr_status tsr_optimizer_native(const tsr_model_optimizer *optimizer, tsr_arena *arena, const tsr_value **out,
                                tsr_error *err)
{
    size_t params = 0, states = 0, number = 0;
    const size_t user = optimizer->user_state ? optimizer->user_state->count : 0;
    for (size_t g = 0; g < optimizer->group_count; g++) params += optimizer->groups[g].count;
    const tsr_value **state = tsr_arena_array(arena, 2 * params + user, sizeof *state, err);
    const tsr_value **groups = tsr_arena_array(arena, optimizer->group_count, sizeof *groups, err);
    if (!state || !groups) return TSR_E_NOMEM;
    for (size_t g = 0; g < optimizer->group_count; g++) {
        const tsr_model_group *group = &optimizer->groups[g];
        TSR_FAIL_IF(!group->options || group->options->kind != TSR_VALUE_DICT, err, TSR_E_USAGE,
                    "the options of param group %zu are not a dict", g);
        if (!(groups[g] = native_group(group, number, arena, err))) return TSR_E_NOMEM;
        for (size_t p = 0; p < group->count; p++, number++) {
            if (!group->params[p].state) continue;
            state[states++] = tsr_value_int(arena, (int64_t)number, err);
            state[states++] = group->params[p].state;
            if (!state[states - 2]) return TSR_E_NOMEM;
        }
    }
    if (user) memcpy(state + states, optimizer->user_state->items, user * sizeof *state);
    states += user;
    *out = optimizer_dict(tsr_value_items(arena, TSR_VALUE_DICT, state, states, err),
                          tsr_value_items(arena, TSR_VALUE_LIST, groups, optimizer->group_count, err), arena, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}
