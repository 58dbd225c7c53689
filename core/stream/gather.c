/* Reads any box of a tensor from any chunks.
 *
 *   tensor        box                 one part's share of the box, in its file (axes by falling stride):
 *   ┌────┬────┐   ┌ ─ ─ ─ ─ ┐
 *   │ p0 │ p1 │   │ p0 │ p1 │         ····[run]····gap····[run]····gap····[run]····
 *   ├────┼────┤   └ ─ ─ ─ ─ ┘             └──────────── joined read ───────────┘
 *   │ p2 │ p3 │
 *   └────┴────┘
 *
 * Runs that are close together are fetched by one joined read into scratch memory, and copied from there. Runs that are
 * worth their own read are read directly to the destination, if they are contiguous there, too. Which is better is decided
 * axis by axis, beginning with the innermost one, by comparing the cost of the reads in bytes. */
#include "stream/gather.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "stream/ring.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/box.h"
#include "tessera/sys/box_walk.h"
#include "tessera/sys/checkpoint_bytes.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/read_run.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/tiling.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

#define READ_COST UINT64_C(16384) /* the cost of starting a read, as the number of bytes copied in that time */
enum { FOUND_AT_ONCE = 256 };

/* ---- opening ---- */

tsr_status tsr_gather_geometry(const tsr_entry *entry, tsr_dtype *dtype, uint32_t *ndim, uint64_t *shape, uint64_t *elements,
                               tsr_error *err)
{
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_TENSOR, err, TSR_E_UNSUPPORTED, "'%.*s' is not a dense tensor (%.*s)",
                TSR_STR_ARG(entry->fqn), TSR_STR_ARG(entry->type));
    TSR_FAIL_IF(entry->ndim > TSR_MAX_NDIM, err, TSR_E_LIMIT, "'%.*s' has %u dimensions; at most %u are supported",
                TSR_STR_ARG(entry->fqn), (unsigned)entry->ndim, (unsigned)TSR_MAX_NDIM);
    *dtype = entry->dtype;
    *ndim = entry->ndim;
    for (uint32_t d = 0; d < entry->ndim; d++) shape[d] = entry->shape[d];
    bool whole = *ndim == 0 ? *dtype != TSR_FLOAT4_E2M1FN : tsr_dtype_pack(dtype, &shape[*ndim - 1]);
    if (tsr_dtype_describe(*dtype)->bits == 6) {
        *dtype = TSR_UINT8;
        *ndim = 1;
        whole = tsr_entry_bytes(entry, &shape[0]);
    }
    uint64_t bytes;
    whole = whole && tsr_box_volume((tsr_box){*ndim, NULL, shape}, elements) && tsr_dtype_bytes(*dtype, *elements, &bytes);
    TSR_FAIL_IF(!whole, err, TSR_E_FORMAT, "'%.*s': its size is not a whole number of bytes, or it is too large",
                TSR_STR_ARG(entry->fqn));
    return TSR_OK;
}

bool tsr_find_run(tsr_dtype dtype, tsr_box whole, tsr_box box, uint64_t *byte_first, uint64_t *byte_length)
{
    static const uint64_t zeros[TSR_MAX_NDIM];
    uint64_t elements;
    if (!tsr_box_is_contiguous(whole, box) || !tsr_box_volume(box, &elements)) return false;
    const uint64_t first = elements ? tsr_box_index(whole, box.offsets ? box.offsets : zeros) : 0;
    return tsr_dtype_bytes(dtype, first, byte_first) && tsr_dtype_bytes(dtype, elements, byte_length);
}

static const uint64_t *row_major(tsr_arena *arena, uint32_t ndim, const uint64_t *sizes, tsr_error *err)
{
    uint64_t *strides = tsr_arena_array(arena, ndim, sizeof *strides, err);
    if (!strides) return NULL;
    uint64_t step = 1;
    for (uint32_t d = ndim; d-- > 0;) {
        strides[d] = step;
        step *= sizes[d];
    }
    return strides;
}

/* Computes the number of bytes from the first element of the part to the end of its last one. Returns false if that
 * overflows. */
