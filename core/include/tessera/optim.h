/* Converts optimizer state between its forms. State is a value tree (value.h) with tensors as TSR_VALUE_TENSOR leaves;
 * nothing here reads or holds tensor bytes.
 *
 *   native     {"state": {0: {"step": t, "exp_avg": t}}, "param_groups": [{"params": [0, 1], "lr": 0.1}]}
 *   nested     the same, keyed by canonical FQN
 *   flat       {"state.fc.weight.step": t, "param_groups.fc.weight.lr": 0.1, …}     (tessera/sys/optim.h)
 *
 * Results live in `arena` and share the leaves, strings and unchanged containers of their input. Walks are limited by
 * host->limits.depth and .expansion. All functions may return TSR_E_FORMAT for a state dict that lacks a part or has keys
 * that contradict each other, TSR_E_UNSUPPORTED for values that the target form cannot hold, TSR_E_LIMIT and TSR_E_NOMEM;
 * messages name the parameter. Thread rule: one arena, one thread.
 *
 * Source of the behavior: torch/distributed/checkpoint/state_dict.py of PyTorch 2.13.
 *
 * Example:
 *
 *     const tsr_group_naming how = {.modules = modules};
 *     tsr_group_names names;
 *     const tsr_value *named;
 *     status = tsr_optim_name_groups(state, &how, host, arena, &names, &err);
 *     if (status == TSR_OK) status = tsr_optim_to_fqn(state, names, host, arena, &named, &err); */
#ifndef TESSERA_OPTIM_H
#define TESSERA_OPTIM_H

#include "tessera/catalog.h"
#include "tessera/fqn.h"

TSR_API_BEGIN

/* Native → nested, as `_get_optim_state_dict` does. `names` has the names of each group's parameters in the order of its
 * "params". State for an id that no group lists is an error, and so is an id in two groups. */
tsr_status tsr_optim_to_fqn(const tsr_value *native, tsr_group_names names, const tsr_host *host, tsr_arena *arena,
                            const tsr_value **out, tsr_error *err);

/* Finds the names that tsr_optim_to_fqn needs. They are `listed`, if given. Otherwise they are each group's own
 * "param_names", canonicalized (optimizers built with named parameters save them). A single group without "param_names"
 * gets the model's parameters in order: all of them, or those that require gradients, whichever are as many as the group
 * has. With several groups that is TSR_E_USAGE. */
typedef struct tsr_group_naming {
    const tsr_modules *modules;
    tsr_group_names listed; /* `groups` NULL: none are listed */
} tsr_group_naming;
tsr_status tsr_optim_name_groups(const tsr_value *native, const tsr_group_naming *how, const tsr_host *host,
                                 tsr_arena *arena, tsr_group_names *out, tsr_error *err);

TSR_API_END

#endif
