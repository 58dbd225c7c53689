/* Turns items into byte ranges of files, and joins neighboring ranges into single reads. */
#include "base/cursor.h"
#include "plan/plan_room.h"
#include "tessera/sys/try.h"

#include "tessera/sys/plan_items.h"

/* Whether chunks without a view are contiguous raw bytes. In other containers, they are items that must be opened first. */
static bool chunks_are_raw(tsr_format format)
{
    return format == TSR_FORMAT_SAFETENSORS || format == TSR_FORMAT_SAFETENSORS_INDEX ||
           format == TSR_FORMAT_DCP_SAFETENSORS;
}

/* Sets the position of the chunk's first element. Returns false if only the chunk's extent is known. */
static bool first_byte(const tsr_plan *plan, const tsr_chunk *chunk, uint64_t *byte_offset)
{
    const tsr_view *view = chunk->view;
    *byte_offset = view ? view->byte_offset : chunk->byte_offset;
    return view ? !view->strides && !view->zstd : chunks_are_raw(plan->catalog->format);
}

tsr_byte_range tsr_read_item_bytes(const tsr_plan *plan, const tsr_read_item *item)
{
    const tsr_plan_tensor *tensor = &tsr_plan_tensors(plan)[item->tensor];
    const tsr_chunk *chunk = item->chunk;
    tsr_byte_range whole = {chunk->file, chunk->byte_offset, chunk->byte_length};
    uint32_t size = tsr_dtype_size(tensor->packed->dtype), ndim = item->entry->ndim;
    uint64_t begin, first = 0, last = 0;
    if (size == 0 || !first_byte(plan, chunk, &begin)) return whole;
    for (uint32_t d = 0; d < ndim; d++) {
        uint64_t chunk_size = chunk->sizes[d];
        if (tensor->packed != tensor->entry && d + 1 == ndim) chunk_size /= 2; /* float4 counted in single elements */
        first = first * chunk_size + item->storage_offsets[d];
        last = last * chunk_size + item->storage_offsets[d] + item->lengths[d] - 1;
    }
    return (tsr_byte_range){chunk->file, begin + first * size, (last - first + 1) * size};
}
