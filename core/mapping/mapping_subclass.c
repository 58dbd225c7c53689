/* Reads weights that torchao quantized: objects that hold their numbers as `qdata` and their scales as `scale`. */
#include "mapping/mapping_subclass.h"
#include "stream/gather.h"
#include "tessera/sys/try.h"

enum { DEEPEST = 8 };

static const tsr_value *item_of(const tsr_value *dict, const char *key)
{
    const tsr_str wanted = tsr_str_from(key);
    for (size_t i = 0; dict->kind == TSR_VALUE_DICT && i + 1 < dict->count; i += 2) {
        const tsr_value *name = dict->items[i];
        if (name->kind == TSR_VALUE_STR && tsr_str_equal(name->text, wanted)) return dict->items[i + 1];
    }
    return NULL;
}

/* Finds the dict with `qdata` and `scale` among the arguments of the object, or inside them. Returns NULL if there is
 * none. */
static const tsr_value *find_parts(const tsr_value *value, unsigned depth)
{
    const tsr_value *found = NULL;
    if (depth == DEEPEST) return NULL;
    const tsr_value *data = item_of(value, "qdata"), *scale = item_of(value, "scale");
    if (data && scale && data->kind == TSR_VALUE_TENSOR && scale->kind == TSR_VALUE_TENSOR) return value;
    const bool nested = value->kind == TSR_VALUE_OBJECT || value->kind == TSR_VALUE_DICT || value->kind == TSR_VALUE_TUPLE;
    for (size_t i = 0; nested && i < value->count && !found; i++) found = find_parts(value->items[i], depth + 1);
    return found;
}

static tsr_status refuse(const tsr_entry *entry, const char *why, tsr_error *err)
{
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "'%.*s' is a %.*s%s, which --dequantize does not support; call its dequantize() in torchao",
                    TSR_STR_ARG(entry->fqn), TSR_STR_ARG(entry->type), why);
}

static bool is_class(const tsr_entry *entry, const char *name)
{
    return tsr_str_ends(entry->type, tsr_str_from(name));
}

static bool is_true(const tsr_value *value)
{
    return value && value->kind == TSR_VALUE_BOOL && value->as.boolean;
}

/* Makes an entry with the object's name from one of its tensors; *out is NULL if the value is not a tensor. */
static tsr_status take_tensor(tsr_mapped *m, tsr_str fqn, const tsr_value *value, const tsr_entry **out, tsr_error *err)
{
    tsr_arena *arena = m->own->arena;
    *out = NULL;
    if (!value || value->kind != TSR_VALUE_TENSOR) return TSR_OK;
    const tsr_entry *readable = tsr_gather_readable(m->source, arena, value->as.tensor, err);
    tsr_entry *copy = readable ? TSR_ARENA_NEW(arena, tsr_entry, err) : NULL;
    if (!copy) return TSR_E_NOMEM;
    *copy = *readable;
    copy->fqn = fqn;
    *out = copy;
    return TSR_OK;
}

/* Whether the shape of the numbers is that of the object, with `pack` numbers in each element of the last dim. Packed
 * numbers that were transposed have another shape. */
static bool has_shape(const tsr_entry *object, const tsr_entry *data, uint64_t pack)
{
    if (data->ndim != object->ndim || !data->ndim) return false;
    const uint32_t last = data->ndim - 1;
    return memcmp(data->shape, object->shape, last * sizeof *data->shape) == 0 && data->shape[last] <= UINT64_MAX / pack &&
           data->shape[last] * pack == object->shape[last];
}

tsr_status tsr_subclass_find(tsr_mapped *m, tsr_subclass_parts *parts, tsr_scaling *how, tsr_error *err)
{
    const tsr_entry *entry = parts->object;
    parts->data = parts->scale = NULL;
    const tsr_value *dict = entry->kind == TSR_ENTRY_OPAQUE && entry->value ? find_parts(entry->value, 0) : NULL;
    if (!dict) return TSR_OK;
    const bool nvfp4 = is_class(entry, ".NVFP4Tensor");
    if (!nvfp4 && !is_class(entry, ".Float8Tensor") && !is_class(entry, ".MXTensor")) return refuse(entry, "", err);
    if (is_true(item_of(dict, "is_swizzled_scales"))) return refuse(entry, " with swizzled scales", err);
    TSR_TRY(take_tensor(m, entry->fqn, item_of(dict, "qdata"), &parts->data, err));
    TSR_TRY(take_tensor(m, entry->fqn, item_of(dict, "scale"), &parts->scale, err));
    how->scheme = nvfp4 ? TSR_SCALES_NVFP4 : TSR_SCALES_FITTING;
    if (nvfp4) TSR_TRY(take_tensor(m, entry->fqn, item_of(dict, "per_tensor_scale"), &how->tensor_scale, err));
    if (nvfp4 && !has_shape(entry, parts->data, 2)) return refuse(entry, " that is transposed", err);
    if (!nvfp4 && !tsr_mapped_is_scalable(parts->data->dtype)) return refuse(entry, " of packed numbers", err);
    if (!nvfp4 && !has_shape(entry, parts->data, 1)) return refuse(entry, " whose numbers have another shape", err);
    return TSR_OK;
}
