/* Turns the pieces that programs give into as few launches and copies as possible.
 *
 *   boxes ──▶ axes dropped, sorted, merged ──┬─▶ one run ──┐
 *                                            └─▶ strided ──┼─▶ 2-D copy (one box of long rows) or box kernel
 *   runs ─────────────────────────────────────────────────▶┴─▶ adjacent ones merged ─▶ one copy, one 2-D copy, or run kernel
 */
#include "live/cuda/backend.h"
#include "live/cuda/kernel_body.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/read.h"

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
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "device move: %s elements are not byte-aligned",
                         tsr_dtype_describe(to ? box->from_dtype : box->to_dtype)->name);
    if (box->from && box->to_dtype != box->from_dtype && !tsr_cast_possible(box->from_dtype, box->to_dtype))
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "device move: %s cannot be cast to %s",
                         tsr_dtype_describe(box->from_dtype)->name, tsr_dtype_describe(box->to_dtype)->name);
    if (box->ndim > TSR_GPU_MAX_NDIM)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "device move: %u dimensions; at most %u are supported",
                         (unsigned)box->ndim, TSR_GPU_MAX_NDIM);
    const bool is_cast = box->from && box->to_dtype != box->from_dtype;
    if (is_cast && ((uintptr_t)box->to % to || (uintptr_t)box->from % from))
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
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
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "device move: the box is larger than the address space");
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
