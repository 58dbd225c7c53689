/* Collectives on device memory: a communicator (tessera/comm.h) whose calls accept device addresses wherever they accept
 * host addresses, in any mixture, which may differ between ranks.
 *
 *   staged   device ─▶ pinned slot ─▶ the communicator below ─▶ pinned slot ─▶ device, piece by piece: while one piece is
 *            sent between ranks, the next is copied from the device and the previous one to it
 *   direct   addresses are passed unchanged to the communicator below, for libraries that accept them
 *            (tsr_mpi_takes_device_memory of tessera/comm_mpi.h)
 *   nccl     NCCL moves data that is in device memory on all ranks; other data is staged
 *
 * Errors and failing ranks are as in tessera/comm.h: a rank whose device fails poisons the call. (native/live/cuda)
 *
 * Example:
 *
 *     const tsr_gpu_comm_options by_nccl = {.way = TSR_GPU_COMM_NCCL};
 *     tsr_comm *of_devices;
 *     status = tsr_gpu_comm_new(comm, gpu, &by_nccl, &of_devices, &err); */
#ifndef TESSERA_SYS_GPU_COMM_H
#define TESSERA_SYS_GPU_COMM_H

#include "tessera/comm.h"
#include "tessera/gpu.h"

TSR_API_BEGIN

typedef enum tsr_gpu_comm_way { TSR_GPU_COMM_STAGED = 0, TSR_GPU_COMM_DIRECT, TSR_GPU_COMM_NCCL } tsr_gpu_comm_way;

#define TSR_GPU_STAGE_DEFAULT_BYTES ((size_t)32 << 20)
#define TSR_GPU_STAGE_LEAST_BYTES   ((size_t)64 << 10)

typedef struct tsr_gpu_comm_options {
    tsr_gpu_comm_way way;
    size_t stage_bytes; /* bytes of pinned memory, at least TSR_GPU_STAGE_LEAST_BYTES; 0: the default */
} tsr_gpu_comm_options;

/* Makes a communicator. Collective over `below`, which still belongs to the caller, and must not be used while the new one
 * is in use. `options` may be NULL and must be the same on all ranks. Errors: TSR_E_UNSUPPORTED, with the reason, on all
 * ranks (this build has no CUDA, or NCCL's library is missing); TSR_E_NOMEM, TSR_E_IO. */
tsr_status tsr_gpu_comm_new(tsr_comm *below, tsr_gpu *gpu, const tsr_gpu_comm_options *options, tsr_comm **out,
                            tsr_error *err);

/* Version that NCCL's library reports (22203: 2.22.3), or 0 with the reason why it cannot be used. */
uint32_t tsr_gpu_nccl_version(char *reason, size_t capacity);

TSR_API_END

#endif
