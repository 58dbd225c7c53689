/* An optimizer's own state dict and its keys. */
#ifndef TSR_STATEDICT_OPTIMIZER_RAW_H
#define TSR_STATEDICT_OPTIMIZER_RAW_H

#include "statedict/model/optimizer_names.h"
#include "tessera/sys/optim_keys.h"
#include "tessera/sys/optimizer_raw.h"

/* A call on the raw state dict of an optimizer. */
typedef struct tsr_raw {
    const tsr_raw_optimizer *of;
    tsr_comm *comm, *self; /* `self`: this process alone, owned by the call */
    tsr_arena *passing;
    tsr_optimizer_names names;
    const tsr_model_optimizer *optimizer; /* the caller's, or `made` from the groups of `input` */
    tsr_model_optimizer made;
    tsr_group_names raw; /* the names of the optimizer's parameters in named_parameters() */
    bool by_input;
} tsr_raw;

/* No communication. After a failure, `passing` or other parts of `out` are NULL; close it all the same. */
tsr_status tsr_raw_open(const tsr_raw_optimizer *of, bool by_input, const tsr_host *host, tsr_raw *out, tsr_error *err);
void tsr_raw_close(tsr_raw *raw);

/* Replaces parameter numbers by names, or names by numbers, in `arena`. State that belongs to no parameter stays as it
 * is. */
tsr_status tsr_raw_rekey(const tsr_raw *raw, const tsr_value *state_dict, bool to_names, tsr_arena *arena,
                         const tsr_value **out, tsr_error *err);

/* As NamedOptimizer.load_state_dict: the optimizer's own state dict, keyed by number, with the values of `state`, which
 * is keyed by name. Lives in raw->passing. */
tsr_status tsr_raw_named_load(const tsr_raw *raw, const tsr_value *state, const tsr_value **out, tsr_error *err);

#endif
