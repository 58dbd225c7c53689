/* CRC-32 (polynomial 0xEDB88320, reflected), portable, eight bytes a step; and the CRC of joined pieces.
 * Where a host lends a faster one (ISA-L, libdeflate, zlib) that is used; results are the same. */
#include "base/cursor.h"
#include "tessera/host.h"

#define POLYNOMIAL 0xedb88320u

static uint32_t shift_byte(uint32_t crc)
{
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
    return crc;
}

/* table[k][b]: the CRC of byte b followed by k zero bytes. Rebuilt a call rather than kept, since core has no global
 * state: 2 KiB entries cost about as much as 10 KB of data, so short inputs go bit by bit. */
static uint32_t crc_portable(uint32_t crc, const uint8_t *p, size_t size)
{
    uint32_t table[8][256];
    crc = ~crc;
    if (size >= 2048) {
        for (uint32_t b = 0; b < 256; b++) table[0][b] = shift_byte(b);
        for (int k = 1; k < 8; k++) {
            for (int b = 0; b < 256; b++) table[k][b] = table[0][table[k - 1][b] & 0xff] ^ (table[k - 1][b] >> 8);
        }
        for (; size >= 8; p += 8, size -= 8) {
            uint32_t low = crc ^ (uint32_t)tsr_load_le(p, 4);
            crc = table[7][low & 0xff] ^ table[6][(low >> 8) & 0xff] ^ table[5][(low >> 16) & 0xff] ^ table[4][low >> 24] ^
                  table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
        }
    }
    for (; size > 0; p++, size--) crc = (crc >> 8) ^ shift_byte((crc ^ *p) & 0xff);
    return ~crc;
}

uint32_t tsr_crc32(const tsr_host *host, uint32_t crc, const void *data, size_t size)
{
    return host && host->crc32 ? host->crc32(crc, data, size) : crc_portable(crc, data, size);
}

/* A 32 × 32 bit matrix over GF(2), one column a word, applied to a vector. */
static uint32_t matrix_times(const uint32_t matrix[32], uint32_t vector)
{
    uint32_t sum = 0;
    for (int i = 0; vector; i++, vector >>= 1) {
        if (vector & 1) sum ^= matrix[i];
    }
    return sum;
}

/* Appending n zero bytes to a message multiplies its CRC by a matrix; that matrix by repeated squaring. */
uint32_t tsr_crc32_join(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
    uint32_t power[32], squared[32];
    for (uint32_t i = 0; i < 32; i++) power[i] = shift_byte(1u << i);
    for (; size_b; size_b >>= 1) {
        if (size_b & 1) crc_a = matrix_times(power, crc_a);
        for (int i = 0; i < 32; i++) squared[i] = matrix_times(power, power[i]);
        memcpy(power, squared, sizeof power);
    }
    return crc_a ^ crc_b;
}
