/* See file_sums.h. The bytes of a step:
 *
 *   size of the records u64 | number n of sums u32 | records | n × (file u32, sum u64) | CRC-32 of all this u32 */
#include "publish/file_sums.h"

#include <stdlib.h>
#include <string.h>

#include "publish/text.h"
#include "tessera/host.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/try.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAVE_VECTORS 1
#else
#define HAVE_VECTORS 0
#endif

#define PART_BITS 21u
#define PRIME     (((uint64_t)1 << 61) - 1)
#define SUM_BYTES 12u
#define HEAD      12u

__extension__ typedef unsigned __int128 wide;

/* ---- sums ---- */

static uint64_t reduce(wide x)
{
    const uint64_t once = (uint64_t)(x & PRIME) + (uint64_t)((x >> 61) & PRIME) + (uint64_t)(x >> 122);
    const uint64_t twice = (once & PRIME) + (once >> 61);
    return twice >= PRIME ? twice - PRIME : twice;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
    return reduce((wide)a * b);
}

uint64_t tsr_sum_add(uint64_t a, uint64_t b)
{
    return reduce((wide)a + b);
}

static uint64_t mix(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

tsr_sum_key tsr_sum_key_of(const char *tag)
{
    tsr_sum_key key;
    const uint64_t r = mix(strtoull(tag + 1, NULL, 16)) % (PRIME - 2) + 2;
    key.powers[0] = 1;
    for (unsigned i = 1; i < TSR_SUM_WORDS; i++) key.powers[i] = multiply(key.powers[i - 1], r);
    key.next = multiply(key.powers[TSR_SUM_WORDS - 1], r);
    for (unsigned i = 0; i < TSR_SUM_WORDS; i++) {
        for (unsigned p = 0; p < 3; p++) key.parts[p][i] = key.powers[i] >> PART_BITS * p & ((1u << PART_BITS) - 1);
    }
    return key;
}

static uint64_t power(const tsr_sum_key *key, uint64_t exponent)
{
    uint64_t result = key->powers[exponent % TSR_SUM_WORDS], square = key->next;
    for (exponent /= TSR_SUM_WORDS; exponent; exponent >>= 1, square = multiply(square, square))
        if (exponent & 1) result = multiply(result, square);
    return result;
}

#if HAVE_VECTORS
#define AVX2 __attribute__((target("avx2")))

/* Loads four words, each into a lane of 64 bits. Vectors have no 128-bit products, so a word is multiplied by each part of
 * its power separately. Such a product has 53 bits, and the sum of 1024 of them fits in 64. */
AVX2 static __m256i four(const void *words)
{
    return _mm256_cvtepu32_epi64(_mm_loadu_si128(words));
}

AVX2 static uint64_t sum_lanes(__m256i v)
{
    uint64_t lanes[4];
    _mm256_storeu_si256((__m256i *)(void *)lanes, v);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

/* Sums the words that come in whole groups of four; *done is their number. */
AVX2 static wide sum_fours(const tsr_sum_key *key, const uint8_t *bytes, size_t words, size_t *done)
{
    __m256i low = _mm256_setzero_si256(), middle = low, high = low;
    for (*done = 0; *done + 4 <= words; *done += 4) {
        const __m256i w = four(bytes + 4 * *done);
        low = _mm256_add_epi64(low, _mm256_mul_epu32(w, four(key->parts[0] + *done)));
        middle = _mm256_add_epi64(middle, _mm256_mul_epu32(w, four(key->parts[1] + *done)));
        high = _mm256_add_epi64(high, _mm256_mul_epu32(w, four(key->parts[2] + *done)));
    }
    return sum_lanes(low) + ((wide)sum_lanes(middle) << PART_BITS) + ((wide)sum_lanes(high) << 2 * PART_BITS);
}
#endif

/* Sums at most TSR_SUM_WORDS whole words. A product has 93 bits, so the sum of 1024 of them fits in 128. */
static uint64_t sum_words(const tsr_sum_key *key, const uint8_t *bytes, size_t words)
{
    wide sum = 0;
    size_t done = 0;
#if HAVE_VECTORS
    if (__builtin_cpu_supports("avx2")) sum = sum_fours(key, bytes, words, &done);
#endif
    for (size_t i = done; i < words; i++) sum += (wide)tsr_load_le(bytes + 4 * i, 4) * key->powers[i];
    return reduce(sum);
}

/* The sum of bytes that lie in one word. */
static uint64_t sum_part(const tsr_sum_key *key, uint64_t offset, const uint8_t *bytes, size_t size)
{
    uint32_t word = 0;
    for (size_t i = 0; i < size; i++) word |= (uint32_t)bytes[i] << 8 * ((offset + i) % 4);
    return multiply(word, power(key, offset / 4));
}

uint64_t tsr_sum_bytes(const tsr_sum_key *key, uint64_t offset, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    size_t head = (size_t)((4 - offset % 4) % 4);
    if (head > size) head = size;
    uint64_t sum = head ? sum_part(key, offset, bytes, head) : 0;
    const size_t words = (size - head) / 4, tail = size - head - 4 * words;
    uint64_t at = words ? power(key, (offset + head) / 4) : 0;
    for (size_t i = 0; i < words; i += TSR_SUM_WORDS, at = multiply(at, key->next)) {
        const size_t some = words - i < TSR_SUM_WORDS ? words - i : TSR_SUM_WORDS;
        sum = tsr_sum_add(sum, multiply(at, sum_words(key, bytes + head + 4 * i, some)));
    }
    if (tail) sum = tsr_sum_add(sum, sum_part(key, offset + size - tail, bytes + size - tail, tail));
    return sum;
}

/* ---- steps ---- */

tsr_status tsr_step_put(tsr_str records, const uint64_t *sums, uint32_t count, tsr_vec *text, tsr_error *err)
{
    const size_t start = text->count;
    uint8_t head[HEAD], crc[4];
    uint32_t used = 0;
    for (uint32_t f = 0; f < count; f++) used += sums[f] != 0;
    tsr_store_le(head, records.size, 8);
    tsr_store_le(head + 8, used, 4);
    TSR_TRY(tsr_text_add(text, (tsr_str){(const char *)head, HEAD}, err));
    TSR_TRY(tsr_text_add(text, records, err));
    for (uint32_t f = 0; f < count; f++) {
        uint8_t sum[SUM_BYTES];
        if (!sums[f]) continue;
        tsr_store_le(sum, f, 4);
        tsr_store_le(sum + 4, sums[f], 8);
        TSR_TRY(tsr_text_add(text, (tsr_str){(const char *)sum, SUM_BYTES}, err));
    }
    tsr_store_le(crc, tsr_crc32(NULL, 0, (const char *)text->items + start, text->count - start), 4);
    return tsr_text_add(text, (tsr_str){(const char *)crc, 4}, err);
}

bool tsr_journal_step_next(tsr_str *rest, tsr_journal_step *out)
{
    const uint8_t *bytes = (const uint8_t *)rest->data;
    if (rest->size < HEAD + 4) return false;
    const uint64_t records = tsr_load_le(bytes, 8), sums = tsr_load_le(bytes + 8, 4) * SUM_BYTES;
    const size_t room = rest->size - HEAD - 4;
    if (records > room || sums > room - records) return false;
    const size_t size = HEAD + (size_t)records + (size_t)sums;
    if (tsr_crc32(NULL, 0, bytes, size) != tsr_load_le(bytes + size, 4)) return false;
    *out = (tsr_journal_step){{rest->data + HEAD, (size_t)records}, bytes + HEAD + records, (uint32_t)(sums / SUM_BYTES)};
    *rest = tsr_str_after(*rest, size + 4);
    return true;
}

void tsr_journal_step_sum(const tsr_journal_step *step, uint64_t *sums, uint32_t count)
{
    for (uint32_t i = 0; i < step->count; i++) {
        const uint64_t file = tsr_load_le(step->sums + SUM_BYTES * i, 4);
        if (file < count) sums[file] = tsr_sum_add(sums[file], tsr_load_le(step->sums + SUM_BYTES * i + 4, 8));
    }
}
