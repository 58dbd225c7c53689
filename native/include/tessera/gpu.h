/* GPUs: opening one, and making it the memory of state dicts. What our own modules do with one is in tessera/sys/gpu_stream.h
 * (memory, streams, copies) and tessera/sys/gpu_kernels.h; tessera/sys/gpu_device.h tells which ones there are.
 *
 * A device is a CUDA device, or a simulated one for tests without a GPU (tsr_gpu_simulate of tessera/sys/gpu_device.h): its memory cannot be touched
 * directly (the processor traps), nothing in its streams happens before somebody waits for it, freed and fresh memory is
 * filled with rubbish, and every address is checked against what was allocated. Results are the same bits on both.
 *
 * CUDA itself is loaded by the runtime when first asked for: a program starts without a driver, and
 * tsr_gpu_open says why there is no device.
 *
 * Pointers are plain addresses (unified addressing): device memory, pinned host memory, or any other host memory
 * ("pageable"), which only copies take. Memory given to a stream must stay as it is until the work was waited for.
 * Errors: TSR_E_NOMEM when device or pinned memory is exhausted (everything stays usable), TSR_E_IO for what CUDA reports,
 * with its name and what was being done, TSR_E_USAGE for addresses or shapes that make no sense, TSR_E_UNSUPPORTED.
 * Thread rule: a device may be used by several threads, a stream by one at a time. (native/cuda)
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

/* TSR_E_NOT_FOUND, with the reason, when there is no such CUDA device. Borrows `host`. */
tsr_status tsr_gpu_open(const tsr_host *host, uint32_t ordinal, tsr_gpu **out, tsr_error *err);

/* All its streams, events and memory must have been given back. Accepts NULL. */
void tsr_gpu_close(tsr_gpu *device);

/* A device of kind TSR_DEVICE_CUDA over `gpu`, which must outlive it, with a stream of its own: copies are under way, or put
 * together to few launches, until `synchronize`. `index` is the GPU's ordinal; simulated ones are numbered by the caller.
 * For several simulated ranks in one process each takes one of these, over the same GPU. */
tsr_status tsr_gpu_device_new(tsr_gpu *gpu, uint32_t index, tsr_device **out, tsr_error *err);
void tsr_gpu_device_free(tsr_device *device); /* waits first; takes NULL */

TSR_API_END

#endif
