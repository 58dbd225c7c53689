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

#include "base/cursor.h"
#include "stream/ring.h"
#include "tessera/sys/box.h"
#include "tessera/sys/box_walk.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/try.h"

#define READ_COST UINT64_C(16384) /* the cost of starting a read, as the number of bytes copied in that time */

/* ---- how a share is read ---- */

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

/* ---- one part's share of a box ---- */

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

/* ---- the parts of a box ---- */

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
