/* Stores a table of runs per tensor dim. So the layout of a whole mesh only takes the memory of each dim's cuts. */
#include "tessera/sys/layout.h"
#include "tessera/sys/alloc.h"

#include "layout/shard.h"
#include "tessera/sys/try.h"

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
    TSR_TRY(tsr_placements_check(how->mesh, how->placements, shape.ndim, err));
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
    return tsr_shard_from_runs(layout->ndim, layout->shape, lists, arena, out, err);
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
