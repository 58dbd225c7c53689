/* Loads sharded optimizer state: every rank opens the checkpoint, plans which boxes it reads (core/optim/load.c), and reads
 * them into new tensors with the right distribution. */
#include "live/saveload/piece_reads.h"
#include "live/saveload/state_flat.h"
#include "live/tensor/state_dict.h"
#include "live/tensor/value_pack.h"
#include "tessera/optim.h"
#include "tessera/sharded_optimizer.h"
#include "tessera/state_keys.h"
#include "tessera/sys/box.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/sharded_optimizer.h"
#include "tessera/sys/state_dict_memory.h"
#include "tessera/sys/statedict.h"

enum { MOST_DEPTH = 256, MOST_NAMES = 5 };

static const uint64_t zeros[TSR_MAX_NDIM] = {0};

typedef struct loading {
    const tsr_optimizer_target *to;
    tsr_comm *comm;
    tsr_arena *arena; /* for temporary data; the result is in the arena of to->out */
    tsr_layout_2d layout;
    tsr_piece_reader reader;
    tsr_optim_reads plan;
    const tsr_value *root;
} loading;

/* ---- tensors ---- */

static tsr_status new_tensor(loading *l, const tsr_tensor *like, const tsr_value **value, tsr_error *err)
{
    tsr_tensor tensor = *like;
    tensor.device = l->to->device;
    return tsr_state_dict_allocate(l->to->out, &tensor, value, err);
}

/* Loads a whole tensor of the checkpoint. `shape` counts elements as torch does. */
static tsr_status load_whole(loading *l, const tsr_entry *entry, tsr_dtype dtype, const uint64_t *shape,
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
    return tsr_piece_read(&l->reader, entry, made, &all, err);
}

static tsr_status load_box(loading *l, const tsr_optim_read *read, const tsr_value **value, tsr_error *err)
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
    return tsr_piece_read(&l->reader, entry, made, &rows, err);
}

/* ---- objects ---- */

/* Tensors inside objects are not in the catalog: their chunks are raw bytes. A view tells the reader so. */
static tsr_status make_readable(const loading *l, const tsr_entry *entry, tsr_entry *out, tsr_error *err)
{
    tsr_chunk *chunks = tsr_arena_array(l->arena, (size_t)entry->chunk_count, sizeof *chunks, err);
    tsr_view *views = chunks ? tsr_arena_array(l->arena, (size_t)entry->chunk_count, sizeof *views, err) : NULL;
    if (!views) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        chunks[i] = entry->chunks[i];
        views[i] = (tsr_view){.file = chunks[i].file, .byte_offset = chunks[i].byte_offset};
        if (!chunks[i].view) chunks[i].view = &views[i];
    }
    *out = *entry;
    out->chunks = chunks;
    return TSR_OK;
}

/* Loads a tensor inside an object, such as one of a tuple of betas that a capturable optimizer keeps on its device. */
static tsr_status load_inner(loading *l, const tsr_entry *entry, const tsr_value **value, tsr_error *err)
{
    uint64_t shape[TSR_MAX_NDIM] = {0};
    tsr_dtype dtype = entry->dtype;
    tsr_entry readable;
    TSR_TRY(make_readable(l, entry, &readable, err));
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_TENSOR || entry->ndim > TSR_MAX_NDIM, err, TSR_E_UNSUPPORTED,
                "it contains a tensor that is %s and cannot be read", tsr_entry_kind_name(entry->kind));
    if (entry->ndim) memcpy(shape, entry->shape, entry->ndim * sizeof *shape);
    if (entry->ndim) tsr_dtype_pack(&dtype, &shape[entry->ndim - 1]);
    return load_whole(l, &readable, dtype, shape, value, err);
}

static tsr_status load_value(loading *l, const tsr_value *stored, uint32_t depth, const tsr_value **out, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(l->to->out);
    TSR_FAIL_IF(depth > MOST_DEPTH, err, TSR_E_LIMIT, "nested deeper than %d", MOST_DEPTH);
    if (stored->kind == TSR_VALUE_TENSOR) return load_inner(l, stored->as.tensor, out, err);
    if (!tsr_names_tensor(stored)) return tsr_value_copy(stored, arena, out, err);
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

static tsr_status load_object(loading *l, const tsr_entry *entry, const tsr_value **value, tsr_error *err)
{
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_OBJECT || !entry->value, err, TSR_E_UNSUPPORTED,
                "a %.*s is neither a dense tensor nor plain data", TSR_STR_ARG(entry->type));
    return load_value(l, entry->value, 0, value, err);
}

/* ---- the tree ---- */

