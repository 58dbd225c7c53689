/* Concatenates the ranks' tensors block by block, along one dimension:
 *
 *   rank 0: | g0 | u0 |      rank 1: | g1 | u1 |      whole: | g0 | g1 | u0 | u1 |
 *
 * Each block of each rank becomes a chunk of the whole tensor, whose bytes stay where they are. Along the first dimension
 * they are a contiguous range of the rank's bytes, along any other one a strided view. */
#include "formats/shards/shards_chunks.h"

#include <inttypes.h>

#include "base/cursor.h"
#include "tessera/box.h"
#include "tessera/sys/box.h"
#include "tessera/sys/box_walk.h"
#include "tessera/sys/try.h"

typedef struct joining {
    const tsr_shards_held *held;
    const tsr_shards_rule *rule;
    tsr_arena *arena;
    tsr_entry *out;
    uint64_t *shape; /* of the whole tensor */
    tsr_chunk *chunks, *replicas;
    uint32_t dim;
    uint64_t end; /* size along `dim` that was joined so far */
    tsr_error *err;
} joining;

bool tsr_shards_is_whole(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR && entry->chunk_count == 1 &&
           (entry->ndim == 0 || memcmp(entry->chunks[0].sizes, entry->shape, entry->ndim * sizeof *entry->shape) == 0);
}

static uint64_t size_of(const joining *j, uint32_t rank)
{
    return j->held->tensors[rank]->shape[j->dim];
}

static tsr_status find_dim(joining *j, uint32_t ndim)
{
    const int32_t given = j->rule->dim;
    const int64_t dim = given < 0 ? given + (int64_t)ndim : given;
    TSR_FAIL_IF(dim < 0 || dim >= ndim, j->err, TSR_E_FORMAT, "the rule '%.*s' joins along dim %d, but '%.*s' has %u dims",
                TSR_STR_ARG(j->rule->match), (int)given, TSR_STR_ARG(j->held->fqn), (unsigned)j->held->tensors[0]->ndim);
    j->dim = (uint32_t)dim;
    return TSR_OK;
}

/* Checks that all ranks' tensors have the same dtype and the same sizes, except along `free_dim`. */
static tsr_status check_alike(const joining *j, uint32_t free_dim)
{
    const tsr_entry *first = j->held->tensors[0];
    for (uint32_t r = 1; r < j->held->ranks; r++) {
        const tsr_entry *entry = j->held->tensors[r];
        TSR_FAIL_IF(entry->dtype != first->dtype, j->err, TSR_E_FORMAT, "'%.*s' is %s on rank 0 but %s on rank %u",
                    TSR_STR_ARG(j->held->fqn), tsr_dtype_describe(first->dtype)->name,
                    tsr_dtype_describe(entry->dtype)->name, r);
        bool alike = entry->ndim == first->ndim;
        for (uint32_t d = 0; alike && d < first->ndim; d++) alike = d == free_dim || entry->shape[d] == first->shape[d];
        TSR_FAIL_IF(!alike, j->err, TSR_E_FORMAT,
                    "'%.*s' does not have the same sizes on ranks 0 and %u, as the rule '%.*s' needs",
                    TSR_STR_ARG(j->held->fqn), r, TSR_STR_ARG(j->rule->match));
    }
    return TSR_OK;
}

/* ---- one block of one rank ---- */

/* The strides, in elements, with which the rank's tensor is stored. */
static void strides_of(const tsr_entry *entry, uint64_t *strides)
{
    const tsr_view *view = entry->chunks[0].view;
    uint64_t step = 1;
    for (uint32_t d = entry->ndim; d-- > 0;) {
        strides[d] = view && view->strides ? view->strides[d] : step;
        step *= entry->shape[d];
    }
}

/* Bytes from a box's first element to the end of its last. Cannot overflow, because the span of the whole tensor was
 * checked. */
