/* Live models for tests, made from the JSON that tests/golden/make_model_state.py, make_optimizer_state.py and
 * make_optimizer_mesh.py wrote. */
#ifndef TSR_TESTS_STATEDICT_LIVE_MODEL_H
#define TSR_TESTS_STATEDICT_LIVE_MODEL_H

#include "live.h"
#include "tessera/fqn.h"
#include "tessera/model_state.h"

/* A case of a golden file as the live model of one rank. */
typedef struct live_model {
    tsr_host host;
    tsr_arena *arena;
    tsr_state_dict *home, *out;
    tsr_modules *modules;
    tsr_model model;
    tsr_state_item *items;
    size_t item_count;
    tsr_tensor *tensors;
    const tsr_value *extra; /* the extra state that was set last */
    const cJSON *rank;
    unsigned warnings;
} live_model;

tsr_status live_model_open(live_model *m, const cJSON *test, uint32_t rank, tsr_error *err);
void live_model_close(live_model *m);

/* One of the gets or sets ("gets", "sets") that a golden file records for a case, by rank. */
typedef struct live_record {
    const cJSON *test;
    int number;
} live_record;

/* Runs `body` with each live_record of every case, on the case's number of ranks. */
void live_records(const cJSON *golden, const char *what, ranks_body *body);
const cJSON *live_record_of(const live_record *record, const char *what, uint32_t rank);
/* Adds to the message of a failure which record it was. Returns the status. */
tsr_status live_record_told(tsr_status status, const live_record *record, const cJSON *of_rank, tsr_error *err);

#endif
