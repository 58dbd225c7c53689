/* A rank's model with FSDP1 units, made from tests/golden/fsdp_state.json (make_fsdp_state.py). */
#ifndef TSR_TESTS_STATEDICT_FSDP_WORLD_H
#define TSR_TESTS_STATEDICT_FSDP_WORLD_H

#include "live.h"
#include "tessera/fsdp_state.h"

enum { MOST_UNITS = 8 };

typedef struct fsdp_world {
    const cJSON *test, *record; /* the case, and this rank's part of it */
    tsr_host host;
    tsr_arena *arena;
    tsr_modules *modules;
    tsr_state_dict *mine; /* slices and plain tensors of this rank */
    tsr_comm *comm, *group;
    tsr_mesh mesh, root; /* `root` also has the dim of tensor parallelism; without dims there is none */
    tsr_fsdp_unit units[MOST_UNITS];
    tsr_fsdp_extensions extensions;
    tsr_fsdp_transforms transforms;
    const tsr_tensor *slices[MOST_UNITS];
    tsr_fsdp_tree tree;
    tsr_fsdp_model *model;
    live_device device;
    uint32_t warnings, extras;
    char moments[1024]; /* "before save a\n"… */
} fsdp_world;

/* Makes the model of case `test` on this rank. */
tsr_status fsdp_world_open(fsdp_world *w, const cJSON *test, tsr_comm *comm, bool on_device, tsr_error *err);
/* Does the same without making `model`, which stays NULL. */
tsr_status fsdp_world_describe(fsdp_world *w, const cJSON *test, tsr_comm *comm, bool on_device, tsr_error *err);
void fsdp_world_close(fsdp_world *w);
/* Returns the settings for a name in the golden file: "full", "rank0", "sharded" or "local". */
tsr_fsdp_settings fsdp_world_settings(const char *name);
/* Writes 99 into the slices (float32), and other content into everything else that is saved. */
void fsdp_world_scramble(fsdp_world *w);
/* Compares slices and plain tensors with the golden file. `plain` may be NULL: they are not compared. */
tsr_status fsdp_world_same(const fsdp_world *w, const cJSON *slices, const cJSON *plain, tsr_error *err);

#endif