static bool part_span(const tsr_gather *gather, const tsr_located *part, uint64_t *span)
{
    uint64_t last = 0, step;
    for (uint32_t d = 0; d < gather->ndim; d++) {
        if (!tsr_mul_u64(part->sizes[d] - 1, part->strides[d], &step) || !tsr_add_u64(last, step, &last)) return false;
    }
    return tsr_add_u64(last, 1, &last) && tsr_mul_u64(last, gather->itemsize, span);
}

static tsr_status check_part(const tsr_gather *gather, tsr_located *part, tsr_error *err)
{
    const tsr_str fqn = gather->entry->fqn;
    const tsr_store *store = tsr_checkpoint_store(gather->checkpoint);
    uint64_t end;
    TSR_FAIL_AT(!part_span(gather, part, &part->span) || !tsr_add_u64(part->view.byte_offset, part->span, &end), err,
                TSR_E_FORMAT, part->view.byte_offset,
                "'%.*s': the strides of a chunk reach beyond the largest possible file", TSR_STR_ARG(fqn));
    if (part->view.file >= store->file_count) return tsr_checkpoint_raise_missing(gather->checkpoint, fqn, err);
    const tsr_store_file *file = &store->files[part->view.file];
    TSR_FAIL_AT(!part->view.zstd && end > file->size, err, TSR_E_FORMAT, part->view.byte_offset,
                "'%.*s': a chunk ends at %llu, beyond the end of %.*s (%llu bytes)", TSR_STR_ARG(fqn),
                (unsigned long long)end, TSR_STR_ARG(file->name), (unsigned long long)file->size);
    return TSR_OK;
}

/* Sets the offsets and sizes of a chunk, in the units of the gather's dtype and shape. */
static tsr_status set_box(tsr_gather *gather, const tsr_chunk *chunk, tsr_located *part, tsr_error *err)
{
    const tsr_entry *entry = gather->entry;
    part->offsets = chunk->offsets;
    part->sizes = chunk->sizes;
    if (gather->dtype == entry->dtype) return TSR_OK;
    uint64_t *box = tsr_arena_array(gather->arena, 2 * (size_t)gather->ndim, sizeof *box, err);
    if (!box) return TSR_E_NOMEM;
    uint64_t *offsets = box, *sizes = box + gather->ndim;
    bool fits = true;
    if (gather->dtype == TSR_FLOAT4_E2M1FN_X2) {
        memcpy(offsets, chunk->offsets, gather->ndim * sizeof *box);
        memcpy(sizes, chunk->sizes, gather->ndim * sizeof *box);
        fits = gather->ndim && offsets[gather->ndim - 1] % 2 == 0 && sizes[gather->ndim - 1] % 2 == 0;
        offsets[gather->ndim - 1] /= 2;
        sizes[gather->ndim - 1] /= 2;
    } else {
        fits =
            tsr_box_equal((tsr_box){entry->ndim, chunk->offsets, chunk->sizes}, (tsr_box){entry->ndim, NULL, entry->shape});
        sizes[0] = gather->elements;
    }
    TSR_FAIL_AT(!fits, err, TSR_E_UNSUPPORTED, chunk->byte_offset, "'%.*s': a chunk of %s is not byte-aligned",
                TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name);
    part->offsets = offsets;
    part->sizes = sizes;
    return TSR_OK;
}

static tsr_status set_strides(tsr_gather *gather, const tsr_chunk *chunk, tsr_located *part, tsr_error *err)
{
    TSR_FAIL_AT(part->view.strides && gather->dtype != gather->entry->dtype, err, TSR_E_UNSUPPORTED, chunk->byte_offset,
                "'%.*s': %s with strides", TSR_STR_ARG(gather->entry->fqn), tsr_dtype_describe(gather->entry->dtype)->name);
    part->strides = part->view.strides ? part->view.strides : row_major(gather->arena, gather->ndim, part->sizes, err);
    return part->strides ? check_part(gather, part, err) : TSR_E_NOMEM;
}

/* Returns what was found of a chunk without a view, before the gather was opened or while it is being opened; otherwise
 * NULL. */
