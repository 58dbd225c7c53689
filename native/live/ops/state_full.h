/* What broadcasting and distributing a full state dict share. */
#ifndef TSR_STATEDICT_STATE_FULL_H
#define TSR_STATEDICT_STATE_FULL_H

#include "live/tensor/state_dict.h"

/* Checks, as a broadcast requires, that `local` has the same keys with the same layouts on all ranks. TSR_E_USAGE names the
 * first key that differs. Collective. */
tsr_status tsr_full_agree(const tsr_value *local, tsr_comm *comm, const tsr_host *host, tsr_arena *arena, tsr_error *err);

#endif
