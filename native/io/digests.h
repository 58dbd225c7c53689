/* CRC-32, digests and zstd from the libraries this was built with; NULL where there is none. */
#ifndef TSR_NATIVE_DIGESTS_H
#define TSR_NATIVE_DIGESTS_H

#include "tessera/host.h"

extern uint32_t (*const tsr_native_crc32)(uint32_t crc, const void *data, size_t size);
extern const tsr_digest_ops *const tsr_native_sha256;
extern const tsr_digest_ops *const tsr_native_md5; /* what object stores state of parts; `start` gives NULL where the system forbids MD5 */
extern const tsr_digest_ops *const tsr_native_xxh3;
extern const tsr_zstd_ops *const tsr_native_zstd;

#endif