static const tsr_found *find_known(const tsr_gather *gather, const tsr_chunk *chunk)
{
    const tsr_found *found = chunk->view ? NULL : tsr_ahead_find(gather->ahead, chunk);
    return found || chunk->view ? found : tsr_ahead_find(gather->own_ahead, chunk);
}

/* Copies the strides, because own_ahead is freed once the gather is open. */
static tsr_status take_known(const tsr_gather *gather, const tsr_view *view, tsr_view *out, tsr_error *err)
{
    *out = *view;
    if (!view->strides) return TSR_OK;
    uint64_t *strides = tsr_arena_array(gather->arena, gather->entry->ndim, sizeof *strides, err);
    if (!strides) return TSR_E_NOMEM;
    memcpy(strides, view->strides, gather->entry->ndim * sizeof *strides);
    out->strides = strides;
    return TSR_OK;
}

static tsr_status add_part(tsr_gather *gather, const tsr_chunk *chunk, const tsr_box *box, tsr_error *err)
{
    tsr_located *part = &gather->parts[gather->part_count];
    const tsr_box whole = {gather->ndim, NULL, gather->shape};
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    *part = (tsr_located){0};
    TSR_TRY(set_box(gather, chunk, part, err));
    const tsr_box own = {gather->ndim, part->offsets, part->sizes};
    TSR_FAIL_AT(!tsr_box_contains(whole, own), err, TSR_E_FORMAT, chunk->byte_offset,
                "'%.*s': a chunk reaches beyond the tensor", TSR_STR_ARG(gather->entry->fqn));
    if (tsr_box_is_empty(own) || (box && !tsr_box_intersect(own, *box, offsets, sizes))) return TSR_OK;
    if (chunk->file == TSR_NO_FILE) return tsr_checkpoint_raise_missing(gather->checkpoint, gather->entry->fqn, err);
    const tsr_found *known = find_known(gather, chunk);
    if (known) TSR_TRY(take_known(gather, &known->view, &part->view, err));
    else TSR_TRY(tsr_checkpoint_locate(gather->checkpoint, gather->entry, chunk, gather->arena, &part->view, err));
    TSR_TRY(set_strides(gather, chunk, part, err));
    for (uint32_t d = 0; d < gather->ndim; d++) offsets[d] = part->offsets[d] + part->sizes[d] - 1;
    part->first = tsr_box_index(whole, part->offsets);
    part->last = tsr_box_index(whole, offsets);
    gather->serial = gather->serial || part->view.zstd;
    gather->part_count++;
    return TSR_OK;
}

static int by_first(const void *a, const void *b)
{
    const tsr_located *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Whether the chunk must be located, because elements of it are wanted. */
static bool is_sought(const tsr_gather *gather, const tsr_chunk *chunk, const tsr_box *box)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    const tsr_box own = {gather->ndim, chunk->offsets, chunk->sizes};
    const uint32_t file_count = tsr_checkpoint_store(gather->checkpoint)->file_count;
    if (chunk->view || chunk->file >= file_count || !chunk->byte_length || find_known(gather, chunk)) return false;
    return !box || gather->dtype != gather->entry->dtype || tsr_box_intersect(own, *box, offsets, sizes);
}

/* Finds the chunks together, as far as own_ahead can. */
static tsr_status find_together(tsr_gather *gather, const tsr_chunk *chunks, uint64_t count, const tsr_box *box,
                                tsr_error *err)
{
    TSR_TRY(tsr_ahead_make_room(gather->own_ahead, err));
    for (uint64_t i = 0; gather->own_ahead && i < count; i++)
        if (is_sought(gather, &chunks[i], box))
            TSR_TRY(tsr_ahead_want_chunk(gather->own_ahead, gather->entry, &chunks[i], err));
    tsr_ahead_seek(gather->own_ahead);
    return TSR_OK;
}

