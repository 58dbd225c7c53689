/* What the second file adds to the host. Each is in the file with its name. */
#ifndef TSR_WASM_LENT_H
#define TSR_WASM_LENT_H

#include "tessera/host.h"

extern const tsr_digest_ops tessera_xxh3;
extern const tsr_zstd_ops tessera_zstd;
uint32_t tessera_crc32(uint32_t crc, const void *data, size_t size);

#endif
