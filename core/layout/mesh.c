/* Computes what a rank holds, one tensor dim at a time: a list of runs along the dim, of which every mesh dim that shards it
 * selects a part.
 *
 *   size 7, strided_shard(0, 2) over 3, then shard(0) over 2 (left to right):
 *   0 1 2 3 | 4 5 6        cut into 2        0 1|2 3|  ‖ 4|5|6     each into 3
 *   the first of 3 holds 0 1 4; the first of 2 then holds 0 1: one run; the second holds 4 */
#include "tessera/mesh.h"
#include "tessera/sys/layout.h"

#include "base/cursor.h"
#include "tessera/sys/try.h"

uint64_t tsr_mesh_ranks(const tsr_mesh *mesh)
{
    uint64_t ranks = 1;
    for (uint32_t i = 0; i < mesh->dim_count; i++) ranks *= mesh->shape[i];
    return ranks;
}

void tsr_mesh_coordinate(const tsr_mesh *mesh, uint64_t rank, uint64_t *coordinate)
{
    for (uint32_t i = mesh->dim_count; i-- > 0; rank /= mesh->shape[i]) coordinate[i] = rank % mesh->shape[i];
}

uint64_t tsr_mesh_rank_at(const tsr_mesh *mesh, const uint64_t *coordinate)
{
    uint64_t rank = 0;
    for (uint32_t i = 0; i < mesh->dim_count; i++) rank = rank * mesh->shape[i] + coordinate[i];
    return rank;
}

bool tsr_placement_dim(const tsr_placement *placement, uint32_t ndim, uint32_t *dim)
{
    if (placement->kind != TSR_SHARD && placement->kind != TSR_STRIDED_SHARD) return false;
    int64_t d = placement->dim < 0 ? (int64_t)ndim + placement->dim : placement->dim;
    if (d < 0 || d >= (int64_t)ndim) return false;
    *dim = (uint32_t)d;
    return true;
}

/* The index-th of `count` parts of [0, size), split as by torch.chunk. */
static tsr_span part_of(uint64_t size, uint64_t count, uint64_t index)
{
    uint64_t step = size / count + (size % count != 0), begin = 0;
    if (!tsr_mul_u64(step, index, &begin) || begin > size) begin = size;
    return (tsr_span){begin, size - begin < step ? size - begin : step};
}

/* Appends the positions in `part` of the concatenation of the runs from[0, count). */
static tsr_status append_part(tsr_vec *to, const tsr_span *from, size_t count, tsr_span part, tsr_error *err)
{
    for (size_t i = 0; i < count && part.size > 0; i++) {
        if (part.offset >= from[i].size) {
            part.offset -= from[i].size;
            continue;
        }
        tsr_span run = {from[i].offset + part.offset, from[i].size - part.offset};
        if (run.size > part.size) run.size = part.size;
        part.offset = 0;
        part.size -= run.size;
        tsr_span *last = to->count ? (tsr_span *)to->items + (to->count - 1) : NULL;
        if (last && last->offset + last->size == run.offset) {
            last->size += run.size;
            continue;
        }
        tsr_span *added = tsr_vec_push(to, err);
        if (!added) return TSR_E_NOMEM;
        *added = run;
    }
    return TSR_OK;
}

static uint64_t total_size(const tsr_vec *spans)
{
    uint64_t total = 0;
    for (size_t i = 0; i < spans->count; i++) total += ((const tsr_span *)spans->items)[i].size;
    return total;
}

/* Makes one cut: replaces `runs` with the index-th of `count` parts of each of its `split_factor` pieces. */
static tsr_status cut(tsr_vec *runs, tsr_vec *scratch, uint64_t split_factor, uint64_t count, uint64_t index, tsr_error *err)
{
    uint64_t size = total_size(runs);
    scratch->count = 0;
    for (uint64_t i = 0; i < split_factor; i++) {
        tsr_span piece = part_of(size, split_factor, i);
        if (piece.size == 0) break; /* only trailing pieces are empty */
        tsr_span part = part_of(piece.size, count, index);
        part.offset += piece.offset;
        TSR_TRY(append_part(scratch, runs->items, runs->count, part, err));
    }
    tsr_vec swap = *runs;
    *runs = *scratch;
    *scratch = swap;
    return TSR_OK;
}

/* The mesh dims that shard tensor dim `dim`, in the order in which they are applied, and the split factor of each. */
typedef struct cut_order {
    uint32_t count;
    uint32_t mesh_dims[TSR_MESH_MAX_DIMS];
    uint64_t split_factors[TSR_MESH_MAX_DIMS];
} cut_order;

static cut_order order_cuts(const tsr_mesh *mesh, const tsr_placement *placements, tsr_strided strided, uint32_t ndim,
                            uint32_t dim)
{
    cut_order order = {0};
    uint64_t parts = 1; /* the number of parts made by the later mesh dims */
    for (uint32_t i = mesh->dim_count; i-- > 0;) {
        uint32_t d;
        if (!tsr_placement_dim(&placements[i], ndim, &d) || d != dim) continue;
        bool is_strided = placements[i].kind == TSR_STRIDED_SHARD;
        bool after = strided == TSR_STRIDED_FSDP && is_strided && placements[i].split_factor == parts;
        uint32_t at = after ? order.count : 0;
        for (uint32_t k = order.count; k > at; k--) {
            order.mesh_dims[k] = order.mesh_dims[k - 1];
            order.split_factors[k] = order.split_factors[k - 1];
        }
        order.mesh_dims[at] = i;
        order.split_factors[at] = is_strided && !after ? placements[i].split_factor : 1;
        order.count++;
        parts *= mesh->shape[i];
    }
    return order;
}

tsr_status tsr_mesh_spans(const tsr_sharding *how, tsr_shape shape, uint32_t dim, const uint64_t *coordinate, tsr_vec *spans,
                          tsr_error *err)
{
    const cut_order order = order_cuts(how->mesh, how->placements, how->strided, shape.ndim, dim);
    tsr_vec runs = tsr_vec_of(spans->allocator, sizeof(tsr_span)), scratch = runs;
    tsr_span whole = {0, shape.sizes[dim]};
    tsr_status status = append_part(&runs, &whole, 1, whole, err);
    for (uint32_t i = 0; i < order.count && status == TSR_OK; i++) {
        uint32_t m = order.mesh_dims[i];
        status = cut(&runs, &scratch, order.split_factors[i], how->mesh->shape[m], coordinate[m], err);
    }
    if (status == TSR_OK) status = tsr_vec_append(spans, runs.items, runs.count, err);
    tsr_vec_free(&runs);
    tsr_vec_free(&scratch);
    return status;
}