static tsr_status add_parts(tsr_gather *gather, const tsr_chunk *chunks, uint64_t count, const tsr_box *box, tsr_error *err)
{
    for (uint64_t i = 0; i < count;) {
        const uint64_t end = count - i < FOUND_AT_ONCE ? count : i + FOUND_AT_ONCE;
        TSR_TRY(find_together(gather, &chunks[i], end - i, box, err));
        for (; i < end; i++) TSR_TRY(add_part(gather, &chunks[i], box, err));
    }
    return TSR_OK;
}

static tsr_status fill_parts(tsr_gather *gather, const tsr_chunk *chunks, uint64_t count, const tsr_box *box, tsr_error *err)
{
    const bool fetches = tsr_checkpoint_store(gather->checkpoint)->prefetch;
    const bool together = count > 1 && (fetches || tsr_threads(tsr_checkpoint_host(gather->checkpoint)) > 1);
    gather->parts = tsr_arena_array(gather->arena, count, sizeof *gather->parts, err);
    gather->furthest = tsr_arena_array(gather->arena, count, sizeof *gather->furthest, err);
    if (!gather->parts || !gather->furthest) return TSR_E_NOMEM;
    if (together) TSR_TRY(tsr_ahead_new(gather->checkpoint, &gather->own_ahead, err));
    const tsr_status status = add_parts(gather, chunks, count, box, err);
    tsr_ahead_free(gather->own_ahead);
    gather->own_ahead = NULL;
    TSR_TRY(status);
    qsort(gather->parts, gather->part_count, sizeof *gather->parts, by_first);
    for (size_t i = 0; i < gather->part_count; i++) {
        const uint64_t before = i ? gather->furthest[i - 1] : 0;
        gather->furthest[i] = gather->parts[i].last > before ? gather->parts[i].last : before;
    }
    return TSR_OK;
}

static tsr_status new_gather(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_gather **out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_gather *gather = arena ? TSR_ARENA_NEW(arena, tsr_gather, err) : NULL;
    uint64_t *shape = gather ? tsr_arena_array(arena, TSR_MAX_NDIM, sizeof *shape, err) : NULL;
    if (!shape) {
        tsr_arena_free(arena);
        return TSR_E_NOMEM;
    }
    *gather = (tsr_gather){.checkpoint = checkpoint, .entry = entry, .arena = arena, .shape = shape};
    *out = gather;
    TSR_TRY(tsr_gather_geometry(entry, &gather->dtype, &gather->ndim, shape, &gather->elements, err));
    gather->itemsize = tsr_dtype_size(gather->dtype);
    gather->bytes = gather->elements * gather->itemsize;
    return TSR_OK;
}

static tsr_status closed_on_failure(tsr_status status, tsr_gather *gather, tsr_gather **out)
{
    *out = status == TSR_OK ? gather : NULL;
    if (status != TSR_OK) tsr_gather_close(gather);
    return status;
}

tsr_status tsr_entry_must_tile(const tsr_entry *entry, const tsr_host *host, tsr_error *err)
{
    tsr_tiling tiling;
    TSR_TRY(tsr_tiling_check(host->allocator, (tsr_shape){entry->ndim, entry->shape}, entry->chunks, entry->chunk_count,
                             &tiling, err));
    TSR_FAIL_IF(!tiling.exact, err, TSR_E_FORMAT, "'%.*s': its chunks %s", TSR_STR_ARG(entry->fqn),
                tiling.missing                      ? "do not cover the whole tensor"
                : tiling.overlap[0] != TSR_NO_CHUNK ? "overlap"
                                                    : "reach beyond the tensor");
    return TSR_OK;
}

/* Refuses elements of the box that are in two parts. The number of elements read does not show them, because an element in
 * two parts may compensate for one in none. */
