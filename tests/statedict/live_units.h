/* A rank's model with FSDP1 units and its optimizers, made from tests/golden/fsdp_get_set.json (make_fsdp_get_set.py). */
#ifndef TSR_TESTS_STATEDICT_LIVE_UNITS_H
#define TSR_TESTS_STATEDICT_LIVE_UNITS_H

#include "fsdp_world.h"
#include "tessera/optimizer_state.h"

typedef struct live_units {
    fsdp_world w;
    tsr_model model;
    tsr_model_optimizer list[2], *at[2];
    size_t count;
    tsr_state_dict *memory, *out;
    const tsr_value *extra; /* the extra state that was set */
    const void *changed[256];
    size_t changed_count;
} live_units;

/* `host` is used for the operations' results; NULL: the C library's. */
tsr_status live_units_open(live_units *u, const cJSON *test, tsr_comm *comm, bool on_device, tsr_error *err);
void live_units_close(live_units *u);

/* Returns the value with 1 added to every element of its tensors, with floats doubled, and without the pair `drop` (may be
 * NULL) at the top level or in "state", as make_fsdp_get_set.py does. */
const tsr_value *live_changed(live_units *u, const tsr_value *value, const char *drop);
/* Undoes live_changed. */
const tsr_value *live_unchanged(live_units *u, const tsr_value *value);
/* Compares the optimizers with `json`. */
tsr_status live_units_same(const live_units *u, const cJSON *json, tsr_error *err);

#endif
