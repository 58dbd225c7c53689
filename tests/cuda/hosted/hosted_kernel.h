/* The keywords of CUDA C++ that kernels.cu uses, for a C++ compiler. The threads of a block are fibers of one host thread:
 * each runs up to a barrier, where it waits for the others. */
#ifndef TESTS_CUDA_HOSTED_KERNEL_H
#define TESTS_CUDA_HOSTED_KERNEL_H

#include <functional>

#define __global__
#define __host__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
/* There is one variable for all blocks, which run one after another: each block finds garbage in it. */
#define __shared__ static __attribute__((section("hosted_shared")))

struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
struct hosted_index {
    unsigned x, y, z;
};

extern hosted_index threadIdx, blockIdx, blockDim, gridDim;

extern "C" void __syncthreads(void);

/* Fibers switch only at barriers, so these operations are atomic. */
inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long value)
{
    const unsigned long long old = *at;
    *at = old + value;
    return old;
}

inline unsigned long long atomicMin(unsigned long long *at, unsigned long long value)
{
    const unsigned long long old = *at;
    if (value < old) *at = value;
    return old;
}

inline unsigned long long atomicMax(unsigned long long *at, unsigned long long value)
{
    const unsigned long long old = *at;
    if (value > old) *at = value;
    return old;
}

void hosted_enqueue(cudaStream_t stream, unsigned blocks, unsigned threads, std::function<void()> thread);

template <class... P> struct hosted_launcher {
    void (*kernel)(P...);
    unsigned blocks, threads;
    cudaStream_t stream;
    template <class... A> void operator()(A... arguments) const
    {
        auto run = kernel;
        hosted_enqueue(stream, blocks, threads, [=] { run(arguments...); });
    }
};

/* kernel<<<blocks, threads, shared, stream>>>(…) becomes hosted_launch(kernel, blocks, threads, shared, stream)(…). */
template <class... P>
hosted_launcher<P...> hosted_launch(void (*kernel)(P...), unsigned blocks, unsigned threads, size_t, cudaStream_t stream)
{
    return {kernel, blocks, threads, stream};
}

#endif
