/* One item of a DCP data file: a torch.save archive, either plain or inside a zstd stream (dcp_zstd.c).
 *
 *   [ archive/data.pkl | … | archive/data/0 | … | central directory ]   at [byte_offset, + byte_length) of the file */
#include "base/cursor.h"
#include "formats/common/expansion.h"
#include "formats/dcp/dcp_state.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_writer.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

tsr_status tsr_dcp_open_item(tsr_dcp_item item, tsr_arena *arena, tsr_findings *findings, tsr_torch_item *out,
                             tsr_error *err)
{
    const tsr_chunk *chunk = item.chunk;
    const tsr_dcp_state *state = tsr_dcp_state_of(item.checkpoint);
    TSR_FAIL_AT(
        tsr_dcp_transform_of(state, chunk) == TSR_DCP_EXTENDED, err, TSR_E_UNSUPPORTED, chunk->byte_offset,
        "dcp: the item of '%.*s' is stored through the extension '%.*s', which only the program that has it can undo",
        TSR_STR_ARG(item.entry->fqn), TSR_STR_ARG(state->extension));
    if (tsr_dcp_is_zstd(tsr_dcp_state_of(item.checkpoint), chunk)) return tsr_dcp_open_zstd(item, arena, findings, out, err);
    const tsr_torch_source from = {.range = {item.checkpoint->store, chunk->file, chunk->byte_offset, chunk->byte_length}};
    return tsr_torch_item_open(&from, item.checkpoint->host, arena, findings, out, err);
}

/* A tensor's shape and dtype as "[3, 4] float32". The text is in the arena, which is freed soon after the error is
 * reported. */
static tsr_str describe(tsr_arena *arena, tsr_dtype dtype, const uint64_t *sizes, uint32_t ndim, tsr_error *err)
{
    tsr_str text = {"", 0};
    for (uint32_t d = 0; d < ndim && text.data; d++) {
        text = tsr_arena_format(arena, err, "%.*s%s%llu", TSR_STR_ARG(text), d ? ", " : "", (unsigned long long)sizes[d]);
    }
    return text.data ? tsr_arena_format(arena, err, "[%.*s] %s", TSR_STR_ARG(text), tsr_dtype_describe(dtype)->name) : text;
}

tsr_status tsr_dcp_view_of(const tsr_entry *entry, const tsr_chunk *chunk, const tsr_torch_item *item, tsr_arena *arena,
                           tsr_view *out, tsr_error *err)
{
    TSR_FAIL_AT(tsr_torch_is_subclass(item->root), err, TSR_E_FORMAT, chunk->byte_offset,
                "dcp: the item of '%.*s' contains a %.*s of another dtype or shape than the metadata states",
                TSR_STR_ARG(entry->fqn), TSR_STR_ARG(item->root->text));
    TSR_FAIL_AT(item->root->kind != TSR_VALUE_TENSOR, err, TSR_E_FORMAT, chunk->byte_offset,
                "dcp: the item of '%.*s' does not contain a dense tensor", TSR_STR_ARG(entry->fqn));
    const tsr_entry *inner = item->root->as.tensor;
    bool same = inner->dtype == entry->dtype && inner->ndim == entry->ndim && inner->chunk_count == 1;
    for (uint32_t d = 0; same && d < entry->ndim; d++) same = inner->shape[d] == chunk->sizes[d];
    if (!same) {
        tsr_str found = describe(arena, inner->dtype, inner->shape, inner->ndim, err),
                wanted = describe(arena, entry->dtype, chunk->sizes, entry->ndim, err);
        if (!found.data || !wanted.data) return TSR_E_NOMEM;
        return tsr_raise(err, TSR_E_FORMAT, chunk->byte_offset,
                         "dcp: the item of '%.*s' contains a tensor %.*s, but the metadata states %.*s",
                         TSR_STR_ARG(entry->fqn), TSR_STR_ARG(found), TSR_STR_ARG(wanted));
    }
    const tsr_chunk *place = inner->chunks;
    *out = place->view ? *place->view : (tsr_view){.file = place->file, .byte_offset = place->byte_offset};
    return TSR_OK;
}

/* The CRC of the member whose bytes are exactly the tensor's elements. */
static void find_crc(const tsr_torch_item *item, const tsr_view *view, tsr_stated_crc *out)
{
    uint64_t bytes;
    if (!tsr_entry_bytes(item->root->as.tensor, &bytes) || !tsr_view_is_plain(view) || item->zip.crc_absent) return;
    for (uint32_t i = 0; i < item->zip.count && !out->is_stated; i++) {
        const tsr_zip_member *member = &item->zip.members[i];
        out->is_stated = member->byte_offset == view->byte_offset && member->size == bytes;
        out->crc32 = out->is_stated ? member->crc32 : 0;
    }
}

tsr_status tsr_dcp_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                        tsr_found *out, tsr_error *err)
{
    tsr_torch_item item;
    *out = (tsr_found){0};
    TSR_TRY(tsr_dcp_open_item((tsr_dcp_item){checkpoint, entry, chunk}, scratch, NULL, &item, err));
    TSR_TRY(tsr_dcp_view_of(entry, chunk, &item, scratch, &out->view, err));
    if (!tsr_dcp_is_zstd(tsr_dcp_state_of(checkpoint), chunk)) find_crc(&item, &out->view, &out->crc);
    return TSR_OK;
}

