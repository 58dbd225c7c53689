/* Intersects the boxes of a shard with the chunks of the tensor to get the chunks of the local tensor.
 *
 *   global   [ chunk A ····[box····] ]  [ [····box] chunk B ··· ]
 *   local                   [ a1 ··][ b1 ···]                        views begin where the box begins in its chunk */
#include "write/localize.h"

#include "tessera/sys/try.h"

#include "tessera/sys/box.h"
#include "tessera/sys/box_walk.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/vec.h"

/* A box around all boxes of the shard, so that other chunks need not be located. */
static tsr_box hull_of(const tsr_shard *shard, uint64_t *offsets, uint64_t *sizes)
{
    for (uint32_t d = 0; d < shard->ndim; d++) {
        offsets[d] = shard->box_count ? shard->boxes[0].offsets[d] : 0;
        sizes[d] = shard->box_count ? shard->boxes[0].sizes[d] : 0;
    }
    for (uint64_t b = 1; b < shard->box_count; b++)
        tsr_box_enclose(shard->ndim, offsets, sizes, (tsr_box){shard->ndim, shard->boxes[b].offsets, shard->boxes[b].sizes});
    return (tsr_box){shard->ndim, offsets, sizes};
}

static tsr_status add_chunk(const tsr_gather *gather, const tsr_located *part, const tsr_shard_box *box, tsr_arena *arena,
                            tsr_vec *chunks, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    const uint32_t ndim = gather->ndim;
    if (!tsr_box_intersect((tsr_box){ndim, part->offsets, part->sizes}, (tsr_box){ndim, box->offsets, box->sizes}, offsets,
                           sizes))
        return TSR_OK;
    tsr_chunk *chunk = tsr_vec_push(chunks, err);
    uint64_t *numbers = tsr_arena_array(arena, 3 * (size_t)ndim, sizeof *numbers, err);
    tsr_view *view = TSR_ARENA_NEW(arena, tsr_view, err);
    if (!chunk || !numbers || !view) return TSR_E_NOMEM;
    *view = part->view;
    for (uint32_t d = 0; d < ndim; d++) {
        numbers[d] = offsets[d] - box->offsets[d] + box->local_offsets[d];
        numbers[ndim + d] = sizes[d];
        numbers[2 * ndim + d] = part->strides[d];
        view->byte_offset += (offsets[d] - part->offsets[d]) * part->strides[d] * gather->itemsize;
    }
    view->strides = numbers + 2 * ndim;
    *chunk = (tsr_chunk){
        .offsets = numbers, .sizes = numbers + ndim, .byte_offset = view->byte_offset, .view = view, .file = view->file};
    return TSR_OK;
}

static tsr_status cut(const tsr_gather *gather, const tsr_shard *shard, tsr_arena *arena, tsr_vec *chunks, tsr_entry *out,
                      tsr_error *err)
{
    for (uint64_t b = 0; b < shard->box_count; b++) {
        for (size_t i = 0; i < gather->part_count; i++) {
            TSR_TRY(add_chunk(gather, &gather->parts[i], &shard->boxes[b], arena, chunks, err));
        }
    }
    tsr_chunk *own = tsr_arena_array(arena, chunks->count, sizeof *own, err);
    if (!own) return TSR_E_NOMEM;
    if (chunks->count) memcpy(own, chunks->items, chunks->count * sizeof *own);
    out->chunks = own;
    out->chunk_count = chunks->count;
    return TSR_OK;
}

tsr_status tsr_localize(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_shard *shard, tsr_arena *arena,
                        tsr_entry *out, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM], *shape = tsr_arena_array(arena, shard->ndim, sizeof *shape, err);
    const tsr_box hull = hull_of(shard, offsets, sizes);
    tsr_gather *gather = NULL;
    if (!shape) return TSR_E_NOMEM;
    TSR_FAIL_IF(tsr_dtype_describe(entry->dtype)->bits == 6, err, TSR_E_UNSUPPORTED, "'%.*s': %s cannot be split",
                TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name);
    if (shard->ndim) memcpy(shape, shard->local_shape, shard->ndim * sizeof *shape);
    if (shard->box_count) TSR_TRY(tsr_gather_open(checkpoint, entry, &hull, &gather, err));
    *out = (tsr_entry){.fqn = entry->fqn, .dtype = entry->dtype, .ndim = shard->ndim, .shape = shape};
    uint64_t last = 0;
    if (!tsr_dtype_pack(&out->dtype, &last)) return TSR_E_FORMAT;
    if (!gather) return TSR_OK;
    tsr_vec chunks = tsr_vec_of(tsr_checkpoint_host(checkpoint)->allocator, sizeof(tsr_chunk));
    tsr_status status = cut(gather, shard, arena, &chunks, out, err);
    tsr_vec_free(&chunks);
    tsr_gather_close(gather);
    return status;
}