static tsr_status must_not_overlap(tsr_gather *gather, const tsr_box *box, tsr_error *err)
{
    const uint32_t ndim = gather->ndim;
    tsr_tiling tiling;
    uint64_t count = 0;
    tsr_chunk *inside = tsr_arena_array(gather->arena, gather->part_count, sizeof *inside, err);
    uint64_t *numbers = tsr_arena_array(gather->arena, gather->part_count, 2 * (size_t)ndim * sizeof *numbers, err);
    if (!inside || !numbers) return TSR_E_NOMEM;
    for (size_t i = 0; i < gather->part_count; i++, numbers += 2 * ndim) {
        const tsr_box part = {ndim, gather->parts[i].offsets, gather->parts[i].sizes};
        if (!tsr_box_intersect(part, *box, numbers, numbers + ndim)) continue;
        for (uint32_t d = 0; d < ndim; d++) numbers[d] -= tsr_box_offset(*box, d);
        inside[count++] = (tsr_chunk){.offsets = numbers, .sizes = numbers + ndim};
    }
    const tsr_allocator *allocator = tsr_checkpoint_host(gather->checkpoint)->allocator;
    TSR_TRY(tsr_tiling_check(allocator, (tsr_shape){ndim, box->sizes}, inside, count, &tiling, err));
    TSR_FAIL_IF(tiling.overlap[0] != TSR_NO_CHUNK, err, TSR_E_FORMAT, "'%.*s': its chunks overlap",
                TSR_STR_ARG(gather->entry->fqn));
    return TSR_OK;
}

tsr_status tsr_gather_open(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_box *box, tsr_gather **out,
                           tsr_error *err)
{
    return tsr_gather_open_found(checkpoint, entry, box, NULL, out, err);
}

tsr_status tsr_gather_open_found(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_box *box,
                                 const tsr_ahead *ahead, tsr_gather **out, tsr_error *err)
{
    tsr_gather *gather = NULL;
    tsr_status status = new_gather(checkpoint, entry, &gather, err);
    if (status == TSR_OK) gather->ahead = ahead;
    if (status == TSR_OK && !box) status = tsr_entry_must_tile(entry, tsr_checkpoint_host(checkpoint), err);
    if (status == TSR_OK) status = fill_parts(gather, entry->chunks, entry->chunk_count, box, err);
    if (status == TSR_OK && box && gather->part_count > 1) status = must_not_overlap(gather, box, err);
    return closed_on_failure(status, gather, out);
}

tsr_status tsr_gather_open_chunks(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunks,
                                  uint64_t count, tsr_gather **out, tsr_error *err)
{
    tsr_gather *gather = NULL;
    tsr_status status = new_gather(checkpoint, entry, &gather, err);
    if (status == TSR_OK) status = fill_parts(gather, chunks, count, NULL, err);
    return closed_on_failure(status, gather, out);
}

void tsr_gather_close(tsr_gather *gather)
{
    if (!gather) return;
    for (size_t i = 0; i < gather->part_count; i++) tsr_unzstd_close(gather->parts[i].stream);
    tsr_arena_free(gather->arena);
}

/* ---- one part's share of a box ---- */

/* How a block is fetched: a loop over axes[0, loops), with steps of `step` in the last of them. Each read covers the other
 * axes and has `span` bytes (for step 1). If `direct`, it goes directly to the destination. */
typedef struct fetch_plan {
    uint32_t loops;
    uint64_t step;
    uint64_t span;
    bool direct;
} fetch_plan;

static uint64_t saturating_mul(uint64_t a, uint64_t b)
{
    uint64_t product;
    return tsr_mul_u64(a, b, &product) ? product : UINT64_MAX;
}

static fetch_plan plan_fetch(const tsr_axis *axes, uint32_t count, uint32_t itemsize, size_t scratch_size)
{
    fetch_plan plan = {count, 1, itemsize, true};
    if (count && axes[count - 1].from == itemsize && axes[count - 1].to == itemsize) {
        plan.loops--;
        plan.span = axes[plan.loops].size * itemsize;
    }
    uint64_t cost = READ_COST + plan.span;
    while (plan.loops) {
        const tsr_axis axis = axes[plan.loops - 1];
        const uint64_t reach = saturating_mul(axis.size - 1, axis.from);
        const uint64_t span = reach > UINT64_MAX - plan.span ? UINT64_MAX : reach + plan.span;
        const uint64_t joined = span > UINT64_MAX / 4 ? UINT64_MAX : READ_COST + 2 * span;
        if (joined > saturating_mul(axis.size, cost)) break;
        if (span > scratch_size) {
            if (plan.span <= scratch_size) plan.step = (scratch_size - plan.span) / (axis.from ? axis.from : 1) + 1;
            plan.direct = plan.direct && plan.step == 1;
            break;
        }
        plan.loops--;
        plan.span = span;
        plan.direct = false;
        cost = joined;
    }
    return plan;
}

