/* GPUs: which ones there are, and opening one. What is done with one is in tessera/sys/gpu_stream.h (memory, streams, copies)
 * and tessera/sys/gpu_kernels.h; tessera/sys/gpu_device.h makes one the memory of state dicts.
 *
 * A device is a CUDA device, or a simulated one for tests without a GPU (tsr_gpu_simulate of tessera/sys/gpu_device.h): its memory cannot be touched
 * directly (the processor traps), nothing in its streams happens before somebody waits for it, freed and fresh memory is
 * filled with rubbish, and every address is checked against what was allocated. Results are the same bits on both.
 *
 * CUDA itself is loaded by the runtime when first asked for: a program starts without a driver, and
 * tsr_gpu_runtime_describe says why there is no device.
 *
 * Pointers are plain addresses (unified addressing): device memory, pinned host memory, or any other host memory
 * ("pageable"), which only copies take. Memory given to a stream must stay as it is until the work was waited for.
 * Errors: TSR_E_NOMEM when device or pinned memory is exhausted (everything stays usable), TSR_E_IO for what CUDA reports,
 * with its name and what was being done, TSR_E_USAGE for addresses or shapes that make no sense, TSR_E_UNSUPPORTED.
 * Thread rule: a device may be used by several threads, a stream by one at a time. (native/cuda)
 *
 * Example:
 *
 *     tsr_gpu *device_0;
 *     tsr_gpu_info info;
 *     status = tsr_gpu_open(host, 0, &device_0, &err);
 *     if (status == TSR_OK) status = tsr_gpu_about(device_0, &info, &err);
 *     if (status == TSR_OK) printf("%s\n", info.name); */
#ifndef TESSERA_GPU_H
#define TESSERA_GPU_H

#include "tessera/dtype.h"
#include "tessera/host.h"

TSR_API_BEGIN

typedef struct tsr_gpu tsr_gpu;

typedef struct tsr_gpu_runtime {
    bool is_built;            /* with CUDA */
    uint32_t runtime_version; /* 13000: 13.0; 0 when not built */
    uint32_t driver_version;  /* the highest CUDA version that the driver can do; 0: no driver */
    uint32_t devices;
    char reason[160]; /* why there are no devices; empty when there are */
} tsr_gpu_runtime;

typedef struct tsr_gpu_info {
    char name[128];
    bool is_simulated;
    uint32_t ordinal;
    uint32_t major, minor; /* compute capability */
    uint64_t memory_bytes, free_bytes;
} tsr_gpu_info;

/* Describes the CUDA support of this build and this machine. Never fails. */
void tsr_gpu_runtime_describe(tsr_gpu_runtime *out);
/* The properties of CUDA device `ordinal`. Fails with TSR_E_NOT_FOUND and the reason if there is no such device. */
tsr_status tsr_gpu_describe(uint32_t ordinal, tsr_gpu_info *out, tsr_error *err);

/* TSR_E_NOT_FOUND, with the reason, when there is no such CUDA device. Borrows `host`. */
tsr_status tsr_gpu_open(const tsr_host *host, uint32_t ordinal, tsr_gpu **out, tsr_error *err);

/* All its streams, events and memory must have been given back. Accepts NULL. */
void tsr_gpu_close(tsr_gpu *device);
tsr_status tsr_gpu_about(tsr_gpu *device, tsr_gpu_info *out, tsr_error *err);

TSR_API_END

#endif
