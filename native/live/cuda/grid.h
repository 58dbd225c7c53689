/* Runs the code of the kernels on a grid whose threads are executed one after the other, block by block. */
#ifndef TSR_CUDA_GRID_H
#define TSR_CUDA_GRID_H

#include "live/cuda/kernel_table.h"
#include "tessera/memory.h"

void tsr_grid_runs(const tsr_kernel_run *runs, uint32_t count, uint32_t units);
void tsr_grid_boxes(const tsr_kernel_box *boxes, uint32_t count, uint32_t units);
/* Errors: TSR_E_NOMEM. */
tsr_status tsr_grid_checksum(const tsr_allocator *allocator, const void *data, uint64_t size, uint32_t *crc, tsr_error *err);
void tsr_grid_scan(int dtype, const void *data, uint64_t count, tsr_kernel_scan *out);

#endif