static uint64_t span_of(uint32_t ndim, const uint64_t *sizes, const uint64_t *strides, uint64_t item)
{
    uint64_t last = 0;
    for (uint32_t d = 0; d < ndim; d++) {
        if (sizes[d] == 0) return 0;
        last += (sizes[d] - 1) * strides[d];
    }
    return (last + 1) * item;
}

/* The chunk with the elements [from, from + size) of `entry` along the dimension. */
static tsr_status cut(const joining *j, const tsr_entry *entry, uint64_t from, uint64_t size, tsr_chunk *out)
{
    const tsr_chunk *whole = &entry->chunks[0];
    const uint32_t item = tsr_dtype_size(entry->dtype);
    uint64_t *sizes = tsr_arena_array(j->arena, entry->ndim, sizeof *sizes, j->err);
    uint64_t *strides = tsr_arena_array(j->arena, entry->ndim, sizeof *strides, j->err);
    *out = *whole;
    if (!sizes || !strides) return TSR_E_NOMEM;
    memcpy(sizes, entry->shape, entry->ndim * sizeof *sizes);
    sizes[j->dim] = size;
    out->sizes = sizes;
    if (size == entry->shape[j->dim]) return TSR_OK;
    TSR_FAIL_IF(!item, j->err, TSR_E_UNSUPPORTED, "'%.*s' (%s) cannot be cut: its elements are not byte-aligned",
                TSR_STR_ARG(j->held->fqn), tsr_dtype_describe(entry->dtype)->name);
    strides_of(entry, strides);
    const uint64_t offset = from * strides[j->dim] * item;
    const tsr_box parent = {entry->ndim, NULL, entry->shape}, inner = {entry->ndim, NULL, sizes};
    const bool is_run = tsr_box_is_contiguous(parent, inner) && !(whole->view && whole->view->strides);
    const bool is_zstd = whole->view && whole->view->zstd;
    if (!is_zstd && out->file != TSR_NO_FILE) {
        out->byte_offset += offset;
        out->byte_length = span_of(entry->ndim, sizes, strides, item);
    }
    if (is_run && !whole->view) return TSR_OK;
    tsr_view *view = TSR_ARENA_NEW(j->arena, tsr_view, j->err);
    if (!view) return TSR_E_NOMEM;
    *view = whole->view ? *whole->view : (tsr_view){.file = whole->file, .byte_offset = whole->byte_offset};
    view->byte_offset += offset;
    if (!is_run) view->strides = strides;
    out->view = view;
    return TSR_OK;
}

/* Sets the offsets of a chunk in the whole tensor. */
static tsr_status place(const joining *j, uint64_t at, tsr_chunk *chunk)
{
    uint64_t *offsets = tsr_arena_array(j->arena, j->out->ndim, sizeof *offsets, j->err);
    if (!offsets) return TSR_E_NOMEM;
    offsets[j->dim] = at;
    chunk->offsets = offsets;
    return TSR_OK;
}

/* ---- blocks ---- */

static uint32_t blocks_of(const joining *j)
{
    return j->rule->block_count ? j->rule->block_count : 1;
}

static uint64_t copies_of(const joining *j, uint32_t block)
{
    return j->rule->block_copies ? j->rule->block_copies[block] : 1;
}

/* The size of a block in a rank's tensor. */
static uint64_t block_size(const joining *j, uint32_t rank, uint32_t block)
{
    return j->rule->block_sizes ? j->rule->block_sizes[block] : size_of(j, rank) / blocks_of(j);
}

/* Checks that the copies of a block, which are on successive ranks, have the same size. */
static tsr_status check_copies(const joining *j, uint32_t block)
{
    const uint64_t copies = copies_of(j, block);
    TSR_FAIL_IF(!copies || j->held->ranks % copies, j->err, TSR_E_FORMAT,
                "the rule '%.*s' has %" PRIu64 " copies of a block, which does not divide the %u ranks",
                TSR_STR_ARG(j->rule->match), copies, j->held->ranks);
    for (uint32_t r = 1; r < j->held->ranks; r++)
        TSR_FAIL_IF(r % copies && block_size(j, r, block) != block_size(j, r - 1, block), j->err, TSR_E_FORMAT,
                    "'%.*s' does not have the same sizes on ranks %u and %u, which have copies according to the rule '%.*s'",
                    TSR_STR_ARG(j->held->fqn), r - 1, r, TSR_STR_ARG(j->rule->match));
    return TSR_OK;
}

