/* Stores a table of runs per tensor dim. So the layout of a whole mesh only takes the memory of each dim's cuts. */
#include "tessera/sys/layout.h"

#include "base/cursor.h"
#include "layout/shard.h"
#include "tessera/box.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* ---- shard ---- */

/* Computes a rank's shard as boxes: the product of its runs along every dim, each box with its offsets in the local
 * tensor. */

#define MOST_BOXES (UINT64_C(1) << 24)

/* Fails with TSR_E_USAGE if a placement has a dim that a tensor with `ndim` dims does not have, or an invalid split
 * factor. */
static tsr_status placements_check(const tsr_mesh *mesh, const tsr_placement *placements, uint32_t ndim, tsr_error *err)
{
    TSR_FAIL_IF(ndim > TSR_MAX_NDIM, err, TSR_E_LIMIT, "%u dimensions; at most %u are supported", ndim, TSR_MAX_NDIM);
    for (uint32_t i = 0; i < mesh->dim_count; i++) {
        const tsr_placement *p = &placements[i];
        uint32_t dim;
        bool cuts = p->kind == TSR_SHARD || p->kind == TSR_STRIDED_SHARD;
        TSR_FAIL_IF(cuts && !tsr_placement_dim(p, ndim, &dim), err, TSR_E_USAGE,
                    "placement %u splits dim %d, but the tensor has %u dims", i, (int)p->dim, ndim);
        bool bad_factor = p->split_factor == 0 || p->split_factor > TSR_SPLIT_FACTOR_MAX;
        TSR_FAIL_IF(p->kind == TSR_STRIDED_SHARD && bad_factor, err, TSR_E_USAGE,
                    "placement %u has split factor %llu; expected 1 to %llu", i, (unsigned long long)p->split_factor,
                    (unsigned long long)TSR_SPLIT_FACTOR_MAX);
    }
    return TSR_OK;
}

/* Computes the local shape, the global offsets, and the number of boxes. */
static tsr_status measure(tsr_shape shape, const tsr_run_list *lists, uint64_t *local_shape, uint64_t *global_offsets,
                          uint64_t *box_count, tsr_error *err)
{
    *box_count = 1;
    for (uint32_t d = 0; d < shape.ndim; d++) {
        uint64_t count = lists[d].count;
        local_shape[d] = count ? lists[d].local[count - 1] + lists[d].runs[count - 1].size : 0;
        global_offsets[d] = count ? lists[d].runs[0].offset : shape.sizes[d];
        bool fits = tsr_mul_u64(*box_count, count, box_count) && *box_count <= MOST_BOXES;
        TSR_FAIL_IF(!fits, err, TSR_E_LIMIT, "a rank holds the tensor in more than %llu boxes",
                    (unsigned long long)MOST_BOXES);
    }
    return TSR_OK;
}

static void fill_boxes(uint32_t ndim, const tsr_run_list *lists, uint64_t box_count, tsr_shard_box *boxes, uint64_t *numbers)
{
    uint64_t at[TSR_MAX_NDIM] = {0};
    for (uint64_t b = 0; b < box_count; b++) {
        uint64_t *offsets = numbers + b * 3 * ndim, *sizes = offsets + ndim, *local_offsets = sizes + ndim;
        for (uint32_t d = 0; d < ndim; d++) {
            offsets[d] = lists[d].runs[at[d]].offset;
            sizes[d] = lists[d].runs[at[d]].size;
            local_offsets[d] = lists[d].local[at[d]];
        }
        boxes[b] = (tsr_shard_box){offsets, sizes, local_offsets};
        for (uint32_t d = ndim; d-- > 0;) {
            if (++at[d] < lists[d].count) break;
            at[d] = 0;
        }
    }
}

/* `lists` has one item per dim. */
static tsr_status shard_from_runs(uint32_t ndim, const uint64_t *shape, const tsr_run_list *lists, tsr_arena *arena,
                                  tsr_shard *out, tsr_error *err)
{
    uint64_t *local_shape = tsr_arena_array(arena, ndim, 2 * sizeof *local_shape, err), box_count;
    if (!local_shape) return TSR_E_NOMEM;
    uint64_t *global_offsets = local_shape + ndim;
    TSR_TRY(measure((tsr_shape){ndim, shape}, lists, local_shape, global_offsets, &box_count, err));
    tsr_shard_box *boxes = tsr_arena_array(arena, box_count, sizeof *boxes, err);
    uint64_t *numbers = boxes ? tsr_arena_array(arena, box_count, 3 * sizeof(uint64_t) * ndim, err) : NULL;
    if (!numbers) return TSR_E_NOMEM;
    fill_boxes(ndim, lists, box_count, boxes, numbers);
    *out = (tsr_shard){ndim, local_shape, global_offsets, boxes, box_count};
    return TSR_OK;
}

