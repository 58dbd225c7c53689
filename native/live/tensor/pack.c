/* Streams of contiguous runs. A slice of the stream may begin and end inside a run. The runs in between that are in the same
 * row of the box are copied in one loop. */
#include "live/tensor/pack.h"

#include <string.h>

#include "tessera/sys/try.h"

/* ---- rows ---- */

/* A processor foresees what is read next inside a page and a run, but not where the next run begins. Lines are therefore
 * fetched AHEAD bytes before they are copied, across the ends of pages and runs. */

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

/* ---- pack ---- */

/* Boxes from the size of a second-level cache on are copied past the caches: they would only evict what is needed next. */
enum { LARGE_BOX = 1 << 20, LARGE_RUN = 1 << 10 };

static bool goes_past_caches(const tsr_link *link, uint64_t run)
{
    return link->bytes >= LARGE_BOX && run >= LARGE_RUN;
}

static void enter_link(tsr_stream *s)
{
    s->run_done = 0;
    if (s->at == s->count) return;
    const tsr_link *link = &s->links[s->at];
    const tsr_box buffer = {link->ndim, NULL, link->buffer_sizes};
    tsr_box_walk_start(&s->walk, (tsr_box){link->ndim, link->offsets, link->sizes}, buffer, buffer);
}

tsr_stream tsr_stream_of(const tsr_link *links, size_t count)
{
    tsr_stream s = {.links = links, .count = count};
    for (size_t i = 0; i < count; i++) s.left += links[i].bytes;
    enter_link(&s);
    return s;
}

uint8_t *tsr_stream_peek(const tsr_stream *s, bool devices, uint64_t bytes)
{
    const tsr_link *link = &s->links[s->at];
    if (s->at == s->count || (link->device && !devices) || s->walk.run * link->itemsize - s->run_done < bytes) return NULL;
    return link->data + s->walk.index_a * link->itemsize + s->run_done;
}

/* The number of runs from the current one to the end of its row in the innermost varying dim. */
static uint64_t runs_of_row(const tsr_box_walk *w)
{
    return w->outer ? w->counts[w->outer - 1] - w->at[w->outer - 1] : 1;
}

/* Advances by `runs` runs, which must be in the same row. */
static void walk_on(tsr_box_walk *w, uint64_t runs)
{
    if (runs > 1) {
        w->index_a += (runs - 1) * w->strides_a[w->outer - 1];
        w->index_b += (runs - 1) * w->strides_b[w->outer - 1];
        w->at[w->outer - 1] += runs - 1;
        w->runs_left -= runs - 1;
    }
    tsr_box_walk_next(w);
}

static void next_runs(tsr_stream *s, uint64_t runs)
{
    s->run_done = 0;
    walk_on(&s->walk, runs);
    if (s->walk.runs_left) return;
    s->at++;
    enter_link(s);
}

/* Runs that one loop can copy. */
typedef struct span {
    uint8_t *at;
    uint64_t run, runs, stride; /* sizes in bytes; number of runs; bytes from one run to the next */
    uint64_t reach;             /* runs from here on at this stride, including those after the span */
} span;

static span next_span(const tsr_stream *s, uint64_t bytes)
{
    const tsr_link *link = &s->links[s->at];
    const tsr_box_walk *w = &s->walk;
    const uint64_t run = w->run * link->itemsize;
    span out = {link->data + w->index_a * link->itemsize + s->run_done, run - s->run_done, 1, 0, 1};
    if (s->run_done || bytes < run) {
        if (out.run > bytes) out.run = out.stride = bytes, out.reach = 2;
    } else if (w->outer) {
        out.runs = out.reach = runs_of_row(w);
        if (out.runs > bytes / run) out.runs = bytes / run;
        out.stride = w->strides_a[w->outer - 1] * link->itemsize;
    }
    return out;
}

static void advance(tsr_stream *s, const span *done)
{
    const uint64_t run = s->walk.run * s->links[s->at].itemsize;
    s->left -= done->run * done->runs;
    s->run_done += done->run;
    if (s->run_done == run) next_runs(s, done->runs);
}

void tsr_stream_skip(tsr_stream *s, uint64_t bytes)
{
    while (bytes) {
        const span step = next_span(s, bytes);
        bytes -= step.run * step.runs;
        advance(s, &step);
    }
}

tsr_status tsr_stream_pack(tsr_stream *s, uint8_t *to, tsr_device *on, uint64_t bytes, tsr_error *err)
{
    while (bytes) {
        const span from = next_span(s, bytes);
        tsr_device *device = s->links[s->at].device;
        for (uint64_t i = 0; device && i < from.runs; i++)
            TSR_TRY(
                (on ? on->within : device->to_host)(device, to + i * from.run, from.at + i * from.stride, from.run, err));
        if (!device)
            tsr_rows_copy(&(tsr_rows){to, from.at, from.run, from.stride, from.run, from.runs, from.reach, s->past_caches});
        to += from.run * from.runs;
        bytes -= from.run * from.runs;
        advance(s, &from);
    }
    return TSR_OK;
}

