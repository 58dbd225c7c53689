/* Loading: every rank opens the checkpoint and reads the boxes it holds, straight into them where they are one run of host
 * memory. What goes to a device passes through halves of the buffer: the next tile is read while the last one is copied. */
#include <inttypes.h>

#include "statedict/halves.h"
#include "statedict/pack.h"
#include "statedict/state_dict.h"
#include "statedict/state_flat.h"
#include "statedict/value_pack.h"
#include "statedict/warn.h"
#include "tessera/folder.h"
#include "tessera/read.h"
#include "tessera/save_load.h"

#define BUFFER_BYTES_DEFAULT ((size_t)16 << 20)

typedef struct loading {
    tsr_comm *comm;
    tsr_load_options options;
    tsr_state_dict *out;
    tsr_arena *arena;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_flat flat;
    const tsr_value **values; /* by flat entry: as they become */
    size_t next;              /* of them, while the tree is made again */
    tsr_halves halves; /* of the buffer */
    tsr_name_tally missing;
} loading;

/* ---- one tensor ---- */

static tsr_status check_entry(const loading *l, const tsr_entry *entry, const tsr_tensor *tensor, tsr_error *err)
{
    uint64_t shape[TSR_MAX_RANK] = {0};
    tsr_tensor stored = tsr_tensor_whole(entry->dtype, entry->rank, shape, NULL);
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_TENSOR || entry->rank > TSR_MAX_RANK, err, TSR_E_USAGE,
                "a tensor in the state dict, %s in the checkpoint", tsr_entry_kind_name(entry->kind));
    if (entry->rank) memcpy(shape, entry->shape, entry->rank * sizeof *shape);
    if (entry->rank) tsr_dtype_pack(&stored.entry.dtype, &shape[entry->rank - 1]);
    return tsr_tensor_same_place(tensor, &stored, false, "the state dict", "the checkpoint", l->arena, err);
}

/* A tile at `at` that fits the buffer: whole rows of as many inner dims as do, and a part of the one above. */
static void size_tile(const tsr_piece *piece, uint32_t rank, uint32_t itemsize, size_t room, const uint64_t *at,
                      uint64_t *sizes)
{
    uint64_t inner = itemsize;
    uint32_t d = rank;
    for (; d > 0 && inner <= room / piece->sizes[d - 1]; d--) inner *= sizes[d - 1] = piece->sizes[d - 1];
    for (uint32_t i = 0; i < d; i++) sizes[i] = 1;
    if (d == 0) return;
    const uint64_t left = piece->sizes[d - 1] - at[d - 1];
    sizes[d - 1] = left < room / inner ? left : room / inner;
}

static bool next_tile(const tsr_piece *piece, uint32_t rank, const uint64_t *sizes, uint64_t *at)
{
    for (uint32_t d = rank; d-- > 0; at[d] = 0) {
        at[d] += sizes[d];
        if (at[d] < piece->sizes[d]) return true;
    }
    return false;
}

static tsr_status read_tile(loading *l, const tsr_entry *entry, const tsr_tensor *tensor, const tsr_piece *piece,
                            const uint64_t *at, const uint64_t *sizes, tsr_error *err)
{
    const uint32_t rank = tensor->entry.rank;
    uint64_t offsets[TSR_MAX_RANK], local[TSR_MAX_RANK], elements;
    for (uint32_t d = 0; d < rank; d++) {
        offsets[d] = piece->offsets[d] + at[d];
        local[d] = piece->local_offsets[d] + at[d];
    }
    tsr_box_volume((tsr_box){rank, NULL, sizes}, &elements);
    tsr_link link = {.rank = rank,
                     .itemsize = tsr_dtype_size(tensor->entry.dtype),
                     .offsets = local,
                     .sizes = sizes,
                     .buffer_sizes = piece->buffer_sizes,
                     .data = piece->data,
                     .device = tensor->device};
    link.bytes = elements * link.itemsize;
    tsr_stream stream = tsr_stream_of(&link, 1);
    uint8_t *there = tsr_stream_peek(&stream, false, link.bytes);
    if (there) return tsr_read_box(l->checkpoint, entry, offsets, sizes, there, (size_t)link.bytes, err);
    uint8_t *taken = tensor->device ? tsr_halves_take(&l->halves, (size_t)link.bytes) : l->halves.memory;
    TSR_TRY(tsr_read_box(l->checkpoint, entry, offsets, sizes, taken, (size_t)link.bytes, err));
    if (tensor->device) TSR_TRY(tsr_halves_filled(&l->halves, err));
    return tsr_stream_unpack(&stream, taken, NULL, link.bytes, err);
}

