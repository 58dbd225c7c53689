/* Finds the slices of a model's sharded state, for loading optimizer state (tessera/sharded_optimizer.h).
 *
 * Example:
 *
 *     tsr_layout_2d layout;
 *     status = tsr_state_dict_layout_2d(state, arena, &layout, &err);
 *     if (status == TSR_OK && !layout.group) printf("data parallel only\n"); */
#ifndef TESSERA_SYS_SHARDED_OPTIMIZER_H
#define TESSERA_SYS_SHARDED_OPTIMIZER_H

#include "tessera/statedict.h"
#include "tessera/sys/optim_load.h"

TSR_API_BEGIN

/* The slices of all parameters, and the data-parallel group that shares this rank's slices (NULL: 1-D, nothing is
 * sliced). */
typedef struct tsr_layout_2d {
    const tsr_tp_slice *slices; /* in the order of the model's state */
    size_t count;
    tsr_comm *group;
} tsr_layout_2d;

/* Finds the layout of `model_state`, a DICT of canonical FQN → tensor such as FSDP's SHARDED state dict. A ShardedTensor
 * whose only shard is itself a ShardedTensor (tsr_tensor.nested) is a slice: the shard gives its position, and the inner
 * tensor's group has the ranks that share it. For any other tensor, and if this rank has no shard, the slice is the whole
 * tensor. Results live in `arena` and borrow from `model_state`. Does not communicate.
 *
 * Errors, as in PyTorch: TSR_E_UNSUPPORTED for a DTensor inside a ShardedTensor or a DTensor, and for a slice next to other
 * shards; TSR_E_USAGE for values that are not tensors. Slices of different groups are also TSR_E_USAGE (PyTorch uses the
 * last group). Source: _get_state_dict_2d_layout, _is_nested_tensor. */
tsr_status tsr_state_dict_layout_2d(const tsr_value *model_state, tsr_arena *arena, tsr_layout_2d *out, tsr_error *err);

TSR_API_END

#endif
