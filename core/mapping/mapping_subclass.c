#include "mapping/mapping_packed.h"

#include "codec/json.h"
#include "formats/pickle/torch_names.h"
#include "stream/gather.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

enum { DEEPEST = 8, MOST_STATE = 1 << 16, MOST_PARTS = 16 };

/* What is known of a weight, however it is stored. */
typedef struct weight {
    tsr_mapped *m;
    tsr_str name, type; /* of the weight; the type ends in the name of its class */
    const tsr_entry *data, *scale, *zero, *tensor_scale;
    const uint64_t *shape; /* NULL: unknown */
    uint32_t ndim;
    uint64_t block[TSR_MAX_NDIM]; /* how many numbers share a scale */
    uint32_t block_ndim;          /* 0: not stated */
    tsr_dtype dtype;              /* that its own dequantize() gives; NONE: unknown */
    bool swizzled, transposed, has_input_scale;
    tsr_error *err;
} weight;

static bool is_class(tsr_str type, const char *name)
{
    return tsr_str_equal(tsr_last_component(type), tsr_str_from(name));
}

/* What reads the weight. torchao has packed some for the kernel that multiplies them, and cannot unpack them. */
static const char *what_reads(tsr_str type)
{
    const bool for_kernels = tsr_str_starts(tsr_last_component(type), TSR_STR("Int4")) || is_class(type, "IntxOpaqueTensor");
    if (for_kernels) return "torchao itself only multiplies by it; use the weights from before they were quantized";
    return is_class(type, "NF4Tensor") ? "call its get_original_weight() in torchao" : "call its dequantize() in torchao";
}

static tsr_status refuse(const weight *w, const char *why)
{
    return tsr_fail(w->err, TSR_E_UNSUPPORTED, "'%.*s' is a %.*s%s, which --dequantize does not support; %s",
                    TSR_STR_ARG(w->name), TSR_STR_ARG(w->type), why, what_reads(w->type));
}

static bool is_product_dtype(tsr_dtype dtype)
{
    return dtype == TSR_FLOAT32 || dtype == TSR_FLOAT16 || dtype == TSR_BFLOAT16;
}

/* ---- what a class makes of its tensors ---- */

/* Whether the shape of the numbers is that of the weight, with `pack` numbers in each element of the last dim. Packed
 * numbers that were transposed have another shape. */
static bool has_shape(const weight *w, uint64_t pack)
{
    const tsr_entry *data = w->data;
    if (!w->shape) return true;
    if (data->ndim != w->ndim || !data->ndim) return false;
    const uint32_t last = data->ndim - 1;
    return memcmp(data->shape, w->shape, last * sizeof *data->shape) == 0 && data->shape[last] <= UINT64_MAX / pack &&
           data->shape[last] * pack == w->shape[last];
}

/* Makes an entry that only has the shape of the scale for the stated blocks: it may be stored with fewer dims. `zero` must have
 * as many elements, if there is one. */
static tsr_status shape_by_blocks(weight *w, tsr_scaling *how)
{
    const tsr_entry *data = w->data;
    uint64_t *shape = tsr_arena_array(w->m->own->arena, data->ndim, sizeof *shape, w->err), count, scales, zeros;
    tsr_entry *like = shape ? TSR_ARENA_NEW(w->m->own->arena, tsr_entry, w->err) : NULL;
    if (!like) return TSR_E_NOMEM;
    bool fits = w->block_ndim == data->ndim;
    for (uint32_t d = 0; d < data->ndim && fits; d++) {
        fits = w->block[d] && data->shape[d] % w->block[d] == 0;
        shape[d] = fits ? data->shape[d] / w->block[d] : 0;
    }
    *like = *w->scale;
    like->shape = shape;
    like->ndim = data->ndim;
    fits = fits && tsr_entry_elements(like, &count) && tsr_entry_elements(w->scale, &scales) && count == scales &&
           (!w->zero || (tsr_entry_elements(w->zero, &zeros) && count == zeros));
    TSR_FAIL_IF(!fits, w->err, TSR_E_FORMAT, "the scales of '%.*s' do not fit the blocks that it states",
                TSR_STR_ARG(w->name));
    how->stored_scale = w->scale;
    w->scale = like;
    return TSR_OK;
}

