/* What all kinds of devices have in common: arguments are checked, many small moves become few, and state dicts get device memory. */
#include "tessera/sys/gpu.h"

#include "live/cuda/backend.h"
#include "live/cuda/kernel_body.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

void tsr_gpu_close(tsr_gpu *device)
{
    if (device) device->ops->close(device);
}

tsr_status tsr_gpu_about(tsr_gpu *device, tsr_gpu_info *out, tsr_error *err)
{
    return device->ops->about(device, out, err);
}

tsr_status tsr_gpu_alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err)
{
    *out = NULL;
    return size ? device->ops->alloc(device, size, out, err) : TSR_OK;
}

void tsr_gpu_free(tsr_gpu *device, void *memory)
{
    if (memory) device->ops->free(device, memory);
}

tsr_status tsr_gpu_host_alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err)
{
    *out = NULL;
    return size ? device->ops->host_alloc(device, size, out, err) : TSR_OK;
}

void tsr_gpu_host_free(tsr_gpu *device, void *memory)
{
    if (memory) device->ops->host_free(device, memory);
}

tsr_status tsr_gpu_pin(tsr_gpu *device, void *memory, size_t size, tsr_error *err)
{
    return size ? device->ops->pin(device, memory, size, err) : TSR_OK;
}

void tsr_gpu_unpin(tsr_gpu *device, void *memory)
{
    if (memory) device->ops->unpin(device, memory);
}

tsr_gpu_place tsr_gpu_place_of(tsr_gpu *device, const void *memory)
{
    return device->ops->place_of(device, memory);
}

tsr_status tsr_gpu_stream_new(tsr_gpu *device, tsr_gpu_stream **out, tsr_error *err)
{
    *out = NULL;
    return device->ops->stream_new(device, out, err);
}

void tsr_gpu_stream_free(tsr_gpu_stream *stream)
{
    if (stream) stream->device->ops->stream_free(stream);
}

tsr_status tsr_gpu_stream_wait(tsr_gpu_stream *stream, tsr_error *err)
{
    return stream->device->ops->stream_wait(stream, err);
}

tsr_status tsr_gpu_event_new(tsr_gpu *device, tsr_gpu_event **out, tsr_error *err)
{
    *out = NULL;
    return device->ops->event_new(device, out, err);
}

void tsr_gpu_event_free(tsr_gpu_event *event)
{
    if (event) event->device->ops->event_free(event);
}

tsr_status tsr_gpu_event_record(tsr_gpu_event *event, tsr_gpu_stream *stream, tsr_error *err)
{
    return event->device->ops->event_record(event, stream, err);
}

tsr_status tsr_gpu_event_wait(tsr_gpu_event *event, tsr_error *err)
{
    return event->device->ops->event_wait(event, err);
}

tsr_status tsr_gpu_copy(tsr_gpu_stream *stream, void *to, const void *from, size_t size, tsr_error *err)
{
    return tsr_gpu_copy_2d(stream, &(tsr_gpu_rows){to, size, from, size, size, 1}, err);
}

tsr_status tsr_gpu_copy_2d(tsr_gpu_stream *stream, const tsr_gpu_rows *what, tsr_error *err)
{
    if (what->rows == 0 || what->row_bytes == 0) return TSR_OK;
    size_t span;
    if (what->to_pitch < what->row_bytes || what->from_pitch < what->row_bytes)
        return tsr_fail(err, TSR_E_USAGE, "device copy: rows of %zu bytes do not fit strides of %zu and %zu bytes",
                        what->row_bytes, what->to_pitch, what->from_pitch);
    if (__builtin_mul_overflow(what->rows, what->to_pitch > what->from_pitch ? what->to_pitch : what->from_pitch, &span))
        return tsr_fail(err, TSR_E_USAGE, "device copy: %zu rows are too many", what->rows);
    return stream->device->ops->copy_2d(stream, what, err);
}

/* ---- moves ---- */

/* Turns the pieces that programs give into as few launches and copies as possible.
 *
 *   boxes ──▶ axes dropped, sorted, merged ──┬─▶ one run ──┐
 *                                            └─▶ strided ──┼─▶ 2-D copy (one box of long rows) or box kernel
 *   runs ─────────────────────────────────────────────────▶┴─▶ adjacent ones merged ─▶ one copy, one 2-D copy, or run kernel
 */

