/* Simulated GPUs, and any GPU as the memory of state dicts (tessera/device.h). (native/cuda)
 *
 * Example:
 *
 *     tsr_device *memory;
 *     status = tsr_gpu_device_new(gpu, 0, &memory, &err);
 *     if (status == TSR_OK) tsr_gpu_device_free(memory); */
#ifndef TESSERA_SYS_GPU_DEVICE_H
#define TESSERA_SYS_GPU_DEVICE_H

#include "tessera/device.h"
#include "tessera/gpu.h"

TSR_API_BEGIN

/* A device of kind TSR_DEVICE_CUDA over `gpu`, which must outlive it, with a stream of its own: copies are under way, or put
 * together to few launches, until `synchronize`. `index` is the GPU's ordinal; simulated ones are numbered by the caller.
 * For several simulated ranks in one process each takes one of these, over the same GPU. */
tsr_status tsr_gpu_device_new(tsr_gpu *gpu, uint32_t index, tsr_device **out, tsr_error *err);
void tsr_gpu_device_free(tsr_device *device); /* waits first; takes NULL */

/* The GPU behind such a device; NULL for devices of other kinds. */
tsr_gpu *tsr_gpu_of_device(const tsr_device *device);

/* What stands in for kernels: their CPU twins (fast), or the kernels' own code over a simulated grid of threads. */
typedef enum tsr_gpu_simulation { TSR_SIMULATE_TWINS, TSR_SIMULATE_GRID } tsr_gpu_simulation;
/* A simulated device with `memory_bytes` of memory. Borrows `host`; closed by tsr_gpu_close. TSR_E_NOMEM. */
tsr_status tsr_gpu_simulate(const tsr_host *host, size_t memory_bytes, tsr_gpu_simulation how, tsr_gpu **out,
                            tsr_error *err);

TSR_API_END

#endif
