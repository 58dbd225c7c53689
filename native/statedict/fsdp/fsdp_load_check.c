/* Checks the keys, shapes and forms of a state dict before any of it is written. */
#include "statedict/fsdp/fsdp_cut.h"
#include "statedict/fsdp/fsdp_load.h"

#include <inttypes.h>

#include "tessera/sys/cast.h"
#include "tessera/sys/entries.h"

/* ---- keys ---- */

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
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "size mismatch for '%.*s': %.*s in the state, %.*s in the model",
                         TSR_STR_ARG(fqn), TSR_STR_ARG(theirs), TSR_STR_ARG(mine));
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
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "%.*s%s%.*s", TSR_STR_ARG(missing),
                     missing.size && unexpected.size ? "; " : "", TSR_STR_ARG(unexpected));
}

tsr_status tsr_fsdp_check_state(tsr_fsdp_loading *l, tsr_error *err)
{
    TSR_TRY(match_keys(l, err));
    for (size_t i = 0; i < l->model->items.count; i++) TSR_TRY(check_item(l, i, err));
    return strict_keys(l, err);
}