tsr_status tsr_mesh_shard(const tsr_sharding *how, tsr_shape shape, uint64_t mesh_rank, tsr_arena *arena, tsr_shard *out,
                          tsr_error *err)
{
    tsr_run_list lists[TSR_MAX_NDIM];
    uint64_t coordinate[TSR_MESH_MAX_DIMS];
    TSR_TRY(placements_check(how->mesh, how->placements, shape.ndim, err));
    tsr_mesh_coordinate(how->mesh, mesh_rank, coordinate);
    for (uint32_t d = 0; d < shape.ndim; d++) {
        tsr_vec runs = tsr_vec_of(tsr_arena_allocator(arena), sizeof(tsr_span));
        tsr_status status = tsr_mesh_spans(how, shape, d, coordinate, &runs, err);
        tsr_span *kept = status == TSR_OK ? tsr_arena_array(arena, runs.count, sizeof *kept, err) : NULL;
        uint64_t *local = kept ? tsr_arena_array(arena, runs.count, sizeof *local, err) : NULL, at = 0;
        for (size_t i = 0; local && i < runs.count; i++) {
            kept[i] = ((const tsr_span *)runs.items)[i];
            local[i] = at;
            at += kept[i].size;
        }
        lists[d] = (tsr_run_list){kept, local, runs.count};
        tsr_vec_free(&runs);
        if (!local) return status == TSR_OK ? TSR_E_NOMEM : status;
    }
    return shard_from_runs(shape.ndim, shape.sizes, lists, arena, out, err);
}

/* ---- layout ---- */

/* Finds the mesh dims that shard tensor dim `dim`, and the number of positions that they define. */
static void find_cuts(const tsr_mesh *mesh, const tsr_placement *placements, uint32_t ndim, uint32_t dim,
                      tsr_dim_layout *out)
{
    out->positions = 1;
    for (uint32_t i = 0; i < mesh->dim_count; i++) {
        uint32_t d;
        if (!tsr_placement_dim(&placements[i], ndim, &d) || d != dim) continue;
        out->mesh_dims[out->cut_count++] = i;
        out->positions *= mesh->shape[i];
    }
}

static void coordinate_of(const tsr_mesh *mesh, const tsr_dim_layout *dim, uint64_t position, uint64_t *coordinate)
{
    for (uint32_t i = dim->cut_count; i-- > 0;) {
        uint32_t m = dim->mesh_dims[i];
        coordinate[m] = position % mesh->shape[m];
        position /= mesh->shape[m];
    }
}

/* One dim of a sharded tensor. */
typedef struct sharded_dim {
    const tsr_sharding *how;
    tsr_shape shape;
    uint32_t d;
} sharded_dim;

/* Collects the spans of one dim at every position of the mesh dims that shard it. The runs of position p begin at
 * first[p]. */
static tsr_status tabulate(const sharded_dim *of, const tsr_dim_layout *dim, uint64_t *first, tsr_vec *runs, tsr_error *err)
{
    for (uint64_t p = 0; p < dim->positions; p++) {
        uint64_t coordinate[TSR_MESH_MAX_DIMS] = {0};
        first[p] = runs->count;
        coordinate_of(of->how->mesh, dim, p, coordinate);
        TSR_TRY(tsr_mesh_spans(of->how, of->shape, of->d, coordinate, runs, err));
    }
    first[dim->positions] = runs->count;
    return TSR_OK;
}

/* Copies the runs into the arena and computes where each begins in the local tensor. */
static tsr_status keep_runs(const tsr_vec *runs, const uint64_t *first, tsr_dim_layout *dim, tsr_arena *arena,
                            tsr_error *err)
{
    tsr_span *kept = tsr_arena_array(arena, runs->count, sizeof *kept, err);
    uint64_t *local = tsr_arena_array(arena, runs->count, sizeof *local, err);
    if (!kept || !local) return TSR_E_NOMEM;
    if (runs->count) memcpy(kept, runs->items, runs->count * sizeof *kept);
    for (uint64_t p = 0; p < dim->positions; p++) {
        for (uint64_t i = first[p], at = 0; i < first[p + 1]; at += kept[i++].size) local[i] = at;
    }
    dim->runs = kept;
    dim->local = local;
    dim->first = first;
    return TSR_OK;
}

static tsr_status make_dim(const tsr_sharding *how, tsr_shape shape, uint32_t d, tsr_arena *arena, tsr_dim_layout *dim,
                           tsr_error *err)
{
    find_cuts(how->mesh, how->placements, shape.ndim, d, dim);
    uint64_t *first = tsr_arena_array(arena, dim->positions + 1, sizeof *first, err);
    if (!first) return TSR_E_NOMEM;
    tsr_vec runs = tsr_vec_of(tsr_arena_allocator(arena), sizeof(tsr_span));
    tsr_status status = tabulate(&(sharded_dim){how, shape, d}, dim, first, &runs, err);
    if (status == TSR_OK) status = keep_runs(&runs, first, dim, arena, err);
    tsr_vec_free(&runs);
    return status;
}

