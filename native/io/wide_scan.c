/* See host_parts.h. A block is four vectors of 32 bytes. */
#include "io/host_parts.h"

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
