/* Optimizer state in all its forms, as value trees (value.h) whose tensors are TSR_VALUE_TENSOR leaves: nothing here reads
 * or holds tensor bytes.
 *
 *   native     {"state": {0: {"step": t, "exp_avg": t}}, "param_groups": [{"params": [0, 1], "lr": 0.1}]}
 *   nested     the same, keyed by canonical FQN
 *   flat       {"state.fc.weight.step": t, "param_groups.fc.weight.lr": 0.1, …}
 *
 * Results live in `arena` and share the leaves, strings and untouched containers of what they were made from. Walks are
 * bounded by host->limits.depth and .expansion. Errors, unless a function says more: TSR_E_FORMAT for a state dict without
 * its parts or with keys that contradict each other, TSR_E_UNSUPPORTED for values the form cannot hold, TSR_E_LIMIT,
 * TSR_E_NOMEM; messages name the parameter. Thread rule: one arena, one thread.
 *
 * Source of the behaviour: torch/distributed/checkpoint/state_dict.py of PyTorch 2.13.
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

/* Nested (or native: ids become their decimals) → flat, as `_flatten_optim_state_dict`: dicts in a parameter's state are
 * flattened all the way down, everything else there must be a tensor, an int or a float; values of groups are kept whole, once
 * per parameter. Two unequal values under one flat name are an error. */
tsr_status tsr_optim_flatten(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                             tsr_error *err);

/* Information from the optimizer for unflattening flat state. Every field is optional. */
typedef struct tsr_unflatten {
    /* Which FQNs exist and which of them require gradients; those have a state even if it is empty. NULL: FQNs are those of
     * the param_groups keys, whose last component is the option's name. */
    const tsr_params *params;
    /* The FQNs of each group; parameters of one group must agree in every option. NULL: parameters with equal options are
     * one group, in order of first appearance. */
    const tsr_name_list *groups;
    size_t group_count;
    /* Whether two tensors of one dtype and shape hold equal values: options may be tensors, and each parameter has its own.
     * NULL: only if they are the same bytes of one file. */
    tsr_status (*same)(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err);
    void *ctx;
} tsr_unflatten;
/* Flat → nested, as `_unflatten_optim_state_dict` does with a live optimizer. Errors: also those of `same`. */
tsr_status tsr_optim_unflatten(const tsr_value *flat, const tsr_unflatten *how, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err);

/* Native → nested: the names of every group's parameters in the order of its "params" (`_get_optim_state_dict`). State of an
 * id that no group lists is an error, as is an id in two groups. */
tsr_status tsr_optim_to_fqn(const tsr_value *native, tsr_group_names names, const tsr_host *host, tsr_arena *arena,
                            const tsr_value **out, tsr_error *err);
/* Nested → native: parameters are numbered over the groups in order, as `Optimizer.state_dict()` does. */
tsr_status tsr_optim_to_id(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                           tsr_error *err);

/* The names that tsr_optim_to_fqn wants: `listed` as it is; otherwise each group's own "param_names"
 * (optimizers built with named parameters save them), canonicalized; else, for a single group, the model's parameters in
 * order, all of them or those that require gradients, whichever has the group's number. Otherwise TSR_E_USAGE. */
typedef struct tsr_group_naming {
    const tsr_modules *modules;
    tsr_group_names listed; /* `groups` NULL: none are listed */
} tsr_group_naming;
tsr_status tsr_optim_name_groups(const tsr_value *native, const tsr_group_naming *how, const tsr_host *host,
                                 tsr_arena *arena, tsr_group_names *out, tsr_error *err);

/* The algorithms whose state is known before their first step; the others are asked to make theirs. */
typedef enum tsr_algorithm { TSR_SGD, TSR_ADAM, TSR_ADAMW, TSR_OTHER_ALGORITHM } tsr_algorithm;

/* StateDictOptions. Its dsd_fqn_modifiers is a property of the module tree: tsr_module.modifiers are what the method of that
 * name says, and a tree without any is what other names give. */
typedef struct tsr_state_options {
    size_t size; /* TSR_OPTIONS and tsr_state_options_default set it */
    bool full_state_dict;
    bool cpu_offload;
    bool ignore_frozen_params;
    bool keep_submodule_prefixes;
    bool strict;
    bool broadcast_from_rank0;
    bool flatten_optimizer_state_dict;
} tsr_state_options;
/* All false but keep_submodule_prefixes and strict. */
tsr_state_options tsr_state_options_default(void);

TSR_API_END

#endif
