/* Determines which boxes of a tensor a rank holds, and where they are in its memory. */
#include "tessera/tensor.h"

#include <inttypes.h>

#include "tessera/sys/box.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/state_dict_memory.h"
#include "tessera/sys/try.h"

static tsr_status check_box(const tsr_tensor *tensor, const tsr_tensor_part *part, uint64_t *elements, tsr_error *err)
{
    const uint32_t ndim = tensor->entry.ndim;
    const tsr_box box = {ndim, part->offsets, part->sizes};
    TSR_FAIL_IF(!tsr_box_contains((tsr_box){ndim, NULL, tensor->entry.shape}, box) || !tsr_box_volume(box, elements), err,
                TSR_E_USAGE, "a box of '%.*s' reaches beyond the tensor", TSR_STR_ARG(tensor->entry.fqn));
    return TSR_OK;
}

static tsr_status check_tensor(const tsr_tensor *tensor, tsr_error *err)
{
    const tsr_entry *entry = &tensor->entry;
    uint64_t elements, bytes;
    TSR_FAIL_IF(tensor->nested, err, TSR_E_UNSUPPORTED, "'%.*s' is a distributed tensor inside another one",
                TSR_STR_ARG(entry->fqn));
    TSR_FAIL_IF(entry->ndim > TSR_MAX_NDIM, err, TSR_E_LIMIT, "'%.*s' has %" PRIu32 " dimensions; at most %u are allowed",
                TSR_STR_ARG(entry->fqn), entry->ndim, TSR_MAX_NDIM);
    TSR_FAIL_IF(tsr_dtype_size(entry->dtype) == 0, err, TSR_E_USAGE, "'%.*s': %s elements are not byte-aligned",
                TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name);
    TSR_FAIL_IF(!tsr_box_volume((tsr_box){entry->ndim, NULL, entry->shape}, &elements) ||
                    !tsr_dtype_bytes(entry->dtype, elements, &bytes) || bytes > SIZE_MAX / 2,
                err, TSR_E_LIMIT, "'%.*s' is too large", TSR_STR_ARG(entry->fqn));
    if (tensor->spread != TSR_OVER_MESH) return TSR_OK;
    for (uint32_t i = 0; i < tensor->mesh->dim_count; i++)
        TSR_FAIL_IF(tensor->placements[i].kind == TSR_PARTIAL, err, TSR_E_UNSUPPORTED,
                    "'%.*s' is partial: its values are parts of sums that only the running job can add up",
                    TSR_STR_ARG(entry->fqn));
    TSR_FAIL_IF(tensor->mesh_rank >= tsr_mesh_ranks(tensor->mesh), err, TSR_E_USAGE,
                "'%.*s': rank %" PRIu64 " is outside its mesh of %" PRIu64, TSR_STR_ARG(entry->fqn), tensor->mesh_rank,
                tsr_mesh_ranks(tensor->mesh));
    return TSR_OK;
}

typedef struct piece_list {
    tsr_piece *items;
    uint64_t count;
} piece_list;

static tsr_status mesh_pieces(const tsr_tensor *tensor, tsr_arena *arena, piece_list *out, tsr_error *err)
{
    const tsr_entry *entry = &tensor->entry;
    tsr_shard shard;
    TSR_TRY(tsr_mesh_shard(&(tsr_sharding){tensor->mesh, tensor->placements, tensor->strided},
                           (tsr_shape){entry->ndim, entry->shape}, tensor->mesh_rank, arena, &shard, err));
    *out = (piece_list){tsr_arena_array(arena, (size_t)shard.box_count, sizeof *out->items, err), shard.box_count};
    if (!out->items) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < shard.box_count; i++)
        out->items[i] = (tsr_piece){shard.boxes[i].offsets, shard.boxes[i].sizes, shard.boxes[i].local_offsets,
                                    shard.local_shape, tensor->data};
    return TSR_OK;
}

