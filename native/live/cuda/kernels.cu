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
