/* Gets the state of live optimizers under canonical names, and handles a model together with its optimizers. */
#include "live/model/model_names.h"
#include "live/model/optimizer_names.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/statedict.h"

typedef struct getting {
    tsr_model_optimizer *const *optimizers;
    size_t count;
    const tsr_state_options *options;
    tsr_comm *comm;
    tsr_state_dict *out;
    tsr_arena *passing;
    tsr_optimizer_names names;
    const tsr_value **native; /* one per optimizer: its state dict by number */
    tsr_name_list **groups;   /* one array per optimizer: the names of each param group */
} getting;

/* Checks the options and takes each optimizer's own state dict, before the ranks compare their results. */
static tsr_status prepare(getting *g, const tsr_model *model, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(g->out);
    TSR_TRY(tsr_state_options_check(g->options, g->count, true, err));
    TSR_TRY(tsr_optimizer_names_of(model, g->comm, g->out->host, g->passing, &g->names, err));
    g->native = tsr_arena_array(g->passing, g->count, sizeof *g->native, err);
    g->groups = tsr_arena_array(g->passing, g->count, sizeof *g->groups, err);
    if (!g->native || !g->groups) return TSR_E_NOMEM;
    for (size_t i = 0; i < g->count; i++) {
        TSR_TRY(tsr_optimizer_unit_names(&g->names, g->optimizers[i], g->passing, &g->groups[i], err));
        TSR_TRY(tsr_optimizer_first(g->optimizers[i], &g->names, err));
        TSR_TRY(tsr_optimizer_native(g->optimizers[i], arena, &g->native[i], err));
    }
    return TSR_OK;
}

/* Copies names into `arena`, for a result that outlives the call. */
static tsr_status kept_names(const tsr_name_list *lists, size_t count, tsr_arena *arena, tsr_name_list **out, tsr_error *err)
{
    *out = tsr_arena_array(arena, count, sizeof **out, err);
    for (size_t g = 0; *out && g < count; g++) {
        tsr_str *names = tsr_arena_array(arena, lists[g].count, sizeof *names, err);
        for (size_t p = 0; names && p < lists[g].count; p++)
            if (!(names[p] = tsr_arena_str(arena, lists[g].names[p], err)).data) return TSR_E_NOMEM;
        (*out)[g] = (tsr_name_list){names, lists[g].count};
        if (!names) return TSR_E_NOMEM;
    }
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* Converts each optimizer's state dict to names. One optimizer after another, because those of FSDP1's units need all
 * ranks. */
static tsr_status name_all(getting *g, const tsr_value **parts, size_t *kept, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(g->out);
    tsr_status status = TSR_OK;
    if (g->names.fsdp) TSR_TRY(tsr_fsdp_optimizers_meet(g->names.fsdp, err));
    for (size_t i = 0; i < g->count && status == TSR_OK; i++) {
        const size_t count = g->optimizers[i]->group_count;
        tsr_name_list *names;
        if (g->names.fsdp) {
            const tsr_fsdp_state_call call = {g->names.fsdp, {g->groups[i], count}, g->options, g->out};
            status = tsr_fsdp_optimizer_get(&call, g->native[i], &parts[*kept], err);
            *kept += parts[*kept] != NULL;
            continue;
        }
        status = kept_names(g->groups[i], count, arena, &names, err);
        if (status == TSR_OK)
            status =
                tsr_optim_to_fqn(g->native[i], (tsr_group_names){names, count}, g->out->host, arena, &parts[(*kept)++], err);
    }
    return status;
}

static tsr_status make_state(getting *g, const tsr_value **root, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(g->out);
    const tsr_value **parts = tsr_arena_array(g->passing, g->count + 1, sizeof *parts, err);
    size_t kept = 0;
    TSR_TRY(tsr_comm_agree(g->comm, parts ? TSR_OK : TSR_E_NOMEM, err));
    TSR_TRY(name_all(g, parts, &kept, err));
    TSR_TRY(tsr_optim_merge(parts, kept, g->out->host, arena, root, err));
    return g->options->flatten_optimizer_state_dict ? tsr_optim_flatten(*root, g->out->host, arena, root, err) : TSR_OK;
}

static tsr_status get_optimizers(getting *g, const tsr_model *model, tsr_error *err)
{
    const tsr_value *root = NULL;
    const tsr_status status = g->passing ? prepare(g, model, err) : TSR_E_NOMEM;
    TSR_TRY(tsr_options_agree(g->comm, "get_optimizer_state_dict: options", g->options, g->count, status, err));
    TSR_TRY(tsr_comm_agree(g->comm, make_state(g, &root, err), err));
    return g->names.fsdp ? tsr_fsdp_full_or_cpu(root, g->comm, g->options, g->out, err)
                         : tsr_full_or_cpu(root, g->comm, g->options, g->out, err);
}

tsr_status tsr_get_optimizer_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_state_call *call,
                                        tsr_state_dict *out, tsr_error *err)
{
    tsr_call c;
    TSR_TRY(tsr_call_open(&c, call, out->host, err));
    getting g = {.optimizers = optimizers.items,
                 .count = optimizers.count,
                 .options = &c.options,
                 .comm = c.given.comm,
                 .out = out,
                 .passing = tsr_arena_new(out->host->allocator, 0, err)};
    const tsr_status status = get_optimizers(&g, model, err);
    tsr_optimizer_names_free(&g.names);
    tsr_arena_free(g.passing);
    tsr_call_close(&c);
    return status;
}

