/* Finds the boxes of tensors that Megatron-Core up to 0.14 stored as flat ranges of fragments:
 *
 *   shape [4, 6], fragments [2, 1]: stored as [2, 1, 12]      chunk (1, 0, 4) of length 5:
 *     . . . . . .                                              . . . . . .
 *     . . . . . .   fragment (0, 0)                            . . . . . .
 *     . . . . . .                                              . . . . x x    two boxes
 *     . . . . . .   fragment (1, 0)                            x x x . . .
 *
 * Source: sharded_tensor_to_torch_sharded_tensor of Megatron-Core 0.14, strategies/torch.py and resharding.py. */
#include "base/cursor.h"
#include "formats/common/expansion.h"
#include "formats/megatron/megatron_state.h"
#include "tessera/sys/box.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

enum { MOST_BOXES = 2 * TSR_MAX_NDIM - 1 };

typedef struct undoing {
    tsr_checkpoint *checkpoint;
    const tsr_entry *raw;
    const tsr_dcp_original *original;
    uint64_t fragment[TSR_MAX_NDIM]; /* the shape of a fragment */
    tsr_vec *chunks;                 /* the boxes of all tensors */
    tsr_vec *pieces;
    tsr_error *err;
} undoing;

static tsr_status refuse(const undoing *u, const char *what)
{
    return tsr_fail(u->err, TSR_E_FORMAT, "megatron: mcore_data does not match '%.*s': %s", TSR_STR_ARG(u->raw->fqn), what);
}

static tsr_status measure_fragment(undoing *u)
{
    const tsr_dcp_original *original = u->original;
    uint64_t elements;
    if (u->raw->kind != TSR_ENTRY_TENSOR) return refuse(u, "it is not a tensor");
    if (u->raw->ndim != original->ndim + 1) return refuse(u, "its size does not have one number more than the shape");
    if (tsr_dtype_size(u->raw->dtype) == 0) return refuse(u, "its elements are not byte-aligned");
    for (uint32_t d = 0; d < original->ndim; d++) {
        const uint64_t count = u->raw->shape[d];
        if (count == 0 || original->shape[d] % count)
            return refuse(u, "the shape cannot be divided into that many fragments");
        u->fragment[d] = original->shape[d] / count;
    }
    if (!tsr_box_volume((tsr_box){original->ndim, NULL, u->fragment}, &elements) ||
        elements != u->raw->shape[original->ndim])
        return refuse(u, "a fragment has a different number of elements");
    return TSR_OK;
}

/* Adds one box of the fragment at `at`. */
static tsr_status add_box(undoing *u, const tsr_chunk *from, const uint64_t *at, const uint64_t *offsets,
                          const uint64_t *sizes, uint64_t first)
{
    const uint32_t ndim = u->original->ndim;
    uint64_t *numbers = tsr_arena_array(u->checkpoint->arena, 2 * (size_t)ndim, sizeof *numbers, u->err);
    tsr_chunk *chunk = tsr_vec_push(u->chunks, u->err);
    tsr_megatron_piece *piece = tsr_vec_push(u->pieces, u->err);
    if (!numbers || !chunk || !piece) return TSR_E_NOMEM;
    for (uint32_t d = 0; d < ndim; d++) {
        numbers[d] = at[d] * u->fragment[d] + offsets[d];
        numbers[ndim + d] = sizes[d];
    }
    *chunk = *from;
    chunk->offsets = numbers;
    chunk->sizes = numbers + ndim;
    *piece = (tsr_megatron_piece){u->raw, from, first};
    return TSR_OK;
}

static tsr_status add_range(undoing *u, const tsr_chunk *from, const uint64_t *at, uint64_t first)
{
    uint64_t offsets[MOST_BOXES * TSR_MAX_NDIM], sizes[MOST_BOXES * TSR_MAX_NDIM];
    const uint32_t ndim = u->original->ndim;
    const tsr_span range = {from->offsets[ndim], from->sizes[ndim]};
    const uint32_t count = tsr_range_boxes(ndim, u->fragment, range, offsets, sizes);
    const uint64_t bytes = count * (sizeof(tsr_chunk) + sizeof(tsr_megatron_piece) + 2 * ndim * sizeof *offsets);
    TSR_TRY(tsr_expansion_take(&u->checkpoint->expansion, bytes, u->checkpoint->host, u->err));
    for (uint32_t b = 0; b < count; b++) {
        uint64_t elements = 1;
        TSR_TRY(add_box(u, from, at, offsets + b * ndim, sizes + b * ndim, first));
        tsr_box_volume((tsr_box){ndim, NULL, sizes + b * ndim}, &elements); /* fits: the box is inside the fragment */
        first += elements;
    }
    return TSR_OK;
}

/* Moves to the next fragment that the chunk covers, in row-major order. Returns false after the last one. */
static bool next_fragment(uint32_t ndim, const tsr_chunk *chunk, uint64_t *at)
{
    for (uint32_t d = ndim; d-- > 0; at[d] = chunk->offsets[d])
        if (++at[d] < chunk->offsets[d] + chunk->sizes[d]) return true;
    return false;
}

