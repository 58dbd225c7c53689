/* Optimizer state that FSDP saved in shards, loaded by any number of ranks: what
 * torch/distributed/checkpoint/optimizer.py of PyTorch 2.13 does.
 *
 *   1-D   FSDP                          every tensor is cut by rows over all ranks
 *   2-D   FSDP over tensor parallel     first the slice that the model's state has, then its rows over the slice's group
 *
 * The model's sharded state says which of the two it is, and where the slices are: the checkpoint does not.
 *
 * Example:
 *
 *     const tsr_optimizer_target target = {.out = dict};
 *     status = tsr_optimizer_state_load("step-1000", TSR_STR("optim"), state, comm, &target, &err); */
#ifndef TESSERA_SHARDED_OPTIMIZER_H
#define TESSERA_SHARDED_OPTIMIZER_H

#include "tessera/statedict.h"

TSR_API_BEGIN

/* Where loaded optimizer state goes. */
typedef struct tsr_optimizer_target {
    tsr_state_dict *out; /* gets the result, and owns its memory */
    tsr_device *device;  /* of all its tensors; NULL: the host */
    size_t buffer_bytes; /* for what passes through host memory to a device; 0: 16 MiB */
    tsr_warnings warnings;
} tsr_optimizer_target;

/* Loads what is below `key` in the checkpoint at `path`, of any form and saved by any number of ranks:
 *
 *   {key: {"state": {"fc.weight": {"step": t, "exp_avg": t}}, "param_groups": […]}}
 *
 * Tensors of one element are whole on every rank, others in boxes (ShardedTensor): this rank's rows of the tensor. In 2-D
 * the tensor is the slice, with the slice's shape and the layout's `group`. A rank without rows has no box (1-D) or an empty
 * one (2-D). Objects are as stored; tensors inside them are whole.
 *
 * Collective over `comm`, all ranks; the layout's groups are parts of it. Ranks agree on the key and on 1-D or 2-D before
 * anything is read, and return the same status. After a failure the root of `to->out` is as before. `to->warnings` hears of
 * parameters whose state is in the checkpoint but which the model's state does not have; it is loaded, too, but not sliced.
 * Memory: this rank's shards, the buffer, and some hundred bytes per entry. Errors: those of tsr_state_dict_layout_2d and
 * tsr_optim_load; TSR_E_UNSUPPORTED for entries that are neither dense tensors nor objects; those of opening and reading.
 * Source: load_sharded_optimizer_state_dict. */
tsr_status tsr_optimizer_state_load(const char *path, tsr_str key, const tsr_value *model_state, tsr_comm *comm,
                                    const tsr_optimizer_target *to, tsr_error *err);

TSR_API_END

#endif
