/* Values as bytes:
 *
 *   | kind u8 | flags u8 | scalar | size u64, text | count u64, items … |      the kind decides which of these fields exist
 *
 * A tensor is | dtype u32 | ndim u32 | shape: u64 each | its bytes, if it is 0-d or flagged as whole |. */
#include "live/tensor/value_pack.h"

#include "live/tensor/path.h"
#include "live/tensor/state_dict.h"
#include "tessera/sys/value_walk.h"

enum { FLAG_ORDERED = 1, FLAG_CALLED = 2, FLAG_TRUE = 4, FLAG_WHOLE = 8, MOST_DEPTH = 256 };

static tsr_status pack_bytes(const tsr_tensor *tensor, tsr_vec *out, tsr_error *err)
{
    uint64_t bytes;
    TSR_FAIL_IF(!tsr_entry_bytes(&tensor->entry, &bytes), err, TSR_E_UNSUPPORTED,
                "the tensor's elements are not whole bytes");
    TSR_FAIL_IF(tensor->meta || (bytes && !tensor->data), err, TSR_E_USAGE, "the tensor has no memory");
    if (!tensor->device || !bytes) return tsr_vec_append(out, tensor->data, (size_t)bytes, err);
    TSR_TRY(tsr_vec_reserve(out, (size_t)bytes, err));
    TSR_TRY(tensor->device->to_host(tensor->device, (char *)out->items + out->count, tensor->data, bytes, err));
    TSR_TRY(tsr_device_wait(tensor->device, err));
    out->count += (size_t)bytes;
    return TSR_OK;
}

static tsr_status pack_tensor(const tsr_tensor *tensor, bool whole, tsr_vec *out, tsr_error *err)
{
    const tsr_entry *entry = &tensor->entry;
    const uint32_t head[2] = {(uint32_t)entry->dtype, entry->ndim};
    TSR_FAIL_IF(tensor->spread != TSR_WHOLE, err, TSR_E_UNSUPPORTED, "the tensor is distributed; expected a whole tensor");
    TSR_TRY(tsr_vec_append(out, head, sizeof head, err));
    TSR_TRY(tsr_vec_append(out, entry->shape, entry->ndim * sizeof *entry->shape, err));
    return whole || entry->ndim == 0 ? pack_bytes(tensor, out, err) : TSR_OK;
}

static size_t scalar_size(tsr_value_kind kind)
{
    switch (kind) {
    case TSR_VALUE_INT: return sizeof(int64_t);
    case TSR_VALUE_FLOAT: return sizeof(double);
    case TSR_VALUE_COMPLEX: return 2 * sizeof(double);
    case TSR_VALUE_DTYPE: return sizeof(tsr_dtype);
    default: return 0;
    }
}

static tsr_status pack(const tsr_value *value, uint32_t depth, uint32_t tensors_at, tsr_vec *out, tsr_error *err)
{
    const bool whole = value->kind == TSR_VALUE_TENSOR && depth > tensors_at;
    const uint8_t head[2] = {(uint8_t)value->kind,
                             (uint8_t)((value->ordered_dict ? FLAG_ORDERED : 0) | (value->called ? FLAG_CALLED : 0) |
                                       (value->kind == TSR_VALUE_BOOL && value->as.boolean ? FLAG_TRUE : 0) |
                                       (whole ? FLAG_WHOLE : 0))};
    const uint64_t sizes[2] = {value->text.size, value->count};
    TSR_FAIL_IF(depth > MOST_DEPTH, err, TSR_E_LIMIT, "nested deeper than %d", MOST_DEPTH);
    TSR_TRY(tsr_vec_append(out, head, sizeof head, err));
    if (value->kind == TSR_VALUE_TENSOR) {
        TSR_FAIL_IF(!tensors_at, err, TSR_E_UNSUPPORTED, "a tensor inside a nested value cannot be broadcast");
        return pack_tensor(tsr_tensor_of(value), whole, out, err);
    }
    TSR_TRY(tsr_vec_append(out, &value->as, scalar_size(value->kind), err));
    TSR_TRY(tsr_vec_append(out, sizes, sizeof sizes, err));
    TSR_TRY(tsr_vec_append(out, value->text.data, value->text.size, err));
    for (size_t i = 0; i < value->count; i++) TSR_TRY(pack(value->items[i], depth + 1, tensors_at, out, err));
    return TSR_OK;
}

tsr_status tsr_value_pack(const tsr_value *value, uint32_t tensors_at, tsr_vec *out, tsr_error *err)
{
    return pack(value, 0, tensors_at, out, err);
}

/* ---- unpacking ---- */

typedef struct unpacking {
    tsr_str rest;
    tsr_arena *arena;
} unpacking;

