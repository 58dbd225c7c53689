/* Loading the state of a model with FSDP1 units: what is checked, and then written. */
#ifndef TSR_STATEDICT_FSDP_LOAD_H
#define TSR_STATEDICT_FSDP_LOAD_H

#include "statedict/fsdp/fsdp_model.h"

typedef struct tsr_fsdp_loading {
    const tsr_fsdp_model *model;
    const tsr_value *state;
    bool strict;
    tsr_arena *arena;         /* the caller's: keys */
    const tsr_value **values; /* one an item; NULL: the state has none */
    tsr_str *missing, *unexpected;
    tsr_fsdp_keys keys;
} tsr_fsdp_loading;

/* Fills `values` and `keys`. This rank's own judgement: ranks agree afterwards. */
tsr_status tsr_fsdp_check_state(tsr_fsdp_loading *loading, tsr_error *err);

/* tsr_fsdp_model_load in two steps, for callers that have more to check between them. Both are collective. Needs `model`,
 * `state`, `strict` and `arena` of `loading`; writes nothing of the model. */
tsr_status tsr_fsdp_load_check(tsr_fsdp_loading *loading, tsr_error *err);
/* Of what was checked. */
tsr_status tsr_fsdp_load_write(const tsr_fsdp_loading *loading, tsr_error *err);

#endif
