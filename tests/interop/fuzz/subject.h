/* What a job of the fuzzer is about: a rank's model and optimizers, with the bytes that PyTorch's have. */
#ifndef TSR_TESTS_INTEROP_FUZZ_SUBJECT_H
#define TSR_TESTS_INTEROP_FUZZ_SUBJECT_H

#include "tessera/optimizer_state.h"
#include "tessera/sys/try.h"
#include "wire.h"

typedef struct subject {
    tsr_host host;
    tsr_arena *arena;
    tsr_state_dict *home; /* the model's and optimizers' memory, and what the job says */
    const tsr_value *job;
    tsr_comm *comm, *group; /* group: the ranks that cut FSDP1's units */
    tsr_modules *modules;
    tsr_model model;
    tsr_fsdp_tree tree;
    tsr_model_optimizer *list, **at;
    size_t count;
    tsr_str *extra_names; /* of extra state that was set */
    const tsr_value **extra_set;
    size_t extra_count;
    tsr_vec warnings; /* of const tsr_value *: what was warned of */
} subject;

/* The value under a key of the job; None for one that it lacks. */
const tsr_value *subject_get(const subject *s, const char *key);
bool subject_is(const tsr_value *dict, const char *key, const char *text);

/* Reads a job. `s` is for subject_close whatever this returns. */
tsr_status subject_open(subject *s, tsr_str bytes, tsr_comm *comm, tsr_error *err);
void subject_close(subject *s);

/* What there is now: {"tensors": …, "extra": …, "optimizers": …, "units": …} as the job has it. */
tsr_status subject_now(subject *s, const tsr_value **out, tsr_error *err);

#endif
