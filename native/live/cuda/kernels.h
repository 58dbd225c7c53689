/* Launches the kernels. Pointers are addresses of device (or pinned host) memory; `stream` is a cudaStream_t. Each function
 * returns a cudaError_t as int. Counts and units must be at least 1. */
#ifndef TSR_CUDA_KERNELS_H
#define TSR_CUDA_KERNELS_H

#include "live/cuda/kernel_table.h"

#ifdef __cplusplus
extern "C" {
#endif
int tsr_kernel_launch_runs(const tsr_kernel_run *runs, uint32_t count, uint32_t units, void *stream);
int tsr_kernel_launch_boxes(const tsr_kernel_box *boxes, uint32_t count, uint32_t units, void *stream);
#ifdef __cplusplus
}
#endif

#endif
