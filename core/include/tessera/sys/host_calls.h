/* Calls the functions that the host provides, or core's own fallbacks for those that it does not.
 *
 * Example:
 *
 *     const uint32_t crc = tsr_crc32(host, 0, text.data, text.size);
 *     printf("%08x\n", (unsigned)crc); */
#ifndef TESSERA_SYS_HOST_CALLS_H
#define TESSERA_SYS_HOST_CALLS_H

#include "tessera/host.h"

TSR_API_BEGIN

/* CRC-32 (IEEE 802.3, as zip has it), continuing from `crc` (0 to start), by the host's function or the portable one. */
uint32_t tsr_crc32(const tsr_host *host, uint32_t crc, const void *data, size_t size);
/* The CRC of A‖B from the CRCs of A and B and B's length in bytes. */
uint32_t tsr_crc32_join(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

/* Digests in portable C, for hosts that have no library for them. */
extern const tsr_digest_ops tsr_sha256_portable;
extern const tsr_digest_ops tsr_xxh3_portable;

/* The message of TSR_E_NOT_BUILT where a host has no zstd. */
#define TSR_ZSTD_NOT_BUILT \
    "the items are compressed with zstd, which this build cannot read: it was built without libzstd (Debian: libzstd-dev)"

/* parallel_for of the host, or a plain loop. */
void tsr_parallel(const tsr_host *host, size_t count, void (*body)(void *arg, size_t index), void *arg);
/* How many of its bodies run together at most. The WebAssembly module has one thread, and need not carry what is for more. */
static inline uint32_t tsr_threads(const tsr_host *host)
{
#if defined(__wasm__)
    (void)host;
    return 1;
#else
    return host->threads ? host->threads : 1;
#endif
}

/* How many requests to a server are in flight at most. */
static inline uint32_t tsr_io_depth(const tsr_host *host)
{
    return host->io_depth ? host->io_depth : (uint32_t)TSR_IO_DEPTH;
}

/* Returns the host with more threads, to read two checkpoints together: a checkpoint on a server has a thread for each request that
 * may be in flight. */
static inline const tsr_host *tsr_host_wider(const tsr_host *a, const tsr_host *b)
{
    return tsr_threads(b) > tsr_threads(a) ? b : a;
}

/* To be called before code that may not be loaded; the host's error ends the call. */
tsr_status tsr_host_load(const tsr_host *host, tsr_error *err);

/* Beyond what any real checkpoint needs, below what harms a machine; less where size_t has 32 bits. */
tsr_limits tsr_limits_default(void);

TSR_API_END

#endif