static void use_blocks(const weight *w, tsr_scaling *how)
{
    if (w->block_ndim >= 2) memcpy(how->block, w->block + w->block_ndim - 2, sizeof how->block);
}

/* (number - zero) · scale, in blocks of any shape. */
static tsr_status use_affine(weight *w, tsr_scaling *how)
{
    if (w->transposed) return refuse(w, " that is transposed");
    if (!tsr_mapped_is_integer(w->data->dtype)) return refuse(w, " of packed numbers");
    if (!has_shape(w, 1)) return refuse(w, " whose numbers have another shape");
    if (!is_product_dtype(w->scale->dtype)) return refuse(w, " with scales of an unusual dtype");
    if (w->zero && !tsr_mapped_is_integer(w->zero->dtype) && !is_product_dtype(w->zero->dtype))
        return refuse(w, " with zero points of an unusual dtype");
    if (!w->block_ndim) return refuse(w, " without a block size");
    how->affine = true;
    how->zero = w->zero;
    use_blocks(w, how);
    return shape_by_blocks(w, how);
}

static tsr_status use_int8(weight *w, tsr_scaling *how)
{
    if (w->data->dtype != TSR_INT8) return refuse(w, " of packed numbers");
    return use_affine(w, how);
}

/* Its dequantize() has the weight's dtype, whatever dtype is wanted. */
static tsr_status use_intx(weight *w, tsr_scaling *how)
{
    how->computed_in = w->dtype;
    return use_int8(w, how);
}

static tsr_status use_float8(weight *w, tsr_scaling *how)
{
    use_blocks(w, how);
    if (w->transposed) return refuse(w, " that is transposed");
    if (!tsr_mapped_is_scalable(w->data->dtype) || w->data->dtype == TSR_INT8) return refuse(w, " of packed numbers");
    if (!has_shape(w, 1)) return refuse(w, " whose numbers have another shape");
    return TSR_OK;
}

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return value + (to - value % to) % to;
}

/* Scales in tiles of 128 rows and 4 columns get the shape that they would have otherwise, with `group` numbers for each. They
 * are read from how->stored_scale. */
static tsr_status untile(weight *w, uint64_t pack, uint64_t group, tsr_scaling *how)
{
    const uint32_t ndim = w->data->ndim;
    const tsr_chunk *chunk = w->data->chunk_count ? w->data->chunks : NULL;
    if (!w->swizzled) return TSR_OK;
    uint64_t *shape = tsr_arena_array(w->m->own->arena, ndim, sizeof *shape, w->err), rows, count;
    tsr_entry *plain = shape ? TSR_ARENA_NEW(w->m->own->arena, tsr_entry, w->err) : NULL;
    if (!plain) return TSR_E_NOMEM;
    if (ndim < 2 || (chunk && chunk->view && chunk->view->strides)) return refuse(w, " that is transposed");
    memcpy(shape, w->data->shape, ndim * sizeof *shape);
    *plain = *w->scale;
    plain->shape = shape;
    plain->ndim = ndim - 1;
    bool fits = shape[ndim - 1] && shape[ndim - 1] <= UINT32_MAX && shape[ndim - 1] * pack % group == 0 &&
                tsr_entry_elements(plain, &rows) && rows && rows <= UINT32_MAX && tsr_entry_elements(w->scale, &count);
    plain->ndim = ndim;
    shape[ndim - 1] = fits ? shape[ndim - 1] * pack / group : 0;
    fits = fits && tsr_dtype_size(w->scale->dtype) == 1 && count == round_up(rows, 128) * round_up(shape[ndim - 1], 4);
    TSR_FAIL_IF(!fits, w->err, TSR_E_FORMAT, "the scales of '%.*s' do not fit its numbers", TSR_STR_ARG(w->name));
    how->stored_scale = w->scale;
    how->tiled = true;
    w->scale = plain;
    return TSR_OK;
}

