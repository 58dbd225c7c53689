/* See wire.h. */
#include "wire.h"

#include "tessera/sys/catalog.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

#define NO_BYTES UINT64_MAX

/* ---- reading ---- */

static tsr_status take(wire_in *in, void *out, size_t size, tsr_error *err)
{
    const bool fits = size <= (size_t)(in->end - in->at);
    if (!fits) memset(out, 0, size);
    if (!fits) return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "wire: too short");
    memcpy(out, in->at, size);
    in->at += size;
    return TSR_OK;
}

static tsr_status take_text(wire_in *in, tsr_str *out, tsr_error *err)
{
    uint32_t size;
    TSR_TRY(take(in, &size, sizeof size, err));
    if ((size_t)(in->end - in->at) < size) return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "wire: too short");
    *out = tsr_arena_str(tsr_state_dict_arena(in->dict), (tsr_str){(const char *)in->at, size}, err);
    in->at += size;
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status take_sizes(wire_in *in, uint32_t count, const uint64_t **out, tsr_error *err)
{
    uint64_t *sizes = tsr_arena_array(tsr_state_dict_arena(in->dict), count, sizeof *sizes, err);
    *out = sizes;
    return sizes ? take(in, sizes, count * sizeof *sizes, err) : TSR_E_NOMEM;
}

static tsr_status take_mesh(wire_in *in, tsr_tensor *tensor, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(in->dict);
    tsr_mesh *mesh = TSR_ARENA_NEW(arena, tsr_mesh, err);
    tsr_placement *placements;
    uint32_t count;
    tsr_str text;
    if (!mesh) return TSR_E_NOMEM;
    TSR_TRY(take_text(in, &text, err));
    TSR_TRY(tsr_mesh_parse(text, arena, mesh, err));
    TSR_TRY(take_text(in, &text, err));
    TSR_TRY(tsr_placements_parse(text, arena, &placements, &count, err));
    tensor->spread = TSR_OVER_MESH;
    tensor->mesh = mesh;
    tensor->placements = placements;
    tensor->mesh_rank = in->rank;
    return TSR_OK;
}

/* Reads the bytes of one buffer, which must be `held` bytes. */
static tsr_status take_data(wire_in *in, void *data, uint64_t held, tsr_error *err)
{
    uint64_t size;
    TSR_TRY(take(in, &size, sizeof size, err));
    if (size != held)
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "wire: a buffer of %llu bytes, where PyTorch has %llu",
                         (unsigned long long)held, (unsigned long long)size);
    return size ? take(in, data, (size_t)size, err) : TSR_OK;
}

static tsr_status take_boxes(wire_in *in, tsr_tensor *tensor, const tsr_value **out, tsr_error *err)
{
    uint32_t count;
    TSR_TRY(take(in, &count, sizeof count, err));
    tsr_tensor_part *parts = tsr_arena_array(tsr_state_dict_arena(in->dict), count, sizeof *parts, err);
    if (!parts) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) {
        TSR_TRY(take_sizes(in, tensor->entry.ndim, &parts[i].offsets, err));
        TSR_TRY(take_sizes(in, tensor->entry.ndim, &parts[i].sizes, err));
    }
    tensor->spread = TSR_IN_BOXES;
    tensor->parts = parts;
    tensor->part_count = count;
    TSR_TRY(tsr_state_dict_allocate(in->dict, tensor, out, err));
    for (uint32_t i = 0; i < count; i++) {
        uint64_t elements = 1;
        for (uint32_t d = 0; d < tensor->entry.ndim; d++) elements *= parts[i].sizes[d];
        TSR_TRY(take_data(in, tsr_tensor_of(*out)->parts[i].data, elements * tsr_dtype_size(tensor->entry.dtype), err));
    }
    return TSR_OK;
}

static tsr_status take_tensor(wire_in *in, char tag, const tsr_value **out, tsr_error *err)
{
    tsr_str dtype;
    uint32_t dims;
    const uint64_t *shape;
    uint64_t held;
    TSR_TRY(take_text(in, &dtype, err));
    TSR_TRY(take(in, &dims, sizeof dims, err));
    TSR_TRY(take_sizes(in, dims, &shape, err));
    tsr_tensor tensor = tsr_tensor_whole(tsr_dtype_from_name(dtype), dims, shape, NULL);
    if (tag == 'X') return take_boxes(in, &tensor, out, err);
    if (tag == 'M') TSR_TRY(take_mesh(in, &tensor, err));
    if (in->end - in->at >= 8 && memcmp(in->at, &(uint64_t){NO_BYTES}, 8) == 0) {
        in->at += 8;
        tensor.meta = true;
        return tsr_state_dict_tensor(in->dict, &tensor, out, err);
    }
    TSR_TRY(tsr_state_dict_allocate(in->dict, &tensor, out, err));
    TSR_TRY(tsr_tensor_held(tsr_tensor_of(*out), tsr_state_dict_arena(in->dict), &held, err));
    return take_data(in, tsr_tensor_of(*out)->data, held, err);
}

