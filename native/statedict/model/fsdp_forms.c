/* FSDP1's forms of an optimizer's state dict, from a raw one and back: FSDP.optim_state_dict, optim_state_dict_to_load. */
#include "statedict/model/optimizer_raw.h"
#include "statedict/model/optimizer_take.h"
#include "statedict/tensor/state_dict.h"
#include "tessera/sys/map.h"
#include "tessera/sys/optim_comm.h"
#include "tessera/sys/statedict.h"

typedef struct forming {
    tsr_raw raw;
    const tsr_fsdp_settings *settings;
    tsr_state_options options; /* that choose the same form */
    tsr_state_dict *out;
    tsr_name_list *groups; /* the names that the units' description has */
    size_t group_count;
} forming;

static bool is_full(const tsr_fsdp_settings *settings)
{
    return settings->type == TSR_FSDP_FULL;
}

/* cpu_offload with full_state_dict would be for rank 0 alone. */
static tsr_state_options options_of(const tsr_fsdp_settings *settings)
{
    tsr_state_options options = tsr_state_options_default();
    options.full_state_dict = is_full(settings);
    options.broadcast_from_rank0 = is_full(settings) && settings->rank0_only;
    options.cpu_offload = settings->offload && (settings->rank0_only || !is_full(settings));
    return options;
}

static tsr_status check(const tsr_raw_optimizer *of, const tsr_fsdp_settings *settings, tsr_error *err)
{
    TSR_FAIL_IF(!tsr_fsdp_is_in(of->model->modules), err, TSR_E_USAGE,
                "the model has no FSDP1 units; tsr_get_optimizer_state_dict takes any model");
    TSR_FAIL_IF(!is_full(settings) && of->input, err, TSR_E_USAGE,
                "sharded state is converted by the optimizer's own groups; pass the optimizer, not its input");
    TSR_FAIL_IF(!is_full(settings) && !of->optimizer, err, TSR_E_USAGE, "sharded state needs the optimizer");
    TSR_FAIL_IF(!is_full(settings) && settings->rank0_only, err, TSR_E_USAGE,
                "every rank keeps its part of sharded state: rank0_only needs FULL");
    return TSR_OK;
}

static tsr_status open_forms(forming *f, const tsr_raw_optimizer *of, const tsr_fsdp_settings *settings, tsr_state_dict *out,
                             tsr_error *err)
{
    *f = (forming){.settings = settings, .options = options_of(settings), .out = out, .raw = {.of = of, .comm = of->comm}};
    const tsr_status checked = check(of, settings, err);
    tsr_error ignored = {0};
    tsr_status status = tsr_raw_open(of, true, out->host, &f->raw, checked == TSR_OK ? err : &ignored);
    if (checked != TSR_OK) status = checked;
    if (status != TSR_OK) return status;
    f->group_count = f->raw.optimizer->group_count;
    return tsr_optimizer_unit_names(&f->raw.names, f->raw.optimizer, f->raw.passing, &f->groups, err);
}

/* All ranks call in the same way, or fail together; then they learn which of them are replicas. */
static tsr_status agree(forming *f, const char *call, tsr_status mine, tsr_error *err)
{
    if (!f->raw.comm) return mine; /* there was no memory for a communicator of one rank */
    TSR_TRY(tsr_options_agree(f->raw.comm, call, &f->options, f->raw.by_input, mine, err));
    if (f->raw.of->input)
        tsr_fsdp_warn(f->raw.names.fsdp->bound->units, "optim_input is deprecated in PyTorch: pass the optimizer instead");
    return tsr_fsdp_optimizers_meet(f->raw.names.fsdp, err);
}

/* ---- from raw ---- */

static tsr_status number_raw(forming *f, const tsr_value *given, const tsr_value **out, tsr_error *err)
{
    const tsr_raw *r = &f->raw;
    TSR_FAIL_IF(!given && !r->of->optimizer, err, TSR_E_USAGE, "there is neither an optimizer nor its state dict");
    *out = given;
    if (!given) return tsr_optimizer_native(r->of->optimizer, f->out->arena, out, err);
    return tsr_optim_is_named(given) ? tsr_raw_rekey(r, given, false, f->out->arena, out, err) : TSR_OK;
}

