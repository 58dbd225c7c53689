/* Compares one line of the whole with one line of a part: only where they agree are all values worth comparing. */
#include "suggest/map_suggest_parts.h"
#include "tessera/sys/read.h"

#include <string.h>

enum { MOST_ELEMENTS = 4096 };

bool tsr_entry_is_dense(const tsr_entry *entry)
{
    uint64_t bytes, elements = tsr_dtype_size(entry->dtype);
    for (uint32_t d = 0; d < entry->ndim; d++) elements *= entry->shape[d]; /* cannot overflow: it is a tensor */
    return elements && tsr_tensor_bytes(entry, &bytes, NULL) == TSR_OK && bytes == elements;
}

tsr_status tsr_line_read(tsr_checkpoint *checkpoint, const tsr_entry *entry, uint32_t dim, tsr_arena *arena,
                         tsr_line_of *out, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM] = {0}, sizes[TSR_MAX_NDIM];
    *out = (tsr_line_of){.item = tsr_dtype_size(entry->dtype)};
    if (!tsr_entry_is_dense(entry)) return TSR_OK;
    for (uint32_t d = 0; d < entry->ndim; d++) sizes[d] = 1;
    out->count = sizes[dim] = entry->shape[dim] < MOST_ELEMENTS ? entry->shape[dim] : MOST_ELEMENTS;
    void *data = tsr_arena_array(arena, (size_t)out->count, out->item, err);
    if (!data) return TSR_E_NOMEM;
    out->data = data;
    return tsr_read_box(checkpoint, entry, (tsr_box){entry->ndim, offsets, sizes}, data, (size_t)out->count * out->item,
                        err);
}

bool tsr_lines_agree(const tsr_line_of *whole, const tsr_line_of *part, const tsr_fused_place *at)
{
    for (uint64_t run = 0; run < at->runs; run++) {
        const uint64_t from = run * at->size, to = run * at->total + at->offset;
        if (from >= part->count || to >= whole->count) return true;
        uint64_t most = at->size;
        if (most > part->count - from) most = part->count - from;
        if (most > whole->count - to) most = whole->count - to;
        if (memcmp(whole->data + to * whole->item, part->data + from * part->item, (size_t)(most * part->item)))
            return false;
    }
    return true;
}
