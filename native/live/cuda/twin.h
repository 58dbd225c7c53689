/* Does on the CPU what the kernels do, with the same results but by other means: functions of core if there are any.
 * Addresses are those of ordinary memory. */
#ifndef TSR_CUDA_TWIN_H
#define TSR_CUDA_TWIN_H

#include "tessera/gpu.h"
#include "tessera/sys/gpu_kernels.h"

/* The box must be checked and have at least one element. */
void tsr_twin_box(const tsr_gpu_box *box);
tsr_gpu_sums tsr_twin_scan(tsr_dtype dtype, const void *data, uint64_t count);

#endif