/* torchao casts its scales to the dtype of the products first, in which they may overflow. */
static tsr_status use_mx(weight *w, tsr_scaling *how)
{
    how->rounds_scales = true;
    const bool pairs = w->data->dtype == TSR_UINT8 || w->data->dtype == TSR_FLOAT4_E2M1FN_X2;
    TSR_TRY(untile(w, pairs ? 2 : 1, 32, how));
    if (!pairs) return use_float8(w, how);
    if (!has_shape(w, 2)) return refuse(w, " that is transposed");
    tsr_entry *bytes = TSR_ARENA_NEW(w->m->own->arena, tsr_entry, w->err);
    if (!bytes) return TSR_E_NOMEM;
    *bytes = *w->data;
    bytes->dtype = TSR_UINT8;
    w->data = bytes;
    if (!tsr_mapped_is_packed_mxfp4(w->data, w->scale)) return refuse(w, " of packed numbers");
    how->scheme = TSR_SCALES_MXFP4;
    return TSR_OK;
}

static tsr_status use_nvfp4(weight *w, tsr_scaling *how)
{
    if (!has_shape(w, 2)) return refuse(w, " that is transposed");
    TSR_TRY(untile(w, 2, 16, how));
    how->scheme = TSR_SCALES_NVFP4;
    how->tensor_scale = w->tensor_scale;
    return TSR_OK;
}

/* clang-format off */
static const struct {
    const char *name;
    tsr_status (*use)(weight *w, tsr_scaling *how);
} classes[] = {
    {"Float8Tensor",             use_float8},
    {"Int8Tensor",               use_int8},
    {"IntxUnpackedToInt8Tensor", use_intx},
    {"IntxUnpackedTensor",       use_intx}, /* its name in 0.13 */
    {"MXTensor",                 use_mx},
    {"NVFP4Tensor",              use_nvfp4},
    {"AffineQuantizedTensor",    use_affine}, /* up to 0.16, */
    {"Float8AQTTensorImpl",      use_float8}, /* and what it was for float8 */
};
/* clang-format on */

static tsr_status use(weight *w, bool given, tsr_subclass_parts *parts, tsr_scaling *how)
{
    how->scheme = TSR_SCALES_FITTING;
    if (!given && is_product_dtype(w->dtype)) how->dtype = w->dtype;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (!is_class(w->type, classes[i].name)) continue;
        if (!w->data || !w->scale) return refuse(w, " without numbers and scales");
        TSR_TRY(classes[i].use(w, how));
        parts->data = w->data;
        parts->scale = w->scale;
        parts->has_input_scale = w->has_input_scale;
        return TSR_OK;
    }
    return refuse(w, "");
}

/* ---- objects ---- */

/* The dict that has a key: the value, or one inside it, but not inside another object. */
static const tsr_value *find_holder(const tsr_value *value, const char *key, unsigned depth)
{
    const tsr_value *found = NULL;
    if (!value || depth == DEEPEST) return NULL;
    if (value->kind == TSR_VALUE_DICT && tsr_value_get(value, tsr_str_from(key))) return value;
    for (size_t i = 0; (value->kind == TSR_VALUE_DICT || value->kind == TSR_VALUE_TUPLE) && i < value->count && !found; i++)
        found = find_holder(value->items[i], key, depth + 1);
    return found;
}

/* An attribute of an object; NULL if it does not have it, or if it is None. */
static const tsr_value *attribute(const tsr_value *object, const char *key)
{
    const tsr_value *holder = NULL, *found;
    for (size_t i = 0; object && object->kind == TSR_VALUE_OBJECT && i < object->count && !holder; i++)
        holder = find_holder(object->items[i], key, 0);
    found = holder ? tsr_value_get(holder, tsr_str_from(key)) : NULL;
    return found && found->kind != TSR_VALUE_NONE ? found : NULL;
}

static bool is_true(const tsr_value *value)
{
    return value && value->kind == TSR_VALUE_BOOL && value->as.boolean;
}