#define LONG_ROW   4096u             /* from this number of bytes on, copy engines copy rows as fast as a kernel */
#define LONG_RUN   ((size_t)1 << 20) /* from this number of bytes on, the cost of a separate copy is negligible */
#define TABLE_MOST 16384u            /* limit for the pieces of one launch */
#define RUNS_FIRST 512u              /* runs that are started together at first, so that the device begins early */
#define RUN_MOST   ((size_t)1 << 30) /* limit for the bytes of one run in a table */

/* ---- runs ---- */

typedef struct run_list {
    tsr_gpu_stream *stream;
    tsr_vec runs; /* of tsr_gpu_run, merged */
    /* Bytes from the beginning of the last run to the ends of its allocations; 0: not determined yet. */
    size_t to_reach, from_reach;
} run_list;

/* Whether the last run may grow by `bytes`. A copy must not extend beyond the end of an allocation, even if another one
 * begins there. */
static bool may_grow(run_list *list, const tsr_gpu_run *last, size_t bytes)
{
    tsr_gpu *device = list->stream->device;
    if (list->to_reach == 0) {
        list->to_reach = device->ops->reach(device, last->to);
        list->from_reach = device->ops->reach(device, last->from);
    }
    return bytes <= list->to_reach - last->bytes && bytes <= list->from_reach - last->bytes &&
           list->to_reach >= last->bytes && list->from_reach >= last->bytes;
}

static tsr_status add_run(run_list *list, void *to, const void *from, size_t bytes, tsr_error *err)
{
    tsr_gpu_run *last = list->runs.count ? (tsr_gpu_run *)list->runs.items + list->runs.count - 1 : NULL;
    if (bytes == 0) return TSR_OK;
    if (last && (uint8_t *)last->to + last->bytes == to && (const uint8_t *)last->from + last->bytes == from &&
        may_grow(list, last, bytes)) {
        last->bytes += bytes;
        return TSR_OK;
    }
    list->to_reach = list->from_reach = 0;
    tsr_gpu_run *run = tsr_vec_push(&list->runs, err);
    if (!run) return TSR_E_NOMEM;
    *run = (tsr_gpu_run){to, from, bytes};
    return TSR_OK;
}

/* Whether pieces have equal sizes and equal, positive distances on both sides. */
static bool is_regular(const tsr_gpu_run *runs, size_t count)
{
    const uintptr_t to = (uintptr_t)runs[1].to - (uintptr_t)runs[0].to,
                    from = (uintptr_t)runs[1].from - (uintptr_t)runs[0].from;
    if (to > PTRDIFF_MAX || from > PTRDIFF_MAX || to < runs[0].bytes || from < runs[0].bytes) return false;
    for (size_t i = 0; i < count; i++) {
        if (runs[i].bytes != runs[0].bytes) return false;
        if (i && ((uintptr_t)runs[i].to - (uintptr_t)runs[i - 1].to != to ||
                  (uintptr_t)runs[i].from - (uintptr_t)runs[i - 1].from != from))
            return false;
    }
    return true;
}

static tsr_status copy_each(tsr_gpu_stream *stream, const tsr_gpu_run *runs, size_t count, tsr_error *err)
{
    for (size_t i = 0; i < count; i++) TSR_TRY(tsr_gpu_copy(stream, runs[i].to, runs[i].from, runs[i].bytes, err));
    return TSR_OK;
}

