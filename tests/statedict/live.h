/* State dicts for tests, made from the JSON that real PyTorch's golden scripts wrote (tests/golden/make_state_dict.py) and
 * compared with it; and worlds of ranks to run tests in. */
#ifndef TSR_TESTS_STATEDICT_LIVE_H
#define TSR_TESTS_STATEDICT_LIVE_H

#include <cjson/cJSON.h>

#include "support/ranks.h"
#include "tessera/model_state.h"
#include "tessera/redistribute.h"
#include "tessera/statedict.h"
#include "tessera/sys/try.h"

#define NEED RANKS_NEED
/* Parses a file of tests/golden. The test frees the result. */
cJSON *live_golden(const char *name);
const cJSON *live_get(const cJSON *object, const char *key); /* aborts when the key does not exist */
bool live_is(const cJSON *record, const char *key, const char *text);

/* Makes the value that `json` describes in `dict`. Tensors get memory of their own on `device` (NULL: host); distributed
 * tensors are as rank `rank` of the communicator holds them; {"M": […, null]} is meta. */
const tsr_value *live_value(tsr_state_dict *dict, const cJSON *json, uint32_t rank, tsr_device *device);
/* Compares `value` with `json`, including the order of dicts. The message of TSR_E_FORMAT says where they differ. With
 * `shapes_only`, tensors with dims may have any content. */
tsr_status live_same(const tsr_value *value, const cJSON *json, bool shapes_only, tsr_error *err);

/* A device whose memory is only valid through the device's functions: the bytes are stored inverted in it. */
typedef struct live_device {
    tsr_device base;
    uint64_t allocated; /* current number of bytes */
    uint32_t waits;     /* number of calls of synchronize */
    uint32_t copies;
    uint32_t fail_at; /* number of the copy that fails; 0: none */
} live_device;
void live_device_open(live_device *device);

/* An allocator that counts bytes, to test the bounds of operations. Each rank has one, so it needs no locks. */
typedef struct live_meter {
    tsr_allocator base;
    size_t now, most;
} live_meter;
void live_meter_open(live_meter *meter);

/* A byte of a file of a checkpoint. */
typedef struct live_byte {
    char path[600];
    long at;
} live_byte;
/* Finds the last byte of a float32 matrix, in the last of its chunks. */
void live_last_element(const char *path, const char *name, live_byte *out);
/* Changes a bit of a byte, and restores it the next time. The failure names the rank. */
tsr_status live_flip(const live_byte *byte, const tsr_comm *comm, tsr_error *err);
/* A body: rank 0 does that. */
tsr_status live_flip_bit(void *byte, tsr_comm *comm, tsr_error *err);

/* Runs `body` on every rank of a world of `world` ranks. The ranks are threads (for 1, also the communicator of one rank),
 * or the first processes of mpirun; when these are too few, nothing runs and false is returned. Fails the test with the
 * message of the lowest rank that failed. */
bool live_run(uint32_t world, ranks_body *body, void *arg);
/* Does the same, but returns the failure that the ranks agreed on. */
tsr_status live_try(uint32_t world, ranks_body *body, void *arg, tsr_error *err);
/* Returns the StateDictOptions of a golden file. */
tsr_state_options live_options(const cJSON *json);
/* Returns a host with the given allocator; NULL: the C library's. */
tsr_host live_host(const tsr_allocator *allocator);

#endif
