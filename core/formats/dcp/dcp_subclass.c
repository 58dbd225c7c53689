/* Tensor subclasses (such as torchao's quantized weights) and PyTorch's own quantized tensors in a DCP. The metadata describes
 * them as plain tensors with their outer dtype and size; only the item shows that it stores several tensors, or scales next to
 * the elements.
 *
 * Listing opens no items of tensors except those of quantized dtypes and those whose length shows that they are not plain. What
 * surrounds the elements of a plain tensor has one of a few lengths, which depend on the version of PyTorch. A length that turned
 * out to belong to a plain tensor is not examined again.
 *
 * The items of a few small matrices have such a length by chance: what a quantized tensor lacks in elements, its longer pickle adds.
 * So small matrices are examined whatever their length, if there are few, or if the checkpoint has tensor subclasses. */
#include "formats/common/expansion.h"
#include "formats/common/rank_entries.h"
#include "formats/dcp/dcp_state.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_writer.h"
#include "tessera/box.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

enum { STEP = 64, LENGTHS = 64 };                 /* bytes; what exceeds their product is always examined */
enum { SMALL_BYTES = 64 * 1024, FEW_SMALL = 64 }; /* of a matrix; how many of them are examined in any checkpoint */

typedef struct search {
    tsr_checkpoint *checkpoint;
    bool plain[LENGTHS]; /* by the length of what surrounds the elements, in steps */
    tsr_map *seen;
    bool found; /* any */
    tsr_error *err;
} search;

/* Marks the lengths that PyTorch 2.13 writes, and those of versions before 2.6, which write two or three members fewer. */
static void open_lengths(search *s)
{
    for (size_t i = 0; i < LENGTHS; i++) s->plain[i] = (i >= 16 && i < 20) || (i >= 22 && i < 26);
}

/* The bytes that the elements of a tensor's first chunk have, if its item can be examined. */
static bool can_examine(const search *s, const tsr_entry *entry, uint64_t *bytes)
{
    const tsr_chunk *chunk = entry->chunks;
    const tsr_entry stored = {.dtype = entry->dtype, .ndim = entry->ndim, .shape = entry->chunk_count ? chunk->sizes : NULL};
    if (entry->kind != TSR_ENTRY_TENSOR || !entry->chunk_count || chunk->view || !tsr_entry_bytes(&stored, bytes))
        return false;
    return chunk->file != TSR_NO_FILE && tsr_dcp_transform_of(tsr_dcp_state_of(s->checkpoint), chunk) == TSR_DCP_PLAIN;
}

static bool is_quantized(const tsr_entry *entry)
{
    return tsr_dtype_describe(entry->dtype)->kind == TSR_CLASS_QUANTIZED;
}

/* Whether the item of a tensor must be examined. *length is the length of what surrounds the elements, in steps. */
static bool is_odd(const search *s, const tsr_entry *entry, size_t *length)
{
    uint64_t bytes;
    const tsr_chunk *chunk = entry->chunks;
    *length = LENGTHS;
    if (!can_examine(s, entry, &bytes)) return false;
    if (is_quantized(entry)) return true;
    const uint64_t around = chunk->byte_length >= bytes ? (chunk->byte_length - bytes) / STEP : LENGTHS;
    if (around < LENGTHS) *length = (size_t)around;
    return around >= LENGTHS || !s->plain[around];
}

/* Reads the item of a chunk. *own is opaque if it stores a subclass or a quantized tensor of the chunk's dtype and sizes. Items
 * that cannot be read, or that hold a different tensor, are reported when the tensor is read. */
static tsr_status read_chunk(search *s, const tsr_entry *entry, const tsr_chunk *chunk, size_t length, tsr_entry *own)
{
    tsr_checkpoint *checkpoint = s->checkpoint;
    tsr_torch_item item;
    tsr_error why = {0};
    *own = (tsr_entry){.dtype = entry->dtype, .ndim = entry->ndim, .shape = chunk->sizes};
    if (chunk->file == TSR_NO_FILE || chunk->view) return TSR_OK;
    const tsr_status status =
        tsr_dcp_open_item((tsr_dcp_item){checkpoint, entry, chunk}, checkpoint->arena, NULL, &item, &why);
    if (status == TSR_E_NOMEM || status == TSR_E_CANCELLED || status == TSR_E_IO)
        return tsr_raise_again(s->err, status, &why);
    if (status != TSR_OK) return TSR_OK;
    if (item.root->kind == TSR_VALUE_TENSOR && length < LENGTHS) s->plain[length] = true;
    if (is_quantized(entry) ? item.root->kind != TSR_VALUE_OBJECT : !tsr_torch_is_subclass(item.root)) return TSR_OK;
    tsr_expansion_add(&checkpoint->expansion, item.pickle_bytes);
    tsr_entry found = *own;
    TSR_TRY(tsr_torch_leaf(item.root, checkpoint->host, s->seen, checkpoint->arena, &found, s->err));
    TSR_TRY(tsr_expansion_take_value(&checkpoint->expansion, &found.value, checkpoint->arena, s->err));
    if (found.dtype == own->dtype && tsr_entry_same_shape(&found, own)) *own = found;
    return TSR_OK;
}

