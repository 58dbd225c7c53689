/* See digests.h. A message is a polynomial over GF(2), and its CRC is the remainder modulo P. Bytes that n bits follow may therefore be
 * replaced by anything that is congruent to them times x^n, which is added to what follows. For vectors of w bits:
 *
 *   block  ──× x^8w mod P──▶ ⊕ next block ──× x^8w mod P──▶ ⊕ …      eight vectors side by side, so that the multiplier is always busy
 *   the eight vectors of the last block  ──× x^w mod P, one after the other──▶ one vector
 *
 * Bits are reflected. Each half of 64 bits is multiplied on its own: for a distance of n bits the low half, whose powers are higher, by
 * x^(n+32), the high half by x^(n-32), each modulo P, reflected, and shifted by one bit since products of reflected numbers are one bit
 * short. */
#include "io/digests.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define WIDE   __attribute__((target("avx2,pclmul,vpclmulqdq")))
#define WIDEST __attribute__((target("avx512f,pclmul,vpclmulqdq")))

enum { VECTORS = 8 };

/* ---- 256 bits ---- */

WIDE static inline __m256i load(const void *at)
{
    return _mm256_loadu_si256(at);
}

/* Moves `x` over `next`, by the distance of the multipliers. */
WIDE static inline __m256i move(__m256i x, __m256i by, __m256i next)
{
    const __m256i low = _mm256_clmulepi64_epi128(x, by, 0x00), high = _mm256_clmulepi64_epi128(x, by, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

WIDE static size_t fold_256(uint32_t crc, const void *data, size_t size, uint8_t *folded)
{
    const __m256i block = _mm256_set_epi64x(0x1322d1430, 0x11542778a, 0x1322d1430, 0x11542778a);
    const __m256i vector = _mm256_set_epi64x(0x15a546366, 0xf1da05aa, 0x15a546366, 0xf1da05aa);
    __m256i x[VECTORS];
    const uint8_t *p = data, *end = p + size / sizeof x * sizeof x;
    for (size_t i = 0; i < VECTORS; i++) x[i] = load(p + i * sizeof *x);
    x[0] = _mm256_xor_si256(
        x[0], _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, (int)~crc)); /* the CRC so far, before its last inversion */
    for (p += sizeof x; p < end; p += sizeof x)
        for (size_t i = 0; i < VECTORS; i++) x[i] = move(x[i], block, load(p + i * sizeof *x));
    for (size_t i = 1; i < VECTORS; i++) x[0] = move(x[0], vector, x[i]);
    _mm256_storeu_si256((void *)folded, x[0]);
    return (size_t)(p - (const uint8_t *)data);
}

static bool has_256(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("vpclmulqdq");
}

/* ---- 512 bits: twice as fast, from the second-level cache (measured on AMD EPYC) ---- */

WIDEST static inline __m512i load_widest(const void *at)
{
    return _mm512_loadu_si512(at);
}

WIDEST static inline __m512i move_widest(__m512i x, __m512i by, __m512i next)
{
    enum { XOR_OF_THREE = 0x96 };
    const __m512i low = _mm512_clmulepi64_epi128(x, by, 0x00), high = _mm512_clmulepi64_epi128(x, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, XOR_OF_THREE);
}

WIDEST static size_t fold_512(uint32_t crc, const void *data, size_t size, uint8_t *folded)
{
    const __m512i block = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1d741f35c, 0x1072db28));
    const __m512i vector = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1c6e41596, 0x154442bd4));
    __m512i x[VECTORS];
    const uint8_t *p = data, *end = p + size / sizeof x * sizeof x;
    for (size_t i = 0; i < VECTORS; i++) x[i] = load_widest(p + i * sizeof *x);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (p += sizeof x; p < end; p += sizeof x)
        for (size_t i = 0; i < VECTORS; i++) x[i] = move_widest(x[i], block, load_widest(p + i * sizeof *x));
    for (size_t i = 1; i < VECTORS; i++) x[0] = move_widest(x[0], vector, x[i]);
    _mm512_storeu_si512(folded, x[0]);
    return (size_t)(p - (const uint8_t *)data);
}

static bool has_512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("vpclmulqdq");
}

const tsr_crc32_fold tsr_crc32_folds[TSR_FOLDS] = {{VECTORS * 64, 64, has_512, fold_512},
                                                   {VECTORS * 32, 32, has_256, fold_256}};
#else
static bool has_none(void)
{
    return false;
}

const tsr_crc32_fold tsr_crc32_folds[TSR_FOLDS] = {{.is_there = has_none}, {.is_there = has_none}};
#endif
