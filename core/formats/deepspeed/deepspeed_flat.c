/* See deepspeed_weights.h. */
#include "formats/deepspeed/deepspeed_weights.h"

#include "formats/common/expansion.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

tsr_status tsr_ds_buffer_new(tsr_arena *arena, uint32_t capacity, tsr_ds_buffer *out, tsr_error *err)
{
    *out = (tsr_ds_buffer){.pieces = tsr_arena_array(arena, capacity, sizeof *out->pieces, err)};
    return out->pieces ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ds_buffer_add(tsr_ds_buffer *buffer, const tsr_entry *tensor, uint64_t count, tsr_error *err)
{
    if (tensor) {
        const tsr_view *view = tensor->chunk_count ? tensor->chunks[0].view : NULL;
        const bool plain = tensor->ndim == 1 && tensor->chunk_count <= 1 && (!view || tsr_view_is_plain(view));
        TSR_FAIL_IF(!plain || tensor->dtype == TSR_DTYPE_NONE, err, TSR_E_FORMAT,
                    "a flat buffer is not one contiguous row of numbers");
        TSR_FAIL_IF(buffer->dtype != TSR_DTYPE_NONE && tensor->dtype != buffer->dtype, err, TSR_E_FORMAT,
                    "a flat buffer is %s, but that of a lower rank is %s", tsr_dtype_describe(tensor->dtype)->name,
                    tsr_dtype_describe(buffer->dtype)->name);
        TSR_FAIL_IF(count > tensor->shape[0] || (count && !tensor->chunk_count), err, TSR_E_FORMAT,
                    "a flat buffer has %llu elements; expected %llu", (unsigned long long)tensor->shape[0],
                    (unsigned long long)count);
        buffer->dtype = tensor->dtype;
    }
    TSR_FAIL_IF(count > UINT64_MAX / 16 - buffer->elements, err, TSR_E_LIMIT, "the flat buffers are too large");
    buffer->pieces[buffer->count++] = (tsr_ds_piece){tensor, buffer->elements, count};
    buffer->elements += count;
    return TSR_OK;
}

/* The last non-empty piece that begins at or before an element. */
static uint32_t piece_at(const tsr_ds_buffer *buffer, uint64_t element)
{
    uint32_t low = 0, high = buffer->count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (buffer->pieces[middle].first <= element) low = middle;
        else high = middle;
    }
    return low;
}

/* Adds the chunks of a run of the tensor's elements that is inside one piece. */
static tsr_status add_run(tsr_ds_chunks *chunks, const tsr_ds_piece *piece, uint64_t skipped, tsr_span run, tsr_error *err)
{
    const uint32_t most = chunks->ndim ? 2 * chunks->ndim - 1 : 1, row = chunks->ndim ? chunks->ndim : 1;
    TSR_TRY(tsr_expansion_take(&chunks->checkpoint->expansion, sizeof(tsr_chunk), chunks->checkpoint->host, err));
    uint64_t *offsets = tsr_arena_array(chunks->checkpoint->arena, (size_t)most * row, sizeof *offsets, err);
    uint64_t *sizes = tsr_arena_array(chunks->checkpoint->arena, (size_t)most * row, sizeof *sizes, err);
    if (!offsets || !sizes) return TSR_E_NOMEM;
    const tsr_chunk *source = piece->tensor ? &piece->tensor->chunks[0] : NULL;
    const uint64_t itemsize = piece->tensor ? tsr_dtype_size(piece->tensor->dtype) : 1;
    const uint32_t boxes = tsr_range_boxes(chunks->ndim, chunks->shape, run, offsets, sizes);
    for (uint32_t b = 0; b < boxes; b++) {
        uint64_t volume;
        tsr_chunk *added = tsr_vec_push(&chunks->chunks, err);
        if (!added) return TSR_E_NOMEM;
        tsr_box_volume((tsr_box){chunks->ndim, NULL, sizes + (size_t)b * row}, &volume);
        *added = (tsr_chunk){.offsets = offsets + (size_t)b * row,
                             .sizes = sizes + (size_t)b * row,
                             .byte_length = volume * itemsize,
                             .file = source ? source->file : TSR_NO_FILE};
        if (source) added->byte_offset = source->byte_offset + skipped * itemsize;
        skipped += volume;
    }
    return TSR_OK;
}

tsr_status tsr_ds_chunks_add(tsr_ds_chunks *chunks, const tsr_ds_buffer *buffer, uint64_t from, uint64_t count, uint64_t to,
                             tsr_error *err)
{
    TSR_FAIL_IF(from > buffer->elements || count > buffer->elements - from, err, TSR_E_FORMAT,
                "the ranks' flat buffers have %llu elements in total; expected %llu", (unsigned long long)buffer->elements,
                (unsigned long long)from + count);
    for (uint32_t i = count ? piece_at(buffer, from) : 0; count; i++) {
        const tsr_ds_piece *piece = &buffer->pieces[i];
        const uint64_t skipped = from - piece->first, left = piece->count > skipped ? piece->count - skipped : 0;
        const uint64_t taken = left < count ? left : count;
        if (taken == 0) continue;
        TSR_TRY(add_run(chunks, piece, skipped, (tsr_span){to, taken}, err));
        from += taken;
        to += taken;
        count -= taken;
    }
    return TSR_OK;
}

tsr_status tsr_ds_chunks_take(tsr_ds_chunks *chunks, tsr_dtype dtype, const tsr_value **out, tsr_error *err)
{
    tsr_entry *entry = TSR_ARENA_NEW(chunks->checkpoint->arena, tsr_entry, err);
    tsr_chunk *copy = tsr_arena_array(chunks->checkpoint->arena, chunks->chunks.count, sizeof *copy, err);
    if (!entry || !copy) return TSR_E_NOMEM;
    if (chunks->chunks.count) memcpy(copy, chunks->chunks.items, chunks->chunks.count * sizeof *copy);
    *entry = (tsr_entry){.kind = TSR_ENTRY_TENSOR,
                         .dtype = dtype,
                         .shape = chunks->shape,
                         .ndim = chunks->ndim,
                         .chunks = copy,
                         .chunk_count = chunks->chunks.count};
    chunks->chunks.count = 0;
    *out = tsr_value_tensor(chunks->checkpoint->arena, entry, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}
