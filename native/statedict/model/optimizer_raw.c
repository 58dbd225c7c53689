/* See optimizer_raw.h. */
#include "statedict/model/optimizer_raw.h"

#include "statedict/tensor/path.h"
#include "statedict/tensor/state_dict.h"
#include "tessera/sys/statedict.h"

/* ---- the optimizer and its parameters' names ---- */

/* The param groups that an optimizer made from `input` would have. */
static tsr_status make_groups(tsr_raw *r, tsr_error *err)
{
    const tsr_model *model = r->of->model;
    TSR_TRY(tsr_optim_input_names(r->of->input, model->modules, r->names.host, r->passing, &r->raw, err));
    r->made.groups = tsr_arena_array(r->passing, r->raw.count, sizeof *r->made.groups, err);
    if (!r->made.groups) return TSR_E_NOMEM;
    r->made.group_count = r->raw.count;
    for (size_t g = 0; g < r->raw.count; g++) {
        const tsr_name_list *names = &r->raw.groups[g];
        tsr_model_param *params = tsr_arena_array(r->passing, names->count, sizeof *params, err);
        if (!params) return TSR_E_NOMEM;
        for (size_t p = 0; p < names->count; p++) {
            params[p].name = tsr_arena_format(r->passing, err, "%.*s", TSR_STR_ARG(names->names[p])).data;
            if (!params[p].name) return TSR_E_NOMEM;
        }
        r->made.groups[g] = (tsr_model_group){.params = params, .count = names->count};
    }
    r->optimizer = &r->made;
    return TSR_OK;
}

static tsr_status name_groups(tsr_raw *r, tsr_error *err)
{
    const tsr_model_optimizer *optimizer = r->optimizer = r->of->optimizer;
    tsr_str *by_id = tsr_arena_array(r->passing, r->names.ids.count, sizeof *by_id, err);
    tsr_name_list *lists = tsr_arena_array(r->passing, optimizer->group_count, sizeof *lists, err);
    tsr_state_item *items;
    size_t count;
    if (!by_id || !lists) return TSR_E_NOMEM;
    TSR_TRY(tsr_fqn_named_parameters(r->of->model->modules, r->names.host, r->passing, &items, &count, err));
    for (size_t i = 0; i < count; i++) by_id[items[i].tensor_id] = items[i].raw;
    r->raw = (tsr_group_names){lists, optimizer->group_count};
    for (size_t g = 0; g < optimizer->group_count; g++) {
        const tsr_model_group *group = &optimizer->groups[g];
        tsr_str *names = tsr_arena_array(r->passing, group->count, sizeof *names, err);
        if (!names) return TSR_E_NOMEM;
        for (size_t p = 0; p < group->count; p++) {
            uint32_t id;
            TSR_TRY(tsr_optimizer_param_id(&r->names, &group->params[p], &id, err));
            names[p] = by_id[id];
        }
        lists[g] = (tsr_name_list){names, group->count};
    }
    return TSR_OK;
}

tsr_status tsr_raw_open(const tsr_raw_optimizer *of, bool by_input, const tsr_host *host, tsr_raw *out, tsr_error *err)
{
    *out = (tsr_raw){.of = of, .comm = of->comm, .by_input = by_input && (of->input || !of->optimizer)};
    if (!of->comm) TSR_TRY(tsr_comm_self(host->allocator, &out->self, err));
    if (!of->comm) out->comm = out->self;
    out->passing = tsr_arena_new(host->allocator, 0, err);
    if (!out->passing) return TSR_E_NOMEM;
    TSR_FAIL_IF(!out->by_input && !of->optimizer, err, TSR_E_USAGE, "the call needs an optimizer");
    TSR_TRY(tsr_optimizer_names_of(of->model, out->comm, host, out->passing, &out->names, err));
    return out->by_input ? make_groups(out, err) : name_groups(out, err);
}

void tsr_raw_close(tsr_raw *raw)
{
    tsr_optimizer_names_free(&raw->names);
    tsr_arena_free(raw->passing);
    if (raw->self) raw->self->close(raw->self);
}

