/* Joins the ranks' tensors. The entries are added stage by stage, so that the layers of the whole model are in order. A name
 * that several stages have (a shared embedding, a buffer) must be the same tensor in each. */
#include "formats/shards/shards_join.h"

#include <inttypes.h>

#include "base/cursor.h"
#include "formats/common/rank_entries.h"
#include "formats/common/reader.h"
#include "tessera/box.h"
#include "tessera/glob.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/shard_names.h"
#include "tessera/sys/try.h"

/* ---- stages ---- */

static const char layer_capture[] = "{layer}", rest_capture[] = "{rest...}";

/* The index of the first `part` in `text`; text.size if there is none. */
static size_t find(tsr_str text, tsr_str part)
{
    size_t at = 0;
    while (at + part.size <= text.size && memcmp(text.data + at, part.data, part.size) != 0) at++;
    return at + part.size <= text.size ? at : text.size;
}

static bool has_brace(tsr_str text)
{
    return text.size && (memchr(text.data, '{', text.size) || memchr(text.data, '}', text.size));
}

/* Splits a pattern into the text before {layer}, the text between it and {rest...}, and whether it ends with {rest...}. */
static bool split(tsr_str pattern, tsr_str *head, tsr_str *tail, bool *rest)
{
    const tsr_str capture = tsr_str_from(layer_capture), suffix = tsr_str_from(rest_capture);
    const size_t at = find(pattern, capture);
    if (at == pattern.size) return false;
    *head = (tsr_str){pattern.data, at};
    *tail = tsr_str_after(pattern, at + capture.size);
    *rest = tsr_str_ends(*tail, suffix);
    if (*rest) tail->size -= suffix.size;
    return !has_brace(*head) && !has_brace(*tail);
}

const char *tsr_shards_stages_wrong(tsr_str pattern)
{
    tsr_str head, tail;
    bool rest;
    if (!split(pattern, &head, &tail, &rest))
        return "must contain {layer} once, may end in {rest...}, and must not contain other braces";
    const bool before = !head.size || head.data[head.size - 1] == '.', after = !tail.size || tail.data[0] == '.';
    return before && after ? NULL : "must contain {layer} as a whole component between dots";
}