/* ---- a model with its optimizers ---- */

tsr_status tsr_get_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_state_call *call,
                              tsr_state_dict *model_out, tsr_state_dict *optimizer_out, tsr_error *err)
{
    TSR_TRY(tsr_get_model_state_dict(model, call, model_out, err));
    return optimizers.count ? tsr_get_optimizer_state_dict(model, optimizers, call, optimizer_out, err) : TSR_OK;
}

tsr_status tsr_set_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_value *model_state,
                              const tsr_value *optimizer_state, const tsr_state_call *call, tsr_error *err)
{
    uint64_t given = model_state ? model_state->count : 0;
    if (call->comm) TSR_TRY(call->comm->largest(call->comm, &given, err));
    if (!optimizers.count) return tsr_set_model_state_dict(model, model_state, call, err);
    if (given == 0) return tsr_set_optimizer_state_dict(model, optimizers, optimizer_state, call, err);
    tsr_model_setting setting;
    tsr_status status = tsr_model_setting_open(&setting, model, model_state, call, err);
    if (status == TSR_OK) status = tsr_set_optimizer_state_dict(model, optimizers, optimizer_state, call, err);
    if (status == TSR_OK) status = tsr_model_setting_write(&setting, err);
    tsr_model_setting_close(&setting);
    return status;
}

static tsr_state_call call_of(const tsr_bound_state *b, tsr_arena *arena)
{
    return (tsr_state_call){.comm = b->comm, .options = &b->options, .host = b->host, .arena = arena};
}

static tsr_status model_get(void *ctx, tsr_state_dict *out, tsr_error *err)
{
    const tsr_bound_state *b = ctx;
    const tsr_state_call call = call_of(b, NULL);
    return tsr_get_model_state_dict(b->model, &call, out, err);
}

static tsr_status model_set(void *ctx, const tsr_value *state, tsr_error *err)
{
    const tsr_bound_state *b = ctx;
    tsr_arena *arena = tsr_arena_new(b->host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    const tsr_state_call call = call_of(b, arena);
    const tsr_status status = tsr_set_model_state_dict(b->model, state, &call, err);
    tsr_arena_free(arena);
    return status;
}

static tsr_status optimizer_get(void *ctx, tsr_state_dict *out, tsr_error *err)
{
    const tsr_bound_state *b = ctx;
    const tsr_state_call call = call_of(b, NULL);
    return tsr_get_optimizer_state_dict(b->model, b->optimizers, &call, out, err);
}

static tsr_status optimizer_set(void *ctx, const tsr_value *state, tsr_error *err)
{
    const tsr_bound_state *b = ctx;
    const tsr_state_call call = call_of(b, NULL);
    return tsr_set_optimizer_state_dict(b->model, b->optimizers, state, &call, err);
}

tsr_state_calls tsr_model_state_calls(tsr_bound_state *bound)
{
    return (tsr_state_calls){model_get, model_set, bound};
}

tsr_state_calls tsr_optimizer_state_calls(tsr_bound_state *bound)
{
    return (tsr_state_calls){optimizer_get, optimizer_set, bound};
}
