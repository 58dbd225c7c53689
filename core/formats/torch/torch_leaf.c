/* The kind, type and value of leaves of a state dict that are not dense tensors. */
#include "formats/pickle/enum_names.h"
#include "formats/pickle/torch_names.h"
#include "formats/torch/torch_flatten.h"
#include "tessera/sys/try.h"

/* numpy's _reconstruct and copyreg's _reconstructor make an object of the class that is their first argument. */
static tsr_str class_name(const tsr_value *object)
{
    const tsr_value *args = object->items[0];
    bool makes = tsr_str_ends(object->text, TSR_STR("._reconstruct")) ||
                 tsr_str_equal(object->text, TSR_STR("copyreg._reconstructor"));
    bool names = makes && args->kind == TSR_VALUE_TUPLE && args->count && args->items[0]->kind == TSR_VALUE_GLOBAL;
    return names ? args->items[0]->text : object->text;
}

/* The names that classes have now, where protocol 2 or a method of the class stands for them. */
static tsr_str present_name(tsr_str name)
{
    static const struct {
        const char *pickled, *name;
    } rows[] = {{TSR_TORCH_ZONE, "zoneinfo.ZoneInfo"},
                {"array._array_reconstructor", "array.array"},
                {"re._compile", "re.Pattern"},
                {"logging.getLogger", "logging.Logger"},
                {"UserDict.IterableUserDict", "collections.UserDict"},
                {"UserDict.UserDict", "collections.UserDict"},
                {"UserList.UserList", "collections.UserList"},
                {"UserString.UserString", "collections.UserString"}};
    const tsr_str exceptions = TSR_STR("exceptions.");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(rows[i].pickled))) return tsr_str_from(rows[i].name);
    if (!tsr_str_starts(name, exceptions)) return name;
    return (tsr_str){name.data + exceptions.size, name.size - exceptions.size}; /* "ValueError", as for "int" */
}

static tsr_str type_name(const tsr_value *value)
{
    if (value->variant == TSR_VARIANT_FROZENSET) return TSR_STR("frozenset");
    if (value->variant == TSR_VARIANT_BYTEARRAY) return TSR_STR("bytearray");
    /* clang-format off */
    static const char *const names[] = {
        [TSR_VALUE_NONE] = "NoneType", [TSR_VALUE_BOOL] = "bool", [TSR_VALUE_INT] = "int", [TSR_VALUE_BIGINT] = "int",
        [TSR_VALUE_FLOAT] = "float", [TSR_VALUE_COMPLEX] = "complex", [TSR_VALUE_STR] = "str", [TSR_VALUE_BYTES] = "bytes",
        [TSR_VALUE_LIST] = "list", [TSR_VALUE_TUPLE] = "tuple", [TSR_VALUE_SET] = "set", [TSR_VALUE_DICT] = "dict",
        [TSR_VALUE_SIZE] = "torch.Size", [TSR_VALUE_DTYPE] = "torch.dtype", [TSR_VALUE_DEVICE] = "torch.device",
        [TSR_VALUE_TENSOR] = "torch.Tensor", [TSR_VALUE_GLOBAL] = "type"};
    /* clang-format on */
    return value->kind == TSR_VALUE_OBJECT ? present_name(class_name(value)) : tsr_str_from(names[value->kind]);
}

/* The dtype and shape of a quantized, sparse or other special tensor, from its named parts. */
static tsr_status describe_parts(const tsr_value *value, tsr_arena *arena, tsr_entry *entry, tsr_error *err)
{
    const tsr_value *parts = value->items[0];
    if (parts->kind != TSR_VALUE_DICT) return TSR_OK;
    const tsr_value *dtype = tsr_value_get(parts, TSR_STR("dtype")), *size = tsr_value_get(parts, TSR_STR("size"));
    const tsr_value *data = tsr_value_get(parts, TSR_STR("data")), *values = tsr_value_get(parts, TSR_STR("values"));
    if (!values || values->kind != TSR_VALUE_TENSOR) values = data;
    if (values && values->kind == TSR_VALUE_TENSOR) entry->dtype = values->as.tensor->dtype;
    if (dtype && dtype->kind == TSR_VALUE_DTYPE) entry->dtype = dtype->as.dtype;
    if (data && data->kind == TSR_VALUE_TENSOR) {
        entry->ndim = data->as.tensor->ndim;
        entry->shape = data->as.tensor->shape;
    }
    if (!size || (size->kind != TSR_VALUE_SIZE && size->kind != TSR_VALUE_TUPLE)) return TSR_OK;
    uint64_t *shape = tsr_arena_array(arena, size->count, sizeof *shape, err);
    if (!shape) return TSR_E_NOMEM;
    for (size_t i = 0; i < size->count; i++) {
        if (size->items[i]->kind != TSR_VALUE_INT || size->items[i]->as.integer < 0) return TSR_OK;
        shape[i] = (uint64_t)size->items[i]->as.integer;
    }
    entry->ndim = (uint32_t)size->count;
    entry->shape = shape;
    return TSR_OK;
}

/* States where the tensors are that a shard of a tensor subclass consists of: how many bytes, and where the first ones begin. */
static void place_shard(const tsr_value *shard, tsr_chunk *chunk)
{
    const tsr_value *state = tsr_value_get(shard->items[0], TSR_STR("state"));
    for (size_t i = 1; state && state->kind == TSR_VALUE_DICT && i < state->count; i += 2) {
        const tsr_value *part = state->items[i];
        if (part->kind != TSR_VALUE_TENSOR || part->as.tensor->chunk_count != 1) continue;
        const tsr_chunk *own = part->as.tensor->chunks;
        if (!chunk->byte_length || own->byte_offset < chunk->byte_offset) chunk->byte_offset = own->byte_offset;
        chunk->byte_length += own->byte_length;
    }
}

tsr_status tsr_torch_leaf(const tsr_value *value, const tsr_host *host, tsr_map *seen, tsr_arena *arena, tsr_entry *entry,
                          tsr_error *err)
{
    if (value->kind == TSR_VALUE_OBJECT && value->as.tensor) {
        *entry = *value->as.tensor;
        tsr_chunk *chunk = entry->chunk_count ? (tsr_chunk *)entry->chunks : NULL; /* made by the reader of this very tree */
        if (chunk && !chunk->byte_length) place_shard(entry->value->items[0], chunk);
        return tsr_torch_name_inner(entry->value, host, seen, arena, err);
    }
    const tsr_str enum_class = tsr_enum_named(value);
    bool named = value->kind == TSR_VALUE_GLOBAL && !tsr_str_starts(value->text, TSR_STR("torch."));
    bool member = enum_class.size || tsr_enum_value(value);
    entry->kind = !member && (value->kind == TSR_VALUE_OBJECT || named) ? TSR_ENTRY_OPAQUE : TSR_ENTRY_OBJECT;
    entry->value = value;
    entry->type = enum_class.size ? enum_class : type_name(value);
    if (value->kind == TSR_VALUE_OBJECT) TSR_TRY(describe_parts(value, arena, entry, err));
    return tsr_torch_name_inner(value, host, seen, arena, err);
}
