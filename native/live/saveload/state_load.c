/* Loads a state dict: every rank opens the checkpoint and reads the boxes that it holds. */
#include <inttypes.h>
#include <stdlib.h>

#include "live/saveload/saveload.h"
#include "live/tensor/pack.h"
#include "live/tensor/state_dict.h"
#include "tessera/checkpoint.h"
#include "tessera/optim.h"
#include "tessera/read.h"
#include "tessera/save_load.h"
#include "tessera/sharded_optimizer.h"
#include "tessera/state_keys.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/options.h"
#include "tessera/sys/path.h"
#include "tessera/sys/read.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"
#include "tessera/tensor.h"

/* Reads boxes of a checkpoint's tensors, directly into their memory if that is contiguous host memory. */
typedef struct tsr_piece_reader {
    const tsr_host *host;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_read_check *check; /* NULL: the bytes are not compared with the CRCs that the checkpoint states */
    tsr_halves halves;     /* the buffer for all other memory */
} tsr_piece_reader;

/* ---- piece reads ---- */

/* Reads boxes into live memory. Data for a device passes through the halves of a buffer: the next tile is read while the
 * previous one is copied. */

#define BUFFER_BYTES_DEFAULT ((size_t)16 << 20)
#define BUFFER_BYTES_LEAST   ((size_t)128) /* so that each half has room for one element of any type */

/* ---- halves ---- */

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
    const size_t next = halves->used + (bytes + TSR_HALVES_ALIGNMENT - 1) / TSR_HALVES_ALIGNMENT * TSR_HALVES_ALIGNMENT;
    halves->used = next < room ? next : room;
    return out;
}

/* Must be called after this memory was filled, and before anything is copied from it. Waits for the copies from the other
 * half. */
static tsr_status halves_filled(tsr_halves *halves, tsr_error *err)
{
    if (!halves->is_changed) return TSR_OK;
    halves->is_changed = false;
    return tsr_halves_wait(halves, err);
}

/* Opens the checkpoint at `path`. `buffer_bytes` 0: 16 MiB. Borrows `host` until close, which must also be called after a
 * failure. Errors: those of opening a checkpoint. */
static tsr_status piece_reader_open(tsr_piece_reader *r, const char *path, size_t buffer_bytes, bool ignore_crc,
                                    const tsr_host *host, tsr_error *err)
{
    *r = (tsr_piece_reader){.host = host};
    if (buffer_bytes == 0) buffer_bytes = BUFFER_BYTES_DEFAULT;
    if (buffer_bytes < BUFFER_BYTES_LEAST) buffer_bytes = BUFFER_BYTES_LEAST;
    r->halves = (tsr_halves){.memory = tsr_alloc(host->allocator, buffer_bytes, 1, err), .bytes = buffer_bytes};
    if (!r->halves.memory) return TSR_E_NOMEM;
    TSR_TRY(tsr_path_store_open(host, path, &r->store, err));
    TSR_TRY(tsr_checkpoint_open(r->store, host, NULL, &r->checkpoint, err));
    return ignore_crc ? TSR_OK : tsr_read_check_new(r->checkpoint, 1, &r->check, err);
}

/* Waits for all copies, compares what was read in several pieces with its CRC, and checks that the files have not changed since they were
 * opened. */
static tsr_status piece_reader_end(tsr_piece_reader *r, tsr_error *err)
{
    TSR_TRY(tsr_halves_end(&r->halves, err));
    if (r->check) TSR_TRY(tsr_read_check_end(r->check, err));
    return tsr_directory_store_unchanged(r->store, err);
}

static void piece_reader_close(tsr_piece_reader *r)
{
    if (!r->host) return;
    tsr_halves_end(&r->halves, NULL);
    tsr_read_check_free(r->check);
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

static tsr_status read_box(const tsr_piece_reader *r, const tsr_entry *entry, tsr_box box, void *buffer, size_t bytes,
                           tsr_error *err)
{
    return r->check ? tsr_read_box_checked(r->check, 0, entry, box, buffer, bytes, err)
                    : tsr_read_box(r->checkpoint, entry, box, buffer, bytes, err);
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
    const tsr_box box = {entry->ndim, offsets, tile.sizes};
    if (there) return read_box(r, entry, box, there, (size_t)link.bytes, err);
    uint8_t *taken = tensor->device ? halves_take(&r->halves, (size_t)link.bytes) : r->halves.memory;
    TSR_TRY(read_box(r, entry, box, taken, (size_t)link.bytes, err));
    if (tensor->device) TSR_TRY(halves_filled(&r->halves, err));
    return tsr_stream_unpack(&stream, taken, NULL, link.bytes, err);
}

/* Reads the box of `piece`, whose offsets are those in `entry`, into the piece's memory. Copies to a device may be in
 * progress until tsr_piece_reader_end. Errors: as tsr_read_box. */
/* Reads a piece directly if it is contiguous in host memory, otherwise tile by tile. */
static tsr_status piece_read(tsr_piece_reader *r, const tsr_entry *entry, const tsr_tensor *tensor, const tsr_piece *piece,
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
        status = pieces[i].data ? piece_read(&l->reader, entry, tensor, &pieces[i], err)
                                : tsr_fail(err, TSR_E_USAGE, "the tensor has no memory");
    }
    tsr_arena_free(passing);
    return status;
}

