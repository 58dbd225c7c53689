/* Loading one optimizer's state on this rank, once it is keyed by number and each rank has its part. */
#ifndef TSR_STATEDICT_OPTIMIZER_WRITE_H
#define TSR_STATEDICT_OPTIMIZER_WRITE_H

#include "live/model/optimizer_names.h"
#include "tessera/sys/map.h"

typedef struct tsr_loaded_state {
    const tsr_optimizer_names *names; /* with the arena of what passes */
    tsr_model_optimizer *optimizer;
    const tsr_value *state; /* what is loaded: {"state": …, "param_groups": […]} */
    bool full;              /* its tensors are whole, to be spread later */
    bool in_place;          /* as of tsr_taking */
    const tsr_map *lent;    /* of all states that are loaded (tsr_optimizer_lend) */
} tsr_loaded_state;

/* TSR_E_LIMIT for a value that is nested too deeply, or with `*visited`, which counts on, has too many values. */
tsr_status tsr_optimizer_bounded(const tsr_value *value, const tsr_host *host, uint64_t *visited, tsr_error *err);
/* TSR_E_FORMAT unless the param groups have as many parameters as the optimizer's, and options. */
tsr_status tsr_optimizer_check_groups(const tsr_model_optimizer *optimizer, const tsr_value *state, tsr_error *err);
/* Whether the states fit the parameters, and what the optimizer holds; for checked groups. Writes nothing. */
tsr_status tsr_optimizer_check_states(const tsr_loaded_state *loaded, tsr_error *err);
/* Replaces the optimizer's states, options and state of no parameter. */
tsr_status tsr_optimizer_write(const tsr_loaded_state *loaded, tsr_error *err);

#endif
