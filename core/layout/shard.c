/* Computes a rank's shard as boxes: the product of its runs along every dim, each box with its offsets in the local
 * tensor. */
#include "layout/shard.h"

#include "base/cursor.h"
#include "tessera/sys/try.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/layout.h"

#define MOST_BOXES (UINT64_C(1) << 24)

tsr_status tsr_placements_check(const tsr_mesh *mesh, const tsr_placement *placements, uint32_t ndim, tsr_error *err)
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

tsr_status tsr_shard_from_runs(uint32_t ndim, const uint64_t *shape, const tsr_run_list *lists, tsr_arena *arena,
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
    TSR_TRY(tsr_placements_check(how->mesh, how->placements, shape.ndim, err));
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
    return tsr_shard_from_runs(shape.ndim, shape.sizes, lists, arena, out, err);
}