/* Launches tables of at most TABLE_MOST pieces. A long run becomes several pieces. */
static tsr_status launch_runs(tsr_gpu_stream *stream, const tsr_gpu_run *runs, size_t count, tsr_error *err)
{
    const tsr_allocator *allocator = stream->device->host->allocator;
    const uint32_t capacity = count < TABLE_MOST ? (uint32_t)count : TABLE_MOST;
    tsr_kernel_run *table = tsr_alloc(allocator, capacity, sizeof *table, err);
    if (!table) return TSR_E_NOMEM;
    uint32_t used = 0, units = 0;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        for (size_t at = 0, left = runs[i].bytes; left && status == TSR_OK;) {
            const size_t bytes = left < RUN_MOST ? left : RUN_MOST;
            table[used++] = (tsr_kernel_run){(uint64_t)(uintptr_t)runs[i].to + at, (uint64_t)(uintptr_t)runs[i].from + at,
                                             (uint32_t)bytes, units};
            units += (uint32_t)((bytes + TSR_KERNEL_RUN_UNIT - 1) / TSR_KERNEL_RUN_UNIT);
            at += bytes;
            left -= bytes;
            if (used < capacity) continue;
            status = stream->device->ops->runs(stream, table, used, units, err);
            used = units = 0;
        }
    }
    if (used && status == TSR_OK) status = stream->device->ops->runs(stream, table, used, units, err);
    tsr_free(allocator, table, capacity, sizeof *table);
    return status;
}

static bool by_kernel(tsr_gpu *device, const tsr_gpu_run *run)
{
    return tsr_gpu_place_of(device, run->to) != TSR_PLACE_PAGEABLE &&
           tsr_gpu_place_of(device, run->from) != TSR_PLACE_PAGEABLE;
}

/* Starts the first `count` runs of the list. */
static tsr_status emit_runs(run_list *list, size_t count, tsr_error *err)
{
    const tsr_gpu_run *runs = list->runs.items;
    size_t total = 0;
    for (size_t i = 0; i < count; i++) total += runs[i].bytes;
    if (count <= 1 || total / count >= LONG_RUN) return copy_each(list->stream, runs, count, err);
    const bool reachable = by_kernel(list->stream->device, &runs[0]);
    if (is_regular(runs, count) && (!reachable || runs[0].bytes >= LONG_ROW)) {
        return tsr_gpu_copy_2d(list->stream,
                               &(tsr_gpu_rows){runs[0].to, (uintptr_t)runs[1].to - (uintptr_t)runs[0].to, runs[0].from,
                                               (uintptr_t)runs[1].from - (uintptr_t)runs[0].from, runs[0].bytes, count},
                               err);
    }
    return reachable ? launch_runs(list->stream, runs, count, err) : copy_each(list->stream, runs, count, err);
}

/* Starts all runs but the last one, which may still grow. */
static tsr_status emit_complete_runs(run_list *list, tsr_error *err)
{
    tsr_gpu_run *runs = list->runs.items;
    TSR_TRY(emit_runs(list, list->runs.count - 1, err));
    runs[0] = runs[list->runs.count - 1];
    list->runs.count = 1;
    return TSR_OK;
}

/* The device copies the first runs while the others are looked at. */
tsr_status tsr_gpu_move_runs(tsr_gpu_stream *stream, const tsr_gpu_run *runs, size_t count, tsr_error *err)
{
    run_list list = {.stream = stream, .runs = tsr_vec_of(stream->device->host->allocator, sizeof(tsr_gpu_run))};
    tsr_status status = TSR_OK;
    size_t together = RUNS_FIRST;
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        status = add_run(&list, runs[i].to, runs[i].from, runs[i].bytes, err);
        if (status != TSR_OK || list.runs.count <= together) continue;
        status = emit_complete_runs(&list, err);
        together = TABLE_MOST;
    }
    if (status == TSR_OK) status = emit_runs(&list, list.runs.count, err);
    tsr_vec_free(&list.runs);
    return status;
}

/* ---- boxes ---- */

/* An axis, with strides in bytes. */
typedef struct axis {
    uint64_t size, to, from;
} axis;

/* A box with simplified axes. */
typedef struct plain {
    uint64_t to, from;
    uint64_t to_bytes, from_bytes; /* size of an element */
    axis axes[TSR_KERNEL_AXES];    /* sorted by descending `to` */
    uint32_t count;
    const tsr_gpu_box *box;
} plain;