/* Groups of the optimizer's parameters, without options, for a state dict that has none: KeyedOptimizer saves none. */
static tsr_status with_groups(forming *f, const tsr_value *given, const tsr_value **out, tsr_error *err)
{
    tsr_arena *arena = f->out->arena;
    const tsr_group_names *names = &f->raw.raw;
    const tsr_value *state = tsr_value_get(given, TSR_STR("state"));
    const bool named = tsr_optim_is_named(given);
    const tsr_value **groups = tsr_arena_array(arena, names->count, sizeof *groups, err);
    if (!groups || !state) return groups ? TSR_OK : TSR_E_NOMEM; /* refused by what reads it */
    for (size_t g = 0, number = 0; g < names->count; g++) {
        const size_t count = names->groups[g].count;
        const tsr_value **params = tsr_arena_array(arena, count, sizeof *params, err);
        for (size_t p = 0; params && p < count; p++, number++) {
            const tsr_str name = named ? tsr_arena_str(arena, names->groups[g].names[p], err) : TSR_STR("");
            params[p] = named ? tsr_value_str(arena, name, err) : tsr_value_int(arena, (int64_t)number, err);
            if (!name.data || !params[p]) return TSR_E_NOMEM;
        }
        groups[g] =
            params ? tsr_value_dict(arena, 1, "params", tsr_value_items(arena, TSR_VALUE_LIST, params, count, err)) : NULL;
        if (!groups[g]) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory for param groups");
    }
    *out = tsr_value_dict(arena, 2, "state", state, "param_groups",
                          tsr_value_items(arena, TSR_VALUE_LIST, groups, names->count, err));
    return *out ? TSR_OK : tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory for param groups");
}

/* Without the groups that with_groups added. */
static tsr_status without_groups(forming *f, const tsr_value **root, tsr_error *err)
{
    const tsr_value *state = tsr_value_get(*root, TSR_STR("state"));
    if (state) *root = tsr_value_dict(f->out->arena, 1, "state", state);
    return *root ? TSR_OK : tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory for the state");
}

static tsr_fsdp_state_call state_call(const forming *f)
{
    return (tsr_fsdp_state_call){f->raw.names.fsdp, {f->groups, f->group_count}, &f->options, f->out};
}

static tsr_status convert_raw(forming *f, const tsr_value *given, tsr_error *err)
{
    const tsr_value *raw = NULL, *root = NULL;
    const tsr_fsdp_settings *s = f->settings;
    const bool lacks = given && given->kind == TSR_VALUE_DICT && !tsr_value_get(given, TSR_STR("param_groups"));
    tsr_status mine = lacks ? with_groups(f, given, &given, err) : TSR_OK;
    if (mine == TSR_OK) mine = number_raw(f, given, &raw, err);
    TSR_TRY(tsr_comm_agree(f->raw.comm, mine, err));
    const tsr_fsdp_state_call call = state_call(f);
    TSR_TRY(tsr_fsdp_optimizer_get(&call, raw, &root, err));
    if (!root) root = tsr_value_items(f->out->arena, TSR_VALUE_DICT, NULL, 0, err);
    tsr_status status = root ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK && lacks) status = without_groups(f, &root, err);
    if (status == TSR_OK && s->offload && !f->options.cpu_offload)
        status = tsr_state_dict_offload(root, NULL, &(tsr_offload_options){.any_type = true}, f->out, err);
    else if (status == TSR_OK) tsr_state_dict_set_root(f->out, root);
    return tsr_comm_agree(f->raw.comm, status, err);
}

tsr_status tsr_fsdp_optim_state_dict(const tsr_raw_optimizer *optimizer, const tsr_value *raw,
                                     const tsr_fsdp_settings *settings, tsr_state_dict *out, tsr_error *err)
{
    forming f;
    tsr_status status = open_forms(&f, optimizer, settings, out, err);
    status = agree(&f, "optim_state_dict: settings", status, err);
    if (status == TSR_OK) status = convert_raw(&f, raw, err);
    tsr_raw_close(&f.raw);
    return status;
}

/* ---- to load ---- */

/* The names of which some rank gives state. */
static tsr_status given_names(forming *f, const tsr_value *state, tsr_map *out, tsr_error *err)
{
    const tsr_value *states = state && state->kind == TSR_VALUE_DICT ? tsr_value_get(state, TSR_STR("state")) : NULL;
    const size_t most = states && states->kind == TSR_VALUE_DICT ? states->count / 2 : 0;
    tsr_str *mine = tsr_arena_array(f->raw.passing, most, sizeof *mine, err);
    const tsr_ranks ranks = {f->raw.comm, f->out->host->allocator};
    tsr_name_list all;
    size_t count = 0;
    TSR_TRY(tsr_comm_agree(f->raw.comm, mine && out ? TSR_OK : TSR_E_NOMEM, err));
    for (size_t i = 0; i < most; i++)
        if (states->items[2 * i]->kind == TSR_VALUE_STR) mine[count++] = states->items[2 * i]->text;
    TSR_TRY(tsr_flat_agree_on_keys(ranks, (tsr_name_list){mine, count}, true, f->raw.passing, &all, err));
    for (size_t i = 0; i < all.count; i++) TSR_TRY(tsr_map_put(out, all.names[i], 1, NULL, NULL, err));
    return TSR_OK;
}

