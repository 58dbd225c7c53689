/* Loads a state dict: every rank opens the checkpoint and reads the boxes that it holds. */
#include "live/saveload/halves.h"
#include "live/saveload/piece_reads.h"
#include "live/saveload/state_flat.h"
#include "live/tensor/pack.h"
#include "live/tensor/path.h"
#include "live/tensor/state_dict.h"
#include "live/tensor/value_pack.h"
#include "live/tensor/warn.h"
#include "tessera/read.h"
#include "tessera/save_load.h"
#include "tessera/sharded_optimizer.h"
#include "tessera/sys/box.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/options.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/sharded_optimizer.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"

/* ---- halves ---- */

#define ALIGNMENT ((size_t)64)

size_t tsr_halves_room(const tsr_halves *halves)
{
    return halves->bytes / 2 / ALIGNMENT * ALIGNMENT;
}

/* Waits for the copies in progress. The error message says so, because the copy that failed may belong to an earlier tensor
 * than the one that is named. */
static tsr_status wait_for_copies(const tsr_halves *halves, tsr_error *err)
{
    const tsr_status status = tsr_device_wait(halves->device, err);
    if (status != TSR_OK) tsr_error_context(err, "copies so far");
    return status;
}

tsr_status tsr_halves_end(tsr_halves *halves, tsr_error *err)
{
    tsr_device *device = halves->device;
    const tsr_status status = wait_for_copies(halves, err);
    if (halves->is_pinned) device->unpin(device, halves->memory, halves->bytes);
    *halves = (tsr_halves){.memory = halves->memory, .bytes = halves->bytes};
    return status;
}

tsr_status tsr_halves_use(tsr_halves *halves, tsr_device *device, tsr_error *err)
{
    tsr_error ignored = {0};
    if (halves->device == device) return TSR_OK;
    TSR_TRY(tsr_halves_end(halves, err));
    halves->device = device;
    halves->is_pinned = device && device->pin && device->pin(device, halves->memory, halves->bytes, &ignored) == TSR_OK;
    return TSR_OK;
}

/* Returns `bytes` bytes, at most tsr_halves_room, that no copy is reading. */
static uint8_t *halves_take(tsr_halves *halves, size_t bytes)
{
    const size_t room = tsr_halves_room(halves);
    if (bytes > room - halves->used) {
        halves->now = 1 - halves->now;
        halves->used = 0;
        halves->is_changed = true;
    }
    uint8_t *out = halves->memory + halves->now * room + halves->used;
    const size_t next = halves->used + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    halves->used = next < room ? next : room;
    return out;
}

/* Must be called after this memory was filled, and before anything is copied from it. Waits for the copies from the other
 * half. */
static tsr_status halves_filled(tsr_halves *halves, tsr_error *err)
{
    if (!halves->is_changed) return TSR_OK;
    halves->is_changed = false;
    return wait_for_copies(halves, err);
}

/* ---- piece reads ---- */

/* Reads boxes into live memory. Data for a device passes through the halves of a buffer: the next tile is read while the
 * previous one is copied. */

#define BUFFER_BYTES_DEFAULT ((size_t)16 << 20)
#define BUFFER_BYTES_LEAST   ((size_t)128) /* so that each half has room for one element of any type */

tsr_status tsr_piece_reader_open(tsr_piece_reader *r, const char *path, size_t buffer_bytes, const tsr_host *host,
                                 tsr_error *err)
{
    *r = (tsr_piece_reader){.host = host};
    if (buffer_bytes == 0) buffer_bytes = BUFFER_BYTES_DEFAULT;
    if (buffer_bytes < BUFFER_BYTES_LEAST) buffer_bytes = BUFFER_BYTES_LEAST;
    r->halves = (tsr_halves){.memory = tsr_alloc(host->allocator, buffer_bytes, 1, err), .bytes = buffer_bytes};
    if (!r->halves.memory) return TSR_E_NOMEM;
    TSR_TRY(tsr_path_store_open(host, path, &r->store, err));
    return tsr_checkpoint_open(r->store, host, NULL, &r->checkpoint, err);
}

tsr_status tsr_piece_reader_end(tsr_piece_reader *r, tsr_error *err)
{
    TSR_TRY(tsr_halves_end(&r->halves, err));
    return tsr_folder_store_unchanged(r->store, err);
}

void tsr_piece_reader_close(tsr_piece_reader *r)
{
    if (!r->host) return;
    tsr_halves_end(&r->halves, NULL);
    tsr_checkpoint_close(r->checkpoint);
    if (r->store) r->store->close(r->store);
    tsr_free(r->host->allocator, r->halves.memory, r->halves.bytes, 1);
}

/* Chooses the size of a tile at `at` that fits into the buffer: as many whole inner dims as possible, and a part of the next
 * one. */