static tsr_status check_box(const tsr_gpu_box *box, bool *is_empty, tsr_error *err)
{
    const uint32_t to = tsr_dtype_size(box->to_dtype), from = tsr_dtype_size(box->from_dtype);
    if (to == 0 || from == 0 || to > 16 || from > 16)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "device move: %s elements are not byte-aligned",
                        tsr_dtype_describe(to ? box->from_dtype : box->to_dtype)->name);
    if (box->from && box->to_dtype != box->from_dtype && !tsr_cast_possible(box->from_dtype, box->to_dtype))
        return tsr_fail(err, TSR_E_UNSUPPORTED, "device move: %s cannot be cast to %s",
                        tsr_dtype_describe(box->from_dtype)->name, tsr_dtype_describe(box->to_dtype)->name);
    if (box->ndim > TSR_GPU_MAX_NDIM)
        return tsr_fail(err, TSR_E_USAGE, "device move: %u dimensions; at most %u are supported", (unsigned)box->ndim,
                        TSR_GPU_MAX_NDIM);
    const bool is_cast = box->from && box->to_dtype != box->from_dtype;
    if (is_cast && ((uintptr_t)box->to % to || (uintptr_t)box->from % from))
        return tsr_fail(err, TSR_E_USAGE,
                        "device move: casts need addresses that are multiples of the element sizes (%u and %u bytes)",
                        (unsigned)from, (unsigned)to);
    uint64_t to_last = to, from_last = from;
    bool fits = true;
    *is_empty = false;
    for (uint32_t i = 0; i < box->ndim; i++) *is_empty |= box->sizes[i] == 0;
    for (uint32_t i = 0; i < box->ndim && !*is_empty; i++) {
        uint64_t step;
        fits = fits && !__builtin_mul_overflow(box->to_strides[i], (uint64_t)to, &step) &&
               !__builtin_mul_overflow(step, box->sizes[i] - 1, &step) && !__builtin_add_overflow(to_last, step, &to_last);
        if (!box->from) continue;
        fits = fits && !__builtin_mul_overflow(box->from_strides[i], (uint64_t)from, &step) &&
               !__builtin_mul_overflow(step, box->sizes[i] - 1, &step) &&
               !__builtin_add_overflow(from_last, step, &from_last);
    }
    if (!fits || to_last > SIZE_MAX / 2 || from_last > SIZE_MAX / 2)
        return tsr_fail(err, TSR_E_USAGE, "device move: the box is larger than the address space");
    return TSR_OK;
}

/* Drops axes of size 1, sorts the others by stride at the destination, and merges axes that are contiguous on both sides. */
static plain simplify(const tsr_gpu_box *box)
{
    plain p = {.to = (uint64_t)(uintptr_t)box->to, .from = (uint64_t)(uintptr_t)box->from, .box = box};
    p.to_bytes = tsr_dtype_size(box->to_dtype);
    p.from_bytes = tsr_dtype_size(box->from_dtype);
    axis sorted[TSR_GPU_MAX_NDIM];
    uint32_t count = 0;
    for (uint32_t i = 0; i < box->ndim; i++) {
        if (box->sizes[i] == 1) continue;
        axis moving = {box->sizes[i], box->to_strides[i] * p.to_bytes, box->from ? box->from_strides[i] * p.from_bytes : 0};
        uint32_t j = count++;
        for (; j > 0 && sorted[j - 1].to < moving.to; j--) sorted[j] = sorted[j - 1];
        sorted[j] = moving;
    }
    for (uint32_t i = 0; i < count; i++) {
        axis *outer = p.count ? &p.axes[p.count - 1] : NULL;
        if (outer && outer->to == sorted[i].size * sorted[i].to && outer->from == sorted[i].size * sorted[i].from) {
            *outer = (axis){outer->size * sorted[i].size, sorted[i].to, sorted[i].from};
        } else {
            p.axes[p.count++] = sorted[i];
        }
    }
    return p;
}

static bool copies(const plain *p)
{
    return p->box->from && p->box->from_dtype == p->box->to_dtype;
}

static bool has_rows(const plain *p)
{
    const axis *last = p->count ? &p->axes[p->count - 1] : NULL;
    return last && last->to == p->to_bytes && (!p->box->from || last->from == p->from_bytes);
}

