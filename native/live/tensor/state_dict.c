/* The owner of a state dict: nodes in an arena, a root that grows, and the memory of tensors. */
#include "live/tensor/state_dict.h"

#include "tessera/sys/box.h"
#include "tessera/sys/map.h"
#include "tessera/sys/state_dict_memory.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/value_walk.h"

tsr_status tsr_state_dict_new(const tsr_host *host, tsr_state_dict **out, tsr_error *err)
{
    *out = NULL;
    tsr_state_dict *dict = tsr_alloc(host->allocator, 1, sizeof *dict, err);
    if (!dict) return TSR_E_NOMEM;
    *dict = (tsr_state_dict){.host = host,
                             .pairs = tsr_vec_of(host->allocator, sizeof(const tsr_value *)),
                             .buffers = tsr_vec_of(host->allocator, sizeof(tsr_buffer)),
                             .pinned = tsr_vec_of(host->allocator, sizeof(tsr_buffer)),
                             .made = {.kind = TSR_VALUE_DICT}};
    dict->root = &dict->made;
    dict->arena = tsr_arena_new(host->allocator, 0, err);
    dict->index = dict->arena ? tsr_map_new(host->allocator, 0, err) : NULL;
    if (!dict->index) {
        tsr_state_dict_free(dict);
        return TSR_E_NOMEM;
    }
    *out = dict;
    return TSR_OK;
}

static void free_buffer(const tsr_state_dict *dict, const tsr_buffer *buffer)
{
    if (buffer->pinned) buffer->pinned->unpin(buffer->pinned, buffer->data, buffer->bytes);
    if (buffer->device) buffer->device->free(buffer->device, buffer->data, buffer->bytes);
    else tsr_free(dict->host->allocator, buffer->data, (size_t)buffer->bytes, 1);
}

void tsr_state_dict_free(tsr_state_dict *dict)
{
    if (!dict) return;
    const tsr_buffer *buffers = dict->buffers.items;
    for (size_t i = 0; i < dict->buffers.count; i++) free_buffer(dict, &buffers[i]);
    const tsr_buffer *pinned = dict->pinned.items;
    for (size_t i = 0; i < dict->pinned.count; i++)
        pinned[i].pinned->unpin(pinned[i].pinned, pinned[i].data, pinned[i].bytes);
    tsr_shared_free(dict->shared);
    tsr_vec_free(&dict->buffers);
    tsr_vec_free(&dict->pinned);
    tsr_vec_free(&dict->pairs);
    tsr_map_free(dict->index);
    tsr_arena_free(dict->arena);
    tsr_free(dict->host->allocator, dict, 1, sizeof *dict);
}

const tsr_host *tsr_state_dict_host(const tsr_state_dict *dict)
{
    return dict->host;
}
tsr_arena *tsr_state_dict_arena(tsr_state_dict *dict)
{
    return dict->arena;
}
const tsr_value *tsr_state_dict_root(const tsr_state_dict *dict)
{
    return dict->root;
}
uint64_t tsr_state_dict_owned(const tsr_state_dict *dict)
{
    return dict->owned;
}
void tsr_state_dict_set_root(tsr_state_dict *dict, const tsr_value *root)
{
    dict->root = root;
}

/* ---- a root made with put ---- */

const tsr_value *tsr_state_dict_get(const tsr_state_dict *dict, tsr_str key)
{
    if (dict->root != &dict->made) return dict->root->kind == TSR_VALUE_DICT ? tsr_value_get(dict->root, key) : NULL;
    const uint32_t at = tsr_map_get(dict->index, key, UINT32_MAX);
    return at == UINT32_MAX ? NULL : ((const tsr_value *const *)dict->pairs.items)[at];
}

static tsr_status add_pair(tsr_state_dict *dict, tsr_str key, const tsr_value *value, tsr_error *err)
{
    const tsr_str own = tsr_arena_str(dict->arena, key, err);
    const tsr_value *name = own.data ? tsr_value_str(dict->arena, own, err) : NULL;
    if (!name) return TSR_E_NOMEM;
    TSR_TRY(tsr_vec_reserve(&dict->pairs, 2, err));
    TSR_TRY(tsr_map_put(dict->index, own, (uint32_t)dict->pairs.count + 1, NULL, NULL, err));
    const tsr_value **pair = (const tsr_value **)dict->pairs.items + dict->pairs.count;
    pair[0] = name;
    pair[1] = value;
    dict->pairs.count += 2;
    dict->made.items = dict->pairs.items;
    dict->made.count = dict->pairs.count;
    return TSR_OK;
}