static tsr_status take_shared(wire_in *in, char tag, const tsr_value **out, tsr_error *err)
{
    uint32_t number;
    TSR_TRY(take(in, &number, sizeof number, err));
    if (number < in->shared.count) {
        *out = ((const tsr_value **)in->shared.items)[number];
        return TSR_OK;
    }
    TSR_TRY(take_tensor(in, tag, out, err));
    const tsr_value **slot = tsr_vec_push(&in->shared, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = *out;
    return TSR_OK;
}

static tsr_status take_items(wire_in *in, tsr_value_kind kind, const tsr_value **out, tsr_error *err)
{
    uint32_t count;
    TSR_TRY(take(in, &count, sizeof count, err));
    const tsr_value **items = tsr_arena_array(tsr_state_dict_arena(in->dict), count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) TSR_TRY(wire_read(in, &items[i], err));
    *out = tsr_value_items(tsr_state_dict_arena(in->dict), kind, items, count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status take_scalar(wire_in *in, char tag, tsr_value *value, tsr_error *err)
{
    uint8_t boolean;
    switch (tag) {
    case 'N': return TSR_OK;
    case 'B':
        TSR_TRY(take(in, &boolean, 1, err));
        value->kind = TSR_VALUE_BOOL;
        value->as.boolean = boolean;
        return TSR_OK;
    case 'I': value->kind = TSR_VALUE_INT; return take(in, &value->as.integer, 8, err);
    case 'F': value->kind = TSR_VALUE_FLOAT; return take(in, &value->as.real, 8, err);
    case 'C': value->kind = TSR_VALUE_COMPLEX; return take(in, &value->as.complex, 16, err);
    case 'S': value->kind = TSR_VALUE_STR; return take_text(in, &value->text, err);
    case 'Y': value->kind = TSR_VALUE_BYTES; return take_text(in, &value->text, err);
    case 'O': value->kind = TSR_VALUE_OBJECT; return take_text(in, &value->text, err);
    default: return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "wire: tag %d", tag);
    }
}

tsr_status wire_read(wire_in *in, const tsr_value **out, tsr_error *err)
{
    char tag;
    TSR_TRY(take(in, &tag, 1, err));
    if (tag == 'T' || tag == 'M' || tag == 'X') return take_shared(in, tag, out, err);
    if (tag == 'D') return take_items(in, TSR_VALUE_DICT, out, err);
    if (tag == 'L') return take_items(in, TSR_VALUE_LIST, out, err);
    if (tag == 'U') return take_items(in, TSR_VALUE_TUPLE, out, err);
    tsr_value *value = tsr_value_new(tsr_state_dict_arena(in->dict), TSR_VALUE_NONE, err);
    *out = value;
    return value ? take_scalar(in, tag, value, err) : TSR_E_NOMEM;
}

/* ---- writing ---- */

static tsr_status put(tsr_vec *bytes, const void *data, size_t size, tsr_error *err)
{
    if (!size) return TSR_OK;
    TSR_TRY(tsr_vec_reserve(bytes, size, err));
    memcpy((uint8_t *)bytes->items + bytes->count, data, size);
    bytes->count += size;
    return TSR_OK;
}

static tsr_status put_text(tsr_vec *bytes, tsr_str text, tsr_error *err)
{
    TSR_TRY(put(bytes, &(uint32_t){(uint32_t)text.size}, 4, err));
    return put(bytes, text.data, text.size, err);
}

static tsr_status put_data(tsr_vec *bytes, const void *data, uint64_t size, tsr_error *err)
{
    if (size && !data) return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "a tensor without memory");
    TSR_TRY(put(bytes, &size, sizeof size, err));
    return put(bytes, data, (size_t)size, err);
}

static tsr_status put_boxes(tsr_vec *bytes, const tsr_tensor *tensor, tsr_error *err)
{
    const size_t size = tensor->entry.ndim * sizeof(uint64_t);
    TSR_TRY(put(bytes, &tensor->part_count, 4, err));
    for (uint32_t i = 0; i < tensor->part_count; i++) {
        TSR_TRY(put(bytes, tensor->parts[i].offsets, size, err));
        TSR_TRY(put(bytes, tensor->parts[i].sizes, size, err));
    }
    for (uint32_t i = 0; i < tensor->part_count; i++) {
        uint64_t elements = 1;
        for (uint32_t d = 0; d < tensor->entry.ndim; d++) elements *= tensor->parts[i].sizes[d];
        TSR_TRY(put_data(bytes, tensor->parts[i].data, elements * tsr_dtype_size(tensor->entry.dtype), err));
    }
    return TSR_OK;
}

static tsr_status put_tensor(tsr_vec *bytes, const tsr_tensor *tensor, tsr_arena *arena, tsr_error *err)
{
    static const char tags[] = {[TSR_WHOLE] = 'T', [TSR_OVER_MESH] = 'M', [TSR_IN_BOXES] = 'X'};
    uint64_t held;
    TSR_TRY(put(bytes, &tags[tensor->spread], 1, err));
    TSR_TRY(put(bytes, &(uint32_t){UINT32_MAX}, 4, err));
    TSR_TRY(put_text(bytes, tsr_str_from(tsr_dtype_describe(tensor->entry.dtype)->name), err));
    TSR_TRY(put(bytes, &tensor->entry.ndim, 4, err));
    TSR_TRY(put(bytes, tensor->entry.shape, tensor->entry.ndim * sizeof(uint64_t), err));
    if (tensor->spread == TSR_IN_BOXES) return put_boxes(bytes, tensor, err);
    if (tensor->spread == TSR_OVER_MESH) {
        TSR_TRY(put_text(bytes, tsr_mesh_text(tensor->mesh, arena, err), err));
        TSR_TRY(put_text(bytes, tsr_placements_text(tensor->placements, tensor->mesh->dim_count, arena, err), err));
    }
    if (tensor->meta) return put(bytes, &(uint64_t){NO_BYTES}, 8, err);
    TSR_TRY(tsr_tensor_held(tensor, arena, &held, err));
    return put_data(bytes, tensor->data, held, err);
}

static tsr_status put_items(tsr_vec *bytes, const tsr_value *value, tsr_arena *arena, tsr_error *err)
{
    TSR_TRY(put(bytes, &(uint32_t){(uint32_t)value->count}, 4, err));
    for (size_t i = 0; i < value->count; i++) TSR_TRY(wire_write(bytes, value->items[i], arena, err));
    return TSR_OK;
}

tsr_status wire_write(tsr_vec *bytes, const tsr_value *value, tsr_arena *arena, tsr_error *err)
{
    static const char tags[] = {
        [TSR_VALUE_NONE] = 'N',    [TSR_VALUE_BOOL] = 'B',  [TSR_VALUE_INT] = 'I',   [TSR_VALUE_FLOAT] = 'F',
        [TSR_VALUE_COMPLEX] = 'C', [TSR_VALUE_STR] = 'S',   [TSR_VALUE_BYTES] = 'Y', [TSR_VALUE_OBJECT] = 'O',
        [TSR_VALUE_LIST] = 'L',    [TSR_VALUE_TUPLE] = 'U', [TSR_VALUE_DICT] = 'D',
    };
    if (value->kind == TSR_VALUE_TENSOR) return put_tensor(bytes, tsr_tensor_of(value), arena, err);
    if (value->kind >= sizeof tags || !tags[value->kind])
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "a value of kind %d", (int)value->kind);
    TSR_TRY(put(bytes, &tags[value->kind], 1, err));
    switch (value->kind) {
    case TSR_VALUE_NONE: return TSR_OK;
    case TSR_VALUE_BOOL: return put(bytes, &(uint8_t){value->as.boolean}, 1, err);
    case TSR_VALUE_INT:
    case TSR_VALUE_FLOAT: return put(bytes, &value->as, 8, err);
    case TSR_VALUE_COMPLEX: return put(bytes, &value->as, 16, err);
    case TSR_VALUE_STR:
    case TSR_VALUE_BYTES:
    case TSR_VALUE_OBJECT: return put_text(bytes, value->text, err);
    default: return put_items(bytes, value, arena, err);
    }
}
