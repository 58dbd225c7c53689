/* Maps tensors to their canonical names and back (the maps of PyTorch's `_verify_options`, torch 2.13). */
#include "tessera/fqn.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/try.h"

struct tsr_params {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec params; /* tsr_param */
    tsr_map *by_fqn;
};

static bool has_fqn(const tsr_param *param, tsr_str fqn)
{
    for (size_t i = 0; i < param->fqn_count; i++) {
        if (tsr_str_equal(param->fqns[i], fqn)) return true;
    }
    return false;
}

/* Adds those of `more` that the parameter does not have yet, in order. */
static tsr_status add_fqns(tsr_params *p, tsr_param *param, const tsr_name *more, tsr_error *err)
{
    tsr_str *all = tsr_arena_array(p->arena, param->fqn_count + more->fqn_count, sizeof *all, err);
    if (!all) return TSR_E_NOMEM;
    if (param->fqn_count) memcpy(all, param->fqns, param->fqn_count * sizeof *all);
    size_t count = param->fqn_count;
    for (size_t i = 0; i < more->fqn_count; i++) {
        if (!has_fqn(param, more->fqns[i])) all[count++] = more->fqns[i];
    }
    param->fqns = all;
    param->fqn_count = count;
    return TSR_OK;
}

static tsr_status add_item(tsr_params *p, const tsr_modules *modules, const tsr_state_item *item, uint32_t *param_of,
                           tsr_error *err)
{
    tsr_name name;
    TSR_TRY(tsr_fqn_resolve(modules, item->raw, NULL, p->arena, &name, err));
    uint32_t index = param_of[item->tensor_id] ? param_of[item->tensor_id] - 1 : (uint32_t)p->params.count;
    if (index == p->params.count) {
        tsr_param *fresh = tsr_vec_push(&p->params, err);
        if (!fresh) return TSR_E_NOMEM;
        *fresh = (tsr_param){.tensor = item->tensor, .kind = item->kind};
        param_of[item->tensor_id] = index + 1;
    } else {
        ((tsr_param *)p->params.items)[index].shared = true;
    }
    tsr_param *known = (tsr_param *)p->params.items + index;
    if (item->kind == TSR_STATE_PARAMETER && known->kind == TSR_STATE_BUFFER) { /* it is also registered as a buffer */
        known->tensor = item->tensor;
        known->kind = item->kind;
    }
    TSR_TRY(add_fqns(p, (tsr_param *)p->params.items + index, &name, err));
    for (size_t i = 0; i < name.fqn_count; i++) {
        uint32_t *owner;
        TSR_TRY(tsr_map_put(p->by_fqn, name.fqns[i], index, &owner, NULL, err));
        *owner = index;
    }
    return TSR_OK;
}

static tsr_status fill(tsr_params *p, const tsr_modules *modules, tsr_error *err)
{
    p->arena = tsr_arena_new(p->host->allocator, (size_t)p->host->limits.memory_bytes, err);
    p->by_fqn = tsr_map_new(p->host->allocator, 0, err);
    if (!p->arena || !p->by_fqn) return TSR_E_NOMEM;
    tsr_state_item *items;
    size_t count;
    TSR_TRY(tsr_fqn_iterate(modules, p->host, p->arena, &items, &count, err));
    uint32_t *param_of = tsr_arena_array(p->arena, tsr_modules_tensor_count(modules), sizeof *param_of, err);
    if (!param_of) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        if (items[i].kind != TSR_STATE_EXTRA) TSR_TRY(add_item(p, modules, &items[i], param_of, err));
    }
    return TSR_OK;
}

tsr_status tsr_params_new(const tsr_modules *modules, const tsr_host *host, tsr_params **out, tsr_error *err)
{
    tsr_params *p = tsr_alloc(host->allocator, 1, sizeof *p, err);
    if (!p) return TSR_E_NOMEM;
    *p = (tsr_params){host, NULL, tsr_vec_of(host->allocator, sizeof(tsr_param)), NULL};
    tsr_status status = fill(p, modules, err);
    if (status == TSR_OK) *out = p;
    else tsr_params_free(p);
    return status;
}

static tsr_status add_listed(tsr_params *p, const tsr_param *listed, tsr_error *err)
{
    const uint32_t index = (uint32_t)p->params.count;
    tsr_str *fqns = tsr_arena_array(p->arena, listed->fqn_count, sizeof *fqns, err);
    tsr_param *param = tsr_vec_push(&p->params, err);
    if (!fqns || !param) return TSR_E_NOMEM;
    *param = *listed;
    param->fqns = fqns;
    for (size_t i = 0; i < listed->fqn_count; i++) {
        uint32_t *owner;
        fqns[i] = tsr_arena_str(p->arena, listed->fqns[i], err);
        if (!fqns[i].data) return TSR_E_NOMEM;
        TSR_TRY(tsr_map_put(p->by_fqn, fqns[i], index, &owner, NULL, err));
        *owner = index;
    }
    return TSR_OK;
}

static tsr_status fill_listed(tsr_params *p, const tsr_param *list, size_t count, tsr_error *err)
{
    p->arena = tsr_arena_new(p->host->allocator, (size_t)p->host->limits.memory_bytes, err);
    p->by_fqn = tsr_map_new(p->host->allocator, 0, err);
    if (!p->arena || !p->by_fqn) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) TSR_TRY(add_listed(p, &list[i], err));
    return TSR_OK;
}

tsr_status tsr_params_listed(const tsr_param *list, size_t count, const tsr_host *host, tsr_params **out, tsr_error *err)
{
    tsr_params *p = tsr_alloc(host->allocator, 1, sizeof *p, err);
    if (!p) return TSR_E_NOMEM;
    *p = (tsr_params){host, NULL, tsr_vec_of(host->allocator, sizeof(tsr_param)), NULL};
    tsr_status status = fill_listed(p, list, count, err);
    if (status == TSR_OK) *out = p;
    else tsr_params_free(p);
    return status;
}

void tsr_params_free(tsr_params *params)
{
    if (!params) return;
    tsr_map_free(params->by_fqn);
    tsr_vec_free(&params->params);
    tsr_arena_free(params->arena);
    tsr_free(params->host->allocator, params, 1, sizeof *params);
}

size_t tsr_params_count(const tsr_params *params)
{
    return params->params.count;
}

const tsr_param *tsr_params_at(const tsr_params *params, size_t index)
{
    return (const tsr_param *)params->params.items + index;
}

size_t tsr_params_find(const tsr_params *params, tsr_str fqn)
{
    uint32_t index = tsr_map_get(params->by_fqn, fqn, UINT32_MAX);
    return index == UINT32_MAX ? SIZE_MAX : index;
}