tsr_status tsr_state_dict_put(tsr_state_dict *dict, tsr_str key, const tsr_value *value, tsr_error *err)
{
    TSR_FAIL_IF(dict->root != &dict->made, err, TSR_E_USAGE,
                "state dict: '%.*s' cannot be added to a tree that this library did not create", TSR_STR_ARG(key));
    const uint32_t at = tsr_map_get(dict->index, key, UINT32_MAX);
    if (at == UINT32_MAX) return add_pair(dict, key, value, err);
    ((const tsr_value **)dict->pairs.items)[at] = value;
    return TSR_OK;
}

/* ---- tensors ---- */

static tsr_status copy_array(tsr_arena *arena, const void **array, size_t count, size_t size, tsr_error *err)
{
    void *copy = tsr_arena_array(arena, count, size, err);
    if (!copy) return TSR_E_NOMEM;
    if (count) memcpy(copy, *array, count * size);
    *array = copy;
    return TSR_OK;
}

static tsr_status copy_mesh(tsr_state_dict *dict, tsr_tensor *tensor, tsr_error *err)
{
    tsr_mesh *mesh = TSR_ARENA_NEW(dict->arena, tsr_mesh, err);
    if (!mesh) return TSR_E_NOMEM;
    *mesh = *tensor->mesh;
    TSR_TRY(copy_array(dict->arena, (const void **)&mesh->shape, mesh->dim_count, sizeof *mesh->shape, err));
    if (mesh->names) {
        TSR_TRY(copy_array(dict->arena, (const void **)&mesh->names, mesh->dim_count, sizeof *mesh->names, err));
        for (uint32_t i = 0; i < mesh->dim_count; i++) {
            tsr_str *name = (tsr_str *)&mesh->names[i];
            *name = tsr_arena_str(dict->arena, *name, err);
            if (!name->data) return TSR_E_NOMEM;
        }
    }
    tensor->mesh = mesh;
    return copy_array(dict->arena, (const void **)&tensor->placements, mesh->dim_count, sizeof *tensor->placements, err);
}

static tsr_status copy_parts(tsr_state_dict *dict, tsr_tensor *tensor, tsr_error *err)
{
    TSR_TRY(copy_array(dict->arena, (const void **)&tensor->parts, tensor->part_count, sizeof *tensor->parts, err));
    for (uint32_t i = 0; i < tensor->part_count; i++) {
        tsr_tensor_part *part = (tsr_tensor_part *)&tensor->parts[i];
        TSR_TRY(copy_array(dict->arena, (const void **)&part->offsets, tensor->entry.ndim, sizeof *part->offsets, err));
        TSR_TRY(copy_array(dict->arena, (const void **)&part->sizes, tensor->entry.ndim, sizeof *part->sizes, err));
    }
    return TSR_OK;
}

static tsr_status copy_tensor(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_tensor **out, tsr_error *err)
{
    tsr_tensor *copy = TSR_ARENA_NEW(dict->arena, tsr_tensor, err);
    if (!copy) return TSR_E_NOMEM;
    *copy = *tensor;
    if (copy->entry.fqn.size) copy->entry.fqn = tsr_arena_str(dict->arena, copy->entry.fqn, err);
    if (tensor->entry.fqn.size && !copy->entry.fqn.data) return TSR_E_NOMEM;
    TSR_TRY(copy_array(dict->arena, (const void **)&copy->entry.shape, copy->entry.ndim, sizeof *copy->entry.shape, err));
    if (copy->spread == TSR_OVER_MESH) TSR_TRY(copy_mesh(dict, copy, err));
    if (copy->spread == TSR_IN_BOXES) TSR_TRY(copy_parts(dict, copy, err));
    *out = copy;
    return TSR_OK;
}