/* ---- all entries ---- */

/* Makes a deep copy in the arena of `to`, because the checkpoint will be closed. TSR_E_UNSUPPORTED for values that name tensors. */
static tsr_status copy_value(const tsr_value *value, const tsr_state_dict *to, const tsr_value **out, tsr_error *err)
{
    tsr_vec packed = tsr_vec_of(to->host->allocator, 1);
    tsr_status status = tsr_value_pack(value, 0, to->host, &packed, err);
    if (status == TSR_OK) status = tsr_value_unpack((tsr_str){packed.items, packed.count}, to->host, to->arena, out, err);
    tsr_vec_free(&packed);
    return status;
}

/* Copies an object of the checkpoint, so that it outlives the checkpoint. */
static tsr_status load_object(loading *l, const tsr_entry *entry, const tsr_value **value, tsr_error *err)
{
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_OBJECT || !entry->value || tsr_names_tensor(entry->value), err, TSR_E_USAGE,
                "not a tensor in the state dict, but %s in the checkpoint",
                entry->kind == TSR_ENTRY_OBJECT ? "an object with tensors inside" : tsr_entry_kind_name(entry->kind));
    return copy_value(entry->value, l->out, value, err);
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
    TSR_TRY(piece_reader_open(&l->reader, path, l->options.buffer_bytes, l->options.ignore_crc, host, err));
    for (size_t i = 0; i < l->flat.count; i++) TSR_TRY(load_entry(l, i, err));
    TSR_TRY(piece_reader_end(&l->reader, err));
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
    piece_reader_close(&l.reader);
    tsr_arena_free(l.arena);
    return tsr_comm_agree(comm, status, err);
}

/* ---- optimizer state load ---- */

/* Loads sharded optimizer state: every rank opens the checkpoint, plans which boxes it reads (core/optim/load.c), and reads
 * them into new tensors with the right distribution. */

enum { MOST_NAMES = 5 };

static const uint64_t zeros[TSR_MAX_NDIM] = {0};

typedef struct optimizer_loading {
    const tsr_optimizer_target *to;
    tsr_comm *comm;
    tsr_arena *arena; /* for temporary data; the result is in the arena of to->out */
    tsr_layout_2d layout;
    tsr_piece_reader reader;
    tsr_optim_reads plan;
    const tsr_value *root;
} optimizer_loading;

/* ---- tensors ---- */

static tsr_status new_tensor(optimizer_loading *l, const tsr_tensor *like, const tsr_value **value, tsr_error *err)
{
    tsr_tensor tensor = *like;
    tensor.device = l->to->device;
    return tsr_state_dict_allocate(l->to->out, &tensor, value, err);
}

/* Loads a whole tensor of the checkpoint. `shape` counts elements as torch does. */
static tsr_status load_whole(optimizer_loading *l, const tsr_entry *entry, tsr_dtype dtype, const uint64_t *shape,
                             const tsr_value **value, tsr_error *err)
{
    uint64_t elements;
    tsr_tensor tensor = tsr_tensor_whole(dtype, entry->ndim, shape, NULL);
    tensor.entry.fqn = entry->fqn;
    tensor.entry.requires_grad = entry->requires_grad;
    TSR_TRY(new_tensor(l, &tensor, value, err));
    if (!tsr_box_volume((tsr_box){entry->ndim, NULL, shape}, &elements) || elements == 0) return TSR_OK;
    const tsr_tensor *made = tsr_tensor_of(*value);
    const tsr_piece all = {zeros, shape, zeros, shape, made->data};
    return piece_read(&l->reader, entry, made, &all, err);
}

static tsr_status load_box(optimizer_loading *l, const tsr_optim_read *read, const tsr_value **value, tsr_error *err)
{
    const tsr_entry *entry = read->entry;
    const tsr_tensor_part part = {read->dest_offsets, read->sizes, NULL};
    tsr_tensor tensor = tsr_tensor_in_boxes(read->dtype, entry->ndim, read->dest_size, &part, read->has_shard);
    tensor.entry.fqn = entry->fqn;
    tensor.entry.requires_grad = entry->requires_grad;
    tensor.group = l->layout.group;
    TSR_TRY(new_tensor(l, &tensor, value, err));
    if (tsr_box_is_empty((tsr_box){entry->ndim, NULL, read->sizes})) return TSR_OK;
    const tsr_tensor *made = tsr_tensor_of(*value);
    const tsr_piece rows = {read->storage_offsets, read->sizes, zeros, read->sizes, made->parts[0].data};
    return piece_read(&l->reader, entry, made, &rows, err);
}

