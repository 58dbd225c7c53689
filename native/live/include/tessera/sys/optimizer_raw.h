/* An optimizer's own ("raw") state dict, and what FullyShardedDataParallel makes of it. tsr_get_ and
 * tsr_set_optimizer_state_dict are built on such calls; these functions are for programs that make the calls themselves.
 *
 *   tsr_optimizer_state_dict      ──▶ {"state": {0: …}, …} ── tsr_fsdp_optim_state_dict         ──▶ by name, full
 *   tsr_optimizer_load_state_dict ◀── {"state": {0: …}, …} ◀── tsr_fsdp_optim_state_dict_to_load ◀── or split by rows
 *
 * State that belongs to no parameter (tsr_model_optimizer.user_state) is kept in both directions. Where other optimizers
 * have numbers as keys, named ones (NamedOptimizer, KeyedOptimizer) have the names of model.named_parameters()
 * (tessera/sys/optim_keys.h). A state dict without "param_groups", as KeyedOptimizer has it, is converted to one without.
 *
 * Source of the behavior: torch/distributed/fsdp/_optim_utils.py and fully_sharded_data_parallel.py,
 * torch/optim/optimizer.py and torch/distributed/optim/named_optimizer.py of PyTorch 2.13. Thread rule: one thread per rank.
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
    /* For FSDP's calls with a FULL state: the parameters that the optimizer was made with (`optim_input`, see
     * tsr_optim_input_names). Takes precedence over `optimizer`. Without either, they are all parameters of the model.
     * Deprecated in PyTorch, hence a warning. */
    const tsr_value *input;
    tsr_comm *comm; /* all ranks; NULL: one */
    bool named;     /* is_named_optimizer: the state dicts made for the optimizer have names as keys */
} tsr_raw_optimizer;

/* Optimizer.state_dict(); that of NamedOptimizer if `named`. Tensors are the optimizer's own memory. Does not communicate.
 * Errors: TSR_E_USAGE for an optimizer whose parameters are not the model's; TSR_E_UNSUPPORTED for state of a named
 * optimizer that belongs to no parameter, where PyTorch also fails. */
tsr_status tsr_optimizer_state_dict(const tsr_raw_optimizer *optimizer, tsr_state_dict *out, tsr_error *err);

/* Optimizer.load_state_dict(): groups and their parameters are matched by position, and state that belongs to no parameter
 * is taken over. If `named`, that of NamedOptimizer: parameters are matched by name, and groups by the names of all their
 * parameters; values that `state` lacks stay as they are, and values are cast to the types of the optimizer's. Does not
 * communicate: each rank checks by itself that everything fits before it writes anything. Errors: TSR_E_FORMAT if the
 * numbers of groups or parameters differ or, for a named optimizer, the numbers or names of states or options; TSR_E_USAGE
 * for a named optimizer without state, and for tensors whose shapes differ from those that they replace; TSR_E_UNSUPPORTED
 * for types that cannot be cast. */
tsr_status tsr_optimizer_load_state_dict(const tsr_raw_optimizer *optimizer, const tsr_value *state, const tsr_host *host,
                                         tsr_error *err);

/* FSDP.optim_state_dict() and, depending on `settings`, full_ and sharded_optim_state_dict(): converts `raw` (NULL: the
 * optimizer's own state), keyed by number or by name, to the state by canonical names that tsr_get_optimizer_state_dict
 * returns for units (LOCAL is SHARDED, as in PyTorch). With rank0_only, ranks other than 0 get an empty dict. Does not
 * create a first state. Warns of state that belongs to no parameter. Collective. Errors: TSR_E_USAGE for a model without
 * FSDP1 units, if there is neither `raw` nor `optimizer`, and for SHARDED with `input` or rank0_only; those of
 * tsr_optim_input_names, tsr_optim_rekey, tsr_fsdp_gather, tsr_fsdp_gather_rows. */
tsr_status tsr_fsdp_optim_state_dict(const tsr_raw_optimizer *optimizer, const tsr_value *raw,
                                     const tsr_fsdp_settings *settings, tsr_state_dict *out, tsr_error *err);

/* FSDP.optim_state_dict_to_load() and, depending on `settings`, shard_full_ (FULL), scatter_full_ (FULL and rank0_only: only
 * rank 0's `state` is used) and flatten_sharded_optim_state_dict(): returns the part of a state by canonical names that this
 * rank's optimizer holds, for tsr_optimizer_load_state_dict. "param_groups" may be missing. If `named`, a parameter that has
 * no elements on this rank (with use_orig_params) keeps the state that the optimizer has for it; if there is none, a warning
 * names the parameter. Collective. Errors: as above; also TSR_E_USAGE for `named` without `optimizer` or with `input`; those
 * of tsr_fsdp_broadcast and tsr_fsdp_spread. */
tsr_status tsr_fsdp_optim_state_dict_to_load(const tsr_raw_optimizer *optimizer, const tsr_value *state,
                                             const tsr_fsdp_settings *settings, tsr_state_dict *out, tsr_error *err);

TSR_API_END

#endif