static tsr_status read_part(const tsr_gather *gather, tsr_located *part, uint64_t byte, void *to, size_t size,
                            tsr_error *err)
{
    tsr_store *store = tsr_checkpoint_store(gather->checkpoint);
    const tsr_view *view = &part->view;
    if (!view->zstd && store->expect && part->span > size) store->expect(store, view->file, view->byte_offset, part->span);
    if (!view->zstd) return tsr_store_read(store, view->file, view->byte_offset + byte, to, size, err);
    if (!part->stream) {
        TSR_TRY(tsr_unzstd_open((tsr_range){store, view->file, view->stream_offset, view->stream_length},
                                tsr_checkpoint_host(gather->checkpoint), &part->stream, err));
    }
    TSR_TRY(tsr_unzstd_read(part->stream, view->byte_offset + byte, to, size, err));
    if (byte + size == part->span) { /* decoders are large, and each chunk of a column-sharded tensor has one */
        tsr_unzstd_close(part->stream);
        part->stream = NULL;
    }
    return TSR_OK;
}

/* The state while a box is gathered. */
typedef struct gathering {
    const tsr_gather *gather;
    tsr_box box;
    uint8_t *to; /* the destination of the box's first element */
    uint8_t *scratch;
    size_t scratch_size;
    uint64_t filled; /* elements read so far */
    tsr_error *err;
} gathering;

/* The share of the box that one part contains. */
typedef struct part_share {
    tsr_located *part;
    uint64_t byte; /* the offset of its first element in the part */
    uint8_t *to;   /* the destination of its first element */
    tsr_axis axes[TSR_MAX_NDIM];
    uint32_t axis_count;
} part_share;

/* Byte offsets from the share's first element, in the part and at the destination. */
typedef struct fetch_at {
    uint64_t from, to;
} fetch_at;

/* Performs one read of the plan: `steps` steps of the last looped axis (1 if there is none). */
static tsr_status fetch_block(const gathering *g, const part_share *share, const fetch_plan *plan, uint64_t steps,
                              fetch_at at)
{
    tsr_located *part = share->part;
    const uint64_t byte = share->byte + at.from;
    if (plan->direct) return read_part(g->gather, part, byte, share->to + at.to, (size_t)plan->span, g->err);
    tsr_axis block[TSR_MAX_NDIM];
    uint32_t used = 0;
    if (steps > 1) block[used++] = (tsr_axis){steps, share->axes[plan->loops - 1].from, share->axes[plan->loops - 1].to};
    for (uint32_t i = plan->loops; i < share->axis_count; i++) block[used++] = share->axes[i];
    const uint64_t reach = steps > 1 ? (steps - 1) * block[0].from : 0;
    uint8_t *scratch = g->scratch;
    if (!part->view.zstd) scratch = tsr_place_for_copy(scratch, part->view.byte_offset + byte, TSR_NO_POSITION);
    TSR_TRY(read_part(g->gather, part, byte, scratch, (size_t)(reach + plan->span), g->err));
    tsr_copy_block(share->to + at.to, scratch, block, used, g->gather->itemsize);
    return TSR_OK;
}

/* Reads several steps of the last looped axis, one read each, next to each other into scratch memory, and then copies all of
 * them together. Copying element by element would write to cache lines of the destination that are far apart. */
static tsr_status fetch_rows(const gathering *g, const part_share *share, const fetch_plan *plan, uint64_t steps,
                             fetch_at at)
{
    const tsr_axis rows = share->axes[plan->loops - 1];
    tsr_axis block[TSR_MAX_NDIM];
    uint32_t used = 0;
    block[used++] = (tsr_axis){steps, plan->span, rows.to};
    for (uint32_t i = plan->loops; i < share->axis_count; i++) block[used++] = share->axes[i];
    for (uint64_t i = 0; i < steps; i++) {
        const uint64_t byte = share->byte + at.from + i * rows.from;
        TSR_TRY(read_part(g->gather, share->part, byte, g->scratch + i * plan->span, (size_t)plan->span, g->err));
    }
    tsr_copy_block(share->to + at.to, g->scratch, block, used, g->gather->itemsize);
    return TSR_OK;
}

