/* State dicts of tests: out of the JSON that real PyTorch's golden scripts wrote (tests/golden/make_state_dict.py), and
 * compared with it; and worlds of ranks to run tests in. */
#ifndef TSR_TESTS_STATEDICT_LIVE_H
#define TSR_TESTS_STATEDICT_LIVE_H

#include <cjson/cJSON.h>

#include "support/ranks.h"
#include "tessera/optim.h"
#include "tessera/redistribute.h"
#include "tessera/statedict.h"
#include "tessera/sys/try.h"

#define NEED RANKS_NEED
/* A file of tests/golden, parsed; the test frees it. */
cJSON *live_golden(const char *name);
const cJSON *live_get(const cJSON *object, const char *key); /* aborts when there is none */
bool live_is(const cJSON *record, const char *key, const char *text);

/* The value that `json` says, in `dict`: tensors with memory of their own on `device` (NULL: host), distributed ones as rank
 * `rank` of the communicator holds them; {"M": […, null]} is meta. */
const tsr_value *live_value(tsr_state_dict *dict, const cJSON *json, uint32_t rank, tsr_device *device);
/* Whether `value` is what `json` says, dicts in order; TSR_E_FORMAT says where not. `shapes_only`: tensors with dims have
 * any content. */
tsr_status live_same(const tsr_value *value, const cJSON *json, bool shapes_only, tsr_error *err);

/* Memory that nothing may touch but through the device's functions: bytes lie inverted in it. */
typedef struct live_device {
    tsr_device base;
    uint64_t allocated; /* bytes, now */
    uint32_t waits;     /* calls of synchronize */
    uint32_t copies;
    uint32_t fail_at; /* copy number that fails; 0: none */
} live_device;
void live_device_open(live_device *device);

/* An allocator that counts, for the bounds of operations. One a rank: no locks. */
typedef struct live_meter {
    tsr_allocator base;
    size_t now, most;
} live_meter;
void live_meter_open(live_meter *meter);

/* Runs `body` on every rank of a world of `world` ranks: threads, and for 1 also the communicator of one rank; or the first
 * processes of mpirun, which may be too few: then nothing is done, and false returned. Fails the test with the message of
 * the lowest rank that failed. */
bool live_run(uint32_t world, ranks_body *body, void *arg);
/* The same, but the failure that ranks agreed on is returned. */
tsr_status live_try(uint32_t world, ranks_body *body, void *arg, tsr_error *err);
/* StateDictOptions as a golden has them. */
tsr_state_options live_options(const cJSON *json);
/* A host with the C library's allocator, or another. */
tsr_host live_host(const tsr_allocator *allocator);

#endif
