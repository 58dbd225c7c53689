/* CRC-32, digests and zstd from the libraries that this was built with. Without them, the digests are core's portable ones, and the
 * others are NULL. */
#ifndef TSR_NATIVE_DIGESTS_H
#define TSR_NATIVE_DIGESTS_H

#include "tessera/host.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As tsr_crc32, by instructions of the processor where it has them. */
uint32_t tsr_native_crc32(uint32_t crc, const void *data, size_t size);
extern const tsr_digest_ops *const tsr_native_sha256;
/* Object stores report it for parts; `start` returns NULL if the system forbids MD5. */
extern const tsr_digest_ops *const tsr_native_md5;
extern const tsr_digest_ops *const tsr_native_xxh3;
extern const tsr_zstd_ops *const tsr_native_zstd;

/* CRC-32 of long runs with carry-less multiplication of wide vectors, which is two to five times as fast as the libraries. */

enum { TSR_FOLDS = 2, TSR_FOLDED_MOST = 64 };

typedef struct tsr_crc32_fold {
    size_t block;  /* bytes */
    size_t folded; /* bytes that blocks are reduced to, at most TSR_FOLDED_MOST */
    /* Whether this processor has the instructions. */
    bool (*is_there)(void);
    /* Reduces the whole blocks of `data`, of which there must be at least one, to `folded`, and returns how many bytes they are. The CRC
     * of these bytes, continued from `crc`, is that of `folded`, continued from 0xffffffff. */
    size_t (*run)(uint32_t crc, const void *data, size_t size, uint8_t *folded);
} tsr_crc32_fold;

extern const tsr_crc32_fold tsr_crc32_folds[TSR_FOLDS]; /* the fastest first */

#endif
