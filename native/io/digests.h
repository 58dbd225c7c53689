/* CRC-32, digests and zstd from the libraries that this was built with. Without them, the digests are core's portable ones, and the
 * others are NULL. */
#ifndef TSR_NATIVE_DIGESTS_H
#define TSR_NATIVE_DIGESTS_H

#include "tessera/host.h"

/* As tsr_crc32, by instructions of the processor where it has them. */
uint32_t tsr_native_crc32(uint32_t crc, const void *data, size_t size);
extern const tsr_digest_ops *const tsr_native_sha256;
/* Object stores report it for parts; `start` returns NULL if the system forbids MD5. */
extern const tsr_digest_ops *const tsr_native_md5;
extern const tsr_digest_ops *const tsr_native_xxh3;
extern const tsr_zstd_ops *const tsr_native_zstd;

#endif
