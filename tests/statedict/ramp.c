/* See ramp.h. */
#include "ramp.h"
#include "tessera/sys/layout.h"

uint64_t ramp_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

tsr_status ramp_over(const tsr_tensor *tensor, tsr_arena *arena, bool fill, bool *right, tsr_error *err)
{
    const tsr_piece *pieces;
    uint64_t count, elements, size = tsr_dtype_size(tensor->entry.dtype);
    const uint32_t ndim = tensor->entry.ndim;
    TSR_TRY(tsr_tensor_pieces(tensor, arena, &pieces, &count, err));
    for (uint64_t p = 0; p < count; p++) {
        tsr_box_volume((tsr_box){ndim, NULL, pieces[p].sizes}, &elements);
        for (uint64_t i = 0; i < elements; i++) {
            uint64_t rest = i, number = 0, row = 1, local = 0, local_row = 1, bytes[2] = {0}, there[2] = {0};
            for (uint32_t d = ndim; d-- > 0; rest /= pieces[p].sizes[d]) {
                const uint64_t index = rest % pieces[p].sizes[d];
                number += (pieces[p].offsets[d] + index) * row;
                row *= tensor->entry.shape[d];
                local += (pieces[p].local_offsets[d] + index) * local_row;
                local_row *= pieces[p].buffer_sizes[d];
            }
            bytes[0] = bytes[1] = number * UINT64_C(0x9e3779b97f4a7c15) + 1;
            uint8_t *at = (uint8_t *)pieces[p].data + local * size;
            if (fill && tensor->device) tensor->device->from_host(tensor->device, at, bytes, size, NULL);
            else if (fill) memcpy(at, bytes, size);
            else if (tensor->device) tensor->device->to_host(tensor->device, there, at, size, NULL);
            else memcpy(there, at, size);
            if (!fill) *right = *right && memcmp(there, bytes, size) == 0;
        }
    }
    return TSR_OK;
}

tsr_tensor ramp_tensor(uint64_t *seed, tsr_arena *arena, const tsr_comm *comm, tsr_dtype dtype, uint32_t ndim,
                       const uint64_t *shape)
{
    const uint64_t kind = ramp_random(seed) % 8;
    if (kind == 0) return tsr_tensor_whole(dtype, ndim, shape, NULL);
    if (kind == 1 && ndim) { /* rows of the first dim, distributed among the ranks */
        const uint64_t rows = 1 + ramp_random(seed) % 3;
        tsr_tensor_part *parts = tsr_arena_array(arena, (size_t)shape[0] + 1, sizeof *parts, NULL);
        uint32_t count = 0;
        for (uint64_t at = 0, n = 0; at < shape[0]; at += rows, n++) {
            if (n % comm->size != comm->rank) continue;
            uint64_t *numbers = tsr_arena_array(arena, 2 * ndim, sizeof *numbers, NULL);
            memcpy(numbers + ndim, shape, ndim * sizeof *shape);
            numbers[0] = at;
            numbers[ndim] = shape[0] - at < rows ? shape[0] - at : rows;
            parts[count++] = (tsr_tensor_part){numbers, numbers + ndim, NULL};
        }
        return tsr_tensor_in_boxes(dtype, ndim, shape, parts, count);
    }
    tsr_mesh *mesh = TSR_ARENA_NEW(arena, tsr_mesh, NULL);
    uint64_t *sizes = tsr_arena_array(arena, 2, sizeof *sizes, NULL);
    tsr_placement *placements = tsr_arena_array(arena, 2, sizeof *placements, NULL);
    const bool grid = comm->size % 2 == 0 && ramp_random(seed) % 2;
    sizes[0] = grid ? 2 : comm->size;
    sizes[1] = comm->size / 2;
    *mesh = (tsr_mesh){.dim_count = grid ? 2 : 1, .shape = sizes};
    for (uint32_t i = 0; i < mesh->dim_count; i++) {
        const uint64_t what = ramp_random(seed) % 4, dim = ndim ? ramp_random(seed) % ndim : 0;
        placements[i] = (tsr_placement){ndim == 0 || what == 0 ? TSR_REPLICATE
                                        : what == 1            ? TSR_STRIDED_SHARD
                                                               : TSR_SHARD,
                                        (int32_t)dim, 1 + ramp_random(seed) % 3};
    }
    return tsr_tensor_over_mesh(tsr_tensor_whole(dtype, ndim, shape, NULL), mesh, placements, comm->rank);
}
