/* State dicts of live optimizers, keyed by canonical names. They complement those of models (tessera/model_state.h):
 *
 *   {"state": {"fc.weight": {"step": t, "exp_avg": t}}, "param_groups": [{"lr": 0.1, …, "params": ["fc.weight"]}]}
 *
 * or flat (flatten_optimizer_state_dict): {"state.fc.weight.step": t, "param_groups.fc.weight.lr": 0.1, …}. Ranks, threads
 * and comm as in model_state.h. Source of the behaviour: torch/distributed/checkpoint/state_dict.py of PyTorch 2.13.
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

typedef struct tsr_model_param {
    const tsr_module_tensor *of; /* a parameter of the tree: `_flat_param` of an FSDP1 unit, or an original that it keeps */
    /* DICT: "exp_avg" → live tensor, "step" → …; NULL: none (an empty DICT is a state without anything in it, as in
     * PyTorch). Loading writes and replaces it. */
    const tsr_value *state;
    bool has_gradient;
    const char *name; /* where `of` is NULL: a name that tsr_modules_find finds */
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
    /* TSR_OTHER_ALGORITHM: sets params[].state to what a step with zero gradients and learning rate 0 leaves. NULL: none. */
    tsr_status (*first_state)(void *ctx, tsr_error *err);
    void *ctx;
    tsr_state_dict *memory; /* of first states and loaded values; must outlive their use */
    /* DICT: what the optimizer's state has under keys that are not parameters; NULL: nothing. As in PyTorch, models with
     * FSDP1's units carry it along when it is got, with a warning, and others refuse it. Setting replaces it by what a state
     * dict keyed by number has under such keys, which is nothing in any other: a warning reports when it is dropped. Other
     * models refuse full_state_dict next to it (TSR_E_UNSUPPORTED). tessera/sys/optimizer_raw.h loads it. */
    const tsr_value *user_state;
    tsr_dtype default_dtype; /* of first states: torch.get_default_dtype(); TSR_DTYPE_NONE: float32 */
} tsr_model_optimizer;

/* The optimizers of a model. Borrowed. */
typedef struct tsr_optimizers {
    tsr_model_optimizer *const *items;
    size_t count;
} tsr_optimizers;

/* get_optimizer_state_dict: the state of all optimizers together, groups one after another. An optimizer without any state gets
 * its first one before, unless there are gradients (PyTorch's _init_optim_state). A shared parameter goes under its first name.
 * full_state_dict and cpu_offload as for models; otherwise results borrow the optimizers' memory. Errors: TSR_E_USAGE for no
 * optimizer, or a parameter that is not the model's; those of tsr_optim_to_fqn, tsr_optim_merge, tsr_optim_flatten.
 */
tsr_status tsr_get_optimizer_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_state_call *call,
                                        tsr_state_dict *out, tsr_error *err);

/* ---- FSDP1 ----
 *
 * Where units manage the parameters (tsr_model.fsdp), a parameter's live state is of what this rank has of it: tensors of
 * one dimension, of the slice or of an original's part in it, whole for NO_SHARD. `get` gives whole tensors by original with
 * full_state_dict (with cpu_offload on rank 0 only, with broadcast_from_rank0 too), otherwise rows (tsr_fsdp_gather_rows).
 * `set` takes whole tensors or rows; with full_state_dict and either of these options rank 0's alone. Names have no
 * component of torch.compile. State of no parameter is kept and told to tsr_fsdp_tree.warn. Memory: its result. Errors: also
 * those of tsr_fsdp_gather, tsr_fsdp_spread; TSR_E_UNSUPPORTED for units that differ in use_orig_params or replicas, and for
 * distributed tensors that units do not manage. Parameters that never had a gradient may lack state (PyTorch's
 * use_orig_params fails then). Source: FSDP.optim_state_dict, optim_state_dict_to_load. */

/* set_optimizer_state_dict: each optimizer's part of `state`, which is nested or flat whatever the options say. Tensors are
 * copied into the state that is there, which must be laid out in the same way (TSR_E_USAGE with both sides; PyTorch takes
 * any shape). As Optimizer.load_state_dict does, state of floating parameters is cast to their type and goes to their
 * device; "step" stays as it is, unless the loaded group is capturable or fused: then it is float32 on the parameter's
 * device (TSR_E_UNSUPPORTED for types without a cast). What the state dict does not have is gone afterwards, and what the
 * optimizer does not hold is added.
 *
 * With full_state_dict tensors are whole, each rank keeps its part, and what the state dict does not have stays as it is. With
 * broadcast_from_rank0 only rank 0's `state` counts. What the optimizer does not hold is added as PyTorch does: on ranks that
 * give a state dict, whole; but without broadcast_from_rank0 only tensors with dimensions can be added, and TSR_E_FORMAT names
 * the first other key ("state.fc.weight.step"). An optimizer without any state tensor (it has gradients but did not step yet,
 * or its algorithm has none) is TSR_E_USAGE: nothing then shows where tensors belong. Tuples stay tuples (PyTorch makes lists
 * of them).
 *
 * A flat state dict may hold other parameters, too (of other optimizers, or other stages of a pipeline): their keys are
 * ignored. It must have every option of the optimizer's groups (TSR_E_NOT_FOUND with the key, "param_groups.fc.weight.lr") and,
 * when `strict`, every state that the optimizer holds (PyTorch puts {} in its place). In a broadcast, that goes for the
 * optimizers of all ranks.
 *
 * "param_names" in the options of a group (optimizers made of named parameters have them) are the state dict's, or stay where
 * it has none. Keys of `state` that no optimizer uses are ignored, with a warning.
 *
 * Nothing is written before all ranks have found that everything fits. Errors: TSR_E_FORMAT for an empty state dict, groups
 * of other numbers or sizes, and a group whose options were not saved (PyTorch leaves it without a learning rate); those of
 * tsr_optim_split, tsr_optim_unflatten. */
tsr_status tsr_set_optimizer_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_value *state,
                                        const tsr_state_call *call, tsr_error *err);

/* get_state_dict, set_state_dict: both. `call->submodules` is for the model's state alone, as in PyTorch; the optimizers' is not
 * cut down. Setting loads the optimizers and then the model, and only the optimizers when no rank gives any model state, as in
 * PyTorch. Neither is written before both have been found to fit. */
tsr_status tsr_get_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_state_call *call,
                              tsr_state_dict *model_out, tsr_state_dict *optimizer_out, tsr_error *err);
tsr_status tsr_set_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_value *model_state,
                              const tsr_value *optimizer_state, const tsr_state_call *call, tsr_error *err);

TSR_API_END

#endif
