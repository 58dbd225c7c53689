/* The kernels' twins on the CPU: the same results by other means, from core's functions where core has them. Addresses are
 * ordinary memory. */
#ifndef TSR_CUDA_TWIN_H
#define TSR_CUDA_TWIN_H

#include "tessera/gpu.h"
#include "tessera/sys/gpu_kernels.h"

/* A checked box of at least one element. */
void tsr_twin_box(const tsr_gpu_box *box);
tsr_gpu_sums tsr_twin_scan(tsr_dtype dtype, const void *data, uint64_t count);

#endif
