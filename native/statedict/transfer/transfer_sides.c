/* What all ranks hold: from mesh and placements by computation, of boxes by asking.
 *
 *   a rank's blob:  for every side in boxes   | part count u64 | offsets, sizes of each part: 2 × rank u64 | … */
#include <inttypes.h>

#include "statedict/tensor/state_dict.h"
#include "statedict/transfer/transfer.h"
#include "tessera/sys/box.h"
#include "tessera/sys/tiling.h"
#include "tessera/validate.h"

/* Boxes without elements are nobody's. */
static tsr_status tell_boxes(const tsr_tensor *tensor, tsr_arena *arena, tsr_vec *blob, tsr_error *err)
{
    const tsr_piece *pieces;
    uint64_t count;
    TSR_TRY(tsr_tensor_pieces(tensor, arena, &pieces, &count, err));
    TSR_TRY(tsr_vec_append(blob, &count, 1, err));
    for (uint64_t i = 0; i < count; i++) {
        TSR_TRY(tsr_vec_append(blob, pieces[i].offsets, tensor->entry.ndim, err));
        TSR_TRY(tsr_vec_append(blob, pieces[i].sizes, tensor->entry.ndim, err));
    }
    return TSR_OK;
}

static tsr_status mesh_layout(const tsr_tensor *tensor, tsr_arena *arena, tsr_side *side, tsr_error *err)
{
    tsr_layout *layout = TSR_ARENA_NEW(arena, tsr_layout, err);
    if (!layout) return TSR_E_NOMEM;
    side->layout = layout;
    return tsr_layout_over_mesh(&(tsr_sharding){tensor->mesh, tensor->placements, tensor->strided},
                                (tsr_shape){tensor->entry.ndim, tensor->entry.shape}, arena, layout, err);
}

/* The numbers a rank told, as a shard whose boxes lie each in memory of their own. */
static tsr_status read_shard(const tsr_tensor *tensor, tsr_str *blob, tsr_arena *arena, tsr_shard *out, tsr_error *err)
{
    const uint32_t ndim = tensor->entry.ndim;
    const size_t box_bytes = 2 * ndim * sizeof(uint64_t);
    uint64_t count = 0;
    if (blob->size >= sizeof count) memcpy(&count, blob->data, sizeof count);
    TSR_FAIL_IF(blob->size < sizeof count || (box_bytes && count > (blob->size - sizeof count) / box_bytes), err,
                TSR_E_FORMAT, "the list of a rank's boxes of '%.*s' is truncated", TSR_STR_ARG(tensor->entry.fqn));
    uint64_t *numbers = tsr_arena_array(arena, (size_t)(2 * ndim * count), sizeof *numbers, err);
    uint64_t *zeros = tsr_arena_array(arena, ndim, sizeof *zeros, err);
    uint64_t elements, *shape = tsr_arena_array(arena, ndim, sizeof *shape, err);
    tsr_shard_box *boxes = tsr_arena_array(arena, (size_t)count, sizeof *boxes, err);
    if (!numbers || !zeros || !boxes || !shape) return TSR_E_NOMEM;
    if (count) memcpy(numbers, blob->data + sizeof count, (size_t)count * box_bytes);
    *blob = (tsr_str){blob->data + sizeof count + count * box_bytes, blob->size - sizeof count - (size_t)count * box_bytes};
    for (uint32_t d = 1; d < ndim; d++) shape[d] = 1;
    for (uint64_t i = 0; i < count; i++) {
        boxes[i] = (tsr_shard_box){numbers + 2 * i * ndim, numbers + (2 * i + 1) * ndim, zeros};
        tsr_box_volume((tsr_box){ndim, NULL, boxes[i].sizes}, &elements);
        if (ndim) shape[0] += elements; /* no local tensor, but as large as all boxes together */
    }
    *out = (tsr_shard){.ndim = ndim, .local_shape = shape, .global_offsets = zeros, .boxes = boxes, .box_count = count};
    return TSR_OK;
}