static void size_tile(const tsr_piece *piece, uint32_t ndim, uint32_t itemsize, size_t room, const uint64_t *at,
                      uint64_t *sizes)
{
    uint64_t inner = itemsize;
    uint32_t d = ndim;
    for (; d > 0 && inner <= room / piece->sizes[d - 1]; d--) inner *= sizes[d - 1] = piece->sizes[d - 1];
    for (uint32_t i = 0; i < d; i++) sizes[i] = 1;
    if (d == 0) return;
    const uint64_t left = piece->sizes[d - 1] - at[d - 1];
    sizes[d - 1] = left < room / inner ? left : room / inner;
}

static bool next_tile(const tsr_piece *piece, uint32_t ndim, const uint64_t *sizes, uint64_t *at)
{
    for (uint32_t d = ndim; d-- > 0; at[d] = 0) {
        at[d] += sizes[d];
        if (at[d] < piece->sizes[d]) return true;
    }
    return false;
}

static tsr_status read_tile(tsr_piece_reader *r, const tsr_entry *entry, const tsr_tensor *tensor, const tsr_piece *piece,
                            tsr_box tile, tsr_error *err)
{
    const uint32_t ndim = tile.ndim;
    uint64_t offsets[TSR_MAX_NDIM], local[TSR_MAX_NDIM], elements;
    for (uint32_t d = 0; d < ndim; d++) {
        offsets[d] = piece->offsets[d] + tile.offsets[d];
        local[d] = piece->local_offsets[d] + tile.offsets[d];
    }
    tsr_box_volume((tsr_box){ndim, NULL, tile.sizes}, &elements);
    tsr_link link = {.ndim = ndim,
                     .itemsize = tsr_dtype_size(tensor->entry.dtype),
                     .offsets = local,
                     .sizes = tile.sizes,
                     .buffer_sizes = piece->buffer_sizes,
                     .data = piece->data,
                     .device = tensor->device};
    link.bytes = elements * link.itemsize;
    tsr_stream stream = tsr_stream_of(&link, 1);
    uint8_t *there = tsr_stream_peek(&stream, false, link.bytes);
    if (there)
        return tsr_read_box(r->checkpoint, entry, (tsr_box){entry->ndim, offsets, tile.sizes}, there, (size_t)link.bytes,
                            err);
    uint8_t *taken = tensor->device ? halves_take(&r->halves, (size_t)link.bytes) : r->halves.memory;
    TSR_TRY(tsr_read_box(r->checkpoint, entry, (tsr_box){entry->ndim, offsets, tile.sizes}, taken, (size_t)link.bytes, err));
    if (tensor->device) TSR_TRY(halves_filled(&r->halves, err));
    return tsr_stream_unpack(&stream, taken, NULL, link.bytes, err);
}

/* Reads a piece directly if it is contiguous in host memory, otherwise tile by tile. */
tsr_status tsr_piece_read(tsr_piece_reader *r, const tsr_entry *entry, const tsr_tensor *tensor, const tsr_piece *piece,
                          tsr_error *err)
{
    const uint32_t ndim = tensor->entry.ndim, itemsize = tsr_dtype_size(tensor->entry.dtype);
    const size_t room = tensor->device ? tsr_halves_room(&r->halves) : r->halves.bytes;
    uint64_t at[TSR_MAX_NDIM] = {0}, sizes[TSR_MAX_NDIM];
    const bool direct = !tensor->device && tsr_box_is_contiguous((tsr_box){ndim, NULL, piece->buffer_sizes},
                                                                 (tsr_box){ndim, piece->local_offsets, piece->sizes});
    if (direct) return read_tile(r, entry, tensor, piece, (tsr_box){ndim, at, piece->sizes}, err);
    if (tensor->device) TSR_TRY(tsr_halves_use(&r->halves, tensor->device, err));
    do {
        size_tile(piece, ndim, itemsize, room, at, sizes);
        TSR_TRY(read_tile(r, entry, tensor, piece, (tsr_box){ndim, at, sizes}, err));
    } while (next_tile(piece, ndim, sizes, at));
    return TSR_OK;
}

/* ---- layout 2d ---- */

/* Determines which slice of each parameter belongs to this rank's data-parallel group. A checkpoint describes only whole
 * tensors, so this comes from the model's sharded state. */

static tsr_status check_value(const tsr_value *key, const tsr_value *value, tsr_error *err)
{
    TSR_FAIL_IF(key->kind != TSR_VALUE_STR, err, TSR_E_USAGE,
                "the model's state has a key of type %s; keys are names of tensors", tsr_python_type(key));
    TSR_FAIL_IF(value->kind != TSR_VALUE_TENSOR, err, TSR_E_USAGE,
                "'%.*s' of the model's state is of type %s, which has no size; pass a state dict that holds only tensors",
                TSR_STR_ARG(key->text), tsr_python_type(value));
    return TSR_OK;
}