/* Makes the innermost axis one of vectors that are as wide as addresses and strides allow: several elements of a row, or a
 * fraction of an element if elements are not aligned to their size. For a cast, a vector is one element. */
static uint32_t widen(plain *p)
{
    const bool fills = !p->box->from;
    if (!fills && !copies(p)) return (uint32_t)p->to_bytes;
    if (!has_rows(p)) p->axes[p->count++] = (axis){1, p->to_bytes, fills ? 0 : p->from_bytes};
    axis *row = &p->axes[p->count - 1];
    uint64_t together = p->to | p->from | row->size * p->to_bytes | 16;
    for (uint32_t i = 0; i + 1 < p->count; i++) together |= p->axes[i].to | p->axes[i].from;
    const uint64_t width = together & (~together + 1);
    if (fills && width < p->to_bytes) {
        p->count += row->size > 1;
        p->axes[p->count - 1] = (axis){p->to_bytes / width, width, width}; /* an axis over the parts of the fill */
    } else {
        *row = (axis){row->size * p->to_bytes / width, width, fills ? 0 : width};
    }
    if (p->count > 1 && p->axes[p->count - 1].size == 1) p->count--;
    return (uint32_t)width;
}

static void set_axis(tsr_kernel_box *box, uint32_t i, axis from)
{
    const uint32_t size = (uint32_t)from.size;
    uint32_t shift = 0;
    while ((UINT64_C(1) << shift) < size) shift++;
    box->shift[i] = (uint8_t)shift;
    box->axis[i] =
        (tsr_kernel_axis){from.to, from.from, size, (uint32_t)((((UINT64_C(1) << shift) - size) << 32) / size + 1)};
}

typedef struct box_list {
    tsr_gpu_stream *stream;
    tsr_kernel_box *table;
    uint32_t capacity, used, units;
} box_list;

static tsr_status flush_boxes(box_list *list, tsr_error *err)
{
    if (list->used == 0) return TSR_OK;
    tsr_status status = list->stream->device->ops->boxes(list->stream, list->table, list->used, list->units, err);
    list->used = list->units = 0;
    return status;
}

/* Adds a box to the table. It has at most TSR_KERNEL_COUNT_MOST vectors. */
static tsr_status add_vectors(box_list *list, const plain *p, uint64_t count, uint32_t width, tsr_error *err)
{
    const uint32_t units = (uint32_t)((count + TSR_KERNEL_BOX_UNIT - 1) / TSR_KERNEL_BOX_UNIT);
    if (list->used == list->capacity || units > TSR_KERNEL_COUNT_MOST - list->units) TSR_TRY(flush_boxes(list, err));
    tsr_kernel_box *out = &list->table[list->used++];
    *out = (tsr_kernel_box){.to = p->to, .from = p->from, .count = (uint32_t)count, .first_unit = list->units};
    out->width = (uint8_t)width;
    out->from_type = (uint8_t)(p->box->from ? p->box->from_dtype : p->box->to_dtype);
    out->to_type = (uint8_t)p->box->to_dtype;
    out->is_fill = !p->box->from;
    out->axes = (uint8_t)(p->count ? p->count : 1);
    for (uint32_t i = 0; i < sizeof out->fill; i++) out->fill[i] = p->box->fill[i % p->to_bytes];
    set_axis(out, 0, (axis){1, 0, 0});
    for (uint32_t i = 0; i < p->count; i++) set_axis(out, i, p->axes[i]);
    list->units += units;
    return TSR_OK;
}

/* Halves the longest axis until the number of vectors fits in 31 bits. */
static tsr_status add_plain(box_list *list, plain whole, tsr_error *err)
{
    plain todo[64];
    uint32_t depth = 0;
    const uint32_t width = widen(&whole);
    todo[depth++] = whole;
    while (depth) {
        plain p = todo[--depth];
        uint64_t count = 1;
        uint32_t longest = 0;
        bool fits = true;
        for (uint32_t i = 0; i < p.count; i++) {
            fits = fits && !__builtin_mul_overflow(count, p.axes[i].size, &count) && count <= TSR_KERNEL_COUNT_MOST;
            if (p.axes[i].size > p.axes[longest].size) longest = i;
        }
        if (fits) {
            TSR_TRY(add_vectors(list, &p, count, width, err));
            continue;
        }
        plain second = p;
        const uint64_t half = p.axes[longest].size / 2;
        p.axes[longest].size = half;
        second.axes[longest].size -= half;
        second.to += half * p.axes[longest].to;
        second.from += half * p.axes[longest].from;
        todo[depth++] = second;
        todo[depth++] = p;
    }
    return TSR_OK;
}

