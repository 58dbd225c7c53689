/* For builds without CUDA, which have only simulated devices. */
#include <stdio.h>

#include "live/cuda/pipe.h"
#include "tessera/sys/gpu_device.h"

#define REASON "this build has no CUDA"

void tsr_gpu_runtime_describe(tsr_gpu_runtime *out)
{
    *out = (tsr_gpu_runtime){0};
    snprintf(out->reason, sizeof out->reason, "%s", REASON);
}

tsr_status tsr_gpu_describe(uint32_t ordinal, tsr_gpu_info *out, tsr_error *err)
{
    (void)out;
    return tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "cuda: there is no device %u: %s", (unsigned)ordinal, REASON);
}

tsr_status tsr_gpu_open(const tsr_host *host, uint32_t ordinal, tsr_gpu **out, tsr_error *err)
{
    (void)host;
    *out = NULL;
    return tsr_gpu_describe(ordinal, NULL, err);
}

tsr_status tsr_gpu_pipe_use_direct(tsr_gpu_pipe *pipe, tsr_error *err)
{
    (void)pipe;
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "cufile: %s", REASON);
}
