/* Converts one tree, using the documents of the job. */
#include "optim_convert/optim_job.h"
#include "tessera/compare.h"
#include "tessera/sys/try.h"

#define FROZEN_SHOWN 5u

static bool has_ids(const tsr_value *optim)
{
    const tsr_value *groups = optim->kind == TSR_VALUE_DICT ? tsr_value_get(optim, TSR_STR("param_groups")) : NULL;
    for (size_t i = 0; groups && groups->kind == TSR_VALUE_LIST && i < groups->count; i++) {
        const tsr_value *params =
            groups->items[i]->kind == TSR_VALUE_DICT ? tsr_value_get(groups->items[i], TSR_STR("params")) : NULL;
        if (params && params->kind == TSR_VALUE_LIST && params->count) return params->items[0]->kind == TSR_VALUE_INT;
    }
    return false;
}

tsr_status tsr_optim_same_tensor(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err)
{
    static const tsr_tolerance exact = {.exact = true};
    const tsr_optim_job *j = ctx;
    tsr_checkpoint *checkpoint = j->trees.checkpoint;
    tsr_difference difference;
    const tsr_status status = tsr_compare_tensors((tsr_stored_tensor){checkpoint, a}, (tsr_stored_tensor){checkpoint, b},
                                                  &exact, j->request.ring, &difference, err);
    *equal = status == TSR_OK && difference.differing == 0;
    return status;
}

tsr_status tsr_optim_tree_to_fqn(tsr_optim_job *j, const tsr_value *optim, const tsr_value **out, tsr_error *err)
{
    const tsr_group_naming how = {j->modules, {j->document.groups, j->document.group_count}};
    tsr_group_names names;
    TSR_TRY(tsr_optim_name_groups(optim, &how, j->host, j->arena, &names, err));
    return tsr_optim_to_fqn(optim, names, j->host, j->arena, out, err);
}

tsr_status tsr_optim_flatten_tree(tsr_optim_job *j, const tsr_value *optim, const tsr_value **out, tsr_error *err)
{
    if (j->modules && has_ids(optim)) TSR_TRY(tsr_optim_tree_to_fqn(j, optim, &optim, err));
    return tsr_optim_flatten(optim, j->host, j->arena, out, err);
}

/* Lists the names of parameters that are frozen now. */
static tsr_status note_frozen(void *ctx, tsr_str fqn, tsr_error *err)
{
    tsr_optim_job *j = ctx;
    if (j->frozen_count++ >= FROZEN_SHOWN) return TSR_OK;
    j->frozen = tsr_arena_format(j->arena, err, "%.*s%s'%.*s'", TSR_STR_ARG(j->frozen), j->frozen.size ? ", " : "",
                                 TSR_STR_ARG(fqn));
    return j->frozen.data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_optim_unflatten_tree(tsr_optim_job *j, const tsr_value *flat, const tsr_value **out, tsr_error *err)
{
    const tsr_unflatten how = {.params = j->params,
                               .groups = j->document.groups,
                               .group_count = j->document.group_count,
                               .same = tsr_optim_same_tensor,
                               .ctx = j,
                               .frozen = note_frozen};
    TSR_TRY(tsr_optim_unflatten(flat, &how, j->host, j->arena, out, err));
    if (!j->frozen_count) return TSR_OK;
    const tsr_str message =
        tsr_arena_format(j->arena, err, "%zu frozen parameter%s state, which is kept: %.*s%s", j->frozen_count,
                         j->frozen_count == 1 ? " of the module tree has" : "s of the module tree have",
                         TSR_STR_ARG(j->frozen), j->frozen_count > FROZEN_SHOWN ? ", …" : "");
    if (!message.data) return TSR_E_NOMEM;
    tsr_optim_warn(j, message);
    return TSR_OK;
}
