/* For builds without CUDA, which have only simulated devices. */
#include <stdio.h>

#include "live/cuda/backend.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/try.h"

#define REASON "this build has no CUDA"

void tsr_gpu_runtime_describe(tsr_gpu_runtime *out)
{
    *out = (tsr_gpu_runtime){0};
    snprintf(out->reason, sizeof out->reason, "%s", REASON);
}

tsr_status tsr_gpu_describe(uint32_t ordinal, tsr_gpu_info *out, tsr_error *err)
{
    (void)out;
    return tsr_fail(err, TSR_E_NOT_FOUND, "cuda: there is no device %u: %s", (unsigned)ordinal, REASON);
}

tsr_status tsr_gpu_open(const tsr_host *host, uint32_t ordinal, tsr_gpu **out, tsr_error *err)
{
    (void)host;
    *out = NULL;
    return tsr_gpu_describe(ordinal, NULL, err);
}

/* ---- NCCL ---- */

uint32_t tsr_gpu_nccl_version(char *reason, size_t capacity)
{
    snprintf(reason, capacity, "%s", REASON);
    return 0;
}

tsr_status tsr_nccl_open(tsr_comm *below, tsr_gpu *gpu, nccl_ranks **out, tsr_error *err)
{
    (void)below, (void)gpu;
    *out = NULL;
    return tsr_fail(err, TSR_E_UNSUPPORTED, "nccl: %s", REASON);
}

void tsr_nccl_close(nccl_ranks *ranks)
{
    (void)ranks;
}

tsr_status tsr_nccl_all_gather(nccl_ranks *ranks, const void *mine, const size_t *sizes, void *all, tsr_error *err)
{
    (void)ranks, (void)mine, (void)sizes, (void)all;
    return tsr_fail(err, TSR_E_UNSUPPORTED, "nccl: %s", REASON);
}

tsr_status tsr_nccl_broadcast(nccl_ranks *ranks, void *data, size_t size, uint32_t root, tsr_error *err)
{
    (void)ranks, (void)data, (void)size, (void)root;
    return tsr_fail(err, TSR_E_UNSUPPORTED, "nccl: %s", REASON);
}

tsr_status tsr_nccl_exchange(nccl_ranks *ranks, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                             size_t receive_count, tsr_error *err)
{
    (void)ranks, (void)sends, (void)send_count, (void)receives, (void)receive_count;
    return tsr_fail(err, TSR_E_UNSUPPORTED, "nccl: %s", REASON);
}