/* Whether the tensor is a slice. Refuses the nestings that PyTorch refuses. */
static tsr_status is_slice(tsr_str name, const tsr_tensor *tensor, bool *slice, tsr_error *err)
{
    const tsr_tensor *nested = tensor->nested;
    *slice = false;
    if (!nested || nested->spread == TSR_WHOLE) return TSR_OK;
    if (tensor->spread == TSR_IN_BOXES && tensor->part_count == 0) return TSR_OK;
    TSR_FAIL_IF(tensor->spread != TSR_IN_BOXES || nested->spread != TSR_IN_BOXES, err, TSR_E_UNSUPPORTED,
                "'%.*s' of the model's state is a %s inside a %s; only a ShardedTensor inside a ShardedTensor shows its "
                "slice",
                TSR_STR_ARG(name), nested->spread == TSR_IN_BOXES ? "ShardedTensor" : "DTensor",
                tensor->spread == TSR_IN_BOXES ? "ShardedTensor"
                : tensor->spread == TSR_WHOLE  ? "plain tensor"
                                               : "DTensor");
    TSR_FAIL_IF(tensor->part_count != 1, err, TSR_E_UNSUPPORTED,
                "'%.*s' of the model's state has %u shards on this rank; a slice must be the only one", TSR_STR_ARG(name),
                (unsigned)tensor->part_count);
    TSR_FAIL_IF(!nested->group, err, TSR_E_USAGE,
                "'%.*s' of the model's state does not state which ranks share its slice; set `group` of its nested tensor",
                TSR_STR_ARG(name));
    *slice = true;
    return TSR_OK;
}

static tsr_status use_group(tsr_str name, tsr_comm *group, tsr_str *first, tsr_layout_2d *out, tsr_error *err)
{
    if (!out->group) {
        *first = name;
        out->group = group;
    }
    TSR_FAIL_IF(group->size != out->group->size || group->rank != out->group->rank, err, TSR_E_USAGE,
                "the slice of '%.*s' is shared by a group where this is rank %u of %u, that of '%.*s' by one where it is "
                "rank %u of %u; all slices need the same group",
                TSR_STR_ARG(*first), (unsigned)out->group->rank, (unsigned)out->group->size, TSR_STR_ARG(name),
                (unsigned)group->rank, (unsigned)group->size);
    return TSR_OK;
}

tsr_status tsr_state_dict_layout_2d(const tsr_value *model_state, tsr_arena *arena, tsr_layout_2d *out, tsr_error *err)
{
    tsr_str first = TSR_STR("");
    TSR_FAIL_IF(model_state->kind != TSR_VALUE_DICT, err, TSR_E_USAGE,
                "the model's state is a %s; expected a dict of tensors", tsr_python_type(model_state));
    *out = (tsr_layout_2d){.count = tsr_value_pairs(model_state)};
    tsr_tp_slice *slices = tsr_arena_array(arena, out->count, sizeof *slices, err);
    if (!slices) return TSR_E_NOMEM;
    out->slices = slices;
    for (size_t i = 0; i < out->count; i++) {
        const tsr_value *key = model_state->items[2 * i];
        bool slice;
        TSR_TRY(check_value(key, model_state->items[2 * i + 1], err));
        const tsr_tensor *tensor = tsr_tensor_of(model_state->items[2 * i + 1]);
        const tsr_entry *entry = &tensor->entry;
        slices[i] = (tsr_tp_slice){key->text, entry->ndim, NULL, entry->shape, entry->shape};
        TSR_TRY(is_slice(key->text, tensor, &slice, err));
        if (!slice) continue;
        slices[i].offsets = tensor->parts[0].offsets;
        slices[i].sizes = tensor->parts[0].sizes;
        TSR_TRY(use_group(key->text, tensor->nested->group, &first, out, err));
    }
    return TSR_OK;
}

/* ---- load ---- */

typedef struct loading {
    tsr_comm *comm;
    tsr_load_options options;
    tsr_state_dict *out;
    tsr_arena *arena;
    tsr_piece_reader reader;
    tsr_flat flat;
    const tsr_value **values; /* by flat entry: the value after loading */
    size_t next;              /* index in `values` of the next value, while the tree is rebuilt */
    tsr_name_tally missing;
} loading;

/* ---- one tensor ---- */