/* ---- objects ---- */

/* Loads a tensor inside an object, such as one of a tuple of betas that a capturable optimizer keeps on its device. */
static tsr_status load_inner(optimizer_loading *l, const tsr_entry *entry, const tsr_value **value, tsr_error *err)
{
    uint64_t shape[TSR_MAX_NDIM] = {0};
    tsr_dtype dtype = entry->dtype;
    const tsr_entry *readable = tsr_entry_readable(l->reader.checkpoint, l->arena, entry, err);
    if (!readable) return TSR_E_NOMEM;
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_TENSOR || entry->ndim > TSR_MAX_NDIM, err, TSR_E_UNSUPPORTED,
                "it contains a tensor that is %s and cannot be read", tsr_entry_kind_name(entry->kind));
    if (entry->ndim) memcpy(shape, entry->shape, entry->ndim * sizeof *shape);
    if (entry->ndim) tsr_dtype_pack(&dtype, &shape[entry->ndim - 1]);
    return load_whole(l, readable, dtype, shape, value, err);
}

static tsr_status load_value(optimizer_loading *l, const tsr_value *stored, uint32_t depth, const tsr_value **out,
                             tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(l->to->out);
    TSR_FAIL_IF(depth > TSR_FLAT_DEPTH, err, TSR_E_LIMIT, "nested deeper than %d", TSR_FLAT_DEPTH);
    if (stored->kind == TSR_VALUE_TENSOR) return load_inner(l, stored->as.tensor, out, err);
    if (!tsr_names_tensor(stored)) return copy_value(stored, l->to->out, out, err);
    const tsr_value **items = tsr_arena_array(arena, stored->count, sizeof *items, err);
    tsr_value *copy = items ? tsr_value_items(arena, stored->kind, items, stored->count, err) : NULL;
    if (!copy) return TSR_E_NOMEM;
    copy->ordered_dict = stored->ordered_dict;
    copy->called = stored->called;
    copy->text = tsr_arena_str(arena, stored->text, err);
    if (!copy->text.data) return TSR_E_NOMEM;
    *out = copy;
    for (size_t i = 0; i < stored->count; i++) TSR_TRY(load_value(l, stored->items[i], depth + 1, &items[i], err));
    return TSR_OK;
}

static tsr_status load_optimizer_object(optimizer_loading *l, const tsr_entry *entry, const tsr_value **value,
                                        tsr_error *err)
{
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_OBJECT || !entry->value, err, TSR_E_UNSUPPORTED,
                "a %.*s is neither a dense tensor nor plain data", TSR_STR_ARG(entry->type));
    return load_value(l, entry->value, 0, value, err);
}

/* ---- the tree ---- */

/* Copies a path for the tree, which outlives the checkpoint. */
static tsr_status keep_path(optimizer_loading *l, const tsr_optim_read *read, const tsr_path_item **out, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(l->to->out);
    tsr_path_item *path = tsr_arena_array(l->arena, read->path_length, sizeof *path, err);
    if (!path) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < read->path_length; i++) {
        path[i] = read->path[i];
        if (path[i].kind != TSR_PATH_KEY) continue;
        path[i].key = tsr_arena_str(arena, path[i].key, err);
        if (!path[i].key.data) return TSR_E_NOMEM;
        if (path[i].value) TSR_TRY(copy_value(path[i].value, l->to->out, &path[i].value, err));
    }
    *out = path;
    return TSR_OK;
}

static tsr_status load_optimizer_entry(optimizer_loading *l, const tsr_optim_read *read, tsr_state_key *key, tsr_error *err)
{
    tsr_status status = TSR_OK;
    switch (read->kind) {
    case TSR_READ_OBJECT: status = load_optimizer_object(l, read->entry, &key->value, err); break;
    case TSR_READ_WHOLE: status = load_whole(l, read->entry, read->dtype, read->shape, &key->value, err); break;
    case TSR_READ_BOX: status = load_box(l, read, &key->value, err); break;
    }
    if (status == TSR_OK) status = keep_path(l, read, &key->path, err);
    if (status != TSR_OK) tsr_error_context(err, "'%.*s'", TSR_STR_ARG(read->entry->fqn));
    key->name = read->entry->fqn;
    key->path_length = read->path_length;
    return status;
}

