/* Flat ranges of stored tensors as chunks of a new tensor.
 *
 * A run of the source is a flat range whose elements lie at one constant stride in the file (all of it for contiguous
 * sources and 1-d slices). A run of n elements at flat position p of the result becomes boxes that are runs themselves:
 *
 *     shape [11, 3], p = 14, n = 14:   [4][2:3]   [5:9][0:3]   [9][0:1]        at most 2·rank − 1 boxes
 */
#include "optim/pieces.h"

#include <inttypes.h>

#include "base/cursor.h"
#include "base/try.h"
#include "tessera/box.h"

tsr_status tsr_pieces_start(tsr_pieces *pieces, const tsr_host *host, tsr_arena *arena, tsr_str fqn, tsr_dtype dtype,
                            uint32_t rank, const uint64_t *shape, tsr_error *err)
{
    *pieces = (tsr_pieces){host, arena, TSR_ARENA_NEW(arena, tsr_entry, err), tsr_vec_of(host->allocator, sizeof(tsr_chunk)),
                           0,    0};
    if (!pieces->entry) return TSR_E_NOMEM;
    *pieces->entry = (tsr_entry){.fqn = fqn, .kind = TSR_ENTRY_TENSOR, .dtype = dtype, .rank = rank, .shape = shape};
    TSR_FAIL_IF(rank > TSR_MAX_RANK || tsr_dtype_size(dtype) == 0 || !tsr_entry_elements(pieces->entry, &pieces->elements),
                err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                "optim: '%.*s' has too many dimensions or elements, or a dtype without whole bytes", TSR_STR_ARG(fqn));
    return TSR_OK;
}

void tsr_pieces_drop(tsr_pieces *pieces)
{
    tsr_vec_free(&pieces->chunks);
}

/* A box of the result whose elements are `view`'s, `step` elements apart. */
static tsr_status add_chunk(tsr_pieces *p, const uint64_t *offsets, const uint64_t *sizes, tsr_view view, uint64_t step,
                            uint64_t count, tsr_error *err)
{
    uint32_t rank = p->entry->rank;
    uint64_t *numbers = tsr_arena_array(p->arena, 3 * (size_t)rank, sizeof *numbers, err);
    tsr_view *kept = TSR_ARENA_NEW(p->arena, tsr_view, err);
    tsr_chunk *chunk = numbers && kept ? tsr_vec_push(&p->chunks, err) : NULL;
    if (!chunk) return TSR_E_NOMEM;
    uint64_t stride = step;
    for (uint32_t d = rank; d-- > 0;) {
        numbers[d] = offsets[d];
        numbers[rank + d] = sizes[d];
        numbers[2 * rank + d] = stride;
        stride *= sizes[d];
    }
    view.strides = numbers + 2 * rank;
    *kept = view;
    *chunk = (tsr_chunk){
        .offsets = numbers, .sizes = numbers + rank, .byte_offset = view.byte_offset, .view = kept, .file = view.file};
    chunk->byte_length = count * tsr_dtype_size(p->entry->dtype);
    return TSR_OK;
}

/* Lays a run of `count` elements into the boxes it fills, from `flat_filled` on. */
static tsr_status add_run(tsr_pieces *p, tsr_view view, uint64_t step, uint64_t count, tsr_error *err)
{
    const tsr_entry *e = p->entry;
    uint64_t offsets[TSR_MAX_RANK] = {0}, sizes[TSR_MAX_RANK] = {0}, itemsize = tsr_dtype_size(e->dtype);
    TSR_FAIL_IF(count > p->elements - p->flat_filled, err, TSR_E_FORMAT, TSR_NO_POSITION,
                "optim: '%.*s' has %" PRIu64 " elements, but more were found", TSR_STR_ARG(e->fqn), p->elements);
    while (count) {
        uint64_t at = p->flat_filled, row = 1, taken = 1;
        uint32_t block = e->rank; /* the outermost dimension in which whole rows fit */
        for (uint32_t d = e->rank; d-- > 0;) {
            uint64_t index = at / row % e->shape[d],
                     fits = count / row < e->shape[d] - index ? count / row : e->shape[d] - index;
            offsets[d] = index;
            if (at % row == 0 && fits) {
                block = d;
                taken = fits * row;
            }
            row *= e->shape[d];
        }
        for (uint32_t d = 0; d < e->rank; d++) sizes[d] = d < block ? 1 : e->shape[d];
        if (block < e->rank) {
            uint64_t inner = 1;
            for (uint32_t d = block + 1; d < e->rank; d++) inner *= e->shape[d];
            sizes[block] = taken / inner;
        }
        TSR_TRY(add_chunk(p, offsets, sizes, view, step, taken, err));
        view.byte_offset += taken * step * itemsize;
        p->flat_filled += taken;
        count -= taken;
    }
    return TSR_OK;
}

