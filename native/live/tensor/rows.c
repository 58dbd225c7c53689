/* A processor foresees what is read next inside a page and a run, but not where the next run begins. Lines are therefore
 * fetched AHEAD bytes before they are copied, across the ends of pages and runs. */
#include "live/tensor/rows.h"

#include <string.h>

#if defined __x86_64__ && defined __GNUC__
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2")))
#else
#define AVX2
#endif

enum { LINE = 64, BLOCK = 4 * LINE, AHEAD = 8192, LONG_RUN = 256 };

static inline void fetch(const uint8_t *from, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(from + i, 0, 3);
}

/* ---- into the caches ---- */

/* `next` is the run to fetch while the last AHEAD bytes of this one are copied; NULL: none. */
static void copy_run(uint8_t *to, const uint8_t *from, uint64_t bytes, const uint8_t *next)
{
    for (uint64_t size; bytes; to += size, from += size, bytes -= size) {
        size = bytes < AHEAD ? bytes : AHEAD;
        if (bytes > AHEAD) fetch(from + size, bytes - size < AHEAD ? bytes - size : AHEAD);
        else if (next) fetch(next, size);
        memcpy(to, from, (size_t)size);
    }
}

/* ---- past the caches ---- */

#if defined __x86_64__ && defined __GNUC__
/* Whole blocks. What is overwritten is not read first, as it would be on its way into the caches. */
AVX2 static void copy_blocks(uint8_t *to, const uint8_t *from, uint64_t bytes, const uint8_t *next)
{
    for (uint64_t i = 0; i < bytes; i += BLOCK) {
        const __m256i *source = (const __m256i *)(const void *)(from + i);
        __m256i *target = (__m256i *)(void *)(to + i);
        if (next) fetch(next + i, BLOCK);
        const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
        const __m256i c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
        const __m256i e = _mm256_loadu_si256(source + 4), f = _mm256_loadu_si256(source + 5);
        const __m256i g = _mm256_loadu_si256(source + 6), h = _mm256_loadu_si256(source + 7);
        _mm256_stream_si256(target, a), _mm256_stream_si256(target + 1, b), _mm256_stream_si256(target + 2, c);
        _mm256_stream_si256(target + 3, d), _mm256_stream_si256(target + 4, e), _mm256_stream_si256(target + 5, f);
        _mm256_stream_si256(target + 6, g), _mm256_stream_si256(target + 7, h);
    }
}

/* Less than a block, whose ends may share lines with the runs before and behind it: those are written whole in the end. Plain
 * stores would wait for the line, and all that follow for them. */
static void copy_part(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    while (bytes) {
        uint64_t size = 1;
        if (((uintptr_t)to & 15) == 0 && bytes >= 16) {
            _mm_stream_si128((__m128i *)(void *)to, _mm_loadu_si128((const __m128i *)(const void *)from));
            size = 16;
        } else if (((uintptr_t)to & 3) == 0 && bytes >= 4) {
            int32_t word;
            memcpy(&word, from, 4);
            _mm_stream_si32((int *)(void *)to, word);
            size = 4;
        } else {
            *to = *from;
        }
        to += size, from += size, bytes -= size;
    }
}

static void copy_run_past(uint8_t *to, const uint8_t *from, uint64_t bytes, const uint8_t *next)
{
    uint64_t head = -(uintptr_t)to & (LINE - 1);
    if (head > bytes) head = bytes;
    copy_part(to, from, head);
    to += head, from += head, bytes -= head;
    const uint64_t blocks = bytes - bytes % BLOCK, inside = blocks > AHEAD ? blocks - AHEAD : 0;
    copy_blocks(to, from, inside, from + AHEAD);
    copy_blocks(to + inside, from + inside, blocks - inside, next);
    copy_part(to + blocks, from + blocks, bytes - blocks);
}

static bool streams(void)
{
    return __builtin_cpu_supports("avx2");
}

static void finish_streams(void)
{
    _mm_sfence();
}
#else
static void copy_run_past(uint8_t *to, const uint8_t *from, uint64_t bytes, const uint8_t *next)
{
    copy_run(to, from, bytes, next);
}

static bool streams(void)
{
    return false;
}

static void finish_streams(void) {}
#endif

/* ---- rows ---- */

static void copy_long_runs(const tsr_rows *r)
{
    const uint64_t ahead = (AHEAD + r->run - 1) / r->run; /* runs */
    const bool past = r->past_caches && streams();
    uint8_t *to = r->to;
    const uint8_t *from = r->from;
    for (uint64_t i = 0; i < r->count; i++, to += r->to_stride, from += r->from_stride) {
        const uint8_t *next = i + ahead < r->reach ? from + ahead * r->from_stride : NULL;
        if (past) copy_run_past(to, from, r->run, next);
        else copy_run(to, from, r->run, next);
    }
    if (past) finish_streams();
}

#define RUNS_OF(size) \
    for (uint64_t i = 0; i < r->count; i++, to += r->to_stride, from += r->from_stride) memcpy(to, from, (size)); \
    break

void tsr_rows_copy(const tsr_rows *r)
{
    uint8_t *to = r->to;
    const uint8_t *from = r->from;
    if (r->run >= LONG_RUN) {
        copy_long_runs(r);
        return;
    }
    switch (r->run) {
    case 1: RUNS_OF(1);
    case 2: RUNS_OF(2);
    case 4: RUNS_OF(4);
    case 8: RUNS_OF(8);
    case 16: RUNS_OF(16);
    case 32: RUNS_OF(32);
    case 64: RUNS_OF(64);
    default: RUNS_OF((size_t)r->run);
    }
}
