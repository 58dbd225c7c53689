/* Streams of contiguous runs. A slice of the stream may begin and end inside a run. The runs in between that are in the same
 * row of the box are copied in one loop, and the compiler knows the size of runs that are single elements. */
#include "statedict/tensor/pack.h"

#include "tessera/sys/try.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Runs of at least the size of a first-level cache are copied past the caches: they would only evict what is needed next. */
enum { LONG_RUN = 32 << 10 };

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
} span;

static span next_span(const tsr_stream *s, uint64_t bytes)
{
    const tsr_link *link = &s->links[s->at];
    const tsr_box_walk *w = &s->walk;
    const uint64_t run = w->run * link->itemsize;
    span out = {link->data + w->index_a * link->itemsize + s->run_done, run - s->run_done, 1, 0};
    if (s->run_done || bytes < run) {
        out.run = out.run < bytes ? out.run : bytes;
    } else if (w->outer) {
        out.runs = runs_of_row(w);
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

/* ---- rows of runs ---- */

#ifdef __SSE2__
/* Copies past the caches: data that arrives in long runs will not be read soon, and the destination need not be fetched
 * before it is overwritten. */
static void copy_past_caches(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    const uint64_t head = -(uintptr_t)to & 63;
    memcpy(to, from, (size_t)head);
    to += head, from += head, bytes -= head;
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64) {
        for (int i = 0; i < 64; i += 16) _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    }
    memcpy(to, from, (size_t)bytes);
    _mm_sfence();
}
#else
static void copy_past_caches(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    memcpy(to, from, (size_t)bytes);
}
#endif

#define ROWS_OF(size) \
    for (uint64_t i = 0; i < runs; i++, to += to_stride, from += from_stride) memcpy(to, from, (size)); \
    break

static void copy_rows(uint8_t *to, uint64_t to_stride, const uint8_t *from, uint64_t from_stride, uint64_t run,
                      uint64_t runs)
{
    switch (run) {
    case 1: ROWS_OF(1);
    case 2: ROWS_OF(2);
    case 4: ROWS_OF(4);
    case 8: ROWS_OF(8);
    case 16: ROWS_OF(16);
    case 32: ROWS_OF(32);
    case 64: ROWS_OF(64);
    default: ROWS_OF((size_t)run);
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
        if (!device) copy_rows(to, from.run, from.at, from.stride, from.run, from.runs);
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
        if (!device && to.runs == 1 && to.run >= LONG_RUN) copy_past_caches(to.at, from, to.run);
        else if (!device) copy_rows(to.at, to.stride, from, to.run, to.run, to.runs);
        from += to.run * to.runs;
        bytes -= to.run * to.runs;
        advance(s, &to);
    }
    return TSR_OK;
}

/* ---- copies without a stream ---- */

static tsr_status copy_run(const tsr_link *from, const uint8_t *source, const tsr_link *to, uint8_t *dest, uint64_t bytes,
                           tsr_error *err)
{
    if (!from->device && !to->device) memcpy(dest, source, (size_t)bytes);
    else if (from->device == to->device) return to->device->within(to->device, dest, source, bytes, err);
    else if (!to->device) return from->device->to_host(from->device, dest, source, bytes, err);
    else if (!from->device) return to->device->from_host(to->device, dest, source, bytes, err);
    else return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "there is no copy from one device to another");
    return TSR_OK;
}

/* Copies between two buffers, as boxes in common coordinates. The elements are at the larger of the two offsets. */
tsr_status tsr_link_copy(const tsr_link *from, const tsr_link *to, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], from_offsets[TSR_MAX_NDIM], to_offsets[TSR_MAX_NDIM];
    for (uint32_t d = 0; d < from->ndim; d++) {
        offsets[d] = from->offsets[d] > to->offsets[d] ? from->offsets[d] : to->offsets[d];
        from_offsets[d] = offsets[d] - from->offsets[d];
        to_offsets[d] = offsets[d] - to->offsets[d];
    }
    tsr_box_walk w;
    tsr_box_walk_start(&w, (tsr_box){from->ndim, offsets, from->sizes},
                       (tsr_box){from->ndim, from_offsets, from->buffer_sizes},
                       (tsr_box){to->ndim, to_offsets, to->buffer_sizes});
    while (w.runs_left) {
        uint8_t *source = from->data + w.index_a * from->itemsize, *dest = to->data + w.index_b * to->itemsize;
        const uint64_t run = w.run * from->itemsize, runs = from->device || to->device ? 1 : runs_of_row(&w);
        if (runs == 1) TSR_TRY(copy_run(from, source, to, dest, run, err));
        else
            copy_rows(dest, w.strides_b[w.outer - 1] * to->itemsize, source, w.strides_a[w.outer - 1] * from->itemsize, run,
                      runs);
        walk_on(&w, runs);
    }
    return TSR_OK;
}