/* Whether copy engines copy a single box, because its rows are long, or because its memory is pageable and kernels cannot
 * access it. */
static bool is_two_dimensional(const plain *p, tsr_gpu *device)
{
    const tsr_gpu_run ends = {(void *)(uintptr_t)p->to, (const void *)(uintptr_t)p->from, 0};
    if (!copies(p) || p->count != 2 || !has_rows(p)) return false;
    const uint64_t row = p->axes[1].size * p->to_bytes;
    if (p->axes[0].to < row || p->axes[0].from < row) return false;
    return row >= LONG_ROW || !by_kernel(device, &ends);
}

static tsr_status sort_box(run_list *runs, box_list *boxes, const tsr_gpu_box *box, size_t count, tsr_error *err)
{
    bool is_empty;
    TSR_TRY(check_box(box, &is_empty, err));
    if (is_empty) return TSR_OK;
    const plain p = simplify(box);
    tsr_gpu_stream *stream = runs->stream;
    if (copies(&p) && (p.count == 0 || (p.count == 1 && has_rows(&p))))
        return add_run(runs, box->to, box->from, (size_t)((p.count ? p.axes[0].size : 1) * p.to_bytes), err);
    if (count == 1 && is_two_dimensional(&p, stream->device))
        return tsr_gpu_copy_2d(stream,
                               &(tsr_gpu_rows){box->to, (size_t)p.axes[0].to, box->from, (size_t)p.axes[0].from,
                                               (size_t)(p.axes[1].size * p.to_bytes), (size_t)p.axes[0].size},
                               err);
    if (stream->device->ops->twin_box) return stream->device->ops->twin_box(stream, box, err);
    return add_plain(boxes, p, err);
}

tsr_status tsr_gpu_move_boxes(tsr_gpu_stream *stream, const tsr_gpu_box *boxes, size_t count, tsr_error *err)
{
    const tsr_allocator *allocator = stream->device->host->allocator;
    const uint32_t capacity = count < TABLE_MOST ? (uint32_t)count + 1 : TABLE_MOST;
    run_list runs = {.stream = stream, .runs = tsr_vec_of(allocator, sizeof(tsr_gpu_run))};
    box_list strided = {stream, tsr_alloc(allocator, capacity, sizeof *strided.table, err), capacity, 0, 0};
    tsr_status status = strided.table ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < count && status == TSR_OK; i++) status = sort_box(&runs, &strided, &boxes[i], count, err);
    if (status == TSR_OK) status = flush_boxes(&strided, err);
    if (status == TSR_OK) status = emit_runs(&runs, runs.runs.count, err);
    tsr_vec_free(&runs.runs);
    tsr_free(allocator, strided.table, capacity, sizeof *strided.table);
    return status;
}

/* ---- a device of state dicts ---- */

/* The functions through which state dicts use device memory (tsr_device). Starting a copy of a few KiB takes longer than the
 * copy itself. Small copies are therefore collected, go through pinned memory (the stage), and are performed by a single
 * launch.
 *
 *   small, from the host   host ─▶ stage immediately  stage ─▶ device with all others
 *   small, to the host     device ─▶ stage            stage ─▶ host in synchronize
 *   small, within          device ─▶ device           with all others
 *   large                  directly, after the copies that were collected
 *
 * A copy that overlaps collected ones in memory causes these to be performed first, so the order is that of the calls. */

#define SMALL_BYTES ((uint64_t)64 << 10)
#define STAGE_BYTES ((size_t)8 << 20)

/* Addresses from `low` up to, but not including, `high`. */
typedef struct range {
    uintptr_t low, high;
} range;

