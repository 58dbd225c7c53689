/* See digests.h. A message is a polynomial over GF(2), and its CRC is the remainder modulo P. Bytes that n bits follow may therefore be
 * replaced by anything that is congruent to them times x^n, which is added to what follows:
 *
 *   block  ──× x^2048 mod P──▶ ⊕ next block ──× x^2048 mod P──▶ ⊕ …      eight vectors side by side, so that the multiplier is always busy
 *   the eight vectors of the last block  ──× x^256 mod P, one after the other──▶ one vector
 *
 * Bits are reflected. Each half of 64 bits is multiplied on its own: for a distance of n bits the low half, whose powers are higher, by
 * x^(n+32), the high half by x^(n-32), each modulo P, reflected, and shifted by one bit since products of reflected numbers are one bit
 * short. */
#include "io/digests.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx2,pclmul,vpclmulqdq")))

enum { VECTORS = TSR_FOLD_BLOCK / sizeof(__m256i) };

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

WIDE size_t tsr_crc32_fold(uint32_t crc, const void *data, size_t size, uint8_t folded[TSR_FOLDED])
{
    const __m256i block = _mm256_set_epi64x(0x1322d1430, 0x11542778a, 0x1322d1430, 0x11542778a);
    const __m256i vector = _mm256_set_epi64x(0x15a546366, 0xf1da05aa, 0x15a546366, 0xf1da05aa);
    const uint8_t *p = data, *end = p + size / TSR_FOLD_BLOCK * TSR_FOLD_BLOCK;
    __m256i x[VECTORS];
    for (size_t i = 0; i < VECTORS; i++) x[i] = load(p + i * sizeof *x);
    x[0] = _mm256_xor_si256(
        x[0], _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, (int)~crc)); /* the CRC so far, before its last inversion */
    for (p += TSR_FOLD_BLOCK; p < end; p += TSR_FOLD_BLOCK)
        for (size_t i = 0; i < VECTORS; i++) x[i] = move(x[i], block, load(p + i * sizeof *x));
    for (size_t i = 1; i < VECTORS; i++) x[0] = move(x[0], vector, x[i]);
    _mm256_storeu_si256((void *)folded, x[0]);
    return (size_t)(p - (const uint8_t *)data);
}

bool tsr_crc32_can_fold(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("vpclmulqdq");
}
#else
size_t tsr_crc32_fold(uint32_t crc, const void *data, size_t size, uint8_t folded[TSR_FOLDED])
{
    (void)crc, (void)data, (void)size, (void)folded;
    return 0;
}

bool tsr_crc32_can_fold(void)
{
    return false;
}
#endif