tsr_status tsr_state_dict_copy_tensor(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_tensor **out, tsr_error *err)
{
    tsr_tensor *nested;
    TSR_TRY(copy_tensor(dict, tensor, out, err));
    if (!tensor->nested) return TSR_OK;
    TSR_TRY(copy_tensor(dict, tensor->nested, &nested, err));
    nested->nested = NULL; /* nesting stops at the second level */
    (*out)->nested = nested;
    return TSR_OK;
}

const tsr_value *tsr_state_dict_leaf(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_error *err)
{
    return tsr_value_tensor(dict->arena, &tensor->entry, err);
}

static tsr_status check_pieces(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_error *err)
{
    uint64_t bytes;
    return tsr_tensor_held(tensor, dict->arena, &bytes, err);
}

tsr_status tsr_state_dict_tensor(tsr_state_dict *dict, const tsr_tensor *tensor, const tsr_value **out, tsr_error *err)
{
    tsr_tensor *copy;
    if (!tensor->nested) TSR_TRY(check_pieces(dict, tensor, err));
    TSR_TRY(tsr_state_dict_copy_tensor(dict, tensor, &copy, err));
    *out = tsr_state_dict_leaf(dict, copy, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_state_dict_allocate(tsr_state_dict *dict, const tsr_tensor *tensor, const tsr_value **out, tsr_error *err)
{
    tsr_tensor *copy;
    TSR_TRY(check_pieces(dict, tensor, err));
    TSR_TRY(tsr_state_dict_copy_tensor(dict, tensor, &copy, err));
    TSR_TRY(tsr_state_dict_give_memory(dict, copy, NULL, err));
    *out = tsr_state_dict_leaf(dict, copy, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- memory ---- */

static tsr_status allocate(tsr_state_dict *dict, tsr_device *device, tsr_device *pin, uint64_t bytes, void **out,
                           tsr_error *err)
{
    tsr_buffer *buffer;
    *out = NULL;
    if (bytes == 0) return TSR_OK;
    TSR_TRY(tsr_vec_reserve(&dict->buffers, 1, err));
    if (device) TSR_TRY(device->alloc(device, bytes, out, err));
    else *out = tsr_alloc(dict->host->allocator, (size_t)bytes, 1, err);
    if (!*out) return TSR_E_NOMEM;
    buffer = tsr_vec_push(&dict->buffers, err);
    *buffer = (tsr_buffer){device, NULL, *out, bytes};
    dict->owned += bytes;
    if (!pin) return TSR_OK;
    TSR_TRY(pin->pin(pin, *out, bytes, err));
    buffer->pinned = pin;
    return TSR_OK;
}

uint32_t tsr_tensor_buffer_count(const tsr_tensor *tensor)
{
    return tensor->spread == TSR_IN_BOXES ? tensor->part_count : 1;
}

tsr_status tsr_tensor_buffer(const tsr_tensor *tensor, uint32_t index, tsr_arena *arena, void **data, uint64_t *bytes,
                             tsr_error *err)
{
    const uint64_t *shape;
    uint64_t elements;
    if (tensor->spread != TSR_IN_BOXES) {
        *data = tensor->data;
        return tsr_tensor_local(tensor, arena, &shape, bytes, err);
    }
    const tsr_tensor_part *part = &tensor->parts[index];
    TSR_FAIL_IF(tensor->nested, err, TSR_E_UNSUPPORTED, "'%.*s' is a distributed tensor inside another one",
                TSR_STR_ARG(tensor->entry.fqn));
    *data = part->data;
    tsr_box_volume((tsr_box){tensor->entry.ndim, NULL, part->sizes}, &elements);
    *bytes = elements * tsr_dtype_size(tensor->entry.dtype);
    return TSR_OK;
}

tsr_status tsr_state_dict_give_memory(tsr_state_dict *dict, tsr_tensor *tensor, tsr_device *pin, tsr_error *err)
{
    tensor->meta = false;
    tensor->shared = NULL;
    for (uint32_t i = 0; i < tsr_tensor_buffer_count(tensor); i++) {
        void *data;
        uint64_t bytes;
        TSR_TRY(tsr_tensor_buffer(tensor, i, dict->arena, &data, &bytes, err));
        TSR_TRY(allocate(dict, tensor->device, pin, bytes, &data, err));
        if (tensor->spread == TSR_IN_BOXES) ((tsr_tensor_part *)tensor->parts)[i].data = data;
        else tensor->data = data;
    }
    return TSR_OK;
}
