/* Computes CRC-32, because WebAssembly has no instructions for it. Core's own function makes its tables in every call and is
 * built for size, but a deep check and a conversion spend most of their time in it. The tables take no space in the module.
 *
 * Long data need no tables: x^38400 is congruent to x^19840 + x^14976 + x^11392 + 1 modulo the polynomial, and all exponents are
 * multiples of 128. Thus a word of 128 bits can be added to the words 145, 183, 211 and 300 places after it, and be replaced
 * by zero. The CRC is that of the last 300 words, to which all others were added. The idea is that of Chorba (Russell, 2024). */
#include <string.h>

#include "platform/lent.h"

#define POLYNOMIAL 0xedb88320u
enum { SLICES = 16, NEAR = 145, SECOND = 183, THIRD = 211, FAR = 300 };
typedef uint32_t word __attribute__((vector_size(16)));
enum { WORD = sizeof(word), AT_ONCE = 768, LONG = 4 * FAR * WORD };

static uint32_t table[SLICES][256]; /* [k][b]: the CRC of byte b followed by k zero bytes */
static word words[FAR + AT_ONCE];

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

static uint32_t sliced(uint32_t crc, const uint8_t *p, size_t size)
{
    for (; size >= SLICES; p += SLICES, size -= SLICES) {
        uint32_t parts[SLICES / 4];
        memcpy(parts, p, sizeof parts);
        crc = part(parts[0] ^ crc, 12) ^ part(parts[1], 8) ^ part(parts[2], 4) ^ part(parts[3], 0);
    }
    for (; size > 0; p++, size--) crc = (crc >> 8) ^ table[0][(crc ^ *p) & 0xff];
    return crc;
}

/* Adds `count` words to those after them. Those that still have to be added are the first FAR of `words`, before and after. */
static void add_words(const uint8_t *p, size_t count)
{
    for (size_t i = FAR; i < FAR + count; i++, p += WORD) {
        word now;
        memcpy(&now, p, WORD);
        words[i] = now ^ words[i - NEAR] ^ words[i - SECOND] ^ words[i - THIRD] ^ words[i - FAR];
    }
    memmove(words, words + count, FAR * WORD);
}

/* The CRC of FAR words after all others were added to them. */
static uint32_t last_words(const uint8_t *p)
{
    static const uint16_t distances[] = {NEAR, SECOND, THIRD, FAR};
    word last[FAR];
    memcpy(last, p, sizeof last);
    for (size_t d = 0; d < sizeof distances / sizeof *distances; d++)
        for (size_t i = 0; i < distances[d]; i++) last[i] ^= words[FAR - distances[d] + i];
    return sliced(0, (const uint8_t *)last, sizeof last);
}

uint32_t tessera_crc32(uint32_t crc, const void *data, size_t size)
{
    const uint8_t *p = data;
    if (!table[0][1]) make_table();
    crc = ~crc;
    if (size >= LONG) {
        memset(words, 0, FAR * WORD);
        words[0][0] = crc; /* is added to the first word of the data, and to no other */
        while (size >= 2 * FAR * WORD) {
            const size_t all = size / WORD - FAR, count = all < AT_ONCE ? all : AT_ONCE;
            add_words(p, count);
            p += count * WORD;
            size -= count * WORD;
        }
        crc = last_words(p);
        p += FAR * WORD;
        size -= FAR * WORD;
    }
    return ~sliced(crc, p, size);
}
