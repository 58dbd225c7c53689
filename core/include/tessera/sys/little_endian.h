/* Whole numbers as little-endian bytes, as all formats and records have them.
 *
 * Example:
 *
 *     uint8_t head[8];
 *     tsr_store_le(head, 4096, sizeof head);
 *     printf("%llu bytes\n", (unsigned long long)tsr_load_le(head, sizeof head)); */
#ifndef TESSERA_SYS_LITTLE_ENDIAN_H
#define TESSERA_SYS_LITTLE_ENDIAN_H

#include <stdint.h>

#include "tessera/api.h"

TSR_API_BEGIN

/* `count` bytes, at most 8. */
static inline uint64_t tsr_load_le(const void *bytes, unsigned count)
{
    const uint8_t *from = (const uint8_t *)bytes;
    uint64_t value = 0;
#if defined(__GNUC__) && !defined(__clang__) /* gcc 12 reads byte by byte in the loop below, in hot loops, too */
    if (count == 4) return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
    if (count == 8)
        return (uint64_t)from[0] | (uint64_t)from[1] << 8 | (uint64_t)from[2] << 16 | (uint64_t)from[3] << 24 |
               (uint64_t)from[4] << 32 | (uint64_t)from[5] << 40 | (uint64_t)from[6] << 48 | (uint64_t)from[7] << 56;
#endif
    for (unsigned i = 0; i < count; i++) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

/* The lowest `count` bytes of a number, at most 8. */
static inline void tsr_store_le(void *bytes, uint64_t number, unsigned count)
{
    uint8_t *to = (uint8_t *)bytes;
    for (unsigned i = 0; i < count; i++) to[i] = (uint8_t)(number >> (8 * i));
}

TSR_API_END

#endif