/* Copies names for results that outlive the call. */
static tsr_status copy_names(const tsr_group_names *names, tsr_arena *arena, tsr_group_names *out, tsr_error *err)
{
    tsr_name_list *lists = tsr_arena_array(arena, names->count, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    for (size_t g = 0; g < names->count; g++) {
        const tsr_name_list *group = &names->groups[g];
        tsr_str *list = tsr_arena_array(arena, group->count, sizeof *list, err);
        if (!list) return TSR_E_NOMEM;
        for (size_t p = 0; p < group->count; p++)
            if (!(list[p] = tsr_arena_str(arena, group->names[p], err)).data) return TSR_E_NOMEM;
        lists[g] = (tsr_name_list){list, group->count};
    }
    *out = (tsr_group_names){lists, names->count};
    return TSR_OK;
}

tsr_status tsr_raw_rekey(const tsr_raw *raw, const tsr_value *state_dict, bool to_names, tsr_arena *arena,
                         const tsr_value **out, tsr_error *err)
{
    tsr_group_names names = raw->raw;
    const tsr_rekeying how = {.names = &names, .to_names = to_names, .raw_names = true, .keep_others = true};
    if (to_names) TSR_TRY(copy_names(&raw->raw, arena, &names, err));
    return tsr_optim_rekey(state_dict, &how, raw->names.host, arena, out, err);
}

/* ---- got ---- */

static tsr_status get(const tsr_raw *r, tsr_state_dict *out, tsr_error *err)
{
    const tsr_model_optimizer *optimizer = r->optimizer;
    const tsr_value *root;
    TSR_FAIL_IF(r->of->named && optimizer->user_state && optimizer->user_state->count, err, TSR_E_UNSUPPORTED,
                "the optimizer has state that belongs to no parameter; a named optimizer's state dict cannot hold that");
    TSR_TRY(tsr_optimizer_native(optimizer, out->arena, &root, err));
    if (r->of->named) TSR_TRY(tsr_raw_rekey(r, root, true, out->arena, &root, err));
    tsr_state_dict_set_root(out, root);
    return TSR_OK;
}

tsr_status tsr_optimizer_state_dict(const tsr_raw_optimizer *optimizer, tsr_state_dict *out, tsr_error *err)
{
    tsr_raw r;
    tsr_status status = tsr_raw_open(optimizer, false, out->host, &r, err);
    if (status == TSR_OK) status = get(&r, out, err);
    tsr_raw_close(&r);
    return status;
}

/* ---- loaded ---- */

/* Parameters are matched by position, whatever their keys are, so names become numbers. */
static tsr_status number_by_place(const tsr_raw *r, const tsr_value *state, const tsr_value **out, tsr_error *err)
{
    const tsr_value *groups = tsr_value_get(state, TSR_STR("param_groups"));
    size_t count = 0, named = 0;
    *out = state;
    if (!groups) return TSR_OK; /* refused by what reads it */
    tsr_name_list *lists = tsr_arena_array(r->passing, groups->count, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    for (size_t g = 0; g < groups->count; g++) {
        const tsr_value *params = tsr_value_get(groups->items[g], TSR_STR("params"));
        tsr_str *list = params ? tsr_arena_array(r->passing, params->count, sizeof *list, err) : NULL;
        if (!params || (params->count && params->items[0]->kind != TSR_VALUE_STR)) return TSR_OK; /* numbers, or refused */
        if (!list) return TSR_E_NOMEM;
        for (size_t p = 0; p < params->count; p++) list[p] = params->items[p]->text;
        lists[count++] = (tsr_name_list){list, params->count};
        named += params->count;
    }
    if (!named) return TSR_OK;
    const tsr_group_names names = {lists, count};
    const tsr_rekeying how = {.names = &names, .raw_names = true, .keep_others = true};
    return tsr_optim_rekey(state, &how, r->names.host, r->passing, out, err);
}

static tsr_status load(const tsr_raw *r, const tsr_value *state, tsr_error *err)
{
    TSR_FAIL_IF(!state || state->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "the optimizer's state dict is not a dict");
    if (r->of->named) TSR_TRY(tsr_raw_named_load(r, state, &state, err));
    else TSR_TRY(number_by_place(r, state, &state, err));
    return tsr_optimizer_load_numbered(&r->names, r->of->optimizer, state, r->of->named, err);
}

tsr_status tsr_optimizer_load_state_dict(const tsr_raw_optimizer *optimizer, const tsr_value *state, const tsr_host *host,
                                         tsr_error *err)
{
    tsr_raw r;
    tsr_status status = tsr_raw_open(optimizer, false, host, &r, err);
    if (status == TSR_OK) status = load(&r, state, err);
    tsr_raw_close(&r);
    return status;
}
