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
/* Computes the CRC of every segment of `data`. `tables` are 8 × 256 numbers. */
int tsr_kernel_launch_crc(const uint32_t *tables, const uint8_t *data, uint64_t size, uint64_t segments, uint32_t *crcs,
                          void *stream);
/* Joins the CRCs of every group of segments. `full` is the number of segments with the full size. */
int tsr_kernel_launch_join(const uint32_t *crcs, uint64_t full, uint64_t groups, uint32_t power, uint32_t *joined,
                           void *stream);
/* Adds to *out, which must be initialized with tsr_body_scan_none. */
int tsr_kernel_launch_scan(int dtype, const uint8_t *data, uint64_t count, tsr_kernel_scan *out, void *stream);
#ifdef __cplusplus
}
#endif

#endif
