/* CRC-32 (polynomial 0xEDB88320, reflected), in portable C, eight bytes per step; and combining the CRCs of pieces. If the
 * host provides a faster one (ISA-L, libdeflate, zlib), that is used; the results are the same. */
#include "base/cursor.h"
#include "tessera/host.h"
#include "tessera/sys/host_calls.h"

#define POLYNOMIAL 0xedb88320u

static uint32_t shift_byte(uint32_t crc)
{
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
    return crc;
}

/* table[k][b] is the CRC of byte b followed by k zero bytes. It is rebuilt in each call, since core has no global state.
 * Building its 2048 entries takes about as long as processing 10 KB of data, so short inputs are processed bit by bit. */
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

/* The product of two polynomials modulo the CRC's, with reflected bits: the highest bit is x^0. */
static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit) product ^= b;
        b = (b >> 1) ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

/* Appending n zero bytes to a message multiplies its CRC by x^8n, which is computed by repeated squaring. */
uint32_t tsr_crc32_join(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
    for (uint32_t power = 1u << 23; size_b; size_b >>= 1, power = times(power, power)) { /* x^8 at first */
        if (size_b & 1) crc_a = times(power, crc_a);
    }
    return crc_a ^ crc_b;
}