static tsr_status check_tiling(const tsr_tensor *tensor, const tsr_layout *layout, const tsr_host *host, tsr_arena *arena,
                               tsr_error *err)
{
    uint64_t count = 0, at = 0;
    tsr_tiling tiling;
    for (uint64_t r = 0; r < layout->ranks; r++) count += layout->shards[r].box_count;
    tsr_chunk *chunks = tsr_arena_array(arena, (size_t)count, sizeof *chunks, err);
    uint32_t *owner = tsr_arena_array(arena, (size_t)count, sizeof *owner, err);
    if (!chunks || !owner) return TSR_E_NOMEM;
    for (uint64_t r = 0; r < layout->ranks; r++) {
        for (uint64_t b = 0; b < layout->shards[r].box_count; b++, at++) {
            chunks[at] =
                (tsr_chunk){.offsets = layout->shards[r].boxes[b].offsets, .sizes = layout->shards[r].boxes[b].sizes};
            owner[at] = (uint32_t)r;
        }
    }
    TSR_TRY(tsr_tiling_check(host->allocator, (tsr_shape){tensor->entry.ndim, tensor->entry.shape}, chunks, count, &tiling,
                             err));
    if (tiling.exact) return TSR_OK;
    TSR_FAIL_IF(tiling.overlap[0] != TSR_NO_CHUNK, err, TSR_E_USAGE,
                "'%.*s': the boxes of ranks %" PRIu32 " and %" PRIu32 " overlap", TSR_STR_ARG(tensor->entry.fqn),
                owner[tiling.overlap[0]], owner[tiling.overlap[1]]);
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "'%.*s': %s%" PRIu64 " elements are not in any rank's box",
                     TSR_STR_ARG(tensor->entry.fqn), tiling.missing_at_least ? "at least " : "", tiling.missing);
}

static tsr_status box_layouts(tsr_side_requests requests, tsr_comm_blobs *blobs, const tsr_host *host, tsr_arena *arena,
                              tsr_error *err)
{
    for (size_t i = 0; i < requests.count; i++) {
        const tsr_side_request *request = &requests.items[i];
        const tsr_tensor *tensor = request->tensor;
        if (tensor->spread != TSR_IN_BOXES) continue;
        tsr_shard *shards = tsr_arena_array(arena, blobs->count, sizeof *shards, err);
        tsr_layout *layout = TSR_ARENA_NEW(arena, tsr_layout, err);
        if (!shards || !layout) return TSR_E_NOMEM;
        for (uint32_t r = 0; r < blobs->count; r++) TSR_TRY(read_shard(tensor, &blobs->blobs[r], arena, &shards[r], err));
        *layout = tsr_layout_explicit(blobs->count, shards, tensor->entry.ndim, tensor->entry.shape);
        request->side->layout = layout;
        if (request->is_source) TSR_TRY(check_tiling(tensor, layout, host, arena, err));
    }
    return TSR_OK;
}

static tsr_status resolve_own(tsr_side_requests requests, tsr_arena *arena, tsr_vec *blob, bool *boxes, tsr_error *err)
{
    for (size_t i = 0; i < requests.count; i++) {
        const tsr_tensor *tensor = requests.items[i].tensor;
        uint64_t bytes;
        TSR_TRY(tsr_tensor_held(tensor, arena, &bytes, err));
        if (tensor->spread == TSR_OVER_MESH) TSR_TRY(mesh_layout(tensor, arena, requests.items[i].side, err));
        if (tensor->spread != TSR_IN_BOXES) continue;
        *boxes = true;
        TSR_TRY(tell_boxes(tensor, arena, blob, err));
    }
    return TSR_OK;
}

tsr_status tsr_sides_resolve(tsr_comm *comm, tsr_side_requests requests, const tsr_host *host, tsr_arena *arena,
                             tsr_status mine, tsr_error *err)
{
    tsr_vec blob = tsr_vec_of(host->allocator, sizeof(uint64_t));
    tsr_comm_blobs blobs = {0};
    bool boxes = false; /* the same on all ranks, which agree on distributions */
    tsr_status status = mine == TSR_OK ? resolve_own(requests, arena, &blob, &boxes, err) : mine;
    status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK && boxes)
        status = tsr_comm_gather_blobs((tsr_ranks){comm, host->allocator},
                                       (tsr_str){blob.items, blob.count * sizeof(uint64_t)}, &blobs, err);
    if (status == TSR_OK && boxes) {
        status = box_layouts(requests, &blobs, host, arena, err);
        status = tsr_comm_agree(comm, status, err);
    }
    tsr_vec_free(&blob);
    tsr_comm_blobs_free(&blobs);
    return status;
}