static tsr_status check_blocks(const joining *j)
{
    const uint32_t count = blocks_of(j);
    for (uint32_t r = 0; r < j->held->ranks; r++) {
        uint64_t sum = 0;
        for (uint32_t b = 0; b < count; b++)
            TSR_FAIL_IF(!tsr_add_u64(sum, block_size(j, r, b), &sum), j->err, TSR_E_LIMIT,
                        "the blocks of the rule '%.*s' are too large", TSR_STR_ARG(j->rule->match));
        TSR_FAIL_IF(sum != size_of(j, r), j->err, TSR_E_FORMAT,
                    "'%.*s' has size %" PRIu64 " along dim %u on rank %u, which is not %s of the rule '%.*s' (%" PRIu64 ")",
                    TSR_STR_ARG(j->held->fqn), size_of(j, r), j->dim, r,
                    j->rule->block_sizes ? "the sum of the blocks" : "a multiple of the blocks", TSR_STR_ARG(j->rule->match),
                    j->rule->block_sizes ? sum : (uint64_t)count);
    }
    return TSR_OK;
}

/* Adds one block of one rank, as a chunk or as a copy of the previous rank's block. Adds nothing if `trim` removes all of
 * it. */
static tsr_status add_block(joining *j, uint32_t rank, uint64_t from, uint64_t size, bool is_copy)
{
    const uint64_t at = is_copy ? j->end - size : j->end;
    if (!is_copy) j->end += size;
    if (j->rule->trims && at >= j->rule->trim) return TSR_OK;
    if (j->rule->trims && size > j->rule->trim - at) size = j->rule->trim - at;
    if (size == 0) return TSR_OK;
    tsr_chunk *chunk = is_copy ? &j->replicas[j->out->replica_count] : &j->chunks[j->out->chunk_count];
    TSR_TRY(cut(j, j->held->tensors[rank], from, size, chunk));
    TSR_TRY(place(j, at, chunk));
    if (is_copy) j->out->replica_count++;
    else j->out->chunk_count++;
    return TSR_OK;
}

static tsr_status add_blocks(joining *j)
{
    for (uint32_t b = 0; b < blocks_of(j); b++)
        for (uint32_t r = 0; r < j->held->ranks; r++) {
            uint64_t from = 0;
            for (uint32_t before = 0; before < b; before++) from += block_size(j, r, before);
            TSR_TRY(add_block(j, r, from, block_size(j, r, b), r % copies_of(j, b) != 0));
        }
    return TSR_OK;
}

/* Like all tensors without elements, a joined one has one empty chunk. */
static tsr_status keep_empty(joining *j)
{
    const tsr_box whole = {j->out->ndim, NULL, j->shape};
    if (j->out->chunk_count || !tsr_box_is_empty(whole)) return TSR_OK;
    j->chunks[0] = j->held->tensors[0]->chunks[0];
    j->chunks[0].sizes = j->shape;
    j->chunks[0].byte_length = 0;
    j->chunks[0].view = NULL;
    j->out->chunk_count = 1;
    return place(j, 0, &j->chunks[0]);
}