/* Where the source's bytes lie; strides always set. */
static tsr_status source_view(const tsr_entry *source, uint64_t *strides, tsr_view *out, tsr_error *err)
{
    const tsr_chunk *chunk = source->chunks;
    TSR_FAIL_IF(source->chunk_count != 1 || source->rank > TSR_MAX_RANK, err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                "optim: '%.*s' lies in %" PRIu64 " chunks; convert the checkpoint to torch first", TSR_STR_ARG(source->fqn),
                source->chunk_count);
    *out = chunk->view ? *chunk->view : (tsr_view){.file = chunk->file, .byte_offset = chunk->byte_offset};
    uint64_t row = 1;
    for (uint32_t d = source->rank; d-- > 0;) {
        strides[d] = out->strides ? out->strides[d] : row;
        row *= source->shape[d];
    }
    return TSR_OK;
}

/* Elements at the end of the row-major order that lie `*step` apart: trailing dimensions whose strides continue. */
static uint64_t run_length(const tsr_entry *source, const uint64_t *strides, uint64_t *step)
{
    uint64_t length = 1;
    *step = 1;
    for (uint32_t d = source->rank; d-- > 0;) {
        if (source->shape[d] == 1) continue;
        if (length == 1) *step = strides[d];
        else if (strides[d] != *step * length) break;
        length *= source->shape[d];
    }
    return length;
}

tsr_status tsr_pieces_add(tsr_pieces *pieces, const tsr_entry *source, uint64_t flat_begin, uint64_t flat_end,
                          tsr_error *err)
{
    uint64_t strides[TSR_MAX_RANK], step, itemsize = tsr_dtype_size(source->dtype);
    tsr_view base;
    if (flat_begin == flat_end) return TSR_OK;
    TSR_TRY(source_view(source, strides, &base, err));
    uint64_t elements;
    TSR_FAIL_IF(!tsr_entry_elements(source, &elements) || flat_end > elements || itemsize == 0, err, TSR_E_FORMAT,
                TSR_NO_POSITION, "optim: elements up to %" PRIu64 " of '%.*s' are wanted, beyond its end", flat_end,
                TSR_STR_ARG(source->fqn));
    uint64_t length = run_length(source, strides, &step);
    TSR_FAIL_IF((flat_end - flat_begin) / length > pieces->host->limits.entries, err, TSR_E_LIMIT, TSR_NO_POSITION,
                "optim: '%.*s' is strided in too many runs", TSR_STR_ARG(source->fqn));
    for (uint64_t at = flat_begin; at < flat_end;) {
        uint64_t end = at - at % length + length, rest = at, element = 0;
        if (end > flat_end) end = flat_end;
        for (uint32_t d = source->rank; d-- > 0; rest /= source->shape[d]) element += rest % source->shape[d] * strides[d];
        tsr_view view = base;
        view.byte_offset += element * itemsize;
        TSR_TRY(add_run(pieces, view, step, end - at, err));
        at = end;
    }
    return TSR_OK;
}

tsr_status tsr_pieces_add_zeros(tsr_pieces *pieces, uint32_t file, uint64_t count, tsr_error *err)
{
    return add_run(pieces, (tsr_view){.file = file}, 0, count, err);
}

tsr_status tsr_pieces_finish(tsr_pieces *pieces, const tsr_value **out, tsr_error *err)
{
    tsr_entry *entry = pieces->entry;
    static const uint64_t none[TSR_MAX_RANK] = {0};
    TSR_FAIL_IF(pieces->elements != pieces->flat_filled, err, TSR_E_FORMAT, TSR_NO_POSITION,
                "optim: '%.*s' has %" PRIu64 " elements, but %" PRIu64 " were found", TSR_STR_ARG(entry->fqn),
                pieces->elements, pieces->flat_filled);
    tsr_chunk *chunks = tsr_arena_array(pieces->arena, pieces->chunks.count + 1, sizeof *chunks, err);
    tsr_value *value = chunks ? tsr_value_new(pieces->arena, TSR_VALUE_TENSOR, err) : NULL;
    if (!value) return TSR_E_NOMEM;
    if (pieces->chunks.count) memcpy(chunks, pieces->chunks.items, pieces->chunks.count * sizeof *chunks);
    else chunks[0] = (tsr_chunk){.offsets = none, .sizes = entry->shape, .file = TSR_NO_FILE}; /* no elements */
    entry->chunks = chunks;
    entry->chunk_count = pieces->chunks.count ? pieces->chunks.count : 1;
    value->as.tensor = entry;
    *out = value;
    return TSR_OK;
}
