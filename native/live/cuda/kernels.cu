/* The kernels: kernel_body.h on a real grid. This is the only file that needs nvcc; everything else calls the C API of the
 * runtime. */
#include <cuda_runtime_api.h>

#include "live/cuda/kernel_body.h"
#include "live/cuda/kernels.h"

namespace
{
__global__ void __launch_bounds__(TSR_KERNEL_THREADS) run_kernel(const tsr_kernel_run *runs, uint32_t count)
{
    tsr_body_runs(runs, count, blockIdx.x, threadIdx.x);
}

__global__ void __launch_bounds__(TSR_KERNEL_THREADS) box_kernel(const tsr_kernel_box *boxes, uint32_t count)
{
    tsr_body_boxes(boxes, count, blockIdx.x, threadIdx.x);
}

__global__ void __launch_bounds__(TSR_KERNEL_THREADS)
    crc_kernel(const uint32_t *tables, const uint8_t *data, uint64_t size, uint64_t segments, uint32_t *crcs)
{
    __shared__ uint32_t near_tables[8 * 256];
    for (uint32_t i = threadIdx.x; i < 8 * 256; i += blockDim.x) near_tables[i] = tables[i];
    __syncthreads();
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < segments; i += step)
        crcs[i] = tsr_body_crc_segment(near_tables, data, size, i);
}

__global__ void __launch_bounds__(TSR_KERNEL_THREADS)
    join_kernel(const uint32_t *crcs, uint64_t full, uint64_t groups, uint32_t power, uint32_t *joined)
{
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < groups; i += step)
        joined[i] = tsr_body_crc_join(crcs, full, i, power);
}

__device__ void add_up(unsigned long long *to, unsigned long long value)
{
    if (value) atomicAdd(to, value);
}

/* Only integers are added, so the order of additions does not matter. */
__global__ void __launch_bounds__(TSR_KERNEL_THREADS)
    scan_kernel(int dtype, const uint8_t *data, uint64_t count, tsr_kernel_scan *out)
{
    __shared__ unsigned long long nan, inf, finite, least, greatest;
    if (threadIdx.x == 0) {
        nan = inf = finite = greatest = 0;
        least = ~0ull;
    }
    __syncthreads();
    const tsr_kernel_scan mine =
        tsr_body_scan(dtype, data, count, (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, (uint64_t)gridDim.x * blockDim.x);
    add_up(&nan, mine.nan);
    add_up(&inf, mine.inf);
    add_up(&finite, mine.finite);
    atomicMin(&least, (unsigned long long)mine.least);
    atomicMax(&greatest, (unsigned long long)mine.greatest);
    __syncthreads();
    if (threadIdx.x != 0) return;
    add_up((unsigned long long *)&out->nan, nan);
    add_up((unsigned long long *)&out->inf, inf);
    add_up((unsigned long long *)&out->finite, finite);
    atomicMin((unsigned long long *)&out->least, least);
    atomicMax((unsigned long long *)&out->greatest, greatest);
}

unsigned blocks_for(uint64_t threads)
{
    const uint64_t blocks = (threads + TSR_KERNEL_THREADS - 1) / TSR_KERNEL_THREADS;
    return blocks > TSR_KERNEL_COUNT_MOST ? TSR_KERNEL_COUNT_MOST : (unsigned)blocks;
}
} // namespace

int tsr_kernel_launch_runs(const tsr_kernel_run *runs, uint32_t count, uint32_t units, void *stream)
{
    run_kernel<<<units, TSR_KERNEL_THREADS, 0, (cudaStream_t)stream>>>(runs, count);
    return (int)cudaGetLastError();
}

int tsr_kernel_launch_boxes(const tsr_kernel_box *boxes, uint32_t count, uint32_t units, void *stream)
{
    box_kernel<<<units, TSR_KERNEL_THREADS, 0, (cudaStream_t)stream>>>(boxes, count);
    return (int)cudaGetLastError();
}

int tsr_kernel_launch_crc(const uint32_t *tables, const uint8_t *data, uint64_t size, uint64_t segments, uint32_t *crcs,
                          void *stream)
{
    crc_kernel<<<blocks_for(segments), TSR_KERNEL_THREADS, 0, (cudaStream_t)stream>>>(tables, data, size, segments, crcs);
    return (int)cudaGetLastError();
}

int tsr_kernel_launch_join(const uint32_t *crcs, uint64_t full, uint64_t groups, uint32_t power, uint32_t *joined,
                           void *stream)
{
    join_kernel<<<blocks_for(groups), TSR_KERNEL_THREADS, 0, (cudaStream_t)stream>>>(crcs, full, groups, power, joined);
    return (int)cudaGetLastError();
}

int tsr_kernel_launch_scan(int dtype, const uint8_t *data, uint64_t count, tsr_kernel_scan *out, void *stream)
{
    const uint64_t threads = count < TSR_KERNEL_SCAN_THREADS ? count : TSR_KERNEL_SCAN_THREADS;
    scan_kernel<<<blocks_for(threads), TSR_KERNEL_THREADS, 0, (cudaStream_t)stream>>>(dtype, data, count, out);
    return (int)cudaGetLastError();
}