/* The optimizer's own state of a parameter that has none in `native`; NULL: it is not missing, or there is none. */
static tsr_status own_state(forming *f, const tsr_model_param *param, const tsr_map *given, const tsr_value **out,
                            tsr_error *err)
{
    const tsr_fsdp_optimizers *fsdp = f->raw.names.fsdp;
    const tsr_taking taking = {.memory = f->out, .passing = f->raw.passing};
    uint32_t id;
    *out = NULL;
    TSR_TRY(tsr_optimizer_param_id(&f->raw.names, param, &id, err));
    if (!fsdp->local[id] || !tsr_map_get(given, fsdp->names[id], 0)) return TSR_OK;
    if (!param->state) {
        tsr_fsdp_warn(fsdp->bound->units, "the optimizer has no state for '%.*s' on this rank",
                      TSR_STR_ARG(fsdp->names[id]));
        return TSR_OK;
    }
    *out = tsr_optimizer_take(&taking, param->state, NULL, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* Named optimizers want state of every parameter: those without elements here keep theirs. */
static tsr_status add_own(forming *f, const tsr_map *given, const tsr_value **native, tsr_error *err)
{
    tsr_arena *arena = f->out->arena;
    const tsr_model_optimizer *optimizer = f->raw.optimizer;
    const tsr_value *state = tsr_value_get(*native, TSR_STR("state"));
    size_t params = 0, count = state->count;
    for (size_t g = 0; g < optimizer->group_count; g++) params += optimizer->groups[g].count;
    const tsr_value **items = tsr_arena_array(arena, state->count + 2 * params, sizeof *items, err);
    bool *there = tsr_arena_array(f->raw.passing, params, sizeof *there, err);
    if (!items || !there) return TSR_E_NOMEM;
    if (count) memcpy(items, state->items, count * sizeof *items);
    for (size_t i = 0; i < state->count; i += 2)
        if (items[i]->kind == TSR_VALUE_INT && (uint64_t)items[i]->as.integer < params) there[items[i]->as.integer] = true;
    for (size_t g = 0, number = 0; g < optimizer->group_count; g++) {
        for (size_t p = 0; p < optimizer->groups[g].count; p++, number++) {
            const tsr_value *own = NULL;
            if (!there[number]) TSR_TRY(own_state(f, &optimizer->groups[g].params[p], given, &own, err));
            if (!own) continue;
            items[count++] = tsr_value_int(arena, (int64_t)number, err);
            items[count++] = own;
            if (!items[count - 2]) return TSR_E_NOMEM;
        }
    }
    const tsr_value *all = tsr_value_items(arena, TSR_VALUE_DICT, items, count, err);
    const tsr_value *groups = tsr_value_get(*native, TSR_STR("param_groups"));
    *native =
        groups ? tsr_value_dict(arena, 2, "state", all, "param_groups", groups) : tsr_value_dict(arena, 1, "state", all);
    return *native ? TSR_OK : tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory for the state of a named optimizer");
}

static tsr_status name_loaded(forming *f, const tsr_value *state, const tsr_value **native, tsr_error *err)
{
    tsr_status status = TSR_OK;
    if (f->raw.names.fsdp->flat.use_orig_params) {
        tsr_map *given = tsr_map_new(f->out->host->allocator, 0, err);
        status = given_names(f, state, given, err);
        if (status == TSR_OK) status = add_own(f, given, native, err);
        tsr_map_free(given);
    }
    return status == TSR_OK ? tsr_raw_rekey(&f->raw, *native, true, f->out->arena, native, err) : status;
}

static tsr_status convert_loaded(forming *f, const tsr_value *state, tsr_error *err)
{
    const tsr_value *native = NULL;
    const bool has = !f->options.broadcast_from_rank0 || f->raw.comm->rank == 0;
    tsr_status status = TSR_OK;
    if (has && (!state || state->kind != TSR_VALUE_DICT))
        status = tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "the optimizer's state dict is not a dict");
    TSR_TRY(tsr_comm_agree(f->raw.comm, status, err));
    const tsr_fsdp_state_call call = state_call(f);
    TSR_TRY(tsr_fsdp_optimizer_set(&call, has ? state : NULL, &native, err));
    if (f->raw.of->named) status = name_loaded(f, has ? state : NULL, &native, err);
    TSR_TRY(tsr_comm_agree(f->raw.comm, status, err));
    tsr_state_dict_set_root(f->out, native);
    return TSR_OK;
}

tsr_status tsr_fsdp_optim_state_dict_to_load(const tsr_raw_optimizer *optimizer, const tsr_value *state,
                                             const tsr_fsdp_settings *settings, tsr_state_dict *out, tsr_error *err)
{
    forming f;
    tsr_status status = open_forms(&f, optimizer, settings, out, err);
    if (status == TSR_OK && optimizer->named && (optimizer->input || !optimizer->optimizer))
        status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                           "state for a named optimizer needs the optimizer itself; pass it, and not its input");
    status = agree(&f, "optim_state_dict_to_load: settings", status, err);
    if (status == TSR_OK) status = convert_loaded(&f, state, err);
    tsr_raw_close(&f.raw);
    return status;
}