tsr_status tsr_shards_stages_of(tsr_str pattern, tsr_arena *arena, tsr_shards_stages *out, tsr_error *err)
{
    tsr_str tail;
    bool rest;
    split(pattern, &out->head, &tail, &rest);
    out->tail = rest ? tsr_arena_format(arena, err, "%.*s**", TSR_STR_ARG(tail)) : tail;
    return out->tail.data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_shards_stages_number(tsr_shards_stages *stages, tsr_arena *arena, tsr_error *err)
{
    uint64_t *first = tsr_arena_array(arena, stages->count, sizeof *first, err);
    if (!first) return TSR_E_NOMEM;
    for (uint32_t s = 1; s < stages->count; s++) first[s] = first[s - 1] + stages->layers[s - 1];
    stages->first = first;
    return TSR_OK;
}

static bool is_number(tsr_str text, uint64_t *number)
{
    *number = 0;
    for (size_t i = 0; i < text.size; i++) {
        if (!tsr_is_digit(text.data[i]) || i == 9) return false;
        *number = *number * 10 + (uint64_t)(text.data[i] - '0');
    }
    return text.size > 0;
}

/* Finds the number of a layer in a name. Returns false if the name is not in a layer. */
static bool shards_layer_of(const tsr_shards_stages *stages, tsr_str name, tsr_str *digits, uint64_t *layer)
{
    if (!stages->head.size && !stages->tail.size) return false;
    for (size_t from = 0; from < name.size;) {
        const char *dot = memchr(name.data + from, '.', name.size - from);
        const size_t end = dot ? (size_t)(dot - name.data) : name.size;
        *digits = (tsr_str){name.data + from, end - from};
        const tsr_str before = {name.data, from}, after = {name.data + end, name.size - end};
        if (is_number(*digits, layer) && tsr_glob_match(stages->head, before) && tsr_glob_match(stages->tail, after))
            return true;
        from = end + 1;
    }
    return false;
}

/* Replaces the `size` digits at `at` in a text. */
static tsr_str replace(tsr_str text, size_t at, size_t size, uint64_t layer, tsr_arena *arena, tsr_error *err)
{
    const tsr_str before = {text.data, at}, after = {text.data + at + size, text.size - at - size};
    return tsr_arena_format(arena, err, "%.*s%" PRIu64 "%.*s", TSR_STR_ARG(before), layer, TSR_STR_ARG(after));
}

/* Replaces the number in the path item that contains it. `at` is an index into the FQN, which consists of the texts of the
 * items, joined by dots. */
static tsr_status renumber_path(tsr_entry *entry, size_t at, size_t size, uint64_t layer, tsr_arena *arena, tsr_error *err)
{
    tsr_path_item *path = tsr_arena_array(arena, entry->path_length, sizeof *path, err);
    if (!path) return TSR_E_NOMEM;
    memcpy(path, entry->path, entry->path_length * sizeof *path);
    entry->path = path;
    size_t from = 0;
    for (uint32_t i = 0; i < entry->path_length; i++) {
        const size_t length = tsr_path_item_size(&path[i]);
        if (at >= from && at < from + length) {
            if (path[i].kind != TSR_PATH_KEY) path[i].integer = (int64_t)layer;
            else path[i].key = replace(path[i].key, at - from, size, layer, arena, err);
            return path[i].kind != TSR_PATH_KEY || path[i].key.data ? TSR_OK : TSR_E_NOMEM;
        }
        from += length + 1;
    }
    return TSR_OK;
}

static tsr_status renumber(tsr_entry *entry, tsr_str digits, uint64_t layer, tsr_arena *arena, tsr_error *err)
{
    const size_t at = (size_t)(digits.data - entry->fqn.data);
    if (entry->path_length) TSR_TRY(renumber_path(entry, at, digits.size, layer, arena, err));
    entry->fqn = replace(entry->fqn, at, digits.size, layer, arena, err);
    return entry->fqn.data ? TSR_OK : TSR_E_NOMEM;
}

/* Renames an entry (name and path) to what it is called in the whole model. Fails with TSR_E_FORMAT for a layer that its
 * stage does not have. */
static tsr_status shards_rename(const tsr_shards_stages *stages, uint32_t stage, tsr_arena *arena, tsr_entry *entry,
                                tsr_error *err)
{
    tsr_str digits;
    uint64_t layer;
    if (!shards_layer_of(stages, entry->fqn, &digits, &layer)) return TSR_OK;
    TSR_FAIL_IF(layer >= stages->layers[stage], err, TSR_E_FORMAT,
                "'%.*s' is layer %" PRIu64 " of pipeline stage %u, which has only %" PRIu64 " layers",
                TSR_STR_ARG(entry->fqn), layer, stage, stages->layers[stage]);
    if (!stages->first[stage]) return TSR_OK;
    return renumber(entry, digits, layer + stages->first[stage], arena, err);
}

tsr_status tsr_shards_rename_back(const tsr_shards_stages *stages, uint32_t stage, tsr_arena *arena, tsr_entry *entry,
                                  bool *holds, tsr_error *err)
{
    tsr_str digits;
    uint64_t layer;
    *holds = true;
    if (!shards_layer_of(stages, entry->fqn, &digits, &layer)) return TSR_OK;
    const uint32_t last = stages->count - 1;
    TSR_FAIL_IF(layer >= stages->first[last] + stages->layers[last], err, TSR_E_USAGE,
                "'%.*s' is layer %" PRIu64 ", but the stages have only %" PRIu64 " layers in total", TSR_STR_ARG(entry->fqn),
                layer, stages->first[last] + stages->layers[last]);
    *holds = layer >= stages->first[stage] && layer - stages->first[stage] < stages->layers[stage];
    return *holds && stages->first[stage] ? renumber(entry, digits, layer - stages->first[stage], arena, err) : TSR_OK;
}

/* ---- join ---- */

typedef struct tsr_shards_equality {
    tsr_checkpoint *checkpoint;
    /* How many bytes may still be read: many views of one storage must not cost more than a few times the files' bytes. */
    uint64_t bytes_left;
} tsr_shards_equality;

/* ---- chunks ---- */

/* Concatenates the ranks' tensors block by block, along one dimension:
 *
 *   rank 0: | g0 | u0 |      rank 1: | g1 | u1 |      whole: | g0 | g1 | u0 | u1 |
 *
 * Each block of each rank becomes a chunk of the whole tensor, whose bytes stay where they are. Along the first dimension
 * they are a contiguous range of the rank's bytes, along any other one a strided view. */

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

/* The chunk with the elements [from, from + size) of `entry` along the dimension. */
static tsr_status cut(const joining *j, const tsr_entry *entry, uint64_t from, uint64_t size, tsr_chunk *out)
{
    const uint32_t item = tsr_dtype_size(entry->dtype);
    uint64_t *offsets = tsr_arena_array(j->arena, entry->ndim, sizeof *offsets, j->err);
    uint64_t *sizes = tsr_arena_array(j->arena, entry->ndim, sizeof *sizes, j->err);
    if (!offsets || !sizes) return TSR_E_NOMEM;
    memcpy(sizes, entry->shape, entry->ndim * sizeof *sizes);
    offsets[j->dim] = from;
    sizes[j->dim] = size;
    TSR_FAIL_IF(!item && size != entry->shape[j->dim], j->err, TSR_E_UNSUPPORTED,
                "'%.*s' (%s) cannot be cut: its elements are not byte-aligned", TSR_STR_ARG(j->held->fqn),
                tsr_dtype_describe(entry->dtype)->name);
    return tsr_chunk_cut(&entry->chunks[0], (tsr_box){entry->ndim, offsets, sizes}, item, j->arena, out, j->err);
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

/* These two set shape, ndim, chunks and replicas (equal blocks of successive ranks) of `out` according to a CONCAT and a STACK
 * rule. They allocate in `arena`, and fail with TSR_E_FORMAT if the tensors do not match the rule or each other. */
static tsr_status shards_concat(const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_arena *arena, tsr_entry *out,
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

static tsr_status shards_stack(const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_arena *arena, tsr_entry *out,
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

/* ---- equal ---- */

/* Checks whether tensors that a map declares to be copies are equal. */

/* What the stated checksums show. */
typedef enum verdict { UNKNOWN, SAME, DIFFERENT } verdict;

static tsr_status by_checksum(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *a, const tsr_chunk *b,
                              verdict *out, tsr_error *err)
{
    tsr_stated_crc first, second = {0};
    TSR_TRY(tsr_checkpoint_crc(checkpoint, entry, a, checkpoint->arena, &first, err));
    if (first.is_stated) TSR_TRY(tsr_checkpoint_crc(checkpoint, entry, b, checkpoint->arena, &second, err));
    const bool known = first.is_stated && second.is_stated;
    *out = !known ? UNKNOWN : first.crc32 == second.crc32 ? SAME : DIFFERENT;
    return TSR_OK;
}

/* Whether two chunks have the same elements. They must have equal sizes and belong to tensors of `entry`'s dtype and ndim.
 * Uses the CRC-32s stated in the files, otherwise compares the bytes. Fails with TSR_E_LIMIT if that would read too much, or
 * if reading fails. */
static tsr_status shards_equal_chunks(tsr_shards_equality *equality, const tsr_entry *entry, const tsr_chunk *a,
                                      const tsr_chunk *b, bool *same, tsr_error *err)
{
    verdict shown;
    TSR_TRY(by_checksum(equality->checkpoint, entry, a, b, &shown, err));
    *same = shown == SAME;
    if (shown != UNKNOWN) return TSR_OK;
    const uint64_t bytes = a->byte_length + b->byte_length;
    TSR_FAIL_IF(bytes > equality->bytes_left, err, TSR_E_LIMIT,
                "comparing '%.*s' between ranks would read more than %d times its stored bytes", TSR_STR_ARG(entry->fqn),
                TSR_RANK_MAX_READS);
    equality->bytes_left -= bytes;
    const tsr_entry first = {
        .fqn = entry->fqn, .dtype = entry->dtype, .ndim = entry->ndim, .shape = a->sizes, .chunks = a, .chunk_count = 1};
    tsr_entry second = first;
    second.chunks = b;
    return tsr_rank_bytes_match(equality->checkpoint, &first, &second, same, err);
}

/* Whether two dense tensors have the same dtype, shape and elements. */
static tsr_status shards_equal(tsr_shards_equality *equality, const tsr_entry *a, const tsr_entry *b, bool *same,
                               tsr_error *err)
{
    *same = tsr_entry_is_one_chunk(a) && tsr_entry_is_one_chunk(b) && a->dtype == b->dtype && tsr_entry_same_shape(a, b);
    return *same ? shards_equal_chunks(equality, a, a->chunks, b->chunks, same, err) : TSR_OK;
}

/* ---- rules ---- */

const tsr_shards_rule *tsr_shards_rule_of(const tsr_shards *map, tsr_str fqn)
{
    for (uint32_t i = 0; i < map->rule_count; i++)
        if (tsr_glob_match(map->rules[i].match, fqn)) return &map->rules[i];
    return NULL;
}

/* Chooses the rule for a tensor. `out` must not be moved while its rule is used, because the rule may point into it. */
static tsr_status shards_choose_rule(const tsr_shards *map, const tsr_shards_settings *settings, const tsr_shards_held *held,
                                     tsr_shards_choice *out, tsr_error *err)
{
    *out = (tsr_shards_choice){.equal_is_enough = !map->family};
    if (map->family) return map->family->choose(settings, held, out, err);
    const tsr_shards_rule *rule = tsr_shards_rule_of(map, held->fqn);
    out->known = rule;
    if (rule) out->rule = *rule;
    return TSR_OK;
}

/* ---- join ---- */

typedef struct join {
    tsr_checkpoint *checkpoint;
    const tsr_shards *map;
    tsr_arena *arena;
    tsr_shards_equality equality;
    tsr_shards_settings settings;
    tsr_shards_stages stages;
    uint32_t ranks; /* tensor-parallel ranks of each stage */
    tsr_map *names; /* FQN → number in `joined` */
    tsr_vec joined; /* of tsr_entry */
    uint64_t left;  /* number of tensors that are still listed per rank */
    tsr_error *err;
} join;

/* ---- pipeline stages ---- */

static const tsr_entry *const *held_by(const join *j, const tsr_entry *entry, uint32_t stage)
{
    return entry->per_rank->tensors + (size_t)stage * j->ranks;
}

static const tsr_entry *first_of(const join *j, const tsr_entry *const *held)
{
    for (uint32_t r = 0; r < j->ranks; r++)
        if (held[r]) return held[r];
    return NULL;
}

/* For a built-in map: counts the layers of each stage. */
static tsr_status count_layers(const join *j, uint64_t *layers)
{
    const tsr_catalog *catalog = &j->checkpoint->catalog;
    uint64_t all = 0;
    for (uint64_t e = 0; e < catalog->entry_count; e++) {
        tsr_str digits;
        uint64_t layer;
        if (!shards_layer_of(&j->stages, catalog->entries[e].fqn, &digits, &layer)) continue;
        for (uint32_t s = 0; s < j->stages.count; s++)
            if (first_of(j, held_by(j, &catalog->entries[e], s)) && layer >= layers[s]) layers[s] = layer + 1;
    }
    for (uint32_t s = 0; s < j->stages.count; s++) all += layers[s];
    TSR_FAIL_IF(j->settings.layers && all != j->settings.layers, j->err, TSR_E_FORMAT,
                "the stages have %" PRIu64 " layers in total, but the model has %" PRIu64, all, j->settings.layers);
    return TSR_OK;
}

static tsr_status number_stages(join *j)
{
    const tsr_shards *map = j->map;
    tsr_shards_stages *stages = &j->stages;
    stages->count = j->checkpoint->stages ? j->checkpoint->stages : 1;
    const tsr_str pattern =
        map->family && map->family->stage_pattern ? tsr_str_from(map->family->stage_pattern) : map->stage_pattern;
    if (!pattern.size) return TSR_OK;
    TSR_FAIL_IF(!map->family && map->stage_count != stages->count, tsr_naming(j->err), TSR_E_FORMAT,
                "%.*s lists the layers of %u pipeline stages, but there are files of %u", TSR_STR_ARG(map->name),
                map->stage_count, stages->count);
    TSR_TRY(tsr_shards_stages_of(pattern, j->arena, stages, j->err));
    stages->layers = map->stage_layers;
    if (map->family) {
        uint64_t *layers = tsr_arena_array(j->arena, stages->count, sizeof *layers, j->err);
        if (!layers) return TSR_E_NOMEM;
        TSR_TRY(count_layers(j, layers));
        stages->layers = layers;
    }
    return tsr_shards_stages_number(stages, j->arena, j->err);
}

/* ---- the tensors of one stage ---- */

static tsr_str file_of(const join *j, const tsr_entry *entry, uint32_t rank)
{
    const bool has_file = entry && entry->chunk_count && entry->chunks[0].file != TSR_NO_FILE;
    if (has_file) return j->checkpoint->store->files[entry->chunks[0].file].name;
    return tsr_arena_format(j->arena, j->err, "rank %u", rank);
}

static tsr_status check_present(const join *j, const tsr_shards_held *held, const tsr_shards_rule *rule)
{
    for (uint32_t r = 0; r < held->ranks; r++) {
        const tsr_entry *entry = held->tensors[r];
        TSR_FAIL_IF(!entry, j->err, TSR_E_FORMAT, "rank %u has no '%.*s', which the rule '%.*s' joins from all %u ranks", r,
                    TSR_STR_ARG(held->fqn), TSR_STR_ARG(rule->match), held->ranks);
        TSR_FAIL_IF(!tsr_entry_is_one_chunk(entry), j->err, TSR_E_UNSUPPORTED,
                    "'%.*s' is not a dense tensor on rank %u; only dense tensors can be joined", TSR_STR_ARG(held->fqn), r);
    }
    return TSR_OK;
}

/* Keeps the first rank's tensor, with those of the other ranks as replicas. */
static tsr_status keep_first(const join *j, const tsr_shards_held *held, tsr_entry *out)
{
    tsr_chunk *replicas = tsr_arena_array(j->arena, held->ranks, sizeof *replicas, j->err);
    if (!replicas) return TSR_E_NOMEM;
    for (uint32_t r = 1; r < held->ranks; r++) replicas[r - 1] = held->tensors[r]->chunks[0];
    out->replicas = replicas;
    out->replica_count = held->ranks - 1;
    return TSR_OK;
}

/* Sets *other to the first rank whose tensor differs from rank 0's, or to held->ranks if none does. */
static tsr_status find_other(join *j, const tsr_shards_held *held, uint32_t *other)
{
    for (*other = 0; *other < held->ranks; ++*other) {
        bool same = held->tensors[0] && held->tensors[*other] && tsr_entry_is_one_chunk(held->tensors[0]);
        if (same && *other) TSR_TRY(shards_equal(&j->equality, held->tensors[0], held->tensors[*other], &same, j->err));
        if (!same) return TSR_OK;
    }
    return TSR_OK;
}

static tsr_status replicate(join *j, const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_entry *out)
{
    uint32_t other;
    TSR_TRY(find_other(j, held, &other));
    TSR_FAIL_IF(other < held->ranks, j->err, TSR_E_FORMAT,
                "'%.*s' differs between %.*s and %.*s, but the rule '%.*s' treats it as replicated", TSR_STR_ARG(held->fqn),
                TSR_STR_ARG(file_of(j, held->tensors[0], 0)), TSR_STR_ARG(file_of(j, held->tensors[other], other)),
                TSR_STR_ARG(rule->match));
    return keep_first(j, held, out);
}

/* Checks that the replicas of a joined tensor, which are copies according to the rule, are equal to their chunks. */
static tsr_status join_check_copies(join *j, const tsr_entry *entry)
{
    for (uint64_t c = 0; c < entry->replica_count; c++) {
        const tsr_chunk *copy = &entry->replicas[c];
        for (uint64_t i = 0; i < entry->chunk_count; i++) {
            bool same = true;
            if (memcmp(entry->chunks[i].offsets, copy->offsets, entry->ndim * sizeof *copy->offsets) != 0) continue;
            TSR_TRY(shards_equal_chunks(&j->equality, entry, &entry->chunks[i], copy, &same, j->err));
            TSR_FAIL_IF(!same, j->err, TSR_E_FORMAT, "'%.*s' has blocks that should be replicas, but %.*s and %.*s differ",
                        TSR_STR_ARG(entry->fqn), TSR_STR_ARG(j->checkpoint->store->files[entry->chunks[i].file].name),
                        TSR_STR_ARG(j->checkpoint->store->files[copy->file].name));
        }
    }
    return TSR_OK;
}

static tsr_status only_rank(const join *j, const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_entry *out)
{
    const tsr_entry *entry = rule->rank < held->ranks ? held->tensors[rule->rank] : NULL;
    TSR_FAIL_IF(!entry, j->err, TSR_E_FORMAT, "'%.*s' is not on rank %u, where the rule '%.*s' expects it (%u ranks)",
                TSR_STR_ARG(held->fqn), rule->rank, TSR_STR_ARG(rule->match), held->ranks);
    const tsr_str fqn = out->fqn;
    const tsr_path_item *path = out->path;
    *out = *entry;
    out->fqn = fqn;
    out->path = path;
    out->storage_id = 0;
    return TSR_OK;
}

static tsr_status apply(join *j, const tsr_shards_held *held, const tsr_shards_choice *choice, tsr_entry *out)
{
    const tsr_shards_rule *rule = &choice->rule;
    if (rule->kind == TSR_SHARDS_ONLY_RANK) return only_rank(j, held, rule, out);
    TSR_TRY(check_present(j, held, rule));
    if (rule->kind == TSR_SHARDS_REPLICATE) return replicate(j, held, rule, out);
    out->storage_id = 0; /* a tensor joined from several storages shares none */
    if (rule->kind == TSR_SHARDS_STACK) return shards_stack(held, rule, j->arena, out, j->err);
    TSR_TRY(shards_concat(held, rule, j->arena, out, j->err));
    TSR_FAIL_IF(choice->expected && out->shape[rule->dim] != choice->expected, j->err, TSR_E_FORMAT,
                "'%.*s' has size %" PRIu64
                " along dim %d after joining %u ranks, but according to the model's settings it should be %" PRIu64,
                TSR_STR_ARG(out->fqn), out->shape[rule->dim], (int)rule->dim, held->ranks, choice->expected);
    return join_check_copies(j, out);
}

/* For a tensor without a rule: keeps it as a whole tensor if all ranks have the same, otherwise lists it per rank. */
static tsr_status keep_per_rank(join *j, const tsr_entry *entry, const tsr_shards_held *held, uint32_t stage, tsr_entry *out)
{
    const uint32_t all = entry->per_rank->count;
    const tsr_entry **tensors = tsr_arena_array(j->arena, all, sizeof *tensors, j->err);
    if (!tensors) return TSR_E_NOMEM;
    memcpy(tensors + (size_t)stage * j->ranks, held->tensors, held->ranks * sizeof(const tsr_entry *));
    TSR_TRY(tsr_entry_list_per_rank(out, tensors, all, j->arena, j->err));
    j->left++;
    return TSR_OK;
}

static tsr_status settle(join *j, const tsr_entry *entry, const tsr_shards_held *held, uint32_t stage, tsr_entry *out)
{
    tsr_shards_choice choice;
    uint32_t other = held->ranks;
    TSR_TRY(shards_choose_rule(j->map, &j->settings, held, &choice, j->err));
    if (choice.known) return apply(j, held, &choice, out);
    const bool may_be_whole = choice.equal_is_enough || held->ranks == 1;
    if (held->ranks == 1 && out->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    if (may_be_whole) TSR_TRY(find_other(j, held, &other));
    return may_be_whole && other == held->ranks ? keep_first(j, held, out) : keep_per_rank(j, entry, held, stage, out);
}

/* ---- all entries ---- */

/* If two stages have the same boxes with the same elements, those of the later stage become replicas. */
static tsr_status merge_stages(join *j, tsr_entry *first, const tsr_entry *second)
{
    bool same = first->kind == TSR_ENTRY_TENSOR && second->kind == TSR_ENTRY_TENSOR && first->dtype == second->dtype &&
                first->chunk_count == second->chunk_count && tsr_entry_same_shape(first, second);
    for (uint64_t c = 0; same && c < first->chunk_count; c++) {
        const tsr_chunk *a = &first->chunks[c], *b = &second->chunks[c];
        same = !first->ndim || memcmp(a->offsets, b->offsets, first->ndim * sizeof *a->offsets) == 0;
        if (same) TSR_TRY(shards_equal_chunks(&j->equality, first, a, b, &same, j->err));
    }
    TSR_FAIL_IF(!same, j->err, TSR_E_FORMAT, "'%.*s' is in several pipeline stages and differs between them%s",
                TSR_STR_ARG(first->fqn), j->stages.first ? "" : "; if it is a layer, the map needs \"stages\"");
    return tsr_entry_add_replicas(first, second, j->arena, j->err);
}

static tsr_status add(join *j, const tsr_entry *made)
{
    uint32_t *number;
    bool is_new;
    TSR_TRY(tsr_map_put(j->names, made->fqn, (uint32_t)j->joined.count, &number, &is_new, j->err));
    tsr_entry *known = is_new ? tsr_vec_push(&j->joined, j->err) : (tsr_entry *)j->joined.items + *number;
    if (!known) return TSR_E_NOMEM;
    if (is_new) *known = *made;
    else if (tsr_entry_is_any_tensor(made) && tsr_entry_is_any_tensor(known)) return merge_stages(j, known, made);
    return TSR_OK; /* for objects, the first stage's is kept, as is the first rank's (torch/rank-object) */
}

static tsr_status join_entry(join *j, const tsr_entry *entry, uint32_t stage)
{
    tsr_shards_held held = {held_by(j, entry, stage), j->ranks, {NULL, 0}};
    const tsr_entry *first = first_of(j, held.tensors);
    if (!first) return TSR_OK;
    tsr_entry made = *first;
    if (entry->storage_id && first == entry->per_rank->tensors[0]) made.storage_id = entry->storage_id;
    else made.storage_id = 0;
    TSR_TRY(shards_rename(&j->stages, stage, j->arena, &made, j->err));
    held.fqn = made.fqn;
    bool any_tensor = false;
    for (uint32_t r = 0; r < j->ranks; r++)
        any_tensor = any_tensor || (held.tensors[r] && tsr_entry_is_any_tensor(held.tensors[r]));
    if (any_tensor) TSR_TRY(settle(j, entry, &held, stage, &made));
    return add(j, &made);
}

static tsr_status report_left(const join *j)
{
    if (!j->left) return TSR_OK;
    return tsr_finding_add_at(j->checkpoint->findings, (tsr_rated_rule){"torch/rank-differs", TSR_NOTE}, TSR_NOWHERE, j->err,
                              "%" PRIu64 " %s no rule in %.*s and %s listed per rank", j->left,
                              j->left == 1 ? "tensor has" : "tensors have", TSR_STR_ARG(j->map->name),
                              j->left == 1 ? "stays" : "stay");
}

static tsr_status join_all(join *j)
{
    tsr_catalog *catalog = &j->checkpoint->catalog;
    TSR_TRY(number_stages(j));
    for (uint32_t s = 0; s < j->stages.count; s++)
        for (uint64_t e = 0; e < catalog->entry_count; e++) TSR_TRY(join_entry(j, &catalog->entries[e], s));
    tsr_entry *entries = tsr_arena_array(j->arena, j->joined.count, sizeof *entries, j->err);
    if (!entries) return TSR_E_NOMEM;
    if (j->joined.count) memcpy(entries, j->joined.items, j->joined.count * sizeof *entries);
    catalog->entries = entries;
    catalog->entry_count = j->joined.count;
    catalog->format = TSR_FORMAT_SHARDS;
    return report_left(j);
}

tsr_status tsr_shards_join(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    const tsr_catalog *catalog = &checkpoint->catalog;
    if (!checkpoint->joined_ranks || !catalog->entry_count) return TSR_OK;
    join j = {.checkpoint = checkpoint,
              .map = checkpoint->options.shards,
              .arena = checkpoint->arena,
              .equality = {checkpoint, tsr_rank_bytes_allowed(checkpoint->store)},
              .joined = tsr_vec_of(allocator, sizeof(tsr_entry)),
              .err = err};
    const uint32_t stages = checkpoint->stages ? checkpoint->stages : 1;
    j.ranks = catalog->entries[0].per_rank->count / stages;
    j.names = tsr_map_new(allocator, 0, err);
    tsr_status status = j.names ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK && j.map->family) status = j.map->family->settings(checkpoint, j.ranks, stages, &j.settings, err);
    if (status == TSR_OK) status = join_all(&j);
    tsr_map_free(j.names);
    tsr_vec_free(&j.joined);
    return status;
}
