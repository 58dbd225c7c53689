/* CRC-32 of long runs with carry-less multiplication of wide vectors, which is more than twice as fast as the libraries. */
#ifndef TSR_NATIVE_CRC32_FOLD_H
#define TSR_NATIVE_CRC32_FOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TSR_FOLD_BLOCK = 256, TSR_FOLDED = 32 };

/* Whether this processor has the instructions. */
bool tsr_crc32_can_fold(void);
/* Reduces the whole blocks of `data`, of which there must be at least one, to `folded`, and returns how many bytes they are. The CRC of
 * these bytes, continued from `crc`, is that of `folded`, continued from 0xffffffff. */
size_t tsr_crc32_fold(uint32_t crc, const void *data, size_t size, uint8_t folded[TSR_FOLDED]);

#endif
