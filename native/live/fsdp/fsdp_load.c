/* Loads a state dict into the model's memory, unit by unit. Whole originals are cut on each rank, rows are sent to the
 * ranks that have the slices, and slices are padded again. */
#include "live/fsdp/fsdp_model.h"

#include <inttypes.h>

#include "tessera/sys/catalog.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

/* ---- the keys, shapes and forms of a state dict, checked before any of it is written ---- */

static tsr_status index_keys(tsr_fsdp_loading *l, tsr_map *map, tsr_error *err)
{
    for (size_t i = 0; i < l->state->count; i += 2) {
        const tsr_value *key = l->state->items[i];
        TSR_FAIL_IF(key->kind != TSR_VALUE_STR, err, TSR_E_USAGE, "a key of the state is not a string");
        TSR_TRY(tsr_map_put(map, key->text, (uint32_t)(i / 2), NULL, NULL, err));
    }
    return TSR_OK;
}

/* Whether it is the `_flat_param` of a unit that keeps original parameters. A LOCAL state dict has it in addition to the
 * originals' slices, which are loaded. In PyTorch, too, it is an unexpected key that must be there. */
static bool is_extra_flat(const tsr_fsdp_loading *l, const tsr_fsdp_item *item)
{
    return item->kind == TSR_ITEM_FLAT && tsr_fsdp_nodes(l->model)[item->node].flat->use_orig_params;
}

/* The names outlive the model and the state, so they are copied. */
static tsr_status add_name(const tsr_fsdp_loading *l, tsr_str *names, size_t *count, tsr_str name, tsr_error *err)
{
    const tsr_str copy = tsr_arena_str(l->arena, name, err);
    if (!copy.data) return TSR_E_NOMEM;
    names[(*count)++] = copy;
    return TSR_OK;
}

static tsr_status match(tsr_fsdp_loading *l, const tsr_map *map, bool *used, tsr_error *err)
{
    const tsr_fsdp_item *items = tsr_fsdp_items(l->model);
    for (size_t i = 0; i < l->model->items.count; i++) {
        if (!tsr_fsdp_is_saved(l->model, &items[i])) continue;
        const uint32_t pair = tsr_map_get(map, items[i].fqn, UINT32_MAX);
        if (pair != UINT32_MAX && is_extra_flat(l, &items[i])) {
            l->values[i] = l->state->items[2 * (size_t)pair + 1]; /* checked, but not loaded */
            continue;
        }
        if (pair != UINT32_MAX) {
            l->values[i] = l->state->items[2 * (size_t)pair + 1];
            used[pair] = true;
            continue;
        }
        TSR_FAIL_IF(items[i].kind == TSR_ITEM_FLAT, err, TSR_E_USAGE, "the state has no '%.*s'", TSR_STR_ARG(items[i].fqn));
        TSR_TRY(add_name(l, l->missing, &l->keys.missing_count, items[i].fqn, err));
    }
    for (size_t p = 0; p < l->state->count / 2; p++)
        if (!used[p]) TSR_TRY(add_name(l, l->unexpected, &l->keys.unexpected_count, l->state->items[2 * p]->text, err));
    return TSR_OK;
}