static tsr_status start(joining *j, uint32_t ndim, uint64_t chunks)
{
    j->out->ndim = ndim;
    j->out->chunk_count = j->out->replica_count = 0;
    j->shape = tsr_arena_array(j->arena, ndim, sizeof *j->shape, j->err);
    j->chunks = tsr_arena_array(j->arena, (size_t)chunks, sizeof *j->chunks, j->err);
    j->replicas = tsr_arena_array(j->arena, (size_t)chunks, sizeof *j->replicas, j->err);
    if (!j->shape || !j->chunks || !j->replicas) return TSR_E_NOMEM;
    j->out->shape = j->shape;
    j->out->chunks = j->chunks;
    j->out->replicas = j->replicas;
    return TSR_OK;
}

tsr_status tsr_shards_concat(const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_arena *arena, tsr_entry *out,
                             tsr_error *err)
{
    joining j = {.held = held, .rule = rule, .arena = arena, .out = out, .err = err};
    const tsr_entry *first = held->tensors[0];
    TSR_TRY(find_dim(&j, first->ndim));
    TSR_TRY(check_alike(&j, j.dim));
    TSR_TRY(check_blocks(&j));
    for (uint32_t b = 0; b < blocks_of(&j); b++) TSR_TRY(check_copies(&j, b));
    TSR_TRY(start(&j, first->ndim, (uint64_t)held->ranks * blocks_of(&j)));
    TSR_TRY(add_blocks(&j));
    TSR_FAIL_IF(rule->trims && rule->trim > j.end, err, TSR_E_FORMAT,
                "the rule '%.*s' trims dim %u to %" PRIu64 ", but '%.*s' has only %" PRIu64 " there",
                TSR_STR_ARG(rule->match), j.dim, rule->trim, TSR_STR_ARG(held->fqn), j.end);
    memcpy(j.shape, first->shape, first->ndim * sizeof *j.shape);
    j.shape[j.dim] = rule->trims ? rule->trim : j.end;
    return keep_empty(&j);
}

/* ---- stacked ---- */

/* A rank's chunk with an additional dimension of size 1. */
static tsr_status widen(const joining *j, uint32_t rank, tsr_chunk *out)
{
    const tsr_entry *entry = j->held->tensors[rank];
    const uint64_t *old = entry->chunks[0].view ? entry->chunks[0].view->strides : NULL;
    uint64_t *sizes = tsr_arena_array(j->arena, j->out->ndim, sizeof *sizes, j->err);
    uint64_t *strides = tsr_arena_array(j->arena, j->out->ndim, sizeof *strides, j->err);
    tsr_view *view = TSR_ARENA_NEW(j->arena, tsr_view, j->err);
    if (!sizes || !strides || !view) return TSR_E_NOMEM;
    for (uint32_t d = 0, from = 0; d < j->out->ndim; d++) {
        sizes[d] = d == j->dim ? 1 : entry->shape[from];
        strides[d] = d == j->dim || !old ? 1 : old[from];
        from += d != j->dim;
    }
    *out = entry->chunks[0];
    out->sizes = sizes;
    if (old) {
        *view = *out->view;
        view->strides = strides;
        out->view = view;
    }
    return place(j, rank, out);
}

tsr_status tsr_shards_stack(const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_arena *arena, tsr_entry *out,
                            tsr_error *err)
{
    joining j = {.held = held, .rule = rule, .arena = arena, .out = out, .err = err};
    const tsr_entry *first = held->tensors[0];
    TSR_FAIL_IF(first->ndim == TSR_MAX_NDIM, err, TSR_E_LIMIT, "'%.*s' already has %u dims", TSR_STR_ARG(held->fqn),
                first->ndim);
    TSR_TRY(find_dim(&j, first->ndim + 1));
    TSR_TRY(check_alike(&j, UINT32_MAX));
    TSR_TRY(start(&j, first->ndim + 1, held->ranks));
    for (uint32_t d = 0, from = 0; d < out->ndim; d++) {
        j.shape[d] = d == j.dim ? held->ranks : first->shape[from];
        from += d != j.dim;
    }
    for (uint32_t r = 0; r < held->ranks; r++) TSR_TRY(widen(&j, r, &j.chunks[r]));
    out->chunk_count = held->ranks;
    return TSR_OK;
}
