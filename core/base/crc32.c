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

/* x^(8 * 2^k) for k from 0 to 31. The next one is x^8 again, because x^(2^32) is x. */
static const uint32_t powers[32] = {0x00800000, 0x00008000, 0xedb88320, 0xb1e6b092, 0xa06a2517, 0xed627dae, 0x88d14467,
                                    0xd7bbfe6a, 0xec447f11, 0x8e7ea170, 0x6427800e, 0x4d47bae0, 0x09fe548f, 0x83852d0f,
                                    0x30362f1a, 0x7b5a9cc3, 0x31fec169, 0x9fec022a, 0x6c8dedc4, 0x15d6874d, 0x5fde7a4e,
                                    0xbad90e37, 0x2e4e5eef, 0x4eaba214, 0xa8a472c0, 0x429a969e, 0x148d302a, 0xc40ba6d0,
                                    0xc4e22c3c, 0x40000000, 0x20000000, 0x08000000};

/* Appending n zero bytes to a message multiplies its CRC by x^8n: by one of the powers for each bit of n. */
uint32_t tsr_crc32_join(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
    for (uint32_t k = 0; size_b; size_b >>= 1, k++) {
        if (size_b & 1) crc_a = times(powers[k % 32], crc_a);
    }
    return crc_a ^ crc_b;
}