/* Makes an entry with the weight's name from one of the object's tensors; *out is NULL if it does not have it. */
static tsr_status take_tensor(const weight *w, const tsr_value *object, const char *key, const tsr_entry **out)
{
    const tsr_value *value = attribute(object, key);
    tsr_arena *arena = w->m->own->arena;
    *out = NULL;
    if (!value || value->kind != TSR_VALUE_TENSOR) return TSR_OK;
    const tsr_entry *readable = tsr_entry_readable(w->m->source, arena, value->as.tensor, w->err);
    tsr_entry *copy = readable ? TSR_ARENA_NEW(arena, tsr_entry, w->err) : NULL;
    if (!copy) return TSR_E_NOMEM;
    *copy = *readable;
    copy->fqn = w->name;
    *out = copy;
    return TSR_OK;
}

static void take_blocks(weight *w, const tsr_value *sizes)
{
    w->block_ndim = 0;
    if (!sizes || sizes->count > TSR_MAX_NDIM || (sizes->kind != TSR_VALUE_LIST && sizes->kind != TSR_VALUE_TUPLE)) return;
    for (size_t d = 0; d < sizes->count; d++) {
        const tsr_value *size = sizes->items[d];
        if (size->kind != TSR_VALUE_INT || size->as.integer <= 0) return;
        w->block[d] = (uint64_t)size->as.integer;
    }
    w->block_ndim = (uint32_t)sizes->count;
}

/* The text that an enum's member is printed as, whose name ends it. */
static bool is_member(const tsr_value *value, const char *name, int64_t number)
{
    const tsr_value *plain = value ? tsr_enum_value(value) : NULL;
    char text[256];
    if (!value) return false;
    if (plain) return plain->kind == TSR_VALUE_INT && plain->as.integer == number;
    const tsr_str shown = tsr_str_from(tsr_value_text(value, text, sizeof text));
    return tsr_str_ends(shown, tsr_str_from(name));
}

/* Up to torchao 0.16: an object with the blocks, which holds another one with the tensors. */
static tsr_status take_affine(weight *w, const tsr_value *object)
{
    const tsr_value *inner = attribute(object, "tensor_impl"), *domain = attribute(object, "zero_point_domain");
    if (!inner) inner = attribute(object, "layout_tensor"); /* its name up to 0.6 */
    if (!inner || inner->kind != TSR_VALUE_OBJECT) return refuse(w, " without numbers and scales");
    const bool plain = is_class(inner->text, "PlainAQTTensorImpl") || is_class(inner->text, "PlainAQTLayout") ||
                       is_class(inner->text, "QDQTensorImpl");
    const bool float8 = is_class(inner->text, "Float8AQTTensorImpl");
    if (!plain && !float8) {
        w->type = inner->text;
        return refuse(w, " in an AffineQuantizedTensor");
    }
    if (float8) w->type = inner->text;
    TSR_TRY(take_tensor(w, inner, plain ? "int_data" : "float8_data", &w->data));
    TSR_TRY(take_tensor(w, inner, "scale", &w->scale));
    TSR_TRY(take_tensor(w, inner, "zero_point", &w->zero));
    take_blocks(w, attribute(object, "block_size"));
    w->transposed = is_true(attribute(inner, "transposed"));
    if (is_member(domain, ".FLOAT>", 2)) return refuse(w, " with zero points in floating point");
    if (is_member(domain, ".NONE>", 3)) w->zero = NULL;
    return TSR_OK;
}

static tsr_status take_object(weight *w, const tsr_value *object)
{
    TSR_TRY(take_tensor(w, object, "qdata", &w->data));
    TSR_TRY(take_tensor(w, object, "scale", &w->scale));
    TSR_TRY(take_tensor(w, object, "zero_point", &w->zero));
    TSR_TRY(take_tensor(w, object, "per_tensor_scale", &w->tensor_scale));
    take_blocks(w, attribute(object, "block_size"));
    w->swizzled = is_true(attribute(object, "is_swizzled_scales"));
    w->has_input_scale = attribute(object, "act_pre_scale") != NULL;
    return TSR_OK;
}

