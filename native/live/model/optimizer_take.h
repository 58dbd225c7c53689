/* Converts loaded values to what an optimizer keeps: in its own memory, with the dtype and device that
 * Optimizer.load_state_dict gives them (`_process_value_according_to_param_policy` of PyTorch 2.13). */
#ifndef TSR_STATEDICT_OPTIMIZER_TAKE_H
#define TSR_STATEDICT_OPTIMIZER_TAKE_H

#include "tessera/statedict.h"
#include "tessera/sys/map.h"

typedef struct tsr_taking {
    tsr_state_dict *memory; /* of what is not there yet */
    tsr_arena *passing;
    const tsr_tensor *param; /* the parameter whose state it is; NULL: options, which are not cast */
    bool is_step;            /* it is the value of "step" */
    bool step_moves;         /* capturable or fused: step is float32 on the parameter's device */
    bool in_place;           /* values are cast to the dtype of existing tensors and copied into them */
    const tsr_map *lent;     /* memory from which other values have yet to be loaded; NULL: none */
} tsr_taking;

/* Adds the memory of all tensors in a value, which must outlive the map. */
tsr_status tsr_optimizer_lend(const tsr_value *value, tsr_map *lent, tsr_error *err);
/* Copies `given` into the tensors that are already `there` if they fit, otherwise into new memory; NULL on failure. The
 * depth of `given` has been checked by earlier walks. */
const tsr_value *tsr_optimizer_take(const tsr_taking *taking, const tsr_value *given, const tsr_value *there,
                                    tsr_error *err);

#endif
