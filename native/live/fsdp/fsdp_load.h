/* Loading the state of a model with FSDP1 units: first everything is checked, then everything is written. */
#ifndef TSR_STATEDICT_FSDP_LOAD_H
#define TSR_STATEDICT_FSDP_LOAD_H

#include "live/fsdp/fsdp_model.h"

typedef struct tsr_fsdp_loading {
    const tsr_fsdp_model *model;
    const tsr_value *state;
    bool strict;
    tsr_arena *arena;         /* the caller's; `keys` live in it */
    const tsr_value **values; /* one per item; NULL: the state has none for it */
    tsr_str *missing, *unexpected;
    tsr_fsdp_keys keys;
} tsr_fsdp_loading;

/* tsr_fsdp_model_load in two steps, for callers that have more to check between them. Both are collective. Needs `model`,
 * `state`, `strict` and `arena` of `loading`; writes nothing of the model. */
tsr_status tsr_fsdp_load_check(tsr_fsdp_loading *loading, tsr_error *err);
/* Writes what tsr_fsdp_load_check has checked. */
tsr_status tsr_fsdp_load_write(const tsr_fsdp_loading *loading, tsr_error *err);

#endif
