/* Which key of an optimizer's own state dict is which parameter.
 *
 *   torch.optim.Optimizer   {"state": {0: …, 1: …}, "param_groups": [{"params": [0, 1]}]}   numbers, through the groups
 *   NamedOptimizer          {"state": {"module.fc.weight": …}, …}                           names, of named_parameters()
 *   rekeyed                 {"state": {"fc.weight": …}, …}                                  names, without wrappers
 *
 * Results live in `arena` and share what did not change. Errors of all: TSR_E_NOMEM. Source of the behavior:
 * torch/distributed/fsdp/_optim_utils.py (_get_param_id_to_param_from_optim_input, _is_named_optimizer,
 * _get_param_key_to_param) and FullyShardedDataParallel.rekey_optim_state_dict of PyTorch 2.13.
 *
 * Example:
 *
 *     tsr_group_names names;
 *     const tsr_rekeying to_names = {.names = &names, .to_names = true};
 *     const tsr_value *by_name;
 *     status = tsr_optim_input_names(NULL, modules, host, arena, &names, &err);
 *     if (status == TSR_OK) status = tsr_optim_rekey(state, &to_names, host, arena, &by_name, &err); */
#ifndef TESSERA_SYS_OPTIM_KEYS_H
#define TESSERA_SYS_OPTIM_KEYS_H

#include "tessera/fqn.h"
#include "tessera/modules.h"
#include "tessera/value.h"

TSR_API_BEGIN

/* The names in an optimizer's first argument (optim_input): a LIST (or TUPLE) of parameters, or of param groups: DICTs whose
 * "params" is such a list. NULL: all parameters of the model, as model.parameters() gives them. A parameter is a STR that
 * tsr_modules_find finds; the result has its first name in named_parameters(). Errors: TSR_E_USAGE for anything else, an
 * empty list, parameters next to groups, and a parameter twice (PyTorch takes the last); TSR_E_NOT_FOUND for one that the
 * model does not have. */
tsr_status tsr_optim_input_names(const tsr_value *input, const tsr_modules *modules, const tsr_host *host, tsr_arena *arena,
                                 tsr_group_names *out, tsr_error *err);

/* Whether the first key of the state is a string. State without any key is not. */
bool tsr_optim_is_named(const tsr_value *raw);

typedef struct tsr_rekeying {
    const tsr_group_names *names;
    bool to_names; /* otherwise to numbers */
    /* Keys are the names as they are in `names`. Otherwise without the components of FSDP and activation checkpointing. */
    bool raw_names;
    /* State under other keys is not a parameter's and stays, and numbers keep the order of "params" (names are sorted).
     * Without it "params" is sorted, other keys are TSR_E_NOT_FOUND, and a state dict whose keys are of the wanted kind
     * already, or that has none, is returned as it is. */
    bool keep_others;
} tsr_rekeying;

/* Other keys for the same parameters. Errors: TSR_E_FORMAT for a value that is not an optimizer's state dict, for names and
 * numbers in one state (unless keep_others), and a name twice in `names`; TSR_E_NOT_FOUND for a parameter in a group that
 * `names` does not have. Source: rekey_optim_state_dict. */
tsr_status tsr_optim_rekey(const tsr_value *state_dict, const tsr_rekeying *how, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err);

TSR_API_END

#endif
