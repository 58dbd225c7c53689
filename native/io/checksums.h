/* The checksums that object stores state in headers: CRC-32, CRC-32C, CRC-64/NVME and MD5, in Base64.
 *
 * Example:
 *
 *     char text[TSR_CHECKSUM_TEXT];
 *     tsr_checksum_text(TSR_CHECKSUM_CRC32C, "123456789", 9, text);   "4waSgw==" */
#ifndef TSR_IO_CHECKSUMS_H
#define TSR_IO_CHECKSUMS_H

#include "tessera/host.h"
#include "tessera/memory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ordered as an answer that states several of them is checked: the first one is enough. */
typedef enum tsr_checksum_kind {
    TSR_CHECKSUM_CRC32,
    TSR_CHECKSUM_CRC32C,
    TSR_CHECKSUM_CRC64,
    TSR_CHECKSUM_MD5,
    TSR_CHECKSUM_KINDS
} tsr_checksum_kind;

enum { TSR_CHECKSUM_TEXT = 28 };

/* Writes the checksum of the bytes as Base64 of its big-endian bytes. False if this build or this system does not have it. Thread-safe. */
bool tsr_checksum_text(tsr_checksum_kind kind, const void *data, size_t size, char out[TSR_CHECKSUM_TEXT]);
/* The same in steps, for the kinds that are CRCs: that of bytes, that of bytes which `size_b` bytes follow, and its text. */
uint64_t tsr_checksum_of(tsr_checksum_kind kind, const void *data, size_t size);
uint64_t tsr_checksum_join(tsr_checksum_kind kind, uint64_t a, uint64_t b, uint64_t size_b);
void tsr_checksum_spell(tsr_checksum_kind kind, uint64_t sum, char out[TSR_CHECKSUM_TEXT]);
/* The number of characters of such a text. */
size_t tsr_checksum_text_size(tsr_checksum_kind kind);
const char *tsr_checksum_name(tsr_checksum_kind kind); /* "CRC-32", for messages */

/* Base64 with padding; `out` gets 4 characters for each 3 bytes or fewer, and a NUL. */
void tsr_base64(const void *data, size_t size, char *out);

/* CRC-32, digests and zstd from the libraries that this was built with. Without them, the digests are core's portable ones, and the
 * others are NULL. */

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