typedef struct gpu_device {
    tsr_device base;
    tsr_gpu *gpu;
    tsr_gpu_stream *stream;
    uint8_t *stage; /* pinned memory; NULL until needed */
    size_t staged;  /* bytes of the stage in use since the last wait */
    tsr_vec runs;   /* of tsr_gpu_run: collected copies, which are not launched yet */
    range written;  /* encloses the memory that `runs` write; no two of them overlap */
    /* Encloses the memory that copies within the device read; no collected copy writes to it. */
    range read;
    enum { FROM_HOST, TO_HOST, WITHIN } kind; /* kind of all collected copies */
    /* Of tsr_gpu_run: copies from the stage to the host, to be done after a wait. */
    tsr_vec due;
    range owed; /* encloses the host memory in `due` */
} gpu_device;

static bool meets(range a, const void *memory, uint64_t bytes)
{
    return (uintptr_t)memory < a.high && (uintptr_t)memory + bytes > a.low;
}

static void extend(range *a, const void *memory, uint64_t bytes)
{
    const uintptr_t low = (uintptr_t)memory, high = low + (uintptr_t)bytes;
    if (a->low == a->high) *a = (range){low, high};
    if (low < a->low) a->low = low;
    if (high > a->high) a->high = high;
}

static tsr_status launch(gpu_device *d, tsr_error *err)
{
    const size_t count = d->runs.count;
    d->runs.count = 0;
    d->written = d->read = (range){0, 0};
    return count ? tsr_gpu_move_runs(d->stream, d->runs.items, count, err) : TSR_OK;
}

/* Performs all copies so far and waits for them, including those in `due`. */
static tsr_status settle(gpu_device *d, tsr_error *err)
{
    tsr_status status = launch(d, err);
    const tsr_status waited = tsr_gpu_stream_wait(d->stream, err);
    if (status == TSR_OK) status = waited;
    const tsr_gpu_run *due = d->due.items;
    for (size_t i = 0; i < d->due.count && status == TSR_OK; i++) memcpy(due[i].to, due[i].from, due[i].bytes);
    d->due.count = 0;
    d->owed = (range){0, 0};
    d->staged = 0;
    return status;
}

static tsr_status collect_run(tsr_vec *runs, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    tsr_gpu_run *run = tsr_vec_push(runs, err);
    if (!run) return TSR_E_NOMEM;
    *run = (tsr_gpu_run){to, from, (size_t)bytes};
    return TSR_OK;
}

/* Takes `bytes` bytes of the stage. */
static tsr_status reserve(gpu_device *d, uint64_t bytes, uint8_t **out, tsr_error *err)
{
    if (!d->stage) TSR_TRY(tsr_gpu_host_alloc(d->gpu, STAGE_BYTES, (void **)&d->stage, err));
    if (bytes > STAGE_BYTES - d->staged) TSR_TRY(settle(d, err));
    *out = d->stage + d->staged;
    d->staged += (size_t)bytes;
    return TSR_OK;
}

/* Adds a copy to the collected ones. Launches these first if it must not be performed together with them. */
static tsr_status join(gpu_device *d, int kind, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    const bool crosses =
        meets(d->written, to, bytes) || (kind == WITHIN && (meets(d->written, from, bytes) || meets(d->read, to, bytes)));
    if (d->runs.count && ((int)d->kind != kind || crosses)) TSR_TRY(launch(d, err));
    d->kind = kind;
    TSR_TRY(collect_run(&d->runs, to, from, bytes, err));
    extend(&d->written, to, bytes);
    if (kind == WITHIN) extend(&d->read, from, bytes);
    return TSR_OK;
}

static tsr_status copy_small(gpu_device *d, int kind, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    uint8_t *stage;
    if (kind == WITHIN) return join(d, kind, to, from, bytes, err);
    TSR_TRY(reserve(d, bytes, &stage, err));
    if (kind == FROM_HOST) {
        memcpy(stage, from, (size_t)bytes);
        return join(d, kind, to, stage, bytes, err);
    }
    TSR_TRY(join(d, kind, stage, from, bytes, err));
    extend(&d->owed, to, bytes);
    return collect_run(&d->due, to, stage, bytes, err);
}

