/* The states of several modules as one (tessera/model_state.h).
 *
 * Example:
 *
 *     const tsr_module_state part = {0, state};
 *     const tsr_value *joined;
 *     status = tsr_model_state_join(modules, (tsr_module_states){&part, 1}, host, arena, &joined, &err); */
#ifndef TESSERA_SYS_MODEL_STATE_H
#define TESSERA_SYS_MODEL_STATE_H

#include "tessera/model_state.h"

TSR_API_BEGIN

/* The states of several modules, keyed relative to each, as one for tsr_set_model_state_dict, as which PyTorch still takes
 * Dict[nn.Module, Dict] (deprecated there). In the order of `parts`; of equal keys the last value counts. Lives in `arena`
 * and shares the values. A shared module's state goes under its first name. (The root's keys stay as they are; PyTorch puts
 * a dot before them and finds none of them.) Errors: TSR_E_USAGE for a module that is not in the tree, and a state that is
 * no dict of string keys; those of tsr_fqn_resolve. No communication. */
typedef struct tsr_module_state {
    tsr_module_ref module;
    const tsr_value *state;
} tsr_module_state;
typedef struct tsr_module_states {
    const tsr_module_state *items;
    size_t count;
} tsr_module_states;
tsr_status tsr_model_state_join(const tsr_modules *modules, tsr_module_states parts, const tsr_host *host, tsr_arena *arena,
                                const tsr_value **out, tsr_error *err);

TSR_API_END

#endif
