/* All headers of live state dicts (libtessera-live): what the ranks of a training job have in memory, got, set, saved and loaded
 * under PyTorch's names. tessera/tessera.h has checkpoints on disk, which need none of it. MPI (tessera/comm_mpi.h) and GPUs
 * (tessera/gpu.h) have libraries of their own.
 *
 * samples/mpi_training and samples/fsdp1_state are whole programs.
 *
 * Example:
 *
 *     const tsr_state_call call = {.comm = comm};
 *     status = tsr_get_model_state_dict(model, &call, dict, &err);
 *     if (status == TSR_OK) status = tsr_state_dict_save(tsr_state_dict_root(dict), comm, "step-1000", NULL, host, &err); */
#ifndef TESSERA_LIVE_H
#define TESSERA_LIVE_H

#include "tessera/comm_threads.h"
#include "tessera/device.h"
#include "tessera/fsdp_state.h"
#include "tessera/model_state.h"
#include "tessera/optimizer_state.h"
#include "tessera/redistribute.h"
#include "tessera/save_load.h"
#include "tessera/sharded_optimizer.h"
#include "tessera/state_keys.h"
#include "tessera/statedict.h"
#include "tessera/tensor.h"

#endif