/* A piece that is one run of host memory is read at once; others tile by tile. */
static tsr_status read_piece(loading *l, const tsr_entry *entry, const tsr_tensor *tensor, const tsr_piece *piece,
                             tsr_error *err)
{
    const uint32_t rank = tensor->entry.rank, itemsize = tsr_dtype_size(tensor->entry.dtype);
    const size_t room = tensor->device ? tsr_halves_room(&l->halves) : l->halves.bytes;
    uint64_t at[TSR_MAX_RANK] = {0}, sizes[TSR_MAX_RANK];
    const bool direct = !tensor->device && tsr_box_is_contiguous((tsr_box){rank, NULL, piece->buffer_sizes},
                                                                 (tsr_box){rank, piece->local_offsets, piece->sizes});
    if (direct) return read_tile(l, entry, tensor, piece, at, piece->sizes, err);
    if (tensor->device) TSR_TRY(tsr_halves_use(&l->halves, tensor->device, err));
    do {
        size_tile(piece, rank, itemsize, room, at, sizes);
        TSR_TRY(read_tile(l, entry, tensor, piece, at, sizes, err));
    } while (next_tile(piece, rank, sizes, at));
    return TSR_OK;
}

static tsr_status load_tensor(loading *l, const tsr_entry *entry, const tsr_value **value, tsr_error *err)
{
    const tsr_tensor *tensor = tsr_tensor_of(*value);
    const tsr_piece *pieces;
    uint64_t count;
    TSR_TRY(check_entry(l, entry, tensor, err));
    if (tensor->meta) {
        tsr_tensor *copy;
        TSR_TRY(tsr_state_dict_copy_tensor(l->out, tensor, &copy, err));
        TSR_TRY(tsr_state_dict_give_memory(l->out, copy, NULL, err));
        *value = tsr_state_dict_leaf(l->out, copy, err);
        if (!*value) return TSR_E_NOMEM;
        tensor = copy;
    }
    tsr_arena *passing = tsr_arena_new(l->out->host->allocator, 0, err);
    if (!passing) return TSR_E_NOMEM;
    tsr_status status = tsr_tensor_pieces(tensor, passing, &pieces, &count, err);
    for (uint64_t i = 0; i < count && status == TSR_OK; i++) {
        status = pieces[i].data ? read_piece(l, entry, tensor, &pieces[i], err)
                                : tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "the tensor has no memory");
    }
    tsr_arena_free(passing);
    return status;
}

/* ---- all ---- */

/* A copy of the checkpoint's value that outlives it. */
static tsr_status load_object(loading *l, const tsr_entry *entry, const tsr_value **value, tsr_error *err)
{
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_OBJECT || !entry->value || tsr_names_tensor(entry->value), err, TSR_E_USAGE,
                "no tensor in the state dict, %s in the checkpoint",
                entry->kind == TSR_ENTRY_OBJECT ? "an object with tensors inside" : tsr_entry_kind_name(entry->kind));
    tsr_vec packed = tsr_vec_of(l->out->host->allocator, 1);
    tsr_status status = tsr_value_pack(entry->value, 0, &packed, err);
    const tsr_str own =
        status == TSR_OK ? tsr_arena_str(l->out->arena, (tsr_str){packed.items, packed.count}, err) : (tsr_str){NULL, 0};
    tsr_vec_free(&packed);
    if (status != TSR_OK) return status;
    return own.data ? tsr_value_unpack(own, l->out->arena, value, err) : TSR_E_NOMEM;
}

static tsr_status load_entry(loading *l, size_t i, tsr_error *err)
{
    const tsr_flat_entry *wanted = &l->flat.entries[i];
    const tsr_entry *entry = tsr_checkpoint_entry(l->checkpoint, wanted->fqn);
    l->values[i] = wanted->value;
    if (!entry && l->options.allow_missing) tsr_name_tally_add(&l->missing, wanted->fqn);
    if (!entry && l->options.allow_missing) return TSR_OK;
    TSR_FAIL_IF(!entry, err, TSR_E_NOT_FOUND, "the checkpoint has no '%.*s'", TSR_STR_ARG(wanted->fqn));
    const tsr_status status =
        wanted->tensor ? load_tensor(l, entry, &l->values[i], err) : load_object(l, entry, &l->values[i], err);
    if (status != TSR_OK) tsr_error_context(err, "'%.*s'", TSR_STR_ARG(wanted->fqn));
    return status;
}

