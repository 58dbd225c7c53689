/* Joins the states of several modules into one (tessera/model_state.h).
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

/* Joins the states of several modules, each with keys relative to its module, into one state for tsr_set_model_state_dict.
 * (PyTorch accepts them directly, as a Dict[nn.Module, Dict], but deprecates it.) Keys are in the order of `parts`; if a
 * key occurs twice, the last value is used. The result lives in `arena` and shares the values. A shared module's state is
 * under its first name. The root's keys are unchanged (PyTorch puts a dot before them, and then finds none of them).
 *
 * Errors: TSR_E_USAGE for a module that is not in the tree, and for a state that is not a dict with string keys; those of
 * tsr_fqn_resolve. Does not communicate. */
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