static tsr_status take(unpacking *u, void *to, size_t size, tsr_error *err)
{
    TSR_FAIL_IF(size > u->rest.size, err, TSR_E_FORMAT, "a value from another rank is truncated");
    if (size && to) memcpy(to, u->rest.data, size);
    u->rest = (tsr_str){u->rest.data + size, u->rest.size - size};
    return TSR_OK;
}

static tsr_status unpack_bytes(unpacking *u, tsr_tensor *tensor, tsr_error *err)
{
    uint64_t bytes;
    TSR_FAIL_IF(!tsr_entry_bytes(&tensor->entry, &bytes) || bytes > u->rest.size, err, TSR_E_FORMAT,
                "a tensor from another rank is truncated");
    tensor->data = tsr_arena_array(u->arena, (size_t)bytes, 1, err);
    return tensor->data ? take(u, tensor->data, (size_t)bytes, err) : TSR_E_NOMEM;
}

static tsr_status unpack_tensor(unpacking *u, bool whole, tsr_value *value, tsr_error *err)
{
    uint32_t head[2];
    tsr_tensor *tensor = TSR_ARENA_NEW(u->arena, tsr_tensor, err);
    TSR_TRY(take(u, head, sizeof head, err));
    TSR_FAIL_IF(head[0] >= TSR_DTYPE_COUNT || head[1] > TSR_MAX_NDIM, err, TSR_E_FORMAT,
                "a tensor from another rank is invalid");
    uint64_t *shape = tsr_arena_array(u->arena, head[1], sizeof *shape, err);
    if (!tensor || !shape) return TSR_E_NOMEM;
    TSR_TRY(take(u, shape, head[1] * sizeof *shape, err));
    *tensor = tsr_tensor_whole((tsr_dtype)head[0], head[1], shape, NULL);
    tensor->meta = head[1] != 0 && !whole;
    value->as.tensor = &tensor->entry;
    return tensor->meta ? TSR_OK : unpack_bytes(u, tensor, err);
}

static tsr_status unpack(unpacking *u, uint32_t depth, const tsr_value **out, tsr_error *err);

static tsr_status unpack_items(unpacking *u, uint32_t depth, tsr_value *value, uint64_t count, tsr_error *err)
{
    TSR_FAIL_IF(count > u->rest.size, err, TSR_E_FORMAT, "a value from another rank is truncated");
    const tsr_value **items = tsr_arena_array(u->arena, (size_t)count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < count; i++) TSR_TRY(unpack(u, depth + 1, &items[i], err));
    value->items = items;
    value->count = (size_t)count;
    return TSR_OK;
}

static tsr_status unpack(unpacking *u, uint32_t depth, const tsr_value **out, tsr_error *err)
{
    uint8_t head[2];
    uint64_t sizes[2];
    TSR_FAIL_IF(depth > MOST_DEPTH, err, TSR_E_LIMIT, "nested deeper than %d", MOST_DEPTH);
    TSR_TRY(take(u, head, sizeof head, err));
    TSR_FAIL_IF(head[0] > TSR_VALUE_OBJECT, err, TSR_E_FORMAT, "a value from another rank is invalid");
    tsr_value *value = tsr_value_new(u->arena, (tsr_value_kind)head[0], err);
    if (!value) return TSR_E_NOMEM;
    *out = value;
    value->ordered_dict = head[1] & FLAG_ORDERED;
    value->called = head[1] & FLAG_CALLED;
    if (value->kind == TSR_VALUE_BOOL) value->as.boolean = head[1] & FLAG_TRUE;
    if (value->kind == TSR_VALUE_TENSOR) return unpack_tensor(u, head[1] & FLAG_WHOLE, value, err);
    TSR_TRY(take(u, &value->as, scalar_size(value->kind), err));
    TSR_TRY(take(u, sizes, sizeof sizes, err));
    value->text = (tsr_str){u->rest.data, (size_t)sizes[0]};
    TSR_TRY(take(u, NULL, (size_t)sizes[0], err));
    return unpack_items(u, depth, value, sizes[1], err);
}

tsr_status tsr_value_unpack(tsr_str bytes, tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    unpacking u = {bytes, arena};
    return unpack(&u, 0, out, err);
}

tsr_status tsr_value_copy(const tsr_value *value, tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    tsr_vec packed = tsr_vec_of(tsr_arena_allocator(arena), 1);
    tsr_status status = tsr_value_pack(value, 0, &packed, err);
    const tsr_str own =
        status == TSR_OK ? tsr_arena_str(arena, (tsr_str){packed.items, packed.count}, err) : (tsr_str){NULL, 0};
    tsr_vec_free(&packed);
    if (status != TSR_OK) return status;
    return own.data ? tsr_value_unpack(own, arena, out, err) : TSR_E_NOMEM;
}
