/* Tensors change their distribution: what every rank holds of them before and after, and the transfers in between. */
#include <inttypes.h>

#include "live/tensor/state_dict.h"
#include "live/transfer/transfer.h"
#include "tessera/redistribute.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

/* ---- sides ---- */

/* What all ranks hold: from mesh and placements by computation, of boxes by asking.
 *
 *   a rank's blob:  for every side in boxes   | part count u64 | offsets, sizes of each part: 2 × rank u64 | … */

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
    return tsr_fail(err, TSR_E_USAGE, "'%.*s': %s%" PRIu64 " elements are not in any rank's box",
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

/* ---- redistribute ---- */

/* Tensors from one distribution to another, in memory. */

static tsr_status add_move(tsr_agreement *agreement, size_t number, const tsr_move *move, tsr_error *err)
{
    const tsr_str from = tsr_tensor_words(move->from, agreement->arena, err),
                  to = tsr_tensor_words(move->to, agreement->arena, err);
    const tsr_str order = tsr_arena_format(agreement->arena, err, "%016" PRIx64, (uint64_t)number);
    const tsr_str path =
        tsr_arena_format(agreement->arena, err, "tensor %zu '%.*s'", number, TSR_STR_ARG(move->from->entry.fqn));
    const tsr_str words = from.data && to.data
                              ? tsr_arena_format(agreement->arena, err, "%.*s to %.*s", TSR_STR_ARG(from), TSR_STR_ARG(to))
                              : (tsr_str){NULL, 0};
    if (!order.data || !path.data || !words.data) return TSR_E_NOMEM;
    return tsr_agreement_add(agreement, order, path, words, err);
}

static tsr_status check_mesh(const tsr_tensor *tensor, const tsr_comm *comm, tsr_error *err)
{
    tsr_leaf_at leaf = {.path = tensor->entry.fqn, .tensor = tensor};
    return tsr_leaves_check(&(tsr_leaves){&leaf, 1}, comm, err);
}

static tsr_status check_moves(tsr_agreement *agreement, const tsr_comm *comm, const tsr_move *moves, size_t count,
                              tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        tsr_status status = tsr_tensor_same_place(moves[i].from, moves[i].to,
                                                  &(tsr_likeness){"the source", "the target", false}, agreement->arena, err);
        if (status == TSR_OK) status = check_mesh(moves[i].from, comm, err);
        if (status == TSR_OK) status = check_mesh(moves[i].to, comm, err);
        if (status != TSR_OK) {
            tsr_error_context(err, "tensor %zu '%.*s'", i, TSR_STR_ARG(moves[i].from->entry.fqn));
            return status;
        }
        TSR_TRY(add_move(agreement, i, &moves[i], err));
    }
    return TSR_OK;
}

static tsr_status list_transfers(const tsr_move *moves, size_t count, tsr_arena *arena, tsr_transfer_list *transfers,
                                 tsr_side_requests *requests, tsr_error *err)
{
    tsr_transfer *list = tsr_arena_array(arena, count, sizeof *list, err);
    tsr_side_request *sides = tsr_arena_array(arena, 2 * count, sizeof *sides, err);
    if (!list || !sides) return TSR_E_NOMEM;
    *transfers = (tsr_transfer_list){list, count};
    *requests = (tsr_side_requests){sides, 2 * count};
    for (size_t i = 0; i < count; i++) {
        const tsr_entry *entry = &moves[i].from->entry;
        list[i] = (tsr_transfer){.dtype = entry->dtype,
                                 .ndim = entry->ndim,
                                 .shape = entry->shape,
                                 .name = entry->fqn,
                                 .from = {.tensor = moves[i].from},
                                 .to = {.tensor = moves[i].to}};
        sides[2 * i] = (tsr_side_request){moves[i].from, true, &list[i].from};
        sides[2 * i + 1] = (tsr_side_request){moves[i].to, false, &list[i].to};
    }
    return TSR_OK;
}

/* What ranks find before anything moves. `transfers` lives in `arena`, which is NULL when memory is short. */
static tsr_status redistribute_prepare(tsr_comm *comm, const tsr_move_list *moves, const tsr_host *host, tsr_arena *arena,
                                       tsr_transfer_list *transfers, tsr_error *err)
{
    tsr_agreement agreement = {tsr_vec_of(host->allocator, 1), arena};
    tsr_side_requests requests = {0};
    tsr_status status = arena ? check_moves(&agreement, comm, moves->items, moves->count, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = list_transfers(moves->items, moves->count, arena, transfers, &requests, err);
    status = tsr_agreement_check(&agreement, comm, status, host->allocator, err);
    return status == TSR_OK ? tsr_sides_resolve(comm, requests, host, arena, status, err) : status;
}

tsr_status tsr_redistribute_check(tsr_comm *comm, const tsr_move_list *moves, const tsr_host *host, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_transfer_list transfers = {0};
    const tsr_status status = redistribute_prepare(comm, moves, host, arena, &transfers, err);
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_redistribute(tsr_comm *comm, const tsr_move *moves, size_t count, size_t round_bytes, const tsr_host *host,
                            tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_transfer_list transfers = {0};
    tsr_status status = redistribute_prepare(comm, &(tsr_move_list){moves, count}, host, arena, &transfers, err);
    if (status == TSR_OK) status = tsr_transfers_run(comm, transfers, round_bytes, host, status, err);
    tsr_arena_free(arena);
    return status;
}

/* Tensors in the same places, in the order of paths. */
static tsr_status pair_leaves(const tsr_value *from, const tsr_value *to, const tsr_host *host, tsr_arena *arena,
                              tsr_move_list *moves, tsr_error *err)
{
    tsr_leaves a, b;
    TSR_TRY(tsr_leaves_of(from, host, true, arena, &a, err));
    TSR_TRY(tsr_leaves_of(to, host, true, arena, &b, err));
    tsr_move *list = tsr_arena_array(arena, a.count, sizeof *list, err);
    *moves = (tsr_move_list){list, a.count};
    if (!list) return TSR_E_NOMEM;
    for (size_t i = 0; i < a.count || i < b.count; i++) {
        const int order = i == a.count ? 1 : i == b.count ? -1 : tsr_str_compare(a.items[i].order, b.items[i].order);
        TSR_FAIL_IF(order != 0, err, TSR_E_USAGE, "'%.*s' is a tensor only in the %s",
                    TSR_STR_ARG((order < 0 ? a : b).items[i].path), order < 0 ? "source" : "target");
        list[i] = (tsr_move){a.items[i].tensor, b.items[i].tensor};
    }
    return TSR_OK;
}

tsr_status tsr_state_dict_redistribute(const tsr_value *from, const tsr_value *to, tsr_comm *comm, size_t round_bytes,
                                       const tsr_host *host, tsr_error *err)
{
    tsr_move_list moves = {0};
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_status status = arena ? pair_leaves(from, to, host, arena, &moves, err) : TSR_E_NOMEM;
    status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK) status = tsr_redistribute(comm, moves.items, moves.count, round_bytes, host, err);
    if (arena) tsr_arena_free(arena);
    return status;
}
