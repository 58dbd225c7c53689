/* Converts optimizer state between its forms. State is a value tree (value.h) with tensors as TSR_VALUE_TENSOR leaves;
 * nothing here reads or holds tensor bytes.
 *
 *   native     {"state": {0: {"step": t, "exp_avg": t}}, "param_groups": [{"params": [0, 1], "lr": 0.1}]}
 *   nested     the same, keyed by canonical FQN
 *   flat       {"state.fc.weight.step": t, "param_groups.fc.weight.lr": 0.1, …}
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

/* Nested → flat, as `_flatten_optim_state_dict` does. Native state is accepted too: its ids are written in decimal. Dicts
 * in a parameter's state are flattened at all depths; any other value there must be a tensor, an int or a float. Values of
 * groups are not flattened, and repeated for each parameter. Two different values under the same flat name are an error. */
tsr_status tsr_optim_flatten(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                             tsr_error *err);

/* Information from the optimizer for unflattening flat state. Every field is optional. */
typedef struct tsr_unflatten {
    /* The FQNs that exist, and which of them require gradients: those get a state even if it is empty. NULL: FQNs are taken
     * from the param_groups keys, whose last component is the option's name. */
    const tsr_params *params;
    /* The FQNs of each group; all parameters of a group must have the same options. NULL: parameters with the same options
     * form a group, in order of first appearance. */
    const tsr_name_list *groups;
    size_t group_count;
    /* Compares the values of two tensors of the same dtype and shape. It is needed because options may be tensors, of which
     * each parameter has its own. NULL: tensors are equal only if they are the same bytes of the same file. */
    tsr_status (*same)(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err);
    void *ctx;
    /* Called for each parameter that has state although it does not require gradients; its state is kept. NULL: such state is
     * left out, as PyTorch does. */
    tsr_status (*frozen)(void *ctx, tsr_str fqn, tsr_error *err);
} tsr_unflatten;
/* Flat → nested, as `_unflatten_optim_state_dict` does with a live optimizer. Errors: also those of `same`. */
tsr_status tsr_optim_unflatten(const tsr_value *flat, const tsr_unflatten *how, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err);

/* Native → nested, as `_get_optim_state_dict` does. `names` has the names of each group's parameters in the order of its
 * "params". State for an id that no group lists is an error, and so is an id in two groups. */
tsr_status tsr_optim_to_fqn(const tsr_value *native, tsr_group_names names, const tsr_host *host, tsr_arena *arena,
                            const tsr_value **out, tsr_error *err);
/* Nested → native: parameters are numbered consecutively over the groups, as in `Optimizer.state_dict()`. */
tsr_status tsr_optim_to_id(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                           tsr_error *err);

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
