/* Opens GPUs and makes them the memory of state dicts. Tessera's own modules use tessera/sys/gpu.h (memory, streams,
 * copies) and tessera/sys/gpu.h; tessera/sys/gpu.h lists the available devices.
 *
 * A device is a CUDA device, or a simulated one for tests without a GPU (tsr_gpu_simulate of tessera/sys/gpu.h). The
 * memory of a simulated device cannot be accessed directly (the processor traps), work in its streams does not run before
 * somebody waits for it, freed and new memory is filled with garbage, and every address is checked against the allocations.
 * Both give bit-identical results.
 *
 * The runtime loads the CUDA driver when it is first called. A program therefore starts without a driver, and tsr_gpu_open
 * reports why there is no device.
 *
 * Pointers are plain addresses (unified addressing): device memory, pinned host memory, or any other host memory
 * ("pageable"), which only copies accept. Memory given to a stream must stay unchanged until the work has been waited for.
 * Errors: TSR_E_NOMEM when device or pinned memory is exhausted (everything stays usable), TSR_E_IO for errors of CUDA, with
 * their names and the operation that failed, TSR_E_USAGE for invalid addresses or shapes, TSR_E_UNSUPPORTED. Thread rule: a
 * device may be used by several threads, a stream by one at a time. (native/live/cuda)
 *
 * Example:
 *
 *     tsr_gpu *gpu_0;
 *     tsr_device *memory = NULL;
 *     status = tsr_gpu_open(host, 0, &gpu_0, &err);
 *     if (status == TSR_OK) {
 *         status = tsr_gpu_device_new(gpu_0, 0, &memory, &err);
 *         tsr_gpu_device_free(memory);
 *         tsr_gpu_close(gpu_0);
 *     } */
#ifndef TESSERA_GPU_H
#define TESSERA_GPU_H

#include "tessera/device.h"
#include "tessera/host.h"

TSR_API_BEGIN

typedef struct tsr_gpu tsr_gpu;

/* Opens a CUDA device. Returns TSR_E_NOT_FOUND, with the reason, when it does not exist. Borrows `host`. */
tsr_status tsr_gpu_open(const tsr_host *host, uint32_t ordinal, tsr_gpu **out, tsr_error *err);

/* Closes a GPU. All its streams, events and memory must have been freed. Accepts NULL. */
void tsr_gpu_close(tsr_gpu *device);

/* A device of kind TSR_DEVICE_CUDA over `gpu`, which must outlive it, with a stream of its own: copies may be running, or be
 * combined into fewer launches, until `synchronize`. `index` is the GPU's ordinal; simulated ones are numbered by the caller.
 * When one process simulates several ranks, each rank has its own device over the same GPU. */
tsr_status tsr_gpu_device_new(tsr_gpu *gpu, uint32_t index, tsr_device **out, tsr_error *err);
void tsr_gpu_device_free(tsr_device *device); /* waits first; accepts NULL */

TSR_API_END

#endif
