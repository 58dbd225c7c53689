/* XXH3 with 128 bits, seed 0 and the default secret, as the specification of xxHash defines it; for builds without the library.
 *
 *   up to 240 bytes: a formula for each range of lengths
 *   more:            stripes of 64 bytes are added to eight lanes; after each block of 16 stripes the lanes are scrambled. The
 *                    last 64 bytes are added once more, with another place of the secret. */
#include <string.h>

#include "base/cursor.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"

enum {
    STRIPE = 64,
    LANES = STRIPE / 8,
    SECRET_SIZE = 192,
    SECRET_STEP = 8, /* bytes of the secret between two stripes */
    STRIPES_OF_BLOCK = (SECRET_SIZE - STRIPE) / SECRET_STEP,
    SHORT_MOST = 240, /* bytes that are hashed as a whole */
    HELD = 256        /* bytes that wait, so that a short input is still there at the end */
};

#define P32_1 0x9e3779b1u
#define P32_2 0x85ebca77u
#define P32_3 0xc2b2ae3du
#define P64_1 UINT64_C(0x9e3779b185ebca87)
#define P64_2 UINT64_C(0xc2b2ae3d27d4eb4f)
#define P64_3 UINT64_C(0x165667b19e3779f9)
#define P64_4 UINT64_C(0x85ebca77c2b2ae63)
#define P64_5 UINT64_C(0x27d4eb2f165667c5)
#define MIX_1 UINT64_C(0x165667919e3779f9)
#define MIX_2 UINT64_C(0x9fb21c651e98df25)

static const uint8_t secret[SECRET_SIZE] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f,
    0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

typedef struct wide {
    uint64_t low, high;
} wide;

typedef struct xxh3 {
    uint64_t lanes[LANES];
    uint64_t bytes;   /* of the whole input so far */
    unsigned stripes; /* added in the current block */
    size_t held;      /* bytes that wait in `input`, behind the stripe before them */
    uint8_t input[STRIPE + HELD];
} xxh3;

static uint32_t load32(const uint8_t *p)
{
    return (uint32_t)tsr_load_le(p, 4);
}

static uint64_t load64(const uint8_t *p)
{
    return tsr_load_le(p, 8);
}

static uint32_t swap32(uint32_t x)
{
    return x << 24 | (x << 8 & 0xff0000) | (x >> 8 & 0xff00) | x >> 24;
}

static uint64_t swap64(uint64_t x)
{
    return (uint64_t)swap32((uint32_t)x) << 32 | swap32((uint32_t)(x >> 32));
}

static wide multiply(uint64_t a, uint64_t b)
{
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t low = a0 * b0, cross = a1 * b0 + (low >> 32), other = a0 * b1 + (uint32_t)cross;
    return (wide){a * b, a1 * b1 + (cross >> 32) + (other >> 32)};
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    const wide product = multiply(a, b);
    return product.low ^ product.high;
}

/* The last steps that make every bit of the result depend on every bit of `x`: of XXH3, and for few bytes of XXH64. */
static uint64_t avalanche(uint64_t x)
{
    x = (x ^ x >> 37) * MIX_1;
    return x ^ x >> 32;
}

static uint64_t avalanche_64(uint64_t x)
{
    x = (x ^ x >> 33) * P64_2;
    x = (x ^ x >> 29) * P64_3;
    return x ^ x >> 32;
}

/* ---- up to 240 bytes ---- */

static wide hash_1_to_3(const uint8_t *p, size_t size)
{
    const uint32_t low = (uint32_t)p[0] << 16 | (uint32_t)p[size / 2] << 24 | p[size - 1] | (uint32_t)size << 8;
    const uint32_t swapped = swap32(low), high = swapped << 13 | swapped >> 19;
    return (wide){avalanche_64(low ^ (uint64_t)(load32(secret) ^ load32(secret + 4))),
                  avalanche_64(high ^ (uint64_t)(load32(secret + 8) ^ load32(secret + 12)))};
}

static wide hash_4_to_8(const uint8_t *p, size_t size)
{
    const uint64_t both = load32(p) | (uint64_t)load32(p + size - 4) << 32;
    wide m = multiply(both ^ load64(secret + 16) ^ load64(secret + 24), P64_1 + (size << 2));
    m.high += m.low << 1;
    m.low ^= m.high >> 3;
    m.low = (m.low ^ m.low >> 35) * MIX_2;
    return (wide){m.low ^ m.low >> 28, avalanche(m.high)};
}

static wide hash_9_to_16(const uint8_t *p, size_t size)
{
    const uint64_t first = load64(p), last = load64(p + size - 8);
    const uint64_t high = last ^ load64(secret + 48) ^ load64(secret + 56);
    wide m = multiply(first ^ last ^ load64(secret + 32) ^ load64(secret + 40), P64_1);
    m.low += (uint64_t)(size - 1) << 54;
    m.high += high + (uint64_t)(uint32_t)high * (P32_2 - 1);
    m.low ^= swap64(m.high);
    const wide h = multiply(m.low, P64_2);
    return (wide){avalanche(h.low), avalanche(h.high + m.high * P64_2)};
}

static uint64_t mix(const uint8_t *p, const uint8_t *key)
{
    return fold(load64(p) ^ load64(key), load64(p + 8) ^ load64(key + 8));
}

static void mix_two(wide *sum, const uint8_t *a, const uint8_t *b, const uint8_t *key)
{
    sum->low = (sum->low + mix(a, key)) ^ (load64(b) + load64(b + 8));
    sum->high = (sum->high + mix(b, key + 16)) ^ (load64(a) + load64(a + 8));
}

