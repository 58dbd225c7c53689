/* Computes CRC-32 sixteen bytes at a time. Core's own function makes its tables in every call and is built for size, but a
 * deep check and a conversion spend most of their time in it, because WebAssembly has no CRC instructions. The tables take
 * no space in the module. */
#include <string.h>

#include "platform/lent.h"

#define POLYNOMIAL 0xedb88320u
enum { SLICES = 16 };

static uint32_t table[SLICES][256]; /* [k][b]: the CRC of byte b followed by k zero bytes */

static void make_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][b] = crc;
    }
    for (int k = 1; k < SLICES; k++)
        for (int b = 0; b < 256; b++) table[k][b] = table[0][table[k - 1][b] & 0xff] ^ (table[k - 1][b] >> 8);
}

/* The CRC of four bytes that are followed by `zeros` zero bytes. */
static inline __attribute__((always_inline)) uint32_t part(uint32_t word, int zeros)
{
    return table[zeros + 3][word & 0xff] ^ table[zeros + 2][(word >> 8) & 0xff] ^ table[zeros + 1][(word >> 16) & 0xff] ^
           table[zeros][word >> 24];
}

uint32_t tessera_crc32(uint32_t crc, const void *data, size_t size)
{
    const uint8_t *p = data;
    if (!table[0][1]) make_table();
    crc = ~crc;
    for (; size >= SLICES; p += SLICES, size -= SLICES) {
        uint32_t words[SLICES / 4];
        memcpy(words, p, sizeof words);
        crc = part(words[0] ^ crc, 12) ^ part(words[1], 8) ^ part(words[2], 4) ^ part(words[3], 0);
    }
    for (; size > 0; p++, size--) crc = (crc >> 8) ^ table[0][(crc ^ *p) & 0xff];
    return ~crc;
}