/* Whether this is a weight, unlike the quantized states of torchao's optimizers. */
static bool is_weight(const tsr_entry *entry)
{
    const tsr_str last = tsr_last_component(entry->type);
    return entry->kind == TSR_ENTRY_OPAQUE && entry->value && tsr_entry_is_subclass(entry) &&
           tsr_str_starts(entry->type, TSR_STR("torchao.")) && !tsr_str_starts(last, TSR_STR("OptimState")) &&
           tsr_str_ends(last, TSR_STR("Tensor"));
}

tsr_status tsr_subclass_find(tsr_mapped *m, const tsr_entry *object, bool given, tsr_subclass_parts *parts, tsr_scaling *how,
                             tsr_error *err)
{
    weight w = {.m = m,
                .name = object->fqn,
                .type = object->type,
                .shape = object->shape,
                .ndim = object->ndim,
                .dtype = object->dtype,
                .err = err};
    *parts = (tsr_subclass_parts){.data = NULL};
    if (!is_weight(object)) return TSR_OK;
    if (object->is_sharded) return refuse(&w, " in several shards");
    const tsr_value *value = object->value, *inside;
    /* Objects that quantize the layer's inputs, too, hold the weight. */
    for (unsigned i = 0; i < DEEPEST && (inside = attribute(value, "original_weight_tensor")); i++) {
        if (attribute(value, "scale")) w.has_input_scale = true;
        value = inside;
    }
    if (value->kind == TSR_VALUE_OBJECT) w.type = value->text;
    if (is_class(w.type, "AffineQuantizedTensor")) TSR_TRY(take_affine(&w, value));
    else TSR_TRY(take_object(&w, value));
    return use(&w, given, parts, how);
}

/* ---- safetensors ---- */

/* The name of the weight that "layer._weight_qdata" belongs to. Its data is NULL if there is none. */
static tsr_str flattened_name(tsr_arena *arena, tsr_str fqn, tsr_error *err)
{
    const tsr_str last = tsr_last_component(fqn), ending = TSR_STR("_qdata");
    if (last.size <= ending.size + 1 || last.data[0] != '_' || !tsr_str_ends(last, ending)) return (tsr_str){NULL, 0};
    const tsr_str stem = {fqn.data, fqn.size - last.size}, own = {last.data + 1, last.size - ending.size - 1};
    return tsr_arena_format(arena, err, "%.*s%.*s", TSR_STR_ARG(stem), TSR_STR_ARG(own));
}

/* Finds a tensor of the weight, and counts it among the members. */
static tsr_status take_member(weight *w, const char *part, tsr_subclass_parts *parts, const tsr_entry **out)
{
    const tsr_str last = tsr_last_component(w->name), stem = {w->name.data, w->name.size - last.size};
    const tsr_str name =
        tsr_arena_format(w->m->own->arena, w->err, "%.*s_%.*s_%s", TSR_STR_ARG(stem), TSR_STR_ARG(last), part);
    if (!name.data) return TSR_E_NOMEM;
    const tsr_entry *member = tsr_checkpoint_entry(w->m->source, name);
    TSR_FAIL_IF(!member || member->kind != TSR_ENTRY_TENSOR, w->err, TSR_E_FORMAT,
                "the metadata of the file says that '%.*s' consists of several tensors, but there is no '%.*s'",
                TSR_STR_ARG(w->name), TSR_STR_ARG(name));
    tsr_entry *copy = TSR_ARENA_NEW(w->m->own->arena, tsr_entry, w->err);
    if (!copy) return TSR_E_NOMEM;
    *copy = *member;
    copy->fqn = w->name;
    parts->members[parts->member_count++] = member;
    *out = copy;
    return TSR_OK;
}

