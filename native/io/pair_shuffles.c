/* See host_parts.h. A table of 16 products of 2 bytes becomes two vectors, of their low and of their high bytes. A shuffle by 16
 * numbers looks up the low bytes of their products, another one the high bytes, and both are interleaved. */
#include "io/host_parts.h"

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