static tsr_status match_keys(tsr_fsdp_loading *l, tsr_error *err)
{
    const size_t pairs = l->state->count / 2;
    bool *used = tsr_arena_array(l->arena, pairs, sizeof *used, err);
    l->missing = tsr_arena_array(l->arena, l->model->items.count, sizeof *l->missing, err);
    l->unexpected = tsr_arena_array(l->arena, pairs, sizeof *l->unexpected, err);
    l->values = tsr_arena_array(l->arena, l->model->items.count, sizeof *l->values, err);
    if (!used || !l->missing || !l->unexpected || !l->values) return TSR_E_NOMEM;
    l->keys.missing = l->missing;
    l->keys.unexpected = l->unexpected;
    tsr_map *map = tsr_map_new(l->model->host->allocator, pairs, err);
    tsr_status status = map ? index_keys(l, map, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = match(l, map, used, err);
    tsr_map_free(map);
    return status;
}

/* ---- values ---- */

static tsr_status check_tensor(const tsr_tensor *tensor, tsr_str fqn, tsr_dtype dtype, tsr_shape shape, tsr_arena *arena,
                               tsr_error *err)
{
    TSR_FAIL_IF(!tensor, err, TSR_E_USAGE, "'%.*s' is not a tensor in the state", TSR_STR_ARG(fqn));
    const tsr_tensor model = tsr_tensor_whole(dtype, shape.ndim, shape.sizes, NULL);
    if (!tsr_shape_equal(tensor->entry.ndim, tensor->entry.shape, shape.ndim, shape.sizes)) {
        const tsr_str theirs = tsr_tensor_words(tensor, arena, err), mine = tsr_tensor_words(&model, arena, err);
        return tsr_fail(err, TSR_E_USAGE, "size mismatch for '%.*s': %.*s in the state, %.*s in the model", TSR_STR_ARG(fqn),
                        TSR_STR_ARG(theirs), TSR_STR_ARG(mine));
    }
    TSR_FAIL_IF(tensor->meta, err, TSR_E_USAGE, "'%.*s' is on the meta device in the state", TSR_STR_ARG(fqn));
    TSR_FAIL_IF(tensor->entry.dtype != dtype && !tsr_cast_possible(tensor->entry.dtype, dtype), err, TSR_E_UNSUPPORTED,
                "'%.*s' is %s in the state, which is not cast to the model's %s", TSR_STR_ARG(fqn),
                tsr_dtype_describe(tensor->entry.dtype)->name, tsr_dtype_describe(dtype)->name);
    return TSR_OK;
}

static const char *spread_name(const tsr_tensor *tensor)
{
    return tensor->spread == TSR_WHOLE ? "whole" : tensor->spread == TSR_OVER_MESH ? "a DTensor" : "a ShardedTensor";
}

static tsr_status check_spread(const tsr_tensor *tensor, tsr_spread wanted, tsr_str fqn, tsr_error *err)
{
    const tsr_tensor like = {.spread = wanted};
    TSR_FAIL_IF(tensor->spread != wanted, err, TSR_E_USAGE,
                "'%.*s' is %s in the state, but the unit's state dict type requires %s", TSR_STR_ARG(fqn),
                spread_name(tensor), spread_name(&like));
    return TSR_OK;
}

static tsr_status check_rows(const tsr_fsdp_loading *l, const tsr_fsdp_node *node, const tsr_fsdp_item *item,
                             const tsr_tensor *tensor, tsr_error *err)
{
    uint64_t begin, end;
    tsr_fsdp_rows_here(node, item->original, &begin, &end);
    TSR_FAIL_IF(tensor->part_count > 1, err, TSR_E_USAGE,
                "'%.*s' has %" PRIu32 " shards on this rank; at most 1 is supported", TSR_STR_ARG(item->fqn),
                tensor->part_count);
    if (tensor->part_count == 0) {
        if (begin < end)
            tsr_fsdp_warn(l->model, "'%.*s' has no shard on rank %" PRIu32 ": its rows become zeros", TSR_STR_ARG(item->fqn),
                          l->model->tree.comm->rank);
        return TSR_OK;
    }
    const tsr_tensor_part *part = &tensor->parts[0];
    bool fits = part->offsets[0] == begin && part->sizes[0] == end - begin;
    for (uint32_t i = 1; i < tensor->entry.ndim; i++)
        fits = fits && part->offsets[i] == 0 && part->sizes[i] == tensor->entry.shape[i];
    TSR_FAIL_IF(!fits, err, TSR_E_USAGE, "the shard of '%.*s' is not rows %" PRIu64 " to %" PRIu64 ", which this rank loads",
                TSR_STR_ARG(item->fqn), begin, end);
    return TSR_OK;
}

static tsr_status check_mesh(const tsr_fsdp_node *node, const tsr_tensor *tensor, tsr_str fqn, tsr_error *err)
{
    const tsr_mesh *mine = node->unit->mesh, *theirs = tensor->mesh;
    bool same = mine->dim_count == theirs->dim_count, whole = true, rows = true;
    for (uint32_t i = 0; same && i < mine->dim_count; i++) {
        const tsr_placement *p = &tensor->placements[i];
        const bool last = i + 1 == mine->dim_count;
        same = mine->shape[i] == theirs->shape[i];
        whole = whole && p->kind == TSR_REPLICATE;
        rows = rows && (last ? p->kind == TSR_SHARD && (p->dim == 0 || p->dim == -(int32_t)tensor->entry.ndim)
                             : p->kind == TSR_REPLICATE);
    }
    TSR_FAIL_IF(!same, err, TSR_E_USAGE, "the mesh of '%.*s' is not its unit's", TSR_STR_ARG(fqn));
    TSR_FAIL_IF(!whole && !rows, err, TSR_E_UNSUPPORTED,
                "'%.*s' is neither replicated nor split by shard(0) over the last mesh dim; redistribute it first",
                TSR_STR_ARG(fqn));
    return TSR_OK;
}

/* An original of a unit with a root mesh: whole (FULL), or over that mesh in any way. */
static tsr_status check_2d(const tsr_fsdp_loading *l, const tsr_fsdp_node *node, const tsr_fsdp_item *item,
                           const tsr_tensor *tensor, tsr_error *err)
{
    const tsr_mesh *root = node->unit->root_mesh;
    tsr_tensor own;
    TSR_TRY(tsr_fsdp_parameter(node, item->original, false, l->arena, &own, err));
    TSR_TRY(check_tensor(tensor, item->fqn, own.entry.dtype, (tsr_shape){own.entry.ndim, own.entry.shape}, l->arena, err));
    if (tensor->spread == TSR_WHOLE && tsr_fsdp_effective(node).type == TSR_FSDP_FULL) return TSR_OK;
    TSR_TRY(check_spread(tensor, TSR_OVER_MESH, item->fqn, err));
    bool same = tensor->mesh->dim_count == root->dim_count, partial = false;
    for (uint32_t i = 0; same && i < root->dim_count; i++) {
        same = tensor->mesh->shape[i] == root->shape[i];
        partial = partial || tensor->placements[i].kind == TSR_PARTIAL;
    }
    TSR_FAIL_IF(!same, err, TSR_E_USAGE, "the mesh of '%.*s' is not its unit's root mesh", TSR_STR_ARG(item->fqn));
    TSR_FAIL_IF(partial, err, TSR_E_UNSUPPORTED, "'%.*s' is partial; reduce it first", TSR_STR_ARG(item->fqn));
    return TSR_OK;
}

/* The slice of an original in a LOCAL state dict. */
static tsr_status check_slice(const tsr_fsdp_loading *l, const tsr_fsdp_node *node, const tsr_fsdp_item *item,
                              const tsr_tensor *tensor, tsr_error *err)
{
    const tsr_span range = tsr_flat_layout_range(&node->layout, item->original, node->unit->comm->rank);
    TSR_TRY(check_tensor(tensor, item->fqn, node->unit->dtype, (tsr_shape){1, &range.size}, l->arena, err));
    return check_spread(tensor, TSR_WHOLE, item->fqn, err);
}

static tsr_status check_original(const tsr_fsdp_loading *l, const tsr_fsdp_item *item, const tsr_tensor *tensor,
                                 tsr_error *err)
{
    const tsr_fsdp_node *node = &tsr_fsdp_nodes(l->model)[item->node];
    const tsr_flat_original *o = &node->flat->params[item->original];
    const tsr_fsdp_extensions *e = node->unit->extensions;
    const tsr_fsdp_transforms *t = node->unit->transforms;
    const tsr_fsdp_type type = tsr_fsdp_effective(node).type;
    TSR_FAIL_IF(!tensor, err, TSR_E_USAGE, "'%.*s' is not a tensor in the state", TSR_STR_ARG(item->fqn));
    if (type == TSR_FSDP_LOCAL) return check_slice(l, node, item, tensor, err);
    if (type == TSR_FSDP_SHARDED && e && e->gather) return TSR_OK;
    if (type == TSR_FSDP_FULL && t && t->flatten) return TSR_OK;
    if (tsr_fsdp_is_2d(node)) return check_2d(l, node, item, tensor, err);
    TSR_TRY(check_tensor(tensor, item->fqn, node->unit->dtype, (tsr_shape){o->ndim, o->shape}, l->arena, err));
    if (type == TSR_FSDP_FULL) return check_spread(tensor, TSR_WHOLE, item->fqn, err);
    TSR_TRY(check_spread(tensor, node->unit->mesh ? TSR_OVER_MESH : TSR_IN_BOXES, item->fqn, err));
    return node->unit->mesh ? check_mesh(node, tensor, item->fqn, err) : check_rows(l, node, item, tensor, err);
}

static tsr_status check_flat(const tsr_fsdp_loading *l, const tsr_fsdp_item *item, const tsr_tensor *tensor, tsr_error *err)
{
    const tsr_fsdp_node *node = &tsr_fsdp_nodes(l->model)[item->node];
    const tsr_span valid = tsr_fsdp_valid(node);
    TSR_TRY(check_tensor(tensor, item->fqn, node->unit->dtype, (tsr_shape){1, &node->layout.flat_numel}, l->arena, err));
    TSR_TRY(check_spread(tensor, TSR_IN_BOXES, item->fqn, err));
    if (valid.size == 0) return TSR_OK;
    TSR_FAIL_IF(tensor->part_count != 1, err, TSR_E_USAGE, "'%.*s' has %" PRIu32 " shards on this rank; expected 1",
                TSR_STR_ARG(item->fqn), tensor->part_count);
    TSR_FAIL_IF(tensor->parts[0].offsets[0] != valid.offset || tensor->parts[0].sizes[0] != valid.size, err, TSR_E_USAGE,
                "the shard of '%.*s' has %" PRIu64 " elements from %" PRIu64 " on, but this rank's slice has %" PRIu64
                " from %" PRIu64 " on, without padding",
                TSR_STR_ARG(item->fqn), tensor->parts[0].sizes[0], tensor->parts[0].offsets[0], valid.size, valid.offset);
    return TSR_OK;
}

static tsr_status check_plain(const tsr_fsdp_loading *l, const tsr_fsdp_item *item, const tsr_tensor *tensor, tsr_error *err)
{
    const tsr_tensor *live = tsr_tensor_of(item->value);
    TSR_TRY(
        check_tensor(tensor, item->fqn, live->entry.dtype, (tsr_shape){live->entry.ndim, live->entry.shape}, l->arena, err));
    if (tensor->spread == TSR_WHOLE && live->spread == TSR_WHOLE) return TSR_OK;
    return tsr_tensor_same_place(tensor, live, &(tsr_likeness){"the state", "the model", true}, l->arena, err);
}

static tsr_status check_item(const tsr_fsdp_loading *l, size_t i, tsr_error *err)
{
    const tsr_fsdp_item *item = &tsr_fsdp_items(l->model)[i];
    const tsr_tensor *tensor = l->values[i] ? tsr_tensor_of(l->values[i]) : NULL;
    if (!l->values[i]) return TSR_OK;
    switch (item->kind) {
    case TSR_ITEM_ORIGINAL: return check_original(l, item, tensor, err);
    case TSR_ITEM_FLAT: return check_flat(l, item, tensor, err);
    case TSR_ITEM_PLAIN: return check_plain(l, item, tensor, err);
    default: return TSR_OK;
    }
}

/* ---- messages ---- */

static tsr_str join(const char *what, const tsr_str *names, size_t count, tsr_arena *arena, tsr_error *err)
{
    tsr_str text = TSR_STR("");
    for (size_t i = 0; i < count && text.data && text.size < TSR_ERROR_MESSAGE_SIZE / 3; i++)
        text = tsr_arena_format(arena, err, "%.*s%s'%.*s'", TSR_STR_ARG(text), i ? ", " : what, TSR_STR_ARG(names[i]));
    return text;
}

static tsr_status strict_keys(const tsr_fsdp_loading *l, tsr_error *err)
{
    const tsr_fsdp_keys *k = &l->keys;
    if (!l->strict || (!k->missing_count && !k->unexpected_count)) return TSR_OK;
    const tsr_str missing = join("missing keys: ", k->missing, k->missing_count, l->arena, err);
    const tsr_str unexpected = join("unexpected keys: ", k->unexpected, k->unexpected_count, l->arena, err);
    if (!missing.data || !unexpected.data) return TSR_E_NOMEM;
    return tsr_fail(err, TSR_E_USAGE, "%.*s%s%.*s", TSR_STR_ARG(missing), missing.size && unexpected.size ? "; " : "",
                    TSR_STR_ARG(unexpected));
}

/* Fills `values` and `keys`. Checks this rank's state only; the ranks compare their results afterwards. */
static tsr_status fsdp_check_state(tsr_fsdp_loading *l, tsr_error *err)
{
    TSR_TRY(match_keys(l, err));
    for (size_t i = 0; i < l->model->items.count; i++) TSR_TRY(check_item(l, i, err));
    return strict_keys(l, err);
}

/* ---- load ---- */

/* A unit that is being loaded. */
typedef struct unit_work {
    const tsr_fsdp_node *node;
    uint8_t *slice; /* in host memory */
    void *staged;
} unit_work;

/* The elements of a tensor in the state dict. */
typedef struct elements {
    const tsr_tensor *of;
    const void *data; /* on the tensor's device */
    uint64_t count;
} elements;

/* Copies the elements of `from`, which has any device and dtype, to host memory as `dtype`. */
static tsr_status fetch(elements from, tsr_dtype dtype, void *to, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_device *device = from.of->device;
    const tsr_dtype given = from.of->entry.dtype;
    const uint64_t bytes = from.count * tsr_dtype_size(given);
    TSR_FAIL_IF(from.count && !from.data, err, TSR_E_USAGE, "the state's tensor has no memory");
    if (given == dtype) return tsr_device_download(device, to, from.data, bytes, err);
    uint8_t *source = device && bytes ? tsr_alloc(allocator, (size_t)bytes, 1, err) : NULL;
    if (device && bytes && !source) return TSR_E_NOMEM;
    tsr_status status = source ? tsr_device_download(device, source, from.data, bytes, err) : TSR_OK;
    if (status == TSR_OK && from.count) tsr_cast(given, dtype, source ? source : from.data, (size_t)from.count, to);
    tsr_free(allocator, source, (size_t)bytes, 1);
    return status;
}

/* ---- originals ---- */

/* Copies this rank's slice of a whole original. */
static tsr_status load_whole(const tsr_fsdp_loading *l, const unit_work *w, uint32_t original, const tsr_tensor *whole,
                             tsr_error *err)
{
    const tsr_flat_layout *layout = &w->node->layout;
    const uint64_t rank = w->node->sharded ? w->node->unit->comm->rank : 0;
    const tsr_span range = tsr_flat_layout_range(layout, original, rank);
    if (range.size == 0) return TSR_OK;
    const uint64_t at = layout->flat_offsets[original] + range.offset - rank * layout->slice_numel;
    const uint8_t *from = whole->data;
    if (from) from += range.offset * tsr_dtype_size(whole->entry.dtype);
    return fetch((elements){whole, from, range.size}, w->node->unit->dtype, w->slice + at * w->node->itemsize,
                 l->model->host->allocator, err);
}

/* This rank's rows in the unit's dtype, zeros where it has none. The caller frees them. */
static tsr_status take_rows(const tsr_fsdp_loading *l, const unit_work *w, const tsr_tensor *tensor, uint64_t count,
                            void **rows, tsr_error *err)
{
    const tsr_allocator *allocator = l->model->host->allocator;
    const bool boxes = tensor->spread == TSR_IN_BOXES;
    const size_t bytes = (size_t)count * w->node->itemsize;
    *rows = bytes ? tsr_alloc(allocator, bytes, 1, err) : NULL;
    if (bytes && !*rows) return TSR_E_NOMEM;
    if (bytes && boxes && tensor->part_count == 0) memset(*rows, 0, bytes);
    if (!bytes || (boxes && tensor->part_count == 0)) return TSR_OK;
    const elements given = {tensor, boxes ? tensor->parts[0].data : tensor->data, count};
    return fetch(given, w->node->unit->dtype, *rows, allocator, err);
}

static bool is_replicated(const tsr_tensor *tensor)
{
    return tensor->spread == TSR_OVER_MESH && tensor->placements[tensor->mesh->dim_count - 1].kind == TSR_REPLICATE;
}

static tsr_status load_rows(const tsr_fsdp_loading *l, const unit_work *w, uint32_t original, const tsr_tensor *tensor,
                            tsr_error *err)
{
    tsr_comm *comm = w->node->unit->comm;
    const tsr_allocator *allocator = l->model->host->allocator;
    const uint64_t all = tensor->entry.shape[0], row = all ? w->node->layout.numels[original] / all : 0;
    uint64_t begin, end;
    void *rows = NULL;
    const tsr_unit_original what = {&w->node->cut, original, w->node->itemsize};
    if (is_replicated(tensor)) return tsr_comm_agree(comm, load_whole(l, w, original, tensor, err), err);
    tsr_fsdp_rows_here(w->node, original, &begin, &end);
    const uint64_t count = (end - begin) * row;
    tsr_status status = tsr_comm_agree(comm, take_rows(l, w, tensor, count, &rows, err), err);
    if (status == TSR_OK) status = tsr_rows_to_flat((tsr_ranks){comm, allocator}, &what, rows, w->slice, err);
    tsr_free(allocator, rows, (size_t)count * w->node->itemsize, 1);
    return status;
}

/* Copies an original's part of this rank's slice, from a LOCAL state dict. */
static tsr_status load_part(const tsr_fsdp_loading *l, const unit_work *w, uint32_t original, const tsr_tensor *part,
                            tsr_error *err)
{
    const tsr_flat_layout *layout = &w->node->layout;
    const uint64_t rank = w->node->unit->comm->rank;
    const tsr_span range = tsr_flat_layout_range(layout, original, rank);
    if (range.size == 0) return TSR_OK;
    const uint64_t at = layout->flat_offsets[original] + range.offset - rank * layout->slice_numel;
    return fetch((elements){part, part->data, range.size}, w->node->unit->dtype, w->slice + at * w->node->itemsize,
                 l->model->host->allocator, err);
}

/* The function of the program's extensions that returns the tensor to be flattened; NULL: there is none. */
typedef tsr_status to_flatten(void *ctx, tsr_str fqn, const tsr_tensor *tensor, tsr_comm *comm, tsr_state_dict *out,
                              const tsr_tensor **whole, tsr_error *err);

static to_flatten *flattening(const tsr_fsdp_node *node, void **ctx)
{
    const tsr_fsdp_extensions *e = node->unit->extensions;
    const tsr_fsdp_transforms *t = node->unit->transforms;
    const bool full = tsr_fsdp_effective(node).type == TSR_FSDP_FULL;
    *ctx = full ? t ? t->ctx : NULL : e ? e->ctx : NULL;
    return full ? t ? t->flatten : NULL : e ? e->gather : NULL;
}

static tsr_status load_gathered(const tsr_fsdp_loading *l, const unit_work *w, const tsr_fsdp_item *item,
                                const tsr_tensor *tensor, tsr_error *err)
{
    void *ctx;
    to_flatten *flatten = flattening(w->node, &ctx);
    const tsr_tensor *whole = NULL;
    const tsr_tensor want = tsr_fsdp_original(w->node, item->original);
    tsr_state_dict *passing = NULL;
    tsr_status status = tsr_comm_agree(w->node->unit->comm, tsr_state_dict_new(l->model->host, &passing, err), err);
    if (status == TSR_OK) {
        status = flatten(ctx, item->fqn, tensor, w->node->unit->comm, passing, &whole, err);
        if (status == TSR_OK)
            status = tsr_tensor_same_place(whole, &want, &(tsr_likeness){"what was gathered", "the model", true},
                                           passing->arena, err);
        if (status == TSR_OK) status = load_whole(l, w, item->original, whole, err);
        status = tsr_comm_agree(w->node->unit->comm, status, err);
    }
    tsr_state_dict_free(passing);
    return status;
}

/* Copies a slice as it is, and fills the padding after it with zeros. */
static tsr_status load_slice(const tsr_fsdp_loading *l, const unit_work *w, const tsr_tensor *tensor, tsr_error *err)
{
    const tsr_span valid = tsr_fsdp_valid(w->node);
    const size_t bytes = (size_t)valid.size * w->node->itemsize;
    if (valid.size == 0) return TSR_OK; /* padding only: nothing to load */
    memset(w->slice + bytes, 0, (size_t)tsr_fsdp_slice_bytes(w->node) - bytes);
    const elements given = {tensor, tensor->parts[0].data, valid.size};
    return fetch(given, w->node->unit->dtype, w->slice, l->model->host->allocator, err);
}

/* Ends agreed by the unit's ranks where it needs them. */
static tsr_status load_item(const tsr_fsdp_loading *l, const unit_work *w, size_t i, tsr_error *err)
{
    const tsr_fsdp_item *item = &tsr_fsdp_items(l->model)[i];
    const tsr_tensor *tensor = tsr_tensor_of(l->values[i]);
    void *ctx;
    const bool local = tsr_fsdp_effective(w->node).type == TSR_FSDP_LOCAL, keeps = w->node->flat->use_orig_params;
    if (item->kind == TSR_ITEM_FLAT) return keeps ? TSR_OK : load_slice(l, w, tensor, err);
    if (local) return load_part(l, w, item->original, tensor, err);
    if (flattening(w->node, &ctx)) return load_gathered(l, w, item, tensor, err);
    if (tsr_fsdp_effective(w->node).type == TSR_FSDP_FULL) return load_whole(l, w, item->original, tensor, err);
    return load_rows(l, w, item->original, tensor, err);
}

static bool is_loaded(const tsr_fsdp_loading *l, size_t enter, size_t i)
{
    const tsr_fsdp_item *items = tsr_fsdp_items(l->model);
    const bool own = items[i].kind == TSR_ITEM_ORIGINAL || items[i].kind == TSR_ITEM_FLAT;
    return own && items[i].node == items[enter].node && l->values[i];
}

/* Gathers the DTensors of the whole unit before any of them is cut, because all ranks must take part at the same time. */
static tsr_status load_unit_2d(const tsr_fsdp_loading *l, const unit_work *w, size_t enter, tsr_error *err)
{
    const tsr_fsdp_item *items = tsr_fsdp_items(l->model);
    const size_t leave = tsr_fsdp_leave(l->model, enter);
    const tsr_host *host = l->model->host;
    const void **locals = tsr_alloc(host->allocator, leave - enter, sizeof *locals, err);
    tsr_state_dict *passing = NULL;
    tsr_status status = locals ? tsr_state_dict_new(host, &passing, err) : TSR_E_NOMEM;
    tsr_fsdp_moves moves = tsr_fsdp_moves_of(l->model->tree.comm, NULL, host, passing);
    for (size_t i = enter; i < leave && status == TSR_OK; i++) {
        if (!is_loaded(l, enter, i)) continue;
        tsr_tensor given = *tsr_tensor_of(l->values[i]);
        given.entry.fqn = items[i].fqn;
        status = tsr_fsdp_gather_2d(w->node, items[i].original, &given, &moves, &locals[i - enter], err);
    }
    status = tsr_fsdp_moves_run(&moves, status, err);
    for (size_t i = enter; i < leave && status == TSR_OK; i++) {
        if (!is_loaded(l, enter, i)) continue;
        const tsr_tensor given =
            tsr_tensor_whole(tsr_tensor_of(l->values[i])->entry.dtype, 0, NULL, (void *)(uintptr_t)locals[i - enter]);
        status = load_whole(l, w, items[i].original, &given, err);
    }
    tsr_state_dict_free(passing);
    tsr_free(host->allocator, locals, leave - enter, sizeof *locals);
    return status;
}

static tsr_status load_unit(const tsr_fsdp_loading *l, size_t enter, tsr_error *err)
{
    const tsr_fsdp_item *items = tsr_fsdp_items(l->model);
    unit_work w = {.node = &tsr_fsdp_nodes(l->model)[items[enter].node]};
    const size_t leave = tsr_fsdp_leave(l->model, enter);
    void *slice = NULL;
    tsr_status status = tsr_fsdp_stage(l->model, w.node, &slice, &w.staged, err);
    w.slice = slice;
    status = tsr_comm_agree(l->model->tree.comm, status, err);
    const bool all = status == TSR_OK;
    if (all && tsr_fsdp_is_2d(w.node)) status = load_unit_2d(l, &w, enter, err);
    for (size_t i = enter; i < leave && status == TSR_OK && !tsr_fsdp_is_2d(w.node); i++)
        if (is_loaded(l, enter, i)) status = load_item(l, &w, i, err);
    const tsr_status given = tsr_fsdp_unstage(l->model, w.node, w.staged, status == TSR_OK, err);
    if (status == TSR_OK) status = given;
    return all ? tsr_comm_agree(l->model->tree.comm, status, err) : status;
}

/* ---- what units do not manage ---- */

static tsr_status load_plain(const tsr_fsdp_loading *l, const tsr_tensor *from, const tsr_tensor *to, tsr_error *err)
{
    const tsr_allocator *allocator = l->model->host->allocator;
    tsr_tensor result = *to;
    uint64_t bytes;
    if (from->entry.dtype == to->entry.dtype && (!from->device || !to->device || from->device == to->device)) {
        TSR_TRY(tsr_tensor_copy(from, to, l->arena, err));
        TSR_TRY(tsr_device_wait(from->device, err));
        return tsr_device_wait(to->device, err);
    }
    TSR_FAIL_IF(to->spread == TSR_IN_BOXES, err, TSR_E_UNSUPPORTED, "a tensor in several boxes cannot be cast");
    TSR_TRY(tsr_tensor_held(to, l->arena, &bytes, err));
    result.data = bytes ? tsr_alloc(allocator, (size_t)bytes, 1, err) : NULL;
    if (bytes && !result.data) return TSR_E_NOMEM;
    const elements given = {from, from->data, bytes / tsr_dtype_size(to->entry.dtype)};
    tsr_status status = fetch(given, to->entry.dtype, result.data, allocator, err);
    if (status == TSR_OK) status = tsr_device_upload(to->device, to->data, result.data, bytes, err);
    tsr_free(allocator, result.data, (size_t)bytes, 1);
    return status;
}

static tsr_status load_other(const tsr_fsdp_loading *l, size_t i, tsr_error *err)
{
    const tsr_fsdp_item *item = &tsr_fsdp_items(l->model)[i];
    const tsr_fsdp_tree *tree = &l->model->tree;
    if (!l->values[i]) return TSR_OK;
    if (item->kind == TSR_ITEM_EXTRA)
        return tree->set_extra ? tree->set_extra(tree->ctx, item->fqn, l->values[i], err) : TSR_OK;
    if (item->kind != TSR_ITEM_PLAIN) return TSR_OK;
    const tsr_status status = load_plain(l, tsr_tensor_of(l->values[i]), tsr_tensor_of(item->value), err);
    if (status != TSR_OK) tsr_error_context(err, "'%.*s'", TSR_STR_ARG(item->fqn));
    return status;
}

/* PyTorch calls a unit's hook before its subtree is loaded and after it, nested units within. */
tsr_status tsr_fsdp_load_write(const tsr_fsdp_loading *l, tsr_error *err)
{
    tsr_status status = TSR_OK, mine = TSR_OK;
    for (size_t i = 0; i < l->model->items.count && status == TSR_OK; i++) {
        const tsr_fsdp_item *item = &tsr_fsdp_items(l->model)[i];
        if (item->kind == TSR_ITEM_ENTER) tsr_fsdp_tell(l->model, item, false);
        if (item->kind == TSR_ITEM_ENTER && tsr_fsdp_nodes(l->model)[item->node].unit) status = load_unit(l, i, err);
        if (status == TSR_OK && mine == TSR_OK) mine = load_other(l, i, err);
        if (item->kind == TSR_ITEM_LEAVE && status == TSR_OK) tsr_fsdp_tell(l->model, item, false);
    }
    return status == TSR_OK ? tsr_comm_agree(l->model->tree.comm, mine, err) : status;
}

tsr_status tsr_fsdp_load_check(tsr_fsdp_loading *l, tsr_error *err)
{
    TSR_TRY(tsr_fsdp_begin(l->model, "load", l->state, err));
    return tsr_comm_agree(l->model->tree.comm, fsdp_check_state(l, err), err);
}

tsr_status tsr_fsdp_model_load(tsr_fsdp_model *model, const tsr_value *state, bool strict, tsr_arena *arena,
                               tsr_fsdp_keys *keys, tsr_error *err)
{
    tsr_fsdp_loading l = {.model = model, .state = state, .strict = strict, .arena = arena};
    const tsr_status status = tsr_fsdp_load_check(&l, err);
    if (keys) *keys = l.keys;
    return status == TSR_OK ? tsr_fsdp_load_write(&l, err) : status;
}
