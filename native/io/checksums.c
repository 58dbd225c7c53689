/* See checksums.h. Sources: RFC 4648 (Base64), RFC 3720 (CRC-32C), the NVM Express NVM Command Set Specification (its 64-bit CRC). */
#include "io/checksums.h"

#include <pthread.h>
#include <string.h>

#include "tessera/sys/host_calls.h"

/* The polynomials with reflected bits. A CRC of 32 bits is computed as one of 64 bits whose upper half is zero. */
static const uint64_t polynomials[TSR_CHECKSUM_KINDS] = {
    [TSR_CHECKSUM_CRC32] = 0xedb88320, [TSR_CHECKSUM_CRC32C] = 0x82f63b78, [TSR_CHECKSUM_CRC64] = 0x9a6c9329ac4bc9b5};
/* tables[k][n][b]: what byte b adds when n more bytes follow it. */
static uint64_t tables[TSR_CHECKSUM_KINDS][8][256];

static void make_tables(void)
{
    for (size_t kind = TSR_CHECKSUM_CRC32C; kind <= TSR_CHECKSUM_CRC64; kind++) {
        uint64_t(*t)[256] = tables[kind];
        for (unsigned b = 0; b < 256; b++) {
            uint64_t crc = b;
            for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? polynomials[kind] : 0);
            t[0][b] = crc;
        }
        for (size_t n = 1; n < 8; n++)
            for (unsigned b = 0; b < 256; b++) t[n][b] = (t[n - 1][b] >> 8) ^ t[0][t[n - 1][b] & 255];
    }
}

static uint64_t crc_of(tsr_checksum_kind kind, const void *data, size_t size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const uint64_t ones = kind == TSR_CHECKSUM_CRC32C ? UINT32_MAX : UINT64_MAX;
    const uint8_t *p = data;
    uint64_t crc = ones;
    pthread_once(&once, make_tables);
    const uint64_t(*t)[256] = (const uint64_t(*)[256])tables[kind];
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t next = 0;
        for (int i = 7; i >= 0; i--) next = next << 8 | p[i];
        next ^= crc;
        crc = t[7][next & 255] ^ t[6][next >> 8 & 255] ^ t[5][next >> 16 & 255] ^ t[4][next >> 24 & 255] ^
              t[3][next >> 32 & 255] ^ t[2][next >> 40 & 255] ^ t[1][next >> 48 & 255] ^ t[0][next >> 56];
    }
    for (; size; p++, size--) crc = (crc >> 8) ^ t[0][(crc ^ *p) & 255];
    return crc ^ ones;
}

void tsr_base64(const void *data, size_t size, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i += 3) {
        const size_t left = size - i;
        const unsigned three =
            (unsigned)bytes[i] << 16 | (left > 1 ? (unsigned)bytes[i + 1] << 8 : 0) | (left > 2 ? bytes[i + 2] : 0);
        *out++ = digits[three >> 18 & 63];
        *out++ = digits[three >> 12 & 63];
        *out++ = '=';
        *out++ = '=';
        if (left > 1) out[-2] = digits[three >> 6 & 63];
        if (left > 2) out[-1] = digits[three & 63];
    }
    *out = '\0';
}

static size_t bytes_of(tsr_checksum_kind kind)
{
    return kind == TSR_CHECKSUM_MD5 ? 16 : kind == TSR_CHECKSUM_CRC64 ? 8 : 4;
}

size_t tsr_checksum_text_size(tsr_checksum_kind kind)
{
    return (bytes_of(kind) + 2) / 3 * 4;
}

const char *tsr_checksum_name(tsr_checksum_kind kind)
{
    static const char *const names[TSR_CHECKSUM_KINDS] = {"CRC-32", "CRC-32C", "CRC-64", "MD5"};
    return names[kind];
}

static bool md5_of(const void *data, size_t size, uint8_t out[16])
{
    void *state = tsr_native_md5 ? tsr_native_md5->start() : NULL;
    if (!state) return false;
    if (size) tsr_native_md5->update(state, data, size);
    tsr_native_md5->finish(state, out);
    return true;
}

uint64_t tsr_checksum_of(tsr_checksum_kind kind, const void *data, size_t size)
{
    return kind == TSR_CHECKSUM_CRC32 ? tsr_native_crc32(0, data, size) : crc_of(kind, data, size);
}

/* The product of two polynomials modulo that of the kind, with reflected bits: `one` is x^0. */
static uint64_t times(tsr_checksum_kind kind, uint64_t one, uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    for (; one; one >>= 1) {
        if (a & one) product ^= b;
        b = (b >> 1) ^ (b & 1 ? polynomials[kind] : 0);
    }
    return product;
}

/* As tsr_crc32_join. */
uint64_t tsr_checksum_join(tsr_checksum_kind kind, uint64_t a, uint64_t b, uint64_t size_b)
{
    const uint64_t one = kind == TSR_CHECKSUM_CRC64 ? UINT64_C(1) << 63 : UINT64_C(1) << 31;
    for (uint64_t power = one >> 8; size_b; size_b >>= 1, power = times(kind, one, power, power)) /* x^8 at first */
        if (size_b & 1) a = times(kind, one, power, a);
    return a ^ b;
}

void tsr_checksum_spell(tsr_checksum_kind kind, uint64_t sum, char out[TSR_CHECKSUM_TEXT])
{
    uint8_t bytes[8];
    const size_t count = bytes_of(kind);
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)(sum >> (8 * (count - 1 - i)));
    tsr_base64(bytes, count, out);
}

bool tsr_checksum_text(tsr_checksum_kind kind, const void *data, size_t size, char out[TSR_CHECKSUM_TEXT])
{
    uint8_t bytes[16];
    out[0] = '\0';
    if (kind != TSR_CHECKSUM_MD5) {
        tsr_checksum_spell(kind, tsr_checksum_of(kind, data, size), out);
        return true;
    }
    if (!md5_of(data, size, bytes)) return false;
    tsr_base64(bytes, sizeof bytes, out);
    return true;
}
