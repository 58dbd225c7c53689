/* See host.h. */
#include "tessera/native_host.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/path.h"

#include <sched.h>
#include <unistd.h>

#include "io/digests.h"
#include "io/host_parts.h"
#include "io/retry.h"
#include "io/thread_pool.h"

static uint32_t cores_allowed(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

void tsr_native_host_open(tsr_native_host *out, uint32_t threads)
{
    tsr_retry_forget();
    if (!threads) threads = cores_allowed();
    if (threads > TSR_NATIVE_MOST_THREADS) threads = TSR_NATIVE_MOST_THREADS;
    *out = (tsr_native_host){.host = {
                                 .allocator = &tsr_allocator_libc,
                                 .limits = tsr_limits_default(),
                                 .crc32 = tsr_native_crc32,
                                 .sha256 = tsr_native_sha256,
                                 .xxh3 = tsr_native_xxh3,
                                 .zstd = tsr_native_zstd,
                                 .threads = 1,
                                 .carries = tsr_native_wide_scan(),
                                 .look_up_pairs = tsr_native_pair_shuffles(),
                             }};
    out->pool = threads > 1 ? tsr_pool_new(threads) : NULL;
    if (!out->pool) return;
    out->host.parallel_for = tsr_pool_run;
    out->host.parallel_ctx = out->pool;
    out->host.threads = threads;
}

void tsr_native_host_close(tsr_native_host *native)
{
    tsr_pool_free(native->pool);
    native->pool = NULL;
    native->host.parallel_for = NULL;
    native->host.threads = 1;
}

tsr_native_parts tsr_native_parts_built(void)
{
    tsr_native_parts parts = {.crc32 = "portable", .sha256 = "portable", .xxh3 = "portable"};
#if defined(TSR_HAVE_ISAL)
    parts.crc32 = "isa-l";
#elif defined(TSR_HAVE_LIBDEFLATE)
    parts.crc32 = "libdeflate";
#elif defined(TSR_HAVE_ZLIB)
    parts.crc32 = "zlib";
#elif defined(__AARCH64EL__)
    parts.crc32 = "armv8";
#endif
    if (tsr_native_sha256 != &tsr_sha256_portable) parts.sha256 = "libcrypto";
    if (tsr_native_xxh3 != &tsr_xxh3_portable) parts.xxh3 = "libxxhash";
    if (tsr_native_zstd) parts.zstd = "libzstd";
    return parts;
}
