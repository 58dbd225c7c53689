/* What broadcasting and distributing a full state dict share. */
#ifndef TSR_STATEDICT_STATE_FULL_H
#define TSR_STATEDICT_STATE_FULL_H

#include "statedict/tensor/state_dict.h"

/* Returns `local` if it has memory; if it is meta, a copy with memory in `out`. `full` states the shape and dtype that it
 * must have. */
tsr_status tsr_full_target(const tsr_tensor *full, const tsr_tensor *local, bool offload, tsr_state_dict *out,
                           const tsr_tensor **target, tsr_error *err);
/* TSR_E_USAGE unless both are dicts. */
tsr_status tsr_full_check(const tsr_value *full, const tsr_value *local, tsr_error *err);
/* Checks, as a broadcast requires, that `local` has the same keys with the same layouts on all ranks. TSR_E_USAGE names the
 * first key that differs. Collective. */
tsr_status tsr_full_agree(const tsr_value *local, tsr_comm *comm, const tsr_host *host, tsr_arena *arena, tsr_error *err);

#endif
