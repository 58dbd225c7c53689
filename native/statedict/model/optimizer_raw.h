/* An optimizer's own state dict and its keys. */
#ifndef TSR_STATEDICT_OPTIMIZER_RAW_H
#define TSR_STATEDICT_OPTIMIZER_RAW_H

#include "statedict/model/optimizer_names.h"
#include "tessera/sys/optim_keys.h"
#include "tessera/sys/optimizer_raw.h"

/* An optimizer as a call on its raw state dict sees it. */
typedef struct tsr_raw {
    const tsr_raw_optimizer *of;
    tsr_comm *comm, *self; /* `self` is the call's own */
    tsr_arena *passing;
    tsr_optimizer_names names;
    const tsr_model_optimizer *optimizer; /* the given one, or groups that `input` makes */
    tsr_model_optimizer made;
    tsr_group_names raw; /* of the optimizer's parameters, in named_parameters() */
    bool by_input;
} tsr_raw;

/* `passing` is NULL, or a part is missing, where it fails. Without communication. */
tsr_status tsr_raw_open(const tsr_raw_optimizer *of, bool by_input, const tsr_host *host, tsr_raw *out, tsr_error *err);
void tsr_raw_close(tsr_raw *raw);

/* Names for numbers, or numbers for names, in `arena`; state of no parameter stays. */
tsr_status tsr_raw_rekey(const tsr_raw *raw, const tsr_value *state_dict, bool to_names, tsr_arena *arena,
                         const tsr_value **out, tsr_error *err);

/* What NamedOptimizer.load_state_dict makes of a state dict with names for keys: the optimizer's own, by number, with the
 * values of `state`. Lives in raw->passing. */
tsr_status tsr_raw_named_load(const tsr_raw *raw, const tsr_value *state, const tsr_value **out, tsr_error *err);

#endif