static tsr_status fetch_share(const gathering *g, const part_share *share)
{
    const tsr_axis *axes = share->axes;
    const size_t scratch_size = g->scratch_size - TSR_COPY_SLACK;
    fetch_plan plan = plan_fetch(axes, share->axis_count, g->gather->itemsize, scratch_size);
    if (plan.loops == 0) return fetch_block(g, share, &plan, 1, (fetch_at){0, 0});
    const uint32_t outer = plan.loops - 1;
    const bool apart = !plan.direct && plan.step == 1 && plan.span <= scratch_size / 2;
    if (apart) plan.step = scratch_size / plan.span;
    uint64_t at[TSR_MAX_NDIM] = {0};
    do {
        uint64_t from = 0, to = 0;
        for (uint32_t i = 0; i < outer; i++) {
            from += at[i] * axes[i].from;
            to += at[i] * axes[i].to;
        }
        for (uint64_t i = 0; i < axes[outer].size; i += plan.step) {
            const uint64_t steps = axes[outer].size - i < plan.step ? axes[outer].size - i : plan.step;
            const fetch_at first = {from + i * axes[outer].from, to + i * axes[outer].to};
            TSR_TRY(apart ? fetch_rows(g, share, &plan, steps, first) : fetch_block(g, share, &plan, steps, first));
        }
    } while (tsr_axes_advance(axes, outer, at));
    return TSR_OK;
}

/* Applies swap, conjugation and negation to the part's elements at the destination. */
static void resolve_share(const tsr_gather *gather, const tsr_located *part, tsr_axis *axes, uint32_t count, uint8_t *to)
{
    for (uint32_t i = 0; i < count; i++) axes[i].from = axes[i].to;
    count = tsr_axes_simplify(axes, count);
    const bool runs = count && axes[count - 1].to == gather->itemsize;
    const size_t run = runs ? (size_t)axes[count - 1].size * gather->itemsize : gather->itemsize;
    const uint32_t outer = runs ? count - 1 : count;
    uint64_t at[TSR_MAX_NDIM] = {0};
    do {
        uint64_t to_byte = 0;
        for (uint32_t i = 0; i < outer; i++) to_byte += at[i] * axes[i].to;
        tsr_resolve(to + to_byte, run, gather->dtype, part->view.swap, part->view.conj, part->view.neg);
    } while (tsr_axes_advance(axes, outer, at));
}

/* Gathers the share of the box that `part` contains. */
static tsr_status gather_part(gathering *g, tsr_located *part)
{
    const tsr_gather *gather = g->gather;
    const tsr_box box = g->box;
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM], byte = 0, to_byte = 0, to_step = gather->itemsize, volume = 1;
    if (!tsr_box_intersect((tsr_box){gather->ndim, part->offsets, part->sizes}, box, offsets, sizes)) return TSR_OK;
    part_share share;
    tsr_axis *axes = share.axes, kept[TSR_MAX_NDIM];
    for (uint32_t d = gather->ndim; d-- > 0;) {
        axes[d] = (tsr_axis){sizes[d], part->strides[d] * gather->itemsize, to_step};
        byte += (offsets[d] - part->offsets[d]) * axes[d].from;
        to_byte += (offsets[d] - tsr_box_offset(box, d)) * to_step;
        to_step *= box.sizes[d];
        volume *= sizes[d];
    }
    g->filled += volume;
    memcpy(kept, axes, gather->ndim * sizeof *axes);
    share.part = part;
    share.byte = byte;
    share.to = g->to + to_byte;
    share.axis_count = tsr_axes_simplify(axes, gather->ndim);
    TSR_TRY(fetch_share(g, &share));
    if (part->view.swap || part->view.conj || part->view.neg) resolve_share(gather, part, kept, gather->ndim, share.to);
    return TSR_OK;
}

