/* What broadcasting and distributing a full state dict have in common. */
#ifndef TSR_STATEDICT_STATE_FULL_H
#define TSR_STATEDICT_STATE_FULL_H

#include "statedict/tensor/state_dict.h"

/* `local` with memory: itself, or, if it is meta, a copy in `out` that has some. `full` has the shape and dtype that it must
 * have. */
tsr_status tsr_full_target(const tsr_tensor *full, const tsr_tensor *local, bool offload, tsr_state_dict *out,
                           const tsr_tensor **target, tsr_error *err);
/* TSR_E_USAGE unless both are dicts. */
tsr_status tsr_full_check(const tsr_value *full, const tsr_value *local, tsr_error *err);
/* Whether `local` has the same keys in the same places on all ranks, as a broadcast needs: TSR_E_USAGE with the first that
 * differs. Collective. */
tsr_status tsr_full_agree(const tsr_value *local, tsr_comm *comm, const tsr_host *host, tsr_arena *arena, tsr_error *err);

#endif
