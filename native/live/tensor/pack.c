/* Streams of contiguous runs. A slice of the stream may begin and end inside a run. The runs in between that are in the same
 * row of the box are copied in one loop. */
#include "live/tensor/pack.h"

#include "live/tensor/rows.h"
#include "tessera/sys/try.h"

/* Boxes from the size of a second-level cache on are copied past the caches: they would only evict what is needed next. */
enum { LARGE_BOX = 1 << 20, LONG_RUN = 1 << 10 };

static bool goes_past_caches(const tsr_link *link, uint64_t run)
{
    return link->bytes >= LARGE_BOX && run >= LONG_RUN;
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

uint64_t tsr_stream_run(const tsr_stream *s)
{
    return s->at == s->count ? 0 : s->walk.run * s->links[s->at].itemsize;
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

static tsr_status copy_run(const tsr_link *from, const uint8_t *source, const tsr_link *to, uint8_t *dest, uint64_t bytes,
                           tsr_error *err)
{
    if (from->device == to->device) return to->device->within(to->device, dest, source, bytes, err);
    if (!to->device) return from->device->to_host(from->device, dest, source, bytes, err);
    if (!from->device) return to->device->from_host(to->device, dest, source, bytes, err);
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "there is no copy from one device to another");
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
            TSR_TRY(copy_run(c->from, c->from->data + w->index_a * itemsize, c->to, c->to->data + w->index_b * itemsize, run,
                             err));
            tsr_box_walk_next(w);
        } else {
            copy_in_row(c, bytes - done);
        }
        done += before - (w->runs_left * run - c->run_done);
    }
    return TSR_OK;
}

tsr_status tsr_link_copy(const tsr_link *from, const tsr_link *to, tsr_error *err)
{
    tsr_link_copying c = tsr_link_copy_start(from, to);
    return tsr_link_copy_some(&c, UINT64_MAX, err);
}