static void find_copies(const tsr_mesh *mesh, const tsr_placement *placements, tsr_layout *out)
{
    out->copies = 1;
    for (uint32_t i = 0; i < mesh->dim_count; i++) {
        uint32_t d;
        if (tsr_placement_dim(&placements[i], out->ndim, &d)) continue;
        out->copy_dims[out->copy_dim_count++] = i;
        out->copies *= mesh->shape[i];
    }
}

tsr_status tsr_layout_over_mesh(const tsr_sharding *how, tsr_shape shape, tsr_arena *arena, tsr_layout *out, tsr_error *err)
{
    TSR_TRY(placements_check(how->mesh, how->placements, shape.ndim, err));
    tsr_dim_layout *dims = tsr_arena_array(arena, shape.ndim, sizeof *dims, err);
    if (!dims) return TSR_E_NOMEM;
    *out = (tsr_layout){
        .ndim = shape.ndim, .shape = shape.sizes, .ranks = tsr_mesh_ranks(how->mesh), .mesh = how->mesh, .dims = dims};
    find_copies(how->mesh, how->placements, out);
    for (uint32_t d = 0; d < shape.ndim; d++) {
        TSR_TRY(make_dim(how, shape, d, arena, &dims[d], err));
    }
    return TSR_OK;
}

tsr_layout tsr_layout_explicit(uint64_t ranks, const tsr_shard *shards, uint32_t ndim, const uint64_t *shape)
{
    return (tsr_layout){.ndim = ndim, .shape = shape, .ranks = ranks, .copies = 1, .shards = shards};
}

/* The runs along dim d of the rank at these coordinates. */
static const tsr_span *runs_of(const tsr_layout *layout, const uint64_t *coordinate, uint32_t d, uint64_t *count,
                               const uint64_t **local)
{
    const tsr_dim_layout *dim = &layout->dims[d];
    uint64_t position = 0;
    for (uint32_t i = 0; i < dim->cut_count; i++) {
        position = position * layout->mesh->shape[dim->mesh_dims[i]] + coordinate[dim->mesh_dims[i]];
    }
    *count = dim->first[position + 1] - dim->first[position];
    *local = dim->local + dim->first[position];
    return dim->runs + dim->first[position];
}

tsr_status tsr_layout_shard(const tsr_layout *layout, uint64_t holder, tsr_arena *arena, tsr_shard *out, tsr_error *err)
{
    uint64_t coordinate[TSR_MESH_MAX_DIMS];
    tsr_run_list lists[TSR_MAX_NDIM];
    if (layout->shards) {
        *out = layout->shards[holder];
        return TSR_OK;
    }
    tsr_mesh_coordinate(layout->mesh, holder, coordinate);
    for (uint32_t d = 0; d < layout->ndim; d++) {
        lists[d].runs = runs_of(layout, coordinate, d, &lists[d].count, &lists[d].local);
    }
    return shard_from_runs(layout->ndim, layout->shape, lists, arena, out, err);
}

uint64_t tsr_layout_elements(const tsr_layout *layout, uint64_t holder)
{
    uint64_t coordinate[TSR_MESH_MAX_DIMS], elements = 1;
    if (layout->shards) {
        const tsr_shard *shard = &layout->shards[holder];
        for (uint32_t d = 0; d < layout->ndim; d++) elements *= shard->local_shape[d];
        return elements;
    }
    tsr_mesh_coordinate(layout->mesh, holder, coordinate);
    for (uint32_t d = 0; d < layout->ndim; d++) {
        const uint64_t *local;
        uint64_t count;
        const tsr_span *runs = runs_of(layout, coordinate, d, &count, &local);
        elements *= count ? local[count - 1] + runs[count - 1].size : 0;
    }
    return elements;
}

bool tsr_layout_is_first(const tsr_layout *layout, uint64_t holder)
{
    uint64_t coordinate[TSR_MESH_MAX_DIMS];
    if (layout->copies == 1) return true;
    tsr_mesh_coordinate(layout->mesh, holder, coordinate);
    for (uint32_t i = 0; i < layout->copy_dim_count; i++) {
        if (coordinate[layout->copy_dims[i]] != 0) return false;
    }
    return true;
}

uint64_t tsr_layout_copy(const tsr_layout *layout, uint64_t first, uint64_t copy)
{
    uint64_t coordinate[TSR_MESH_MAX_DIMS];
    if (layout->copies == 1) return first;
    tsr_mesh_coordinate(layout->mesh, first, coordinate);
    for (uint32_t i = layout->copy_dim_count; i-- > 0;) {
        uint64_t size = layout->mesh->shape[layout->copy_dims[i]];
        coordinate[layout->copy_dims[i]] = copy % size;
        copy /= size;
    }
    return tsr_mesh_rank_at(layout->mesh, coordinate);
}

/* FSDP1's flat parameters: where each original parameter begins, and which of its elements a rank's slice has. */

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