/* Turns the entry into that of the subclass in its items. If one of several items cannot be read, the entry has no value, and
 * a finding says why. */
static tsr_status look_into(search *s, tsr_entry *entry, size_t length)
{
    tsr_checkpoint *checkpoint = s->checkpoint;
    const uint64_t count = entry->chunk_count;
    tsr_entry own;
    TSR_TRY(read_chunk(s, entry, &entry->chunks[0], length, &own));
    if (own.kind != TSR_ENTRY_OPAQUE) return TSR_OK;
    tsr_chunk *chunks = tsr_arena_array(checkpoint->arena, (size_t)count, sizeof *chunks, s->err);
    const tsr_value **pieces = tsr_arena_array(checkpoint->arena, (size_t)count, sizeof *pieces, s->err);
    if (!chunks || !pieces) return TSR_E_NOMEM;
    memcpy(chunks, entry->chunks, (size_t)count * sizeof *chunks);
    pieces[0] = own.value;
    s->found = true;
    entry->kind = TSR_ENTRY_OPAQUE;
    entry->type = own.type;
    entry->is_sharded = count > 1;
    for (uint64_t i = 1; i < count; i++) {
        TSR_TRY(read_chunk(s, entry, &chunks[i], LENGTHS, &own));
        pieces[i] = own.kind == TSR_ENTRY_OPAQUE && tsr_str_equal(own.type, entry->type) ? own.value : NULL;
        if (pieces[i] || chunks[i].file == TSR_NO_FILE) continue;
        const tsr_place place = {checkpoint->store->files[chunks[i].file].name, chunks[i].byte_offset, entry->fqn};
        TSR_TRY(tsr_finding_add(checkpoint->findings, "dcp/item", place, s->err,
                                "an item of '%.*s' does not contain the %.*s of its chunk", TSR_STR_ARG(entry->fqn),
                                TSR_STR_ARG(entry->type)));
    }
    for (uint64_t i = 0; i < count; i++)
        if (!pieces[i]) return TSR_OK;
    return tsr_entry_set_pieces(entry, chunks, pieces, count, checkpoint->arena, s->err);
}

/* Whether the length of the item may be that of a plain tensor by chance. */
static bool may_collide(const search *s, const tsr_entry *entry)
{
    uint64_t bytes;
    size_t length;
    return entry->ndim >= 2 && can_examine(s, entry, &bytes) && bytes <= SMALL_BYTES && !is_odd(s, entry, &length);
}

/* Examines small matrices whose items have the length of plain tensors. Where reads are requests, a checkpoint is listed without its data
 * files, unless others of its tensors are subclasses; then the items are fetched together. */
static tsr_status look_into_small(search *s, tsr_entry *entries, uint64_t count)
{
    tsr_store *store = s->checkpoint->store;
    tsr_store_place places[FEW_SMALL];
    uint64_t small = 0;
    for (uint64_t i = 0; i < count && small <= FEW_SMALL; i++) {
        if (!may_collide(s, &entries[i])) continue;
        const tsr_chunk *chunk = entries[i].chunks;
        if (small < FEW_SMALL) places[small] = (tsr_store_place){chunk->file, chunk->byte_offset, chunk->byte_length};
        small++;
    }
    if (!s->found && (small > FEW_SMALL || store->guard || store->prefetch)) return TSR_OK;
    if (store->prefetch && small > 1) store->prefetch(store, places, small < FEW_SMALL ? (size_t)small : FEW_SMALL);
    for (uint64_t i = 0; i < count; i++)
        if (may_collide(s, &entries[i])) TSR_TRY(look_into(s, &entries[i], LENGTHS));
    return TSR_OK;
}

tsr_status tsr_dcp_find_subclasses(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err)
{
    search s = {.checkpoint = checkpoint, .err = err};
    tsr_status status = TSR_OK;
    s.seen = tsr_map_new(checkpoint->host->allocator, 0, err);
    if (!s.seen) return TSR_E_NOMEM;
    open_lengths(&s);
    for (uint64_t i = 0; i < count && status == TSR_OK; i++) {
        size_t length;
        if (is_odd(&s, &entries[i], &length)) status = look_into(&s, &entries[i], length);
    }
    if (status == TSR_OK) status = look_into_small(&s, entries, count);
    tsr_map_free(s.seen);
    return status;
}