tsr_status tsr_dcp_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          tsr_view *out, tsr_error *err)
{
    tsr_found found;
    const tsr_status status = tsr_dcp_find(checkpoint, entry, chunk, scratch, &found, err);
    *out = found.view;
    if (status != TSR_OK) {
        tsr_error_context(err, "item of '%.*s' at byte %llu of %.*s", TSR_STR_ARG(entry->fqn),
                          (unsigned long long)chunk->byte_offset, TSR_STR_ARG(checkpoint->store->files[chunk->file].name));
    }
    return status;
}

tsr_status tsr_dcp_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                       tsr_stated_crc *out, tsr_error *err)
{
    tsr_found found;
    if (chunk->view || tsr_dcp_transform_of(tsr_dcp_state_of(checkpoint), chunk) != TSR_DCP_PLAIN)
        return TSR_OK; /* there is no archive, or it is compressed */
    TSR_TRY(tsr_dcp_find(checkpoint, entry, chunk, scratch, &found, err));
    *out = found.crc;
    return TSR_OK;
}

/* ---- byte items ---- */

tsr_status tsr_dcp_bad_item(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, const tsr_error *why,
                            tsr_error *err)
{
    uint64_t position = why->byte_position == TSR_NO_POSITION ? chunk->byte_offset : why->byte_position;
    tsr_place place = {checkpoint->store->files[chunk->file].name, position, entry->fqn};
    return tsr_finding_add_failure(checkpoint->findings, "dcp/item", place, why, err);
}

/* Objects that were already read, by the position of their items: metadata can name one item for any number of entries. */
typedef struct read_items {
    tsr_map *seen;   /* containers already searched for tensors */
    tsr_map *places; /* {file, byte_offset, byte_length} → entry */
    uint64_t left;   /* bytes of items that may still be read: the size of all files together */
} read_items;

static tsr_status read_new_object(tsr_checkpoint *checkpoint, tsr_entry *entry, read_items *items, tsr_error *err)
{
    const tsr_chunk *chunk = &entry->chunks[0];
    tsr_torch_item item;
    tsr_error why = {0};
    TSR_FAIL_AT(chunk->byte_length > items->left, err, TSR_E_LIMIT, chunk->byte_offset,
                "dcp: the item of '%.*s' overlaps others: the items of objects have more bytes in total than the files",
                TSR_STR_ARG(entry->fqn));
    items->left -= chunk->byte_length;
    const tsr_dcp_item at = {checkpoint, entry, chunk};
    tsr_status status = tsr_dcp_open_item(at, checkpoint->arena, checkpoint->findings, &item, &why);
    if (status != TSR_OK) return tsr_dcp_bad_item(checkpoint, entry, chunk, &why, err);
    tsr_expansion_add(&checkpoint->expansion,
                      item.pickle_bytes < chunk->byte_length ? item.pickle_bytes : chunk->byte_length);
    return tsr_torch_leaf(item.root, checkpoint->host, items->seen, checkpoint->arena, entry, err);
}

static void copy_object(const tsr_entry *from, tsr_entry *to)
{
    to->kind = from->kind;
    to->value = from->value;
    to->type = from->type;
    to->dtype = from->dtype;
    to->shape = from->shape;
    to->ndim = from->ndim;
}

/* Megatron-Core keeps values of many names in this object (megatron_common.c), so names depend on it, too. */
static bool holds_names(const tsr_entry *entry)
{
    return tsr_str_equal(entry->fqn, TSR_STR("common_state")) || tsr_str_starts(entry->fqn, TSR_STR("common_state/"));
}

static tsr_status read_object(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t number, read_items *items,
                              tsr_error *err)
{
    tsr_entry *entry = &entries[number];
    const tsr_chunk *chunk = &entry->chunks[0];
    entry->type = TSR_STR("object");
    if (chunk->file == TSR_NO_FILE || (checkpoint->options.skip_objects && !holds_names(entry))) return TSR_OK;
    if (tsr_dcp_transform_of(tsr_dcp_state_of(checkpoint), chunk) == TSR_DCP_EXTENDED) return TSR_OK;
    uint64_t *place = tsr_arena_array(checkpoint->arena, 3, sizeof *place, err);
    if (!place) return TSR_E_NOMEM;
    place[0] = chunk->file;
    place[1] = chunk->byte_offset;
    place[2] = chunk->byte_length;
    uint32_t *first;
    bool fresh;
    const tsr_str key = {(const char *)place, 3 * sizeof *place};
    TSR_TRY(tsr_map_put(items->places, key, (uint32_t)number, &first, &fresh, err));
    if (fresh) TSR_TRY(read_new_object(checkpoint, entry, items, err));
    else copy_object(&entries[*first], entry);
    return tsr_expansion_take_value(&checkpoint->expansion, &entry->value, checkpoint->arena, err);
}

tsr_status tsr_dcp_read_objects(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err)
{
    tsr_status status = TSR_OK;
    read_items items = {.seen = tsr_map_new(checkpoint->host->allocator, 0, err)};
    items.places = items.seen ? tsr_map_new(checkpoint->host->allocator, 0, err) : NULL;
    if (!items.places) status = TSR_E_NOMEM;
    for (uint32_t i = 0; i < checkpoint->store->file_count; i++)
        if (!tsr_add_u64(items.left, checkpoint->store->files[i].size, &items.left)) items.left = UINT64_MAX;
    for (uint64_t i = 0; i < count && status == TSR_OK; i++) {
        if (entries[i].kind == TSR_ENTRY_OBJECT) status = read_object(checkpoint, entries, i, &items, err);
    }
    tsr_map_free(items.seen);
    tsr_map_free(items.places);
    return status;
}
