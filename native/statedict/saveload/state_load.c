/* Loads a state dict: every rank opens the checkpoint and reads the boxes that it holds. */
#include "statedict/saveload/piece_reads.h"
#include "statedict/saveload/state_flat.h"
#include "statedict/tensor/state_dict.h"
#include "statedict/tensor/value_pack.h"
#include "statedict/tensor/warn.h"
#include "tessera/save_load.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/options.h"
#include "tessera/sys/statedict.h"

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
