/* The libraries with which this build serves core (tessera/native_host.h), by name.
 *
 * Example:
 *
 *     const tsr_native_parts parts = tsr_native_parts_built();
 *     printf("CRC-32: %s\n", parts.crc32); */
#ifndef TESSERA_SYS_NATIVE_HOST_H
#define TESSERA_SYS_NATIVE_HOST_H

#include "tessera/api.h"

TSR_API_BEGIN

/* Names of the libraries in use, for `tessera doctor`, like "isa-l" and "libcrypto"; "portable" is core's own code. `zstd` is NULL
 * without libzstd. */
typedef struct tsr_native_parts {
    const char *crc32;
    const char *sha256;
    const char *xxh3;
    const char *zstd;
} tsr_native_parts;
tsr_native_parts tsr_native_parts_built(void);

TSR_API_END

#endif
