/* A rank's shard as boxes: the product of its runs along every dim, each box with its place in the local tensor. */
#include "base/cursor.h"
#include "base/try.h"
#include "tessera/mesh.h"

#define MOST_BOXES (UINT64_C(1) << 24)

/* The runs of all dims in one vector: those of dim d are [first[d], first[d + 1]). */
typedef struct run_table {
    tsr_vec runs;
    size_t first[TSR_MAX_RANK + 1];
} run_table;

static tsr_status find_runs(const tsr_mesh *mesh, const tsr_placement *placements, tsr_strided strided, uint32_t rank,
                            const uint64_t *shape, uint64_t mesh_rank, run_table *table, tsr_error *err)
{
    uint64_t coordinate[TSR_MESH_MAX_DIMS];
    tsr_mesh_coordinate(mesh, mesh_rank, coordinate);
    for (uint32_t d = 0; d < rank; d++) {
        table->first[d] = table->runs.count;
        TSR_TRY(tsr_mesh_spans(mesh, placements, strided, rank, d, shape[d], coordinate, &table->runs, err));
    }
    table->first[rank] = table->runs.count;
    return TSR_OK;
}

static tsr_status check_placements(const tsr_mesh *mesh, const tsr_placement *placements, uint32_t rank, tsr_error *err)
{
    TSR_FAIL_IF(rank > TSR_MAX_RANK, err, TSR_E_LIMIT, TSR_NO_POSITION, "%u dimensions are more than %u", rank, TSR_MAX_RANK);
    for (uint32_t i = 0; i < mesh->dim_count; i++) {
        uint32_t dim;
        bool cuts = placements[i].kind == TSR_SHARD || placements[i].kind == TSR_STRIDED_SHARD;
        TSR_FAIL_IF(cuts && !tsr_placement_dim(&placements[i], rank, &dim), err, TSR_E_USAGE, TSR_NO_POSITION,
                    "placement %u cuts dim %d, but the tensor has %u dims", i, (int)placements[i].dim, rank);
        TSR_FAIL_IF(placements[i].kind == TSR_STRIDED_SHARD &&
                        (placements[i].split_factor == 0 || placements[i].split_factor > TSR_SPLIT_FACTOR_MAX),
                    err, TSR_E_USAGE, TSR_NO_POSITION, "placement %u has split factor %llu; 1 to %llu are allowed", i,
                    (unsigned long long)placements[i].split_factor, (unsigned long long)TSR_SPLIT_FACTOR_MAX);
    }
    return TSR_OK;
}

/* Local shape and global offsets; the number of boxes. */
static tsr_status measure(const run_table *table, uint32_t rank, const uint64_t *shape, uint64_t *local_shape,
                          uint64_t *global_offsets, uint64_t *box_count, tsr_error *err)
{
    const tsr_span *runs = table->runs.items;
    *box_count = 1;
    for (uint32_t d = 0; d < rank; d++) {
        size_t first = table->first[d], count = table->first[d + 1] - first;
        for (size_t i = 0; i < count; i++) local_shape[d] += runs[first + i].size;
        global_offsets[d] = count || shape[d] == 0 ? 0 : shape[d];
        if (count) global_offsets[d] = runs[first].offset;
        bool fits = tsr_mul_u64(*box_count, count, box_count) && *box_count <= MOST_BOXES;
        TSR_FAIL_IF(!fits, err, TSR_E_LIMIT, TSR_NO_POSITION, "a rank holds the tensor in more than %llu boxes",
                    (unsigned long long)MOST_BOXES);
    }
    return TSR_OK;
}

static tsr_status make_boxes(const run_table *table, uint32_t rank, uint64_t box_count, tsr_arena *arena, tsr_shard *out,
                             tsr_error *err)
{
    const tsr_span *runs = table->runs.items;
    tsr_shard_box *boxes = tsr_arena_array(arena, box_count, sizeof *boxes, err);
    uint64_t *numbers = tsr_arena_array(arena, box_count, 3 * sizeof(uint64_t) * (rank ? rank : 1), err);
    size_t at[TSR_MAX_RANK] = {0};
    uint64_t local[TSR_MAX_RANK] = {0};
    if (!boxes || !numbers) return TSR_E_NOMEM;
    for (uint64_t b = 0; b < box_count; b++) {
        uint64_t *offsets = numbers + b * 3 * rank, *sizes = offsets + rank, *local_offsets = sizes + rank;
        for (uint32_t d = 0; d < rank; d++) {
            const tsr_span *run = &runs[table->first[d] + at[d]];
            offsets[d] = run->offset;
            sizes[d] = run->size;
            local_offsets[d] = local[d];
        }
        boxes[b] = (tsr_shard_box){offsets, sizes, local_offsets};
        for (uint32_t d = rank; d-- > 0;) {
            local[d] += sizes[d];
            if (++at[d] < table->first[d + 1] - table->first[d]) break;
            at[d] = 0;
            local[d] = 0;
        }
    }
    out->boxes = boxes;
    out->box_count = box_count;
    return TSR_OK;
}

tsr_status tsr_mesh_shard(const tsr_mesh *mesh, const tsr_placement *placements, tsr_strided strided, uint32_t rank,
                          const uint64_t *shape, uint64_t mesh_rank, tsr_arena *arena, tsr_shard *out, tsr_error *err)
{
    TSR_TRY(check_placements(mesh, placements, rank, err));
    uint64_t *local_shape = tsr_arena_array(arena, rank, sizeof *local_shape, err), box_count;
    uint64_t *global_offsets = tsr_arena_array(arena, rank, sizeof *global_offsets, err);
    if (!local_shape || !global_offsets) return TSR_E_NOMEM;
    run_table table = {tsr_vec_of(tsr_arena_allocator(arena), sizeof(tsr_span)), {0}};
    *out = (tsr_shard){rank, local_shape, global_offsets, NULL, 0};
    tsr_status status = find_runs(mesh, placements, strided, rank, shape, mesh_rank, &table, err);
    if (status == TSR_OK) status = measure(&table, rank, shape, local_shape, global_offsets, &box_count, err);
    if (status == TSR_OK) status = make_boxes(&table, rank, box_count, arena, out, err);
    tsr_vec_free(&table.runs);
    return status;
}