/* Whether a copy in `due` will write to this host memory. The range `owed` alone is not enough, because it also encloses
 * memory between the copies. */
static bool is_owed(const gpu_device *d, const void *memory, uint64_t bytes)
{
    const tsr_gpu_run *due = d->due.items;
    if (!meets(d->owed, memory, bytes)) return false;
    for (size_t i = 0; i < d->due.count; i++) {
        const uintptr_t at = (uintptr_t)due[i].to;
        if (meets((range){at, at + due[i].bytes}, memory, bytes)) return true;
    }
    return false;
}

/* Small copies to the host are done in the order of the calls when they leave the stage. Other copies could overtake them,
 * so they must wait. */
static tsr_status copy(gpu_device *d, int kind, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    const bool is_small = bytes < SMALL_BYTES;
    if ((kind == FROM_HOST && is_owed(d, from, bytes)) || (kind == TO_HOST && !is_small && is_owed(d, to, bytes)))
        TSR_TRY(settle(d, err));
    if (is_small) return copy_small(d, kind, to, from, bytes, err);
    TSR_TRY(launch(d, err));
    return tsr_gpu_copy(d->stream, to, from, (size_t)bytes, err);
}

/* ---- the table ---- */

static tsr_status alloc(tsr_device *device, uint64_t bytes, void **out, tsr_error *err)
{
    return tsr_gpu_alloc(((gpu_device *)device)->gpu, (size_t)bytes, out, err);
}

static void release(tsr_device *device, void *data, uint64_t bytes)
{
    (void)bytes;
    settle((gpu_device *)device, NULL); /* copies that are not launched yet may use the memory */
    tsr_gpu_free(((gpu_device *)device)->gpu, data);
}

static tsr_status to_host(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    return copy((gpu_device *)device, TO_HOST, to, from, bytes, err);
}

static tsr_status from_host(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    return copy((gpu_device *)device, FROM_HOST, to, from, bytes, err);
}

static tsr_status within(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    return copy((gpu_device *)device, WITHIN, to, from, bytes, err);
}

static tsr_status synchronize(tsr_device *device, tsr_error *err)
{
    return settle((gpu_device *)device, err);
}

static tsr_status pin(tsr_device *device, void *data, uint64_t bytes, tsr_error *err)
{
    return tsr_gpu_pin(((gpu_device *)device)->gpu, data, (size_t)bytes, err);
}

static void unpin(tsr_device *device, void *data, uint64_t bytes)
{
    (void)bytes;
    settle((gpu_device *)device, NULL);
    tsr_gpu_unpin(((gpu_device *)device)->gpu, data);
}

tsr_status tsr_gpu_device_new(tsr_gpu *gpu, uint32_t index, tsr_device **out, tsr_error *err)
{
    *out = NULL;
    gpu_device *d = tsr_alloc(gpu->host->allocator, 1, sizeof *d, err);
    if (!d) return TSR_E_NOMEM;
    *d = (gpu_device){.base = {.kind = TSR_DEVICE_CUDA,
                               .index = index,
                               .alloc = alloc,
                               .free = release,
                               .to_host = to_host,
                               .from_host = from_host,
                               .within = within,
                               .synchronize = synchronize,
                               .pin = pin,
                               .unpin = unpin},
                      .gpu = gpu};
    d->runs = tsr_vec_of(gpu->host->allocator, sizeof(tsr_gpu_run));
    d->due = tsr_vec_of(gpu->host->allocator, sizeof(tsr_gpu_run));
    tsr_status status = tsr_gpu_stream_new(gpu, &d->stream, err);
    if (status == TSR_OK) *out = &d->base;
    else tsr_free(gpu->host->allocator, d, 1, sizeof *d);
    return status;
}

void tsr_gpu_device_free(tsr_device *base)
{
    gpu_device *d = (gpu_device *)base;
    if (!d) return;
    settle(d, NULL);
    tsr_gpu_stream_free(d->stream);
    tsr_gpu_host_free(d->gpu, d->stage);
    tsr_vec_free(&d->runs);
    tsr_vec_free(&d->due);
    tsr_free(d->gpu->host->allocator, d, 1, sizeof *d);
}
