/* The state of a model or its optimizers behind a pair of functions, for code that knows only these.
 *
 * Example:
 *
 *     tsr_bound_state bound = {.model = model, .comm = comm, .options = tsr_state_options_default(), .host = host};
 *     const tsr_state_calls calls = tsr_model_state_calls(&bound);
 *     status = calls.state_dict(calls.ctx, dict, &err); */
#ifndef TESSERA_SYS_STATE_CALLS_H
#define TESSERA_SYS_STATE_CALLS_H

#include "tessera/optimizer_state.h"

TSR_API_BEGIN

/* Functions that a program's ordinary save and load call instead of its own (PyTorch's patched state_dict and
 * load_state_dict). They use canonical names, whatever wraps the model. `calls` borrows `bound`. */
typedef struct tsr_state_calls {
    tsr_status (*state_dict)(void *ctx, tsr_state_dict *out, tsr_error *err);
    tsr_status (*load_state_dict)(void *ctx, const tsr_value *state, tsr_error *err);
    void *ctx;
} tsr_state_calls;

typedef struct tsr_bound_state {
    const tsr_model *model;
    tsr_optimizers optimizers; /* for the optimizers' calls */
    tsr_comm *comm;
    tsr_state_options options;
    const tsr_host *host;
} tsr_bound_state;

/* The calls for the model, and those for its optimizers. Collective, as the functions above. They borrow `bound`. */
tsr_state_calls tsr_model_state_calls(tsr_bound_state *bound);
tsr_state_calls tsr_optimizer_state_calls(tsr_bound_state *bound);

TSR_API_END

#endif