static tsr_status take_members(weight *w, const cJSON *names, tsr_subclass_parts *parts)
{
    const struct {
        const char *name;
        const tsr_entry **to;
    } known[] = {
        {"qdata", &w->data}, {"scale", &w->scale}, {"zero_point", &w->zero}, {"per_tensor_scale", &w->tensor_scale}};
    const cJSON *item = NULL;
    parts->members = tsr_arena_array(w->m->own->arena, MOST_PARTS, sizeof *parts->members, w->err);
    if (!parts->members) return TSR_E_NOMEM;
    cJSON_ArrayForEach(item, names)
    {
        const tsr_entry *other, **to = &other;
        TSR_FAIL_IF(!cJSON_IsString(item) || parts->member_count == MOST_PARTS, w->err, TSR_E_FORMAT,
                    "the metadata of '%.*s' does not list its tensors", TSR_STR_ARG(w->name));
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (!strcmp(item->valuestring, known[i].name)) to = known[i].to;
        if (!strcmp(item->valuestring, "act_pre_scale")) w->has_input_scale = true;
        TSR_TRY(take_member(w, item->valuestring, parts, to));
    }
    return TSR_OK;
}

/* A dtype is an object with its name. */
static tsr_dtype dtype_of(const cJSON *state, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(state, key);
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "_data"));
    return name ? tsr_dtype_from_name(tsr_str_from(name)) : TSR_DTYPE_NONE;
}

static void read_blocks(weight *w, const cJSON *sizes)
{
    const cJSON *size = NULL;
    uint32_t ndim = 0;
    if (!cJSON_IsArray(sizes) || tsr_json_count(sizes) > TSR_MAX_NDIM) return;
    cJSON_ArrayForEach(size, sizes) if (tsr_json_to_u64(size, "", &w->block[ndim++], NULL) != TSR_OK) return;
    w->block_ndim = ndim;
}

static tsr_status read_state(weight *w, const cJSON *stated, tsr_subclass_parts *parts)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(stated, "_type"),
                *state = cJSON_GetObjectItemCaseSensitive(stated, "_data");
    TSR_FAIL_IF(!cJSON_IsString(type) || !cJSON_IsObject(state), w->err, TSR_E_FORMAT,
                "the metadata of '%.*s' does not state its class", TSR_STR_ARG(w->name));
    w->type = tsr_arena_format(w->m->own->arena, w->err, "%s", type->valuestring);
    if (!w->type.data) return TSR_E_NOMEM;
    TSR_TRY(take_members(w, cJSON_GetObjectItemCaseSensitive(stated, "_tensor_data_names"), parts));
    w->dtype = dtype_of(state, "dtype");
    if (w->dtype == TSR_DTYPE_NONE) w->dtype = dtype_of(state, "orig_dtype");
    w->swizzled = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(state, "is_swizzled_scales"));
    read_blocks(w, cJSON_GetObjectItemCaseSensitive(state, "block_size"));
    return TSR_OK;
}

tsr_status tsr_subclass_find_flattened(tsr_mapped *m, const tsr_entry *numbers, const tsr_map *pairs, bool given,
                                       tsr_subclass_parts *parts, tsr_scaling *how, tsr_error *err)
{
    weight w = {.m = m, .err = err};
    cJSON *stated = NULL;
    *parts = (tsr_subclass_parts){.data = NULL};
    if (!pairs || numbers->kind != TSR_ENTRY_TENSOR || !tsr_str_ends(numbers->fqn, TSR_STR("_qdata"))) return TSR_OK;
    w.name = flattened_name(m->own->arena, numbers->fqn, err);
    if (!w.name.data) return err && err->status == TSR_E_NOMEM ? TSR_E_NOMEM : TSR_OK;
    const uint32_t at = tsr_map_get(pairs, w.name, UINT32_MAX);
    if (at == UINT32_MAX) return TSR_OK;
    const tsr_str text = m->source->catalog.metadata[at].value;
    TSR_FAIL_IF(text.size > MOST_STATE, err, TSR_E_LIMIT, "the metadata of '%.*s' is too large", TSR_STR_ARG(w.name));
    tsr_status status = tsr_json_parse(text, m->own->host, &stated, err);
    if (status != TSR_OK) tsr_error_context(err, "the metadata of '%.*s'", TSR_STR_ARG(w.name));
    else status = read_state(&w, stated, parts);
    cJSON_Delete(stated);
    return status == TSR_OK ? use(&w, given, parts, how) : status;
}
