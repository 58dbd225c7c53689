/* See chunk_cut.h. */
#include "formats/common/chunk_cut.h"

#include <string.h>

#include "tessera/store.h"
#include "tessera/sys/box.h"
#include "tessera/sys/box_walk.h"
#include "tessera/sys/try.h"

/* Bytes from a box's first element to the end of its last. Cannot overflow, because the span of the whole chunk was checked. */
static uint64_t span_of(uint32_t ndim, const uint64_t *sizes, const uint64_t *strides, uint64_t item)
{
    uint64_t last = 0;
    for (uint32_t d = 0; d < ndim; d++) {
        if (sizes[d] == 0) return 0;
        last += (sizes[d] - 1) * strides[d];
    }
    return (last + 1) * item;
}

tsr_status tsr_chunk_cut(const tsr_chunk *chunk, tsr_box box, uint32_t item, tsr_arena *arena, tsr_chunk *out,
                         tsr_error *err)
{
    const uint32_t ndim = box.ndim;
    const tsr_box outer = {ndim, chunk->offsets, chunk->sizes};
    uint64_t *sizes = tsr_arena_array(arena, ndim, sizeof *sizes, err);
    uint64_t *strides = tsr_arena_array(arena, ndim, sizeof *strides, err);
    uint64_t step = 1, offset = 0;
    *out = *chunk;
    if (!sizes || !strides) return TSR_E_NOMEM;
    if (ndim) memcpy(sizes, box.sizes, ndim * sizeof *sizes);
    out->sizes = sizes;
    if (!ndim || !memcmp(sizes, chunk->sizes, ndim * sizeof *sizes)) return TSR_OK;
    for (uint32_t d = ndim; d-- > 0; step *= chunk->sizes[d]) {
        strides[d] = chunk->view && chunk->view->strides ? chunk->view->strides[d] : step;
        offset += (tsr_box_offset(box, d) - tsr_box_offset(outer, d)) * strides[d] * item;
    }
    const tsr_box parent = {ndim, NULL, chunk->sizes}, inner = {ndim, NULL, sizes};
    const bool is_run = tsr_box_is_contiguous(parent, inner) && !(chunk->view && chunk->view->strides);
    const bool is_zstd = chunk->view && chunk->view->zstd;
    if (!is_zstd && out->file != TSR_NO_FILE) {
        out->byte_offset += offset;
        out->byte_length = span_of(ndim, sizes, strides, item);
    }
    if (is_run && !chunk->view) return TSR_OK;
    tsr_view *view = tsr_arena_array(arena, 1, sizeof *view, err);
    if (!view) return TSR_E_NOMEM;
    *view = chunk->view ? *chunk->view : (tsr_view){.file = chunk->file, .byte_offset = chunk->byte_offset};
    view->byte_offset += offset;
    if (!is_run) view->strides = strides;
    out->view = view;
    return TSR_OK;
}