/* Copies a path for the tree, which outlives the checkpoint. */
static tsr_status keep_path(loading *l, const tsr_optim_read *read, const tsr_path_item **out, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(l->to->out);
    tsr_path_item *path = tsr_arena_array(l->arena, read->path_length, sizeof *path, err);
    if (!path) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < read->path_length; i++) {
        path[i] = read->path[i];
        if (path[i].kind != TSR_PATH_KEY) continue;
        path[i].key = tsr_arena_str(arena, path[i].key, err);
        if (!path[i].key.data) return TSR_E_NOMEM;
        if (path[i].value) TSR_TRY(tsr_value_copy(path[i].value, arena, &path[i].value, err));
    }
    *out = path;
    return TSR_OK;
}

static tsr_status load_entry(loading *l, const tsr_optim_read *read, tsr_state_key *key, tsr_error *err)
{
    tsr_status status = TSR_OK;
    switch (read->kind) {
    case TSR_READ_OBJECT: status = load_object(l, read->entry, &key->value, err); break;
    case TSR_READ_WHOLE: status = load_whole(l, read->entry, read->dtype, read->shape, &key->value, err); break;
    case TSR_READ_BOX: status = load_box(l, read, &key->value, err); break;
    }
    if (status == TSR_OK) status = keep_path(l, read, &key->path, err);
    if (status != TSR_OK) tsr_error_context(err, "'%.*s'", TSR_STR_ARG(read->entry->fqn));
    key->name = read->entry->fqn;
    key->path_length = read->path_length;
    return status;
}

static tsr_status load_all(loading *l, tsr_error *err)
{
    const tsr_state_dict *out = l->to->out;
    tsr_state_key *keys = tsr_arena_array(l->arena, l->plan.count, sizeof *keys, err);
    if (!keys) return TSR_E_NOMEM;
    for (size_t i = 0; i < l->plan.count; i++) TSR_TRY(load_entry(l, &l->plan.reads[i], &keys[i], err));
    TSR_TRY(tsr_piece_reader_end(&l->reader, err));
    return tsr_state_unflatten(keys, l->plan.count, tsr_state_dict_host(out), tsr_state_dict_arena(l->to->out), &l->root,
                               err);
}

/* ---- planning ---- */

static tsr_status make_plan(loading *l, const char *path, tsr_str key, const tsr_value *model_state, tsr_error *err)
{
    const tsr_host *host = tsr_state_dict_host(l->to->out);
    TSR_TRY(tsr_state_dict_layout_2d(model_state, l->arena, &l->layout, err));
    TSR_TRY(tsr_piece_reader_open(&l->reader, path, l->to->buffer_bytes, host, err));
    const tsr_comm *data = l->layout.group ? l->layout.group : l->comm;
    const tsr_optim_mesh mesh = {data->rank, data->size, l->layout.group != NULL, l->layout.slices, l->layout.count};
    return tsr_optim_load(tsr_checkpoint_catalog(l->reader.checkpoint), key, &mesh, l->arena, &l->plan, err);
}

/* Checks that all ranks agree. Every rank must call this, whatever happened before. */
static tsr_status agree(loading *l, tsr_str key, tsr_status mine, tsr_error *err)
{
    tsr_agreement agreement = {tsr_vec_of(tsr_state_dict_host(l->to->out)->allocator, 1), l->arena};
    const tsr_str layout = l->layout.group ? TSR_STR("2-D (FSDP over tensor parallel)") : TSR_STR("1-D");
    if (mine == TSR_OK) mine = tsr_agreement_add(&agreement, TSR_STR("key"), TSR_STR("the optimizer's key"), key, err);
    if (mine == TSR_OK) mine = tsr_agreement_add(&agreement, TSR_STR("layout"), TSR_STR("the model's state"), layout, err);
    return tsr_agreement_check(&agreement, l->comm, mine, tsr_state_dict_host(l->to->out)->allocator, err);
}

/* Warns of parameters that the model's state lacks. */
static tsr_status warn_of_unknown(const loading *l, tsr_error *err)
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
    loading l = {.to = to, .comm = comm, .arena = tsr_arena_new(tsr_state_dict_host(to->out)->allocator, 0, err)};
    tsr_status status = l.arena ? make_plan(&l, path, key, model_state, err) : TSR_E_NOMEM;
    status = agree(&l, key, status, err);
    if (status == TSR_OK) {
        status = warn_of_unknown(&l, err);
        if (status == TSR_OK) status = load_all(&l, err);
        status = tsr_comm_agree(comm, status, err);
    }
    if (status == TSR_OK) tsr_state_dict_set_root(to->out, l.root);
    tsr_piece_reader_close(&l.reader);
    tsr_arena_free(l.arena);
    return status;
}
