/* Lists the available GPUs, simulates GPUs, and finds the GPU that is the memory of a state dict (tessera/device.h).
 * (native/live/cuda)
 *
 * Example:
 *
 *     tsr_gpu_info info;
 *     status = tsr_gpu_about(gpu, &info, &err);
 *     if (status == TSR_OK) printf("%s\n", info.name); */
#ifndef TESSERA_SYS_GPU_DEVICE_H
#define TESSERA_SYS_GPU_DEVICE_H

#include "tessera/device.h"
#include "tessera/gpu.h"

TSR_API_BEGIN

/* The GPU of such a device; NULL for devices of other kinds. */
tsr_gpu *tsr_gpu_of_device(const tsr_device *device);

/* What a simulated device runs in place of a kernel: a CPU function with the same results (fast), or the kernel's own code
 * on a simulated grid of threads. */
typedef enum tsr_gpu_simulation { TSR_SIMULATE_TWINS, TSR_SIMULATE_GRID } tsr_gpu_simulation;
/* Makes a simulated device with `memory_bytes` of memory. Borrows `host`. To be closed with tsr_gpu_close. Errors:
 * TSR_E_NOMEM. */
tsr_status tsr_gpu_simulate(const tsr_host *host, size_t memory_bytes, tsr_gpu_simulation how, tsr_gpu **out,
                            tsr_error *err);

typedef struct tsr_gpu_runtime {
    bool is_built;            /* the build has CUDA */
    uint32_t runtime_version; /* 13000: 13.0; 0 if the build has no CUDA */
    uint32_t driver_version;  /* the highest CUDA version that the driver supports; 0: no driver */
    uint32_t devices;
    char reason[160]; /* why there are no devices; empty if there are */
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
tsr_status tsr_gpu_about(tsr_gpu *device, tsr_gpu_info *out, tsr_error *err);

TSR_API_END

#endif
