/* What other CUDA libraries need to know about a device of gpu_cuda.c. */
#ifndef TSR_CUDA_GPU_CUDA_H
#define TSR_CUDA_GPU_CUDA_H

#include "tessera/gpu.h"
#include "tessera/sys/gpu_stream.h"

#define TSR_CUDA_UUID_BYTES 16u

bool tsr_cuda_is(const tsr_gpu *device);                  /* false: a simulated device */
tsr_status tsr_cuda_use(tsr_gpu *device, tsr_error *err); /* makes it the thread's current device */
/* TSR_CUDA_UUID_BYTES bytes, which differ between all devices of all machines. */
tsr_status tsr_cuda_uuid(tsr_gpu *device, uint8_t *uuid, tsr_error *err);
void *tsr_cuda_stream(tsr_gpu_stream *stream); /* a cudaStream_t */

#endif
