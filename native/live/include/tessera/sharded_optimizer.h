/* Loads optimizer state that FSDP saved in shards, on any number of ranks, as torch/distributed/checkpoint/optimizer.py of
 * PyTorch 2.13 does.
 *
 *   1-D   FSDP                        every tensor is split by rows over all ranks
 *   2-D   FSDP over tensor parallel   a tensor's slice, as in the model's state, is split by rows over the slice's group
 *
 * The checkpoint does not record which of the two applies, nor where the slices are. Both come from the model's sharded
 * state.
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
    tsr_state_dict *out; /* receives the result and owns its memory */
    tsr_device *device;  /* of all its tensors; NULL: the host */
    size_t buffer_bytes; /* size of the buffer for staging tensors to a device; 0: 16 MiB */
    tsr_warnings warnings;
    bool ignore_crc; /* do not compare the bytes read with the CRCs that the checkpoint states; see tsr_state_dict_load */
} tsr_optimizer_target;

/* Loads the optimizer state under `key` from the checkpoint at `path`, in any form and saved by any number of ranks:
 *
 *   {key: {"state": {"fc.weight": {"step": t, "exp_avg": t}}, "param_groups": […]}}
 *
 * A tensor of one element is whole on every rank. Any other tensor is in boxes (ShardedTensor), of which each rank has its
 * rows. In 2-D, the loaded tensor is the slice: it has the slice's shape and the layout's `group`. A rank without rows has
 * no box (1-D) or an empty one (2-D). Objects are loaded as stored; tensors inside them are whole.
 *
 * Collective over `comm`, which has all ranks; the layout's groups are subsets of it. Ranks agree on the key and on 1-D or
 * 2-D before anything is read, and return the same status. After a failure, the root of `to->out` is unchanged. The
 * checkpoint may have state for parameters that are not in the model's state: it is loaded too, but not sliced, and
 * `to->warnings` receives a warning. Memory: this rank's shards, the buffer, and a few hundred bytes per entry.
 *
 * Errors: those of tsr_state_dict_layout_2d and tsr_optim_load; TSR_E_UNSUPPORTED for entries that are neither dense
 * tensors nor objects; those of opening and reading. Source: load_sharded_optimizer_state_dict. */
tsr_status tsr_optimizer_state_load(const char *path, tsr_str key, const tsr_value *model_state, tsr_comm *comm,
                                    const tsr_optimizer_target *to, tsr_error *err);

TSR_API_END

#endif