/* Returns the index of the first part that may contain an element at or after `first`. */
static size_t first_part(const tsr_gather *gather, uint64_t first)
{
    size_t low = 0, high = gather->part_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (gather->furthest[middle] < first) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool holds(const tsr_gather *gather, const tsr_located *part, const uint64_t *at)
{
    for (uint32_t d = 0; d < gather->ndim; d++) {
        if (at[d] < part->offsets[d] || at[d] - part->offsets[d] >= part->sizes[d]) return false;
    }
    return true;
}

uint64_t tsr_gather_position(const tsr_gather *gather, const uint64_t *at)
{
    const uint64_t first = tsr_box_index((tsr_box){gather->ndim, NULL, gather->shape}, at);
    for (size_t i = first_part(gather, first); i < gather->part_count && gather->parts[i].first <= first; i++) {
        const tsr_located *part = &gather->parts[i];
        if (!holds(gather, part, at)) continue;
        uint64_t byte = part->view.byte_offset;
        for (uint32_t d = 0; d < gather->ndim; d++) byte += (at[d] - part->offsets[d]) * part->strides[d] * gather->itemsize;
        return part->view.zstd ? TSR_NO_POSITION : byte;
    }
    return TSR_NO_POSITION;
}

tsr_status tsr_gather_box(const tsr_gather *gather, tsr_box box, void *to, void *scratch, size_t scratch_size,
                          tsr_error *err)
{
    uint64_t volume, corner[TSR_MAX_NDIM];
    if (!tsr_box_volume(box, &volume) || volume == 0) return TSR_OK;
    const tsr_box whole = {gather->ndim, NULL, gather->shape};
    for (uint32_t d = 0; d < gather->ndim; d++) corner[d] = tsr_box_offset(box, d);
    const uint64_t first = tsr_box_index(whole, corner);
    for (uint32_t d = 0; d < gather->ndim; d++) corner[d] += box.sizes[d] - 1;
    const uint64_t last = tsr_box_index(whole, corner);
    gathering g = {.gather = gather, .box = box, .to = to, .scratch = scratch, .scratch_size = scratch_size, .err = err};
    tsr_status status = TSR_OK;
    for (size_t i = first_part(gather, first); i < gather->part_count && gather->parts[i].first <= last && status == TSR_OK;
         i++) {
        status = gather_part(&g, &gather->parts[i]);
    }
    if (status != TSR_OK) {
        tsr_error_context(err, "'%.*s'", TSR_STR_ARG(gather->entry->fqn));
        return status;
    }
    TSR_FAIL_IF(g.filled != volume, err, TSR_E_FORMAT, "'%.*s': %llu of the %llu elements of a box are in %s",
                TSR_STR_ARG(gather->entry->fqn),
                (unsigned long long)(g.filled < volume ? volume - g.filled : g.filled - volume), (unsigned long long)volume,
                g.filled < volume ? "no chunk" : "more than one chunk");
    return TSR_OK;
}

const tsr_entry *tsr_gather_readable(tsr_checkpoint *checkpoint, tsr_arena *arena, const tsr_entry *entry, tsr_error *err)
{
    if (tsr_catalog_has(tsr_checkpoint_catalog(checkpoint), entry)) return entry;
    tsr_entry *copy = TSR_ARENA_NEW(arena, tsr_entry, err);
    tsr_chunk *chunks = copy ? tsr_arena_array(arena, (size_t)entry->chunk_count, sizeof *chunks, err) : NULL;
    tsr_view *views = chunks ? tsr_arena_array(arena, (size_t)entry->chunk_count, sizeof *views, err) : NULL;
    if (!views) return NULL;
    *copy = *entry;
    copy->chunks = chunks;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        chunks[i] = entry->chunks[i];
        views[i] = (tsr_view){.file = chunks[i].file, .byte_offset = chunks[i].byte_offset};
        if (!chunks[i].view) chunks[i].view = &views[i];
    }
    return copy;
}
