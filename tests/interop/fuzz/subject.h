/* The subject of a fuzzer's job: a rank's model and optimizers, with the same bytes as PyTorch's. */
#ifndef TSR_TESTS_INTEROP_FUZZ_SUBJECT_H
#define TSR_TESTS_INTEROP_FUZZ_SUBJECT_H

#include "tessera/optimizer_state.h"
#include "tessera/sys/try.h"
#include "wire.h"

typedef struct subject {
    tsr_host host;
    tsr_arena *arena;
    tsr_state_dict *home; /* memory of the model and the optimizers, and the results of the job */
    const tsr_value *job;
    tsr_comm *comm, *group; /* group: the ranks that shard FSDP1's units */
    tsr_modules *modules;
    tsr_model model;
    tsr_fsdp_tree tree;
    tsr_model_optimizer *list, **at;
    size_t count;
    tsr_str *extra_names; /* names of extra state that was set */
    const tsr_value **extra_set;
    size_t extra_count;
    tsr_vec warnings; /* of const tsr_value *: the warnings */
} subject;

/* The value of a key in the job; None if it does not have the key. */
const tsr_value *subject_get(const subject *s, const char *key);
bool subject_is(const tsr_value *dict, const char *key, const char *text);

/* Reads a job. `s` must be passed to subject_close even if this fails. */
tsr_status subject_open(subject *s, tsr_str bytes, tsr_comm *comm, tsr_error *err);
void subject_close(subject *s);

/* The current state, {"tensors": …, "extra": …, "optimizers": …, "units": …}, in the form of the job. */
tsr_status subject_now(subject *s, const tsr_value **out, tsr_error *err);

#endif
