/* See checksums.h. A message is a polynomial over GF(2), and its CRC is the remainder modulo P. Bytes that n bits follow may therefore be
 * replaced by anything that is congruent to them times x^n, which is added to what follows. For vectors of w bits:
 *
 *   block  ──× x^8w mod P──▶ ⊕ next block ──× x^8w mod P──▶ ⊕ …      eight vectors side by side, so that the multiplier is always busy
 *   the eight vectors of the last block  ──× x^w mod P, one after the other──▶ one vector
 *
 * Bits are reflected. Each half of 64 bits is multiplied on its own: for a distance of n bits the low half, whose powers are higher, by
 * x^(n+32), the high half by x^(n-32), each modulo P, reflected, and shifted by one bit since products of reflected numbers are one bit
 * short. */
#include "io/checksums.h"

#include "io/host_parts.h"

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

/* A table of 16 products of 2 bytes becomes two vectors, of their low and of their high bytes. A shuffle by 16
 * numbers looks up the low bytes of their products, another one the high bytes, and both are interleaved. */

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define SSSE3 __attribute__((target("ssse3")))

SSSE3 static void look_up_group(const uint8_t *pairs, size_t bytes, const uint16_t *products, uint8_t *out)
{
    const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), half = _mm_set1_epi8(15);
    const __m128i first = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)products), apart);
    const __m128i second = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(products + 8)), apart);
    const __m128i low = _mm_unpacklo_epi64(first, second), high = _mm_unpackhi_epi64(first, second);
    for (size_t i = 0; i < bytes; i += 8) {
        const __m128i eight = _mm_loadl_epi64((const __m128i *)(const void *)(pairs + i));
        const __m128i numbers = _mm_unpacklo_epi8(_mm_and_si128(eight, half), _mm_and_si128(_mm_srli_epi16(eight, 4), half));
        const __m128i lows = _mm_shuffle_epi8(low, numbers), highs = _mm_shuffle_epi8(high, numbers);
        _mm_storeu_si128((__m128i *)(void *)(out + 4 * i), _mm_unpacklo_epi8(lows, highs));
        _mm_storeu_si128((__m128i *)(void *)(out + 4 * i + 16), _mm_unpackhi_epi8(lows, highs));
    }
}

SSSE3 static void look_up_pairs(const tsr_pair_groups *g, uint8_t *out)
{
    for (size_t i = 0; i < g->count; i++)
        look_up_group(g->pairs + i * g->group_bytes, g->group_bytes, g->products[g->tables[i]],
                      out + 4 * i * g->group_bytes);
}

tsr_pair_shuffles *tsr_native_pair_shuffles(void)
{
    return __builtin_cpu_supports("ssse3") ? look_up_pairs : NULL;
}
#elif defined(__AARCH64EL__) && defined(__ARM_NEON)
#include <arm_neon.h>

static void look_up_group(const uint8_t *pairs, size_t bytes, const uint16_t *products, uint8_t *out)
{
    const uint8x16x2_t table = vld2q_u8((const uint8_t *)products);
    for (size_t i = 0; i < bytes; i += 8) {
        const uint8x8_t eight = vld1_u8(pairs + i);
        const uint8x8x2_t zipped = vzip_u8(vand_u8(eight, vdup_n_u8(15)), vshr_n_u8(eight, 4));
        const uint8x16_t numbers = vcombine_u8(zipped.val[0], zipped.val[1]);
        const uint8x16x2_t found = {{vqtbl1q_u8(table.val[0], numbers), vqtbl1q_u8(table.val[1], numbers)}};
        vst2q_u8(out + 4 * i, found);
    }
}

static void look_up_pairs(const tsr_pair_groups *g, uint8_t *out)
{
    for (size_t i = 0; i < g->count; i++)
        look_up_group(g->pairs + i * g->group_bytes, g->group_bytes, g->products[g->tables[i]],
                      out + 4 * i * g->group_bytes);
}

tsr_pair_shuffles *tsr_native_pair_shuffles(void)
{
    return look_up_pairs;
}
#else
tsr_pair_shuffles *tsr_native_pair_shuffles(void)
{
    return NULL;
}
#endif

/* A block is four vectors of 32 bytes. */

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

/* `add` adds two vectors lane by lane. */
#define SCAN(name, add, set, magnitude) \
    AVX2 static bool name(const uint8_t *data, size_t size, uint64_t lowest) \
    { \
        const __m256i low = set(lowest), mask = set(magnitude); \
        __m256i found = _mm256_setzero_si256(); \
        for (size_t at = 0; at < size; at += TSR_SCAN_BLOCK) { \
            for (size_t i = 0; i < TSR_SCAN_BLOCK; i += sizeof found) { \
                const __m256i numbers = _mm256_loadu_si256((const __m256i *)(const void *)(data + at + i)); \
                found = _mm256_or_si256(found, add(_mm256_and_si256(numbers, mask), low)); \
            } \
        } \
        return !_mm256_testc_si256(mask, found); /* a sign bit was set */ \
    }

#define SET_8(value)  _mm256_set1_epi8((char)(value))
#define SET_16(value) _mm256_set1_epi16((short)(value))
#define SET_32(value) _mm256_set1_epi32((int)(value))
#define SET_64(value) _mm256_set1_epi64x((long long)(value))

SCAN(scan_8, _mm256_add_epi8, SET_8, 0x7f)
SCAN(scan_16, _mm256_add_epi16, SET_16, 0x7fff)
SCAN(scan_32, _mm256_add_epi32, SET_32, 0x7fffffff)
SCAN(scan_64, _mm256_add_epi64, SET_64, INT64_MAX)

static bool carries(const void *data, size_t size, uint32_t item_bytes, uint64_t lowest)
{
    switch (item_bytes) {
    case 1: return scan_8(data, size, lowest);
    case 2: return scan_16(data, size, lowest);
    case 4: return scan_32(data, size, lowest);
    default: return scan_64(data, size, lowest);
    }
}

tsr_wide_scan *tsr_native_wide_scan(void)
{
    return __builtin_cpu_supports("avx2") ? carries : NULL;
}
#else
tsr_wide_scan *tsr_native_wide_scan(void)
{
    return NULL;
}
#endif