static tsr_status load_all(optimizer_loading *l, tsr_error *err)
{
    const tsr_state_dict *out = l->to->out;
    tsr_state_key *keys = tsr_arena_array(l->arena, l->plan.count, sizeof *keys, err);
    if (!keys) return TSR_E_NOMEM;
    for (size_t i = 0; i < l->plan.count; i++) TSR_TRY(load_optimizer_entry(l, &l->plan.reads[i], &keys[i], err));
    TSR_TRY(piece_reader_end(&l->reader, err));
    return tsr_state_unflatten(keys, l->plan.count, tsr_state_dict_host(out), tsr_state_dict_arena(l->to->out), &l->root,
                               err);
}

/* ---- planning ---- */

static tsr_status make_plan(optimizer_loading *l, const char *path, tsr_str key, const tsr_value *model_state,
                            tsr_error *err)
{
    const tsr_host *host = tsr_state_dict_host(l->to->out);
    TSR_TRY(tsr_state_dict_layout_2d(model_state, l->arena, &l->layout, err));
    TSR_TRY(piece_reader_open(&l->reader, path, l->to->buffer_bytes, l->to->ignore_crc, host, err));
    const tsr_comm *data = l->layout.group ? l->layout.group : l->comm;
    const tsr_optim_mesh mesh = {data->rank, data->size, l->layout.group != NULL, l->layout.slices, l->layout.count};
    return tsr_optim_load(tsr_checkpoint_catalog(l->reader.checkpoint), key, &mesh, l->arena, &l->plan, err);
}

/* Checks that all ranks agree. Every rank must call this, whatever happened before. */
static tsr_status agree(optimizer_loading *l, tsr_str key, tsr_status mine, tsr_error *err)
{
    tsr_agreement agreement = {tsr_vec_of(tsr_state_dict_host(l->to->out)->allocator, 1), l->arena};
    const tsr_str layout = l->layout.group ? TSR_STR("2-D (FSDP over tensor parallel)") : TSR_STR("1-D");
    if (mine == TSR_OK) mine = tsr_agreement_add(&agreement, TSR_STR("key"), TSR_STR("the optimizer's key"), key, err);
    if (mine == TSR_OK) mine = tsr_agreement_add(&agreement, TSR_STR("layout"), TSR_STR("the model's state"), layout, err);
    return tsr_agreement_check(&agreement, l->comm, mine, tsr_state_dict_host(l->to->out)->allocator, err);
}

/* Warns of parameters that the model's state lacks. */
static tsr_status warn_of_unknown(const optimizer_loading *l, tsr_error *err)
{
    tsr_map *seen = l->to->warnings.warn ? tsr_map_new(tsr_state_dict_host(l->to->out)->allocator, 0, err) : NULL;
    tsr_str names = TSR_STR("");
    tsr_status status = !l->to->warnings.warn || seen ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; seen && i < l->plan.count && status == TSR_OK; i++) {
        bool fresh = false;
        if (l->plan.reads[i].is_unknown) status = tsr_map_put(seen, l->plan.reads[i].parameter, 0, NULL, &fresh, err);
        if (!fresh || tsr_map_count(seen) > MOST_NAMES) continue;
        names = tsr_arena_format(l->arena, err, "%.*s%s'%.*s'", TSR_STR_ARG(names), names.size ? ", " : "",
                                 TSR_STR_ARG(l->plan.reads[i].parameter));
        if (!names.data) status = TSR_E_NOMEM;
    }
    const size_t count = seen ? tsr_map_count(seen) : 0;
    tsr_map_free(seen);
    if (status != TSR_OK || count == 0) return status;
    const tsr_str text = tsr_arena_format(l->arena, err,
                                          "the checkpoint has optimizer state of %zu parameter%s that the model's state "
                                          "does not have: %.*s%s; it is loaded %s",
                                          count, count == 1 ? "" : "s", TSR_STR_ARG(names), count > MOST_NAMES ? ", …" : "",
                                          l->layout.group ? "without a tensor-parallel slice" : "all the same");
    if (!text.data) return TSR_E_NOMEM;
    l->to->warnings.warn(l->to->warnings.ctx, text.data);
    return TSR_OK;
}

tsr_status tsr_optimizer_state_load(const char *path, tsr_str key, const tsr_value *model_state, tsr_comm *comm,
                                    const tsr_optimizer_target *to, tsr_error *err)
{
    optimizer_loading l = {.to = to, .comm = comm, .arena = tsr_arena_new(tsr_state_dict_host(to->out)->allocator, 0, err)};
    tsr_status status = l.arena ? make_plan(&l, path, key, model_state, err) : TSR_E_NOMEM;
    status = agree(&l, key, status, err);
    if (status == TSR_OK) {
        status = warn_of_unknown(&l, err);
        if (status == TSR_OK) status = load_all(&l, err);
        status = tsr_comm_agree(comm, status, err);
    }
    if (status == TSR_OK) tsr_state_dict_set_root(to->out, l.root);
    piece_reader_close(&l.reader);
    tsr_arena_free(l.arena);
    return status;
}