/* The structure again, with the values of flat entries, which come in the same order. */
static tsr_status rebuild(loading *l, const tsr_value *value, const tsr_value **out, tsr_error *err)
{
    const bool dict = value->kind == TSR_VALUE_DICT;
    if (!tsr_flat_opens(value)) {
        *out = l->values[l->next++];
        return TSR_OK;
    }
    const tsr_value **items = tsr_arena_array(l->out->arena, value->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < value->count; i += dict ? 2 : 1) {
        items[i] = value->items[i];
        TSR_TRY(rebuild(l, value->items[i + dict], &items[i + dict], err));
    }
    tsr_value *copy = tsr_value_items(l->out->arena, value->kind, items, value->count, err);
    if (copy) copy->ordered_dict = value->ordered_dict;
    *out = copy;
    return copy ? TSR_OK : TSR_E_NOMEM;
}

/* Entries of the checkpoint that the state dict has no place for. */
static tsr_status tell_unread(const loading *l, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(l->checkpoint);
    tsr_name_tally unread = {0};
    bool *read = tsr_arena_array(l->arena, (size_t)catalog->entry_count, sizeof *read, err);
    if (!read) return TSR_E_NOMEM;
    for (size_t i = 0; i < l->flat.count; i++) {
        const tsr_entry *entry = tsr_checkpoint_entry(l->checkpoint, l->flat.entries[i].fqn);
        if (entry && tsr_catalog_has(catalog, entry)) read[entry - catalog->entries] = true;
    }
    for (uint64_t i = 0; i < catalog->entry_count; i++)
        if (!read[i]) tsr_name_tally_add(&unread, catalog->entries[i].fqn);
    tsr_name_tally_warn(&unread, &l->options.warnings, "the state dict has no place for entries of the checkpoint");
    return TSR_OK;
}

static tsr_status load(loading *l, const char *path, const tsr_value *state, tsr_error *err)
{
    const tsr_host *host = l->out->host;
    const tsr_value *root;
    TSR_TRY(tsr_flat_of(state, host, l->arena, &l->flat, err));
    for (size_t i = 0; i < l->flat.count; i++) {
        tsr_leaf_at leaf = {.path = l->flat.entries[i].fqn, .tensor = l->flat.entries[i].tensor};
        if (leaf.tensor) TSR_TRY(tsr_leaves_check(&(tsr_leaves){&leaf, 1}, l->comm, err));
    }
    l->values = tsr_arena_array(l->arena, l->flat.count, sizeof *l->values, err);
    l->halves = (tsr_halves){.memory = tsr_alloc(host->allocator, l->options.buffer_bytes, 1, err),
                             .bytes = l->options.buffer_bytes};
    if (!l->values || !l->halves.memory) return TSR_E_NOMEM;
    TSR_TRY(tsr_folder_store_open(NULL, host->allocator, path, &l->store, err));
    TSR_TRY(tsr_checkpoint_open(l->store, host, NULL, &l->checkpoint, err));
    for (size_t i = 0; i < l->flat.count; i++) TSR_TRY(load_entry(l, i, err));
    TSR_TRY(tsr_halves_end(&l->halves, err));
    TSR_TRY(tsr_folder_store_unchanged(l->store, err));
    TSR_TRY(rebuild(l, state, &root, err));
    tsr_name_tally_warn(&l->missing, &l->options.warnings, "the checkpoint lacks values, which stay as they are");
    if (l->options.warnings.warn) TSR_TRY(tell_unread(l, err));
    tsr_state_dict_set_root(l->out, root);
    return TSR_OK;
}

tsr_status tsr_state_dict_load(const char *path, const tsr_value *state, tsr_comm *comm, const tsr_load_options *options,
                               tsr_state_dict *out, tsr_error *err)
{
    loading l = {.comm = comm, .out = out, .arena = tsr_arena_new(out->host->allocator, 0, err)};
    if (options) l.options = *options;
    if (l.options.buffer_bytes == 0) l.options.buffer_bytes = BUFFER_BYTES_DEFAULT;
    if (l.options.buffer_bytes < 128) l.options.buffer_bytes = 128; /* halves with room for one element of any type */
    const tsr_status status = l.arena ? load(&l, path, state, err) : TSR_E_NOMEM;
    tsr_halves_end(&l.halves, NULL);
    tsr_checkpoint_close(l.checkpoint);
    if (l.store) l.store->close(l.store);
    tsr_free(out->host->allocator, l.halves.memory, l.options.buffer_bytes, 1);
    tsr_arena_free(l.arena);
    return tsr_comm_agree(comm, status, err);
}