static wide end_mixed(wide sum, size_t size)
{
    return (wide){avalanche(sum.low + sum.high), 0 - avalanche(sum.low * P64_1 + sum.high * P64_4 + size * P64_2)};
}

static wide hash_17_to_128(const uint8_t *p, size_t size)
{
    wide sum = {size * P64_1, 0};
    for (size_t i = (size - 1) / 32 + 1; i-- > 0;) mix_two(&sum, p + 16 * i, p + size - 16 * (i + 1), secret + 32 * i);
    return end_mixed(sum, size);
}

static wide hash_129_to_240(const uint8_t *p, size_t size)
{
    wide sum = {size * P64_1, 0};
    for (size_t at = 0; at < 128; at += 32) mix_two(&sum, p + at, p + at + 16, secret + at);
    sum = (wide){avalanche(sum.low), avalanche(sum.high)};
    for (size_t at = 128; at + 32 <= size; at += 32) mix_two(&sum, p + at, p + at + 16, secret + 3 + at - 128);
    mix_two(&sum, p + size - 16, p + size - 32, secret + 103);
    return end_mixed(sum, size);
}

static wide hash_short(const uint8_t *p, size_t size)
{
    if (size > 128) return hash_129_to_240(p, size);
    if (size > 16) return hash_17_to_128(p, size);
    if (size > 8) return hash_9_to_16(p, size);
    if (size > 3) return hash_4_to_8(p, size);
    if (size > 0) return hash_1_to_3(p, size);
    return (wide){avalanche_64(load64(secret + 64) ^ load64(secret + 72)),
                  avalanche_64(load64(secret + 80) ^ load64(secret + 88))};
}

/* ---- more ---- */

static void add_stripe(uint64_t *lanes, const uint8_t *p, const uint8_t *key)
{
    for (int i = 0; i < LANES; i++) {
        const uint64_t data = load64(p + 8 * i), mixed = data ^ load64(key + 8 * i);
        lanes[i ^ 1] += data;
        lanes[i] += (uint64_t)(uint32_t)mixed * (mixed >> 32);
    }
}

/* Adds `count` stripes, which must not be the last bytes of the input: a block is scrambled only where more bytes follow. */
static void add_stripes(xxh3 *s, const uint8_t *p, size_t count)
{
    for (; count; count--, p += STRIPE) {
        add_stripe(s->lanes, p, secret + SECRET_STEP * s->stripes);
        if (++s->stripes < STRIPES_OF_BLOCK) continue;
        s->stripes = 0;
        for (int i = 0; i < LANES; i++)
            s->lanes[i] = (s->lanes[i] ^ s->lanes[i] >> 47 ^ load64(secret + SECRET_SIZE - STRIPE + 8 * i)) * P32_1;
    }
}

static uint64_t merge(const uint64_t *lanes, const uint8_t *key, uint64_t start)
{
    for (int i = 0; i < LANES; i += 2) start += fold(lanes[i] ^ load64(key + 8 * i), lanes[i + 1] ^ load64(key + 8 * i + 8));
    return avalanche(start);
}

static wide hash_long(xxh3 *s)
{
    const uint8_t *held = s->input + STRIPE;
    add_stripes(s, held, (s->held - 1) / STRIPE);
    add_stripe(s->lanes, held + s->held - STRIPE, secret + SECRET_SIZE - STRIPE - 7);
    return (wide){merge(s->lanes, secret + 11, s->bytes * P64_1),
                  merge(s->lanes, secret + SECRET_SIZE - STRIPE - 11, ~(s->bytes * P64_2))};
}

/* ---- the digest ---- */

static void *start(void)
{
    static const uint64_t first[LANES] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    xxh3 *s = tsr_alloc(&tsr_allocator_libc, 1, sizeof *s, NULL);
    if (!s) return NULL;
    *s = (xxh3){.bytes = 0};
    memcpy(s->lanes, first, sizeof first);
    return s;
}

static void update(void *state, const void *data, size_t size)
{
    xxh3 *s = state;
    const uint8_t *p = data;
    uint8_t *held = s->input + STRIPE;
    s->bytes += size;
    if (size > HELD - s->held) { /* more than fits: what waits is followed by other bytes */
        const size_t room = HELD - s->held;
        if (s->held) {
            memcpy(held + s->held, p, room);
            p += room;
            size -= room;
            add_stripes(s, held, HELD / STRIPE);
            memcpy(s->input, held + HELD - STRIPE, STRIPE);
            s->held = 0;
        }
        if (size > HELD) {
            const size_t count = (size - 1) / STRIPE;
            add_stripes(s, p, count);
            p += count * STRIPE;
            size -= count * STRIPE;
            memcpy(s->input, p - STRIPE, STRIPE); /* the last stripe of the input may begin in it */
        }
    }
    if (size) memcpy(held + s->held, p, size);
    s->held += size;
}

static void abandon(void *state)
{
    tsr_free(&tsr_allocator_libc, state, 1, sizeof(xxh3));
}

/* The canonical form is big-endian, the high half first. */
static void finish(void *state, uint8_t *out)
{
    xxh3 *s = state;
    const wide hash = s->bytes > SHORT_MOST ? hash_long(s) : hash_short(s->input + STRIPE, (size_t)s->bytes);
    tsr_store_le(out, swap64(hash.high), 8);
    tsr_store_le(out + 8, swap64(hash.low), 8);
    abandon(s);
}

const tsr_digest_ops tsr_xxh3_portable = {16, start, update, finish, abandon};