static tsr_status add_chunk(undoing *u, const tsr_chunk *from)
{
    const uint32_t ndim = u->original->ndim;
    uint64_t at[TSR_MAX_NDIM], first = 0, elements;
    if (!tsr_box_contains((tsr_box){ndim + 1, NULL, u->raw->shape}, (tsr_box){ndim + 1, from->offsets, from->sizes}))
        return refuse(u, "a chunk reaches beyond the tensor");
    if (!tsr_box_volume((tsr_box){ndim + 1, NULL, from->sizes}, &elements)) return refuse(u, "a chunk is too large");
    if (elements == 0) return TSR_OK; /* this rank holds nothing of the tensor */
    if (ndim) memcpy(at, from->offsets, ndim * sizeof *at);
    do {
        TSR_TRY(add_range(u, from, at, first));
        first += from->sizes[ndim];
    } while (next_fragment(ndim, from, at));
    return TSR_OK;
}

static tsr_status undo_one(undoing *u, tsr_entry *entry, tsr_megatron_stored *stored)
{
    TSR_TRY(measure_fragment(u));
    const uint64_t before = u->chunks->count;
    for (uint64_t c = 0; c < u->raw->chunk_count; c++) TSR_TRY(add_chunk(u, &u->raw->chunks[c]));
    entry->chunk_count = u->chunks->count - before;
    for (uint64_t c = 0; c < u->raw->replica_count; c++) TSR_TRY(add_chunk(u, &u->raw->replicas[c]));
    entry->replica_count = u->chunks->count - before - entry->chunk_count;
    entry->shape = u->original->shape;
    entry->ndim = u->original->ndim;
    entry->chunks = NULL; /* set by keep_chunks once the chunks of all tensors are known */
    stored->fragments = u->raw->shape;
    return TSR_OK;
}

/* Puts the chunks of all tensors into one array, so that a chunk's index leads to its piece. */
static tsr_status keep_chunks(tsr_checkpoint *checkpoint, tsr_megatron_state *state, const tsr_vec *chunks,
                              const tsr_vec *pieces, tsr_error *err)
{
    const size_t count = chunks->count;
    tsr_chunk *own = tsr_arena_array(checkpoint->arena, count, sizeof *own, err);
    tsr_megatron_piece *piece = tsr_arena_array(checkpoint->arena, count, sizeof *piece, err);
    if (!own || !piece) return TSR_E_NOMEM;
    if (count) memcpy(own, chunks->items, count * sizeof *own);
    if (count) memcpy(piece, pieces->items, count * sizeof *piece);
    state->chunks = own;
    state->pieces = piece;
    state->chunk_count = count;
    for (uint64_t e = 0; e < state->count; e++) {
        tsr_entry *entry = &state->entries[e];
        if (!state->stored[e].fragments) continue;
        entry->chunks = own;
        entry->replicas = entry->replica_count ? own + entry->chunk_count : NULL;
        own += entry->chunk_count + entry->replica_count;
    }
    return TSR_OK;
}

static tsr_status undo_all(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_vec *chunks, tsr_vec *pieces,
                           tsr_error *err)
{
    const tsr_dcp_state *dcp = tsr_dcp_state_of(checkpoint);
    const tsr_dcp_original **of = tsr_arena_array(checkpoint->arena, (size_t)state->count, sizeof *of, err);
    if (!of) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < dcp->original_count; i++) of[state->entry_of[dcp->originals[i].entry]] = &dcp->originals[i];
    for (uint64_t e = 0; e < state->count; e++) {
        undoing u = {.checkpoint = checkpoint, .original = of[e], .chunks = chunks, .pieces = pieces, .err = err};
        if (!of[e]) continue;
        u.raw = &state->raw[of[e]->entry];
        TSR_TRY(undo_one(&u, &state->entries[e], &state->stored[e]));
    }
    return keep_chunks(checkpoint, state, chunks, pieces, err);
}

tsr_status tsr_megatron_undo_fragments(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err)
{
    tsr_vec chunks = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_chunk));
    tsr_vec pieces = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_megatron_piece));
    const tsr_status status = undo_all(checkpoint, state, &chunks, &pieces, err);
    tsr_vec_free(&chunks);
    tsr_vec_free(&pieces);
    return status;
}

const tsr_megatron_piece *tsr_megatron_piece_of(const tsr_megatron_state *state, const tsr_chunk *chunk)
{
    const uint64_t at = ((uintptr_t)chunk - (uintptr_t)state->chunks) / sizeof *chunk;
    return state->chunk_count && at < state->chunk_count ? &state->pieces[at] : NULL;
}

tsr_status tsr_megatron_piece_view(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                                   tsr_arena *scratch, tsr_view *view, tsr_error *err)
{
    const tsr_megatron_piece *piece = tsr_megatron_piece_of(tsr_megatron_state_of(checkpoint), chunk);
    const uint32_t last = piece->entry->ndim - 1;
    const uint64_t step = view->strides ? view->strides[last] : 1;
    for (uint32_t d = 0; d < last && view->strides; d++)
        TSR_FAIL_AT(piece->chunk->sizes[d] > 1, err, TSR_E_UNSUPPORTED, chunk->byte_offset,
                    "megatron: several fragments of '%.*s' are in one item with strides", TSR_STR_ARG(entry->fqn));
    view->byte_offset += piece->first * step * tsr_dtype_size(entry->dtype);
    view->strides = NULL;
    if (step == 1) return TSR_OK;
    uint64_t *strides = tsr_arena_array(scratch, last, sizeof *strides, err), next = step;
    if (!strides) return TSR_E_NOMEM;
    for (uint32_t d = last; d-- > 0; next *= chunk->sizes[d]) strides[d] = next;
    view->strides = strides;
    return TSR_OK;
}
