/* State dicts of live optimizers, keyed by canonical names. They go with those of models (tessera/model_state.h):
 *
 *   {"state": {"fc.weight": {"step": t, "exp_avg": t}}, "param_groups": [{"lr": 0.1, …, "params": ["fc.weight"]}]}
 *
 * or flat (flatten_optimizer_state_dict): {"state.fc.weight.step": t, "param_groups.fc.weight.lr": 0.1, …}. Ranks, threads
 * and `comm` are as in model_state.h. Source of the behavior: torch/distributed/checkpoint/state_dict.py of PyTorch 2.13.
 *
 * Example:
 *
 *     const tsr_state_options options = tsr_state_options_default();
 *     const tsr_state_call call = {.comm = comm, .options = &options};
 *     status = tsr_get_optimizer_state_dict(model, (tsr_optimizers){&optimizer, 1}, &call, dict, &err);
 *     if (status == TSR_OK)
 *         status = tsr_state_dict_save(tsr_state_dict_root(dict), comm, "optim-1000", NULL, host, &err); */
#ifndef TESSERA_OPTIMIZER_STATE_H
#define TESSERA_OPTIMIZER_STATE_H

#include "tessera/model_state.h"

TSR_API_BEGIN

/* PyTorch's algorithms. The first state of SGD, Adam and AdamW is known here; any other has to make its own
 * (tsr_model_optimizer.first_state). Those after TSR_OTHER_ALGORITHM are the ones whose `__setstate__` completes state dicts
 * of older versions. */
typedef enum tsr_algorithm {
    TSR_SGD,
    TSR_ADAM,
    TSR_ADAMW,
    TSR_OTHER_ALGORITHM,
    TSR_ADADELTA,
    TSR_ADAGRAD,
    TSR_ADAMAX,
    TSR_ASGD,
    TSR_NADAM,
    TSR_RADAM,
    TSR_RMSPROP,
    TSR_RPROP
} tsr_algorithm;

typedef struct tsr_model_param {
    const tsr_module_tensor *of; /* in the tree; of an FSDP1 unit `_flat_param`, or an original if it keeps them */
    /* DICT: "exp_avg" → live tensor, "step" → …; NULL: no state (an empty DICT is a state, as in PyTorch). Loading writes
     * into its tensors and replaces the DICT. */
    const tsr_value *state;
    bool has_gradient;
    const char *name; /* used if `of` is NULL: a name that tsr_modules_find finds */
} tsr_model_param;

typedef struct tsr_model_group {
    const tsr_value *options; /* DICT: "lr", "betas", …, without "params". Loading replaces it */
    tsr_model_param *params;
    size_t count;
} tsr_model_group;

typedef struct tsr_model_optimizer {
    tsr_algorithm algorithm;
    tsr_model_group *groups;
    size_t group_count;
    /* Other algorithms than SGD, Adam and AdamW: sets params[].state to the state after a step with zero gradients and
     * learning rate 0. May be NULL. */
    tsr_status (*first_state)(void *ctx, tsr_error *err);
    void *ctx;
    tsr_state_dict *memory; /* owns first states and loaded values, so it must outlive them */
    /* DICT: the optimizer's state under keys that are not parameters; NULL: none. As in PyTorch, getting includes it, with
     * a warning, if the model has FSDP1 units, and fails otherwise. Setting replaces it with the state that a state dict
     * keyed by number has under such keys (tessera/sys/optimizer.h loads those). State dicts keyed by name have no such
     * state, so it is dropped, with a warning. Without FSDP1 units, setting with full_state_dict fails if it is present
     * (TSR_E_UNSUPPORTED). */
    const tsr_value *user_state;
    tsr_dtype default_dtype; /* for first states, torch.get_default_dtype(); TSR_DTYPE_NONE: float32 */
} tsr_model_optimizer;

/* The optimizers of a model. Borrowed. */
typedef struct tsr_optimizers {
    tsr_model_optimizer *const *items;
    size_t count;
} tsr_optimizers;

/* get_optimizer_state_dict: puts the state of all optimizers into `out`, their groups one after another. An optimizer that
 * has no state yet is given its first state, unless there are gradients (PyTorch's _init_optim_state). A shared parameter's
 * state is under its first name. full_state_dict and cpu_offload work as for models; without them, results borrow the
 * optimizers' memory. Errors: TSR_E_USAGE if there is no optimizer, or for a parameter that is not the model's; those of
 * tsr_optim_to_fqn, tsr_optim_merge, tsr_optim_flatten. */