static tsr_status check_entry(const loading *l, const tsr_entry *entry, const tsr_tensor *tensor, tsr_error *err)
{
    uint64_t shape[TSR_MAX_NDIM] = {0};
    tsr_tensor stored = tsr_tensor_whole(entry->dtype, entry->ndim, shape, NULL);
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_TENSOR || entry->ndim > TSR_MAX_NDIM, err, TSR_E_USAGE,
                "a tensor in the state dict, %s in the checkpoint", tsr_entry_kind_name(entry->kind));
    if (entry->ndim) memcpy(shape, entry->shape, entry->ndim * sizeof *shape);
    if (entry->ndim) tsr_dtype_pack(&stored.entry.dtype, &shape[entry->ndim - 1]);
    return tsr_tensor_same_place(tensor, &stored, &(tsr_likeness){"the state dict", "the checkpoint", false}, l->arena, err);
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
        status = pieces[i].data ? tsr_piece_read(&l->reader, entry, tensor, &pieces[i], err)
                                : tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "the tensor has no memory");
    }
    tsr_arena_free(passing);
    return status;
}

/* ---- all entries ---- */

/* Copies an object of the checkpoint, so that it outlives the checkpoint. */
static tsr_status load_object(loading *l, const tsr_entry *entry, const tsr_value **value, tsr_error *err)
{
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_OBJECT || !entry->value || tsr_names_tensor(entry->value), err, TSR_E_USAGE,
                "not a tensor in the state dict, but %s in the checkpoint",
                entry->kind == TSR_ENTRY_OBJECT ? "an object with tensors inside" : tsr_entry_kind_name(entry->kind));
    return tsr_value_copy(entry->value, l->out->arena, value, err);
}

static tsr_status load_entry(loading *l, size_t i, tsr_error *err)
{
    const tsr_flat_entry *wanted = &l->flat.entries[i];
    const tsr_entry *entry = tsr_checkpoint_entry(l->reader.checkpoint, wanted->fqn);
    l->values[i] = wanted->value;
    if (!entry && l->options.allow_missing) tsr_name_tally_add(&l->missing, wanted->fqn);
    if (!entry && l->options.allow_missing) return TSR_OK;
    TSR_FAIL_IF(!entry, err, TSR_E_NOT_FOUND, "the checkpoint has no '%.*s'", TSR_STR_ARG(wanted->fqn));
    const tsr_status status =
        wanted->tensor ? load_tensor(l, entry, &l->values[i], err) : load_object(l, entry, &l->values[i], err);
    if (status != TSR_OK) tsr_error_context(err, "'%.*s'", TSR_STR_ARG(wanted->fqn));
    return status;
}

/* Rebuilds the nested structure from the values of the flat entries, which are in the same order. */
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

/* Warns of entries of the checkpoint that the state dict lacks. */
static tsr_status warn_unread(const loading *l, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(l->reader.checkpoint);
    tsr_name_tally unread = {0};
    bool *read = tsr_arena_array(l->arena, (size_t)catalog->entry_count, sizeof *read, err);
    if (!read) return TSR_E_NOMEM;
    for (size_t i = 0; i < l->flat.count; i++) {
        const tsr_entry *entry = tsr_checkpoint_entry(l->reader.checkpoint, l->flat.entries[i].fqn);
        if (entry && tsr_catalog_has(catalog, entry)) read[entry - catalog->entries] = true;
    }
    for (uint64_t i = 0; i < catalog->entry_count; i++)
        if (!read[i]) tsr_name_tally_add(&unread, catalog->entries[i].fqn);
    tsr_name_tally_warn(&unread, &l->options.warnings, "the state dict has no place for some entries of the checkpoint");
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
    if (!l->values) return TSR_E_NOMEM;
    TSR_TRY(tsr_piece_reader_open(&l->reader, path, l->options.buffer_bytes, host, err));
    for (size_t i = 0; i < l->flat.count; i++) TSR_TRY(load_entry(l, i, err));
    TSR_TRY(tsr_piece_reader_end(&l->reader, err));
    TSR_TRY(rebuild(l, state, &root, err));
    tsr_name_tally_warn(&l->missing, &l->options.warnings, "the checkpoint lacks some values, which stay as they are");
    if (l->options.warnings.warn) TSR_TRY(warn_unread(l, err));
    tsr_state_dict_set_root(l->out, root);
    return TSR_OK;
}

tsr_status tsr_state_dict_load(const char *path, const tsr_value *state, tsr_comm *comm, const tsr_load_options *options,
                               tsr_state_dict *out, tsr_error *err)
{
    loading l = {.comm = comm, .out = out, .arena = tsr_arena_new(out->host->allocator, 0, err)};
    const tsr_status given = TSR_OPTIONS_COPY(&l.options, options, tsr_load_options, err);
    const tsr_status status = given != TSR_OK ? given : l.arena ? load(&l, path, state, err) : TSR_E_NOMEM;
    tsr_piece_reader_close(&l.reader);
    tsr_arena_free(l.arena);
    return tsr_comm_agree(comm, status, err);
}