tsr_status tsr_stream_unpack(tsr_stream *s, const uint8_t *from, tsr_device *on, uint64_t bytes, tsr_error *err)
{
    while (bytes) {
        const span to = next_span(s, bytes);
        tsr_device *device = s->links[s->at].device;
        for (uint64_t i = 0; device && i < to.runs; i++)
            TSR_TRY((on ? on->within : device->from_host)(device, to.at + i * to.stride, from + i * to.run, to.run, err));
        if (!device)
            tsr_rows_copy(&(tsr_rows){to.at, from, to.stride, to.run, to.run, to.runs, to.runs,
                                      goes_past_caches(&s->links[s->at], to.run)});
        from += to.run * to.runs;
        bytes -= to.run * to.runs;
        advance(s, &to);
    }
    return TSR_OK;
}

/* ---- copies without a stream ---- */

static tsr_status copy_link_run(const tsr_link *from, const uint8_t *source, const tsr_link *to, uint8_t *dest,
                                uint64_t bytes, tsr_error *err)
{
    if (from->device == to->device) return to->device->within(to->device, dest, source, bytes, err);
    if (!to->device) return from->device->to_host(from->device, dest, source, bytes, err);
    if (!from->device) return to->device->from_host(to->device, dest, source, bytes, err);
    return tsr_fail(err, TSR_E_UNSUPPORTED, "there is no copy from one device to another");
}

/* Starts a copy between two buffers, as boxes in common coordinates. The elements are at the larger of the two offsets. */
tsr_link_copying tsr_link_copy_start(const tsr_link *from, const tsr_link *to)
{
    uint64_t offsets[TSR_MAX_NDIM], from_offsets[TSR_MAX_NDIM], to_offsets[TSR_MAX_NDIM];
    tsr_link_copying c = {.from = from, .to = to};
    for (uint32_t d = 0; d < from->ndim; d++) {
        offsets[d] = from->offsets[d] > to->offsets[d] ? from->offsets[d] : to->offsets[d];
        from_offsets[d] = offsets[d] - from->offsets[d];
        to_offsets[d] = offsets[d] - to->offsets[d];
    }
    tsr_box_walk_start(&c.walk, (tsr_box){from->ndim, offsets, from->sizes},
                       (tsr_box){from->ndim, from_offsets, from->buffer_sizes},
                       (tsr_box){to->ndim, to_offsets, to->buffer_sizes});
    return c;
}

/* Runs that lie in one row, or a part of one. */
static void copy_in_row(tsr_link_copying *c, uint64_t bytes)
{
    tsr_box_walk *w = &c->walk;
    const uint64_t itemsize = c->to->itemsize, run = w->run * itemsize, reach = runs_of_row(w);
    uint8_t *source = c->from->data + w->index_a * itemsize, *dest = c->to->data + w->index_b * itemsize;
    const bool past = goes_past_caches(c->to, run);
    if (c->run_done || bytes < run) {
        const uint64_t size = bytes < run - c->run_done ? bytes : run - c->run_done;
        tsr_rows_copy(&(tsr_rows){dest + c->run_done, source + c->run_done, size, size, size, 1, 1, past});
        c->run_done = c->run_done + size == run ? 0 : c->run_done + size;
        if (!c->run_done) tsr_box_walk_next(w);
        return;
    }
    const uint64_t runs = bytes / run < reach ? bytes / run : reach;
    const uint32_t row = w->outer ? w->outer - 1 : 0;
    tsr_rows_copy(&(tsr_rows){dest, source, w->outer ? w->strides_b[row] * itemsize : 0,
                              w->outer ? w->strides_a[row] * itemsize : 0, run, runs, reach, past});
    walk_on(w, runs);
}

tsr_status tsr_link_copy_some(tsr_link_copying *c, uint64_t bytes, tsr_error *err)
{
    tsr_box_walk *w = &c->walk;
    const uint64_t itemsize = c->to->itemsize, run = w->run * itemsize;
    for (uint64_t done = 0; w->runs_left && done < bytes;) {
        const uint64_t before = w->runs_left * run - c->run_done;
        if (c->from->device || c->to->device) {
            TSR_TRY(copy_link_run(c->from, c->from->data + w->index_a * itemsize, c->to, c->to->data + w->index_b * itemsize,
                                  run, err));
            tsr_box_walk_next(w);
        } else {
            copy_in_row(c, bytes - done);
        }
        done += before - (w->runs_left * run - c->run_done);
    }
    return TSR_OK;
}
