/* A host (tessera/host.h) with the services of this machine: a thread pool, CRC-32 from ISA-L, libdeflate or zlib (in that order of
 * speed), SHA-256 from libcrypto, XXH3-128 from libxxhash, decompression by libzstd. A service is missing if its library was absent
 * at build time; CRC-32 then falls back to the core's portable version.
 *
 * Example:
 *
 *     tsr_native_host native;
 *     tsr_native_host_open(&native, 0);
 *     printf("up to %u threads\n", (unsigned)native.host.threads);
 *     tsr_native_host_close(&native); */
#ifndef TESSERA_NATIVE_HOST_H
#define TESSERA_NATIVE_HOST_H

#include "tessera/host.h"

TSR_API_BEGIN

typedef struct tsr_native_host {
    tsr_host host;
    struct tsr_pool *pool; /* NULL: one thread */
} tsr_native_host;

#define TSR_NATIVE_MOST_THREADS 256u

/* Fills `out`. `threads` counts the caller; 0: one per core that sched_getaffinity allows. More threads than cores help
 * where files are on a slow network; more than TSR_NATIVE_MOST_THREADS are never started. Threads start with the first
 * parallel loop, so short commands do not pay for them. Falls back to one thread when memory is short; never fails. The
 * struct must not move while the host is in use. */
void tsr_native_host_open(tsr_native_host *out, uint32_t threads);
/* Joins the threads. Accepts a zeroed struct. */
void tsr_native_host_close(tsr_native_host *native);

TSR_API_END

#endif