/* Lists one piece for each part. A part fills its own buffer. */
static tsr_status box_pieces(const tsr_tensor *tensor, const tsr_tensor_part *parts, uint32_t part_count, tsr_arena *arena,
                             piece_list *out, tsr_error *err)
{
    uint64_t *zeros = tsr_arena_array(arena, tensor->entry.ndim, sizeof *zeros, err);
    *out = (piece_list){tsr_arena_array(arena, part_count, sizeof *out->items, err), 0};
    if (!out->items || !zeros) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < part_count; i++) {
        uint64_t elements;
        TSR_TRY(check_box(tensor, &parts[i], &elements, err));
        if (elements)
            out->items[out->count++] = (tsr_piece){parts[i].offsets, parts[i].sizes, zeros, parts[i].sizes, parts[i].data};
    }
    return TSR_OK;
}

static tsr_status whole_pieces(const tsr_tensor *tensor, tsr_arena *arena, piece_list *out, tsr_error *err)
{
    uint64_t *zeros = tsr_arena_array(arena, tensor->entry.ndim, sizeof *zeros, err);
    if (!zeros) return TSR_E_NOMEM;
    const tsr_tensor_part all = {zeros, tensor->entry.shape, tensor->data};
    return box_pieces(tensor, &all, 1, arena, out, err);
}

tsr_status tsr_tensor_pieces(const tsr_tensor *tensor, tsr_arena *arena, const tsr_piece **out, uint64_t *count,
                             tsr_error *err)
{
    piece_list pieces = {0};
    tsr_status status = check_tensor(tensor, err);
    if (status != TSR_OK) return status;
    switch (tensor->spread) {
    case TSR_WHOLE: status = whole_pieces(tensor, arena, &pieces, err); break;
    case TSR_OVER_MESH: status = mesh_pieces(tensor, arena, &pieces, err); break;
    default: status = box_pieces(tensor, tensor->parts, tensor->part_count, arena, &pieces, err); break;
    }
    *out = pieces.items;
    *count = pieces.count;
    return status;
}

tsr_status tsr_tensor_local(const tsr_tensor *tensor, tsr_arena *arena, const uint64_t **shape, uint64_t *bytes,
                            tsr_error *err)
{
    const tsr_entry *entry = &tensor->entry;
    uint64_t elements;
    TSR_TRY(check_tensor(tensor, err));
    TSR_FAIL_IF(tensor->spread == TSR_IN_BOXES, err, TSR_E_USAGE,
                "'%.*s' has several boxes, so there is no single local tensor", TSR_STR_ARG(entry->fqn));
    *shape = entry->shape;
    if (tensor->spread == TSR_OVER_MESH) {
        tsr_shard shard;
        TSR_TRY(tsr_mesh_shard(&(tsr_sharding){tensor->mesh, tensor->placements, tensor->strided},
                               (tsr_shape){entry->ndim, entry->shape}, tensor->mesh_rank, arena, &shard, err));
        *shape = shard.local_shape;
    }
    tsr_box_volume((tsr_box){entry->ndim, NULL, *shape}, &elements);
    *bytes = elements * tsr_dtype_size(entry->dtype);
    return TSR_OK;
}

tsr_status tsr_tensor_held(const tsr_tensor *tensor, tsr_arena *arena, uint64_t *bytes, tsr_error *err)
{
    const uint64_t *shape;
    uint64_t elements;
    if (tensor->spread != TSR_IN_BOXES) return tsr_tensor_local(tensor, arena, &shape, bytes, err);
    TSR_TRY(check_tensor(tensor, err));
    *bytes = 0;
    for (uint32_t i = 0; i < tensor->part_count; i++) {
        TSR_TRY(check_box(tensor, &tensor->parts[i], &elements, err));
        *bytes += elements * tsr_dtype_size(tensor->entry.dtype);
    }
    return TSR_OK;
}
