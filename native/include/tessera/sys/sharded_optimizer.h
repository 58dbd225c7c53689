/* Which slices a model's sharded state has, for loading optimizer state (tessera/sharded_optimizer.h).
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

/* Slices of all parameters, and the data-parallel group that shares this rank's (NULL: 1-D, nothing is sliced). */
typedef struct tsr_layout_2d {
    const tsr_tp_slice *slices; /* in the order of the model's state */
    size_t count;
    tsr_comm *group;
} tsr_layout_2d;

/* The layout of a model's state: a DICT of canonical FQN → tensor, as FSDP's SHARDED state dict has it. A ShardedTensor
 * whose one shard is a ShardedTensor (tsr_tensor.nested) is a slice: the shard gives its position, and the inner tensor's
 * group the ranks that share it. For any other tensor, and for one of which this rank has no shard, the slice is the whole
 * tensor. Results live in `arena` and borrow from `model_state`. Errors, as PyTorch's: TSR_E_UNSUPPORTED for a DTensor
 * inside a ShardedTensor or a DTensor, and for a slice next to other shards; TSR_E_USAGE for values that are not tensors,
 * and (PyTorch takes the last) for slices of different groups. No communication. Source: _get_state_dict_2d_layout,
 * _is_nested_tensor. */
tsr_status tsr_state_dict_layout_2d(const tsr_value *model_state, tsr_arena *arena, tsr_layout_2d *out, tsr_error *err);

TSR_API_END

#endif
