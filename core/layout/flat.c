/* FSDP1's flat parameters: where each original parameter begins, and which of its elements a rank's slice has. */
#include "base/cursor.h"
#include "layout/shard.h"
#include "tessera/box.h"
#include "tessera/sys/box.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

static bool round_up(uint64_t value, uint64_t unit, uint64_t *out)
{
    uint64_t over = unit ? value % unit : 0;
    return tsr_add_u64(value, over ? unit - over : 0, out);
}

tsr_status tsr_flat_layout_make(tsr_flat_numels of, uint64_t ranks, tsr_arena *arena, tsr_flat_layout *out, tsr_error *err)
{
    uint64_t *offsets = tsr_arena_array(arena, of.count, sizeof *offsets, err), total = 0;
    bool fits = true;
    if (!offsets) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < of.count; i++) {
        fits = fits && round_up(total, of.alignment, &offsets[i]) && tsr_add_u64(offsets[i], of.numels[i], &total);
    }
    if (of.alignment) fits = fits && round_up(total, ranks, &total);
    TSR_FAIL_IF(!fits || total > UINT64_MAX - ranks, err, TSR_E_LIMIT, "a flat parameter has more than 2^64 elements");
    *out = (tsr_flat_layout){of.count, offsets, of.numels, total, total / ranks + (total % ranks != 0), ranks};
    return TSR_OK;
}

tsr_span tsr_flat_layout_range(const tsr_flat_layout *flat, uint64_t index, uint64_t holder)
{
    uint64_t begin = flat->flat_offsets[index], end = begin + flat->numels[index];
    uint64_t slice = holder * flat->slice_numel, slice_end = slice + flat->slice_numel;
    uint64_t from = begin > slice ? begin : slice, until = end < slice_end ? end : slice_end;
    return from < until ? (tsr_span){from - begin, until - from} : (tsr_span){0, 0};
}

/* Sets one box: `count` indices of dim d from coordinate `at` on, and all of the dims after d. */
static void put_box(tsr_shape shape, const uint64_t *at, uint32_t d, uint64_t count, uint64_t *offsets, uint64_t *sizes)
{
    for (uint32_t k = 0; k < shape.ndim; k++) {
        offsets[k] = k <= d ? at[k] : 0;
        sizes[k] = k < d ? 1 : k == d ? count : shape.sizes[k];
    }
}

uint32_t tsr_range_boxes(uint32_t ndim, const uint64_t *shape, tsr_span range, uint64_t *offsets, uint64_t *sizes)
{
    uint64_t begin = range.offset, end = begin + range.size, steps[TSR_MAX_NDIM], at[TSR_MAX_NDIM];
    uint32_t n = 0;
    for (uint32_t d = ndim; d-- > 0;) steps[d] = d + 1 < ndim ? steps[d + 1] * shape[d + 1] : 1;
    if (ndim == 0) return range.size ? 1 : 0;
    /* The boxes first grow from single elements to whole slabs of the tensor, and then shrink again. */
    while (begin < end) {
        uint32_t d = ndim - 1;
        while (d > 0 && begin % steps[d - 1] == 0 && end - begin >= steps[d - 1]) d--;
        for (uint32_t k = 0; k < ndim; k++) at[k] = begin / steps[k] % shape[k];
        uint64_t count = (end - begin) / steps[d], left = shape[d] - at[d];
        if (count > left) count = left;
        put_box((tsr_shape){ndim, shape}, at, d, count, offsets + n * ndim, sizes + n * ndim);
        n++;
        begin += count * steps[d];
    }
    return n;
}

/* The boxes of one rank's range, and where each begins in the range. */
static tsr_status range_shard(uint32_t ndim, const uint64_t *shape, tsr_span range, tsr_arena *arena, tsr_shard *out,
                              tsr_error *err)
{
    uint64_t offsets[(2 * TSR_MAX_NDIM - 1) * TSR_MAX_NDIM], sizes[(2 * TSR_MAX_NDIM - 1) * TSR_MAX_NDIM], at = 0;
    const uint32_t count = range.size ? tsr_range_boxes(ndim, shape, range, offsets, sizes) : 0;
    uint64_t *numbers = tsr_arena_array(arena, (3 * (size_t)count + 2) * ndim + 1, sizeof *numbers, err);
    tsr_shard_box *boxes = tsr_arena_array(arena, count, sizeof *boxes, err);
    if (!numbers || !boxes) return TSR_E_NOMEM;
    uint64_t *local_shape = numbers, *first = numbers + ndim;
    *out = (tsr_shard){ndim, local_shape, first, boxes, count};
    for (uint32_t d = 0; d < ndim; d++) local_shape[d] = d ? 1 : range.size;
    numbers += 2 * (size_t)ndim;
    for (uint32_t b = 0; b < count; b++, numbers += 3 * (size_t)ndim) {
        uint64_t elements;
        boxes[b] = (tsr_shard_box){numbers, numbers + ndim, numbers + 2 * ndim};
        if (ndim) memcpy(numbers, offsets + b * ndim, ndim * sizeof *numbers);
        if (ndim) memcpy(numbers + ndim, sizes + b * ndim, ndim * sizeof *numbers);
        if (ndim) numbers[2 * ndim] = at;
        /* Cannot overflow: the box is part of the tensor. */
        tsr_box_volume((tsr_box){ndim, NULL, sizes + b * ndim}, &elements);
        at += elements;
    }
    for (uint32_t d = 0; d < ndim; d++) first[d] = count ? boxes[0].offsets[d] : shape[d];
    return TSR_OK;
}

tsr_status tsr_layout_flat(const tsr_flat_layout *flat, uint64_t index, tsr_shape shape, tsr_arena *arena, tsr_layout *out,
                           tsr_error *err)
{
    tsr_shard *shards = tsr_arena_array(arena, flat->ranks, sizeof *shards, err);
    TSR_FAIL_IF(shape.ndim > TSR_MAX_NDIM, err, TSR_E_LIMIT, "a parameter of %u dimensions; at most %u are supported",
                shape.ndim, TSR_MAX_NDIM);
    if (!shards) return TSR_E_NOMEM;
    for (uint64_t r = 0; r < flat->ranks; r++)
        TSR_TRY(range_shard(shape.ndim, shape.sizes, tsr_flat_layout_range(flat, index, r), arena, &shards[r], err));
    *out = tsr_layout_explicit(flat->ranks, shards, shape.ndim, shape.sizes);
    out->flat = true;
    return TSR_OK;
}

uint32_t tsr_flat_split(uint32_t ndim, const uint64_t *box_sizes, const uint64_t *sizes, uint64_t *runs)
{
    uint32_t split = ndim ? ndim - 1 : 0;
    while (split > 0 && sizes[split] == box_sizes[split]) split--;
    *runs = 1;
    for (uint32_t d = 0; d < split; d++) *runs *= sizes[d];
    return split;
}
