/* Defaults for a host that provides nothing except memory. */
#include "tessera/host.h"
#include "tessera/sys/host_calls.h"

tsr_limits tsr_limits_default(void)
{
    return (tsr_limits){
        .depth = 20000, /* picklers fail much earlier */
        .entries = 100000000,
        .metadata_bytes = sizeof(size_t) > 4 ? UINT64_C(16) << 30 : UINT64_C(1) << 30,
        .memory_bytes = sizeof(size_t) > 4 ? UINT64_C(32) << 30 : UINT64_C(3) << 30,
        .expansion = UINT64_C(64) << 20,
        .repetition = UINT64_C(1) << 30,
    };
}

tsr_status tsr_host_load(const tsr_host *host, tsr_error *err)
{
    return host->load ? host->load(err) : TSR_OK;
}

void tsr_parallel(const tsr_host *host, size_t count, void (*body)(void *arg, size_t index), void *arg)
{
    if (host && host->parallel_for && count > 1) {
        host->parallel_for(host->parallel_ctx, count, body, arg);
        return;
    }
    for (size_t i = 0; i < count; i++) body(arg, i);
}