tsr_status tsr_get_optimizer_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_state_call *call,
                                        tsr_state_dict *out, tsr_error *err);

/* ---- FSDP1 ----
 *
 * Where units manage the parameters (tsr_model.fsdp), the live state of a parameter covers only the elements that this rank
 * has: its tensors are one-dimensional, as long as the slice or as an original's part of the slice, or whole for NO_SHARD.
 * Getting gives one tensor per original: whole with full_state_dict (only on rank 0 if cpu_offload or broadcast_from_rank0
 * is set too), otherwise rows (tsr_fsdp_gather_rows). Setting accepts whole tensors or rows; with full_state_dict and
 * either of these options, only rank 0's count.
 *
 * Names do not contain torch.compile's component. State that belongs to no parameter is kept, with a warning to
 * tsr_fsdp_tree.warn. Parameters that never had a gradient may lack state (PyTorch fails then if use_orig_params is set).
 * Memory: only the result. Errors: also those of tsr_fsdp_gather and tsr_fsdp_spread; TSR_E_UNSUPPORTED for units that
 * differ in use_orig_params or in their replicas, and for distributed tensors that units do not manage. Source:
 * FSDP.optim_state_dict, optim_state_dict_to_load. */

/* set_optimizer_state_dict: loads each optimizer's part of `state`, which may be nested or flat, whatever the options.
 * Tensors are copied into the optimizer's existing state, whose tensors must be laid out in the same way (otherwise
 * TSR_E_USAGE, stating both sides; PyTorch accepts any shape). As in Optimizer.load_state_dict, the state of a
 * floating-point parameter is cast to its dtype and moved to its device. "step" keeps its dtype and device, unless the
 * loaded group is capturable or fused: then it becomes float32 on the parameter's device. A dtype without a cast is
 * TSR_E_UNSUPPORTED. State that the state dict does not have is removed, and state that the optimizer does not have is
 * added.
 *
 * With full_state_dict, tensors are whole and each rank keeps its shard. State that the state dict does not have is kept.
 * State that the optimizer does not have is added as PyTorch does: whole, on the ranks that pass a state dict. With
 * broadcast_from_rank0, only rank 0's `state` counts. Without it, only tensors with dimensions can be added; TSR_E_FORMAT
 * names the first key that is anything else ("state.fc.weight.step"). An optimizer that holds no state tensor with
 * dimensions (it has gradients but has not stepped yet, or its algorithm has no state) is TSR_E_USAGE, because nothing
 * shows where tensors belong. Tuples stay tuples (PyTorch turns them into lists).
 *
 * A flat state dict may also have keys for parameters of other optimizers or other pipeline stages; they are ignored. It
 * must have every option of the optimizer's groups (otherwise TSR_E_NOT_FOUND with the key, "param_groups.fc.weight.lr")
 * and, if `strict`, every state that the optimizer holds (PyTorch puts {} in its place). In a broadcast, this applies to
 * the optimizers of all ranks.
 *
 * If a group of the state dict has "param_names" among its options (optimizers built with named parameters do), they
 * replace the optimizer's; otherwise the optimizer keeps its own. Keys of `state` that no optimizer uses are ignored, with
 * a warning.
 *
 * Nothing is written until all ranks have found that everything fits. Errors: TSR_E_FORMAT for an empty state dict, a
 * different number of groups or group sizes, and a group whose options were not saved (PyTorch leaves it without a learning
 * rate); those of tsr_optim_split, tsr_optim_unflatten. */
tsr_status tsr_set_optimizer_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_value *state,
                                        const tsr_state_call *call, tsr_error *err);

/* get_state_dict, set_state_dict: get or set the state of a model and its optimizers together. As in PyTorch,
 * `call->submodules` affects only the model's state, not the optimizers'. Setting loads the optimizers first and then the
 * model; if no rank passes any model state, it loads only the optimizers, as in PyTorch. Nothing is written until both have
 * been found to fit. */
tsr_status tsr_get_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_state_call *call,
                              tsr_state_dict *model_out, tsr_state_dict *optimizer_out, tsr_error *err);
tsr_status tsr_set_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_value *model_state,
                              const tsr_value *optimizer_state, const tsr_state_call *call, tsr_error *err);

TSR_API_END

#endif
