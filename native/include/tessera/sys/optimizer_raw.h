/* An optimizer's own ("raw") state dict, and what FullyShardedDataParallel makes of it: the calls below tsr_get_ and
 * tsr_set_optimizer_state_dict, for programs that make them themselves.
 *
 *   tsr_optimizer_state_dict      ──▶ {"state": {0: …}, …} ── tsr_fsdp_optim_state_dict         ──▶ by name, full
 *   tsr_optimizer_load_state_dict ◀── {"state": {0: …}, …} ◀── tsr_fsdp_optim_state_dict_to_load ◀── or cut in rows
 *
 * State of no parameter (tsr_model_optimizer.user_state) goes all the way in both directions. Named optimizers
 * (NamedOptimizer, KeyedOptimizer) have the names of model.named_parameters() for keys where others have numbers
 * (tessera/sys/optim_keys.h). A state dict without "param_groups", as KeyedOptimizer has it, becomes one without.
 *
 * Source of the behaviour: torch/distributed/fsdp/_optim_utils.py and fully_sharded_data_parallel.py,
 * torch/optim/optimizer.py and torch/distributed/optim/named_optimizer.py of PyTorch 2.13. Thread rule: one thread per
 * rank.
 *
 * Example:
 *
 *     const tsr_raw_optimizer raw = {.model = model, .optimizer = optimizer};
 *     status = tsr_optimizer_state_dict(&raw, dict, &err); */
#ifndef TESSERA_SYS_OPTIMIZER_RAW_H
#define TESSERA_SYS_OPTIMIZER_RAW_H

#include "tessera/optimizer_state.h"

TSR_API_BEGIN

typedef struct tsr_raw_optimizer {
    const tsr_model *model;
    tsr_model_optimizer *optimizer; /* `optim` */
    /* FSDP's calls with a FULL state: what the optimizer was made of (`optim_input`, see tsr_optim_input_names), which
     * counts before `optimizer`. With neither it is all parameters of the model. Deprecated in PyTorch: hence a warning. */
    const tsr_value *input;
    tsr_comm *comm; /* all ranks; NULL: one */
    bool named;     /* is_named_optimizer: state dicts that are made for the optimizer have names for keys */
} tsr_raw_optimizer;

/* Optimizer.state_dict(), of NamedOptimizer if `named`. Tensors are the optimizer's own memory. Without communication.
 * Errors: TSR_E_USAGE for an optimizer whose parameters are not the model's; TSR_E_UNSUPPORTED for state that belongs to no
 * parameter in a named optimizer, where PyTorch also fails. */
tsr_status tsr_optimizer_state_dict(const tsr_raw_optimizer *optimizer, tsr_state_dict *out, tsr_error *err);

/* Optimizer.load_state_dict(): groups and their parameters are matched by place, state of no parameter is taken over. Of
 * NamedOptimizer if `named`: parameters are matched by name, groups by the names of all their parameters; what `state` does
 * not have stays as it is, and values become of the type that the optimizer's have. Without communication: this rank alone, before it writes anything, finds what does not fit.
 * Errors: TSR_E_FORMAT for other numbers of groups or parameters, and of a named optimizer's states and options, or other
 * names of these; TSR_E_USAGE for a named optimizer without state, and tensors of other shapes than those that they
 * replace; TSR_E_UNSUPPORTED for types without a cast. */
tsr_status tsr_optimizer_load_state_dict(const tsr_raw_optimizer *optimizer, const tsr_value *state, const tsr_host *host,
                                         tsr_error *err);

/* FSDP.optim_state_dict(), and by `settings` full_ and sharded_optim_state_dict(): `raw` (NULL: the optimizer's own), keyed
 * by number or by name, becomes the state by canonical names, as tsr_get_optimizer_state_dict gives it of units (LOCAL is
 * SHARDED, as in PyTorch). With rank0_only ranks other than 0 get an empty dict. No first state is made. Warns of state of
 * no parameter. Collective. Errors: TSR_E_USAGE for a model without FSDP1's units, neither `raw` nor `optimizer`, SHARDED
 * with `input` or rank0_only; those of tsr_optim_input_names, tsr_optim_rekey, tsr_fsdp_gather, tsr_fsdp_gather_rows. */
tsr_status tsr_fsdp_optim_state_dict(const tsr_raw_optimizer *optimizer, const tsr_value *raw,
                                     const tsr_fsdp_settings *settings, tsr_state_dict *out, tsr_error *err);

/* FSDP.optim_state_dict_to_load(), and by `settings` shard_full_ (FULL), scatter_full_ (FULL and rank0_only: only rank 0's
 * `state` counts) and flatten_sharded_optim_state_dict(): the part of the state by canonical names that this rank's
 * optimizer holds, for tsr_optimizer_load_state_dict. "param_groups" may be missing. If `named`, a parameter of original-
 * parameter mode without elements here keeps the state that the optimizer has for it; a warning names it where there is
 * none. Collective. Errors: as above; also TSR_E_USAGE for `named` without `optimizer` or with `input`; those of
 * tsr_fsdp_broadcast and tsr_fsdp_spread. */
tsr_status tsr_fsdp_optim_state_dict_to_load(const tsr_raw_optimizer *optimizer, const tsr_value *state,
                                             const tsr_fsdp_settings *settings, tsr_state_dict *out, tsr_error *err);

TSR_API_END

#endif
