/* Finds out which entries are quantized numbers and which are their scales.
 *
 * Numbers that cannot be multiplied are kept unchanged, and the reason is remembered. It becomes an error only if they turn
 * out to be used (mapping_arithmetic.c). */
#include "codec/json.h"
#include "mapping/mapped.h"
#include "mapping/mapping_match.h"
#include "mapping/mapping_packed.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

typedef struct finder {
    tsr_mapped *m;
    tsr_scaling scaling; /* what all entries have in common */
    tsr_dequantized *done;
    bool given;           /* scaling.dtype also holds for weights that state a dtype of their own */
    bool is_quantized;    /* config.json says that weights are quantized */
    bool *is_packed;      /* by entry: it is a part of a packed weight */
    tsr_map *pairs;       /* the metadata of safetensors files by its keys, if torchao wrote it; or NULL */
    cJSON *layers;        /* what ComfyUI states in the metadata of the files; or NULL */
    tsr_map *layer_names; /* its members "layers" → index in `layer_items`; or NULL */
    const cJSON **layer_items;
    tsr_vec *text; /* for names */
    tsr_error *err;
} finder;

/* Finds the tensor whose name is that of `of` with the ending `data` replaced by `other`; *out is NULL if there is none. */
static tsr_status find_sibling(const finder *f, tsr_str of, const char *data, const char *other, const tsr_entry **out)
{
    TSR_TRY(tsr_companion_named(f->m->source, of, data, other, f->text, out, f->err));
    if (*out && (*out)->kind != TSR_ENTRY_TENSOR) *out = NULL;
    return TSR_OK;
}

static tsr_status refuse_zero_point(const finder *f, const tsr_entry *entry, const tsr_entry *zero)
{
    return tsr_fail(f->err, TSR_E_UNSUPPORTED, "'%.*s' has a zero point, '%.*s', which --dequantize does not support",
                    TSR_STR_ARG(entry->fqn), TSR_STR_ARG(zero->fqn));
}

/* torchao's own form in safetensors states the meaning of the numbers in the file's metadata. This is one without. */
static tsr_status refuse_flattened(const finder *f, const tsr_entry *entry)
{
    const tsr_entry *scale;
    TSR_TRY(find_sibling(f, entry->fqn, "_qdata", "_scale", &scale));
    TSR_FAIL_IF(
        scale && entry->kind == TSR_ENTRY_TENSOR, f->err, TSR_E_UNSUPPORTED,
        "'%.*s' and '%.*s' are a tensor of torchao flattened for safetensors, but the file's metadata does not say of "
        "which class; use the file that torchao wrote",
        TSR_STR_ARG(entry->fqn), TSR_STR_ARG(scale->fqn));
    return TSR_OK;
}

/* Finds the scale of float8 or int8 numbers; *scale is NULL if there is none. */
static tsr_status find_scale(const finder *f, const tsr_entry *entry, const tsr_entry **scale)
{
    const tsr_entry *zero;
    *scale = NULL;
    if (entry->kind != TSR_ENTRY_TENSOR || !tsr_mapped_is_scalable(entry->dtype)) return TSR_OK;
    for (size_t i = 0; i < tsr_companion_count && !*scale; i++)
        if (tsr_companions[i].multiplies)
            TSR_TRY(tsr_companion_scale(f->m->source, entry, &tsr_companions[i], f->text, scale, f->err));
    if (!*scale) return TSR_OK;
    TSR_TRY(find_sibling(f, entry->fqn, "", "_zero_point", &zero));
    return zero ? refuse_zero_point(f, entry, zero) : TSR_OK;
}

/* In transformers, int8 with weight_scale_inv is two FP4 numbers per byte, as with DeepSeek's own name, scale. Where whole tensors are stored as int8 in blocks,
 * it is one number per byte. The wrong choice would give wrong weights without any error, so an ambiguous case is
 * refused. */
static tsr_status choose_int8(const finder *f, const tsr_entry *entry, const tsr_entry *scale, tsr_scaling *how)
{
    const bool in_blocks =
        tsr_str_ends(scale->fqn, TSR_STR("_scale_inv")) || tsr_str_equal(tsr_last_component(scale->fqn), TSR_STR("scale"));
    if (entry->dtype != TSR_INT8 || !in_blocks) return TSR_OK;
    if (tsr_mapped_is_packed_mxfp4(entry, scale)) {
        how->scheme = TSR_SCALES_MXFP4;
        return TSR_OK;
    }
    const uint64_t columns = entry->ndim ? entry->shape[entry->ndim - 1] : 0,
                   scales = scale->ndim ? scale->shape[scale->ndim - 1] : 0;
    const bool grouped = columns && columns % 16 == 0 && scales == columns / 16;
    TSR_FAIL_IF(
        grouped || !strcmp(tsr_mapped_quant_method(f->m), "fp8"), f->err, TSR_E_UNSUPPORTED,
        "'%.*s' is int8, which transformers unpacks as two FP4 numbers per byte, but '%.*s' does not hold one E8M0 exponent per "
        "32 of them; --dequantize cannot tell which numbers are meant",
        TSR_STR_ARG(entry->fqn), TSR_STR_ARG(scale->fqn));
    return TSR_OK;
}

/* Finds the scales of MXFP4 as compressed-tensors stores it: its NVFP4 has a scale of the tensor, too. */
static tsr_status find_packed_mxfp4(const finder *f, const tsr_entry *entry, const tsr_entry **scales)
{
    const tsr_entry *zero;
    const char *const packed = "_packed";
    TSR_TRY(find_sibling(f, entry->fqn, packed, "_scale", scales));
    if (*scales && !tsr_mapped_is_packed_mxfp4(entry, *scales)) *scales = NULL;
    if (!*scales) return TSR_OK;
    TSR_TRY(find_sibling(f, entry->fqn, packed, "_zero_point", &zero));
    return zero ? refuse_zero_point(f, entry, zero) : TSR_OK;
}

/* Finds the scales of MXFP4 numbers; *scales is NULL if there are none. */
static tsr_status find_mxfp4(const finder *f, const tsr_entry *entry, const tsr_entry **scales)
{
    *scales = NULL;
    if (entry->kind != TSR_ENTRY_TENSOR || entry->dtype != TSR_UINT8 || entry->ndim < 2) return TSR_OK;
    if (!tsr_str_ends(entry->fqn, TSR_STR("_blocks"))) return find_packed_mxfp4(f, entry, scales);
    if (entry->shape[entry->ndim - 1] != 16) return TSR_OK;
    TSR_TRY(find_sibling(f, entry->fqn, "_blocks", "_scales", scales));
    if (*scales && (*scales)->dtype != TSR_UINT8) *scales = NULL;
    return TSR_OK;
}

/* The name endings of NVFP4 numbers and of the scale of their tensor. */
typedef struct nvfp4_names {
    const char *packed, *tensor_scale;
    bool divides; /* scales are divided by the tensor's scale */
} nvfp4_names;

static const nvfp4_names nvfp4[] = {
    {"", "_scale_2", false},            /* ModelOpt */
    {"_packed", "_global_scale", true}, /* compressed-tensors */
};

/* Finds the scales of NVFP4 numbers, and in how->tensor_scale the scale of their tensor; *scales is NULL if there are
 * none. */
static tsr_status find_nvfp4(const finder *f, const tsr_entry *entry, tsr_scaling *how, const tsr_entry **scales)
{
    const tsr_entry *zero = NULL;
    *scales = NULL;
    if (entry->kind != TSR_ENTRY_TENSOR || entry->dtype != TSR_UINT8) return TSR_OK;
    for (size_t i = 0; i < sizeof nvfp4 / sizeof *nvfp4 && !*scales; i++) {
        const char *const packed = nvfp4[i].packed;
        TSR_TRY(find_sibling(f, entry->fqn, packed, nvfp4[i].tensor_scale, &how->tensor_scale));
        if (!how->tensor_scale) continue;
        TSR_TRY(find_sibling(f, entry->fqn, packed, "_scale", scales));
        if (*scales && (*scales)->dtype != TSR_FLOAT8_E4M3FN) *scales = NULL;
        if (*scales) TSR_TRY(find_sibling(f, entry->fqn, packed, "_zero_point", &zero));
        how->divides = nvfp4[i].divides;
    }
    return zero ? refuse_zero_point(f, entry, zero) : TSR_OK;
}

/* ---- what ComfyUI states about a layer ---- */

/* ComfyUI states how each layer is quantized, in a tensor next to its weight or, for all of them, in the metadata of the file. Source: comfy/utils.py
 * (convert_old_quants) and comfy/quant_ops.py of ComfyUI. */
#define COMFY_QUANT ".comfy_quant"

enum { MOST_LAYER_BYTES = 4096 };

/* Parses the tensor next to a weight; *out is NULL if there is none. The caller deletes it. */
static tsr_status read_marker(const finder *f, const tsr_entry *marker, cJSON **out)
{
    char text[MOST_LAYER_BYTES];
    *out = NULL;
    if (!marker || marker->dtype != TSR_UINT8 || marker->ndim != 1 || marker->shape[0] > sizeof text) return TSR_OK;
    const tsr_run run = {.first = 0, .count = marker->shape[0]};
    size_t size = (size_t)run.count;
    TSR_TRY(tsr_read_run(f->m->source, marker, &run, text, size, f->err));
    while (size && !text[size - 1]) size--;
    const tsr_status status = tsr_json_parse((tsr_str){text, size}, f->m->own->host, out, f->err);
    if (status != TSR_OK) tsr_error_context(f->err, "'%.*s'", TSR_STR_ARG(marker->fqn));
    return status;
}

/* What the metadata states about a layer, whose name it may have without the first components; or NULL. */
static const cJSON *stated_layer(const finder *f, tsr_str layer)
{
    while (f->layer_names && layer.size) {
        const uint32_t number = tsr_map_get(f->layer_names, layer, UINT32_MAX);
        if (number != UINT32_MAX) return f->layer_items[number];
        const char *dot = memchr(layer.data, '.', layer.size);
        if (!dot) return NULL;
        layer = tsr_str_after(layer, (size_t)(dot - layer.data) + 1);
    }
    return NULL;
}

/* Refuses numbers that are not the weights divided by their scales: rotated ones, and those whose scales are in another order. */
static tsr_status check_layer(const finder *f, const tsr_entry *weight)
{
    static const char *const plain[] = {"float8_e4m3fn", "float8_e5m2", "int8_tensorwise"};
    const tsr_str ending = TSR_STR(".weight");
    const tsr_entry *marker;
    cJSON *own;
    if (weight->kind != TSR_ENTRY_TENSOR || !tsr_str_ends(weight->fqn, ending)) return TSR_OK;
    TSR_TRY(find_sibling(f, weight->fqn, ending.data, COMFY_QUANT, &marker));
    TSR_TRY(read_marker(f, marker, &own));
    const cJSON *layer = own ? own : stated_layer(f, (tsr_str){weight->fqn.data, weight->fqn.size - ending.size});
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(layer, "format");
    const char *format = cJSON_IsString(item) ? item->valuestring : "";
    const bool rotated = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(layer, "convrot"));
    bool known = !layer;
    for (size_t i = 0; i < sizeof plain / sizeof *plain && !known; i++) known = !rotated && !strcmp(format, plain[i]);
    if (!known)
        tsr_fail(f->err, TSR_E_UNSUPPORTED, "'%.*s' is in ComfyUI's form '%.40s'%s, which --dequantize does not support",
                 TSR_STR_ARG(weight->fqn), format, rotated ? ", rotated (convrot)" : "");
    cJSON_Delete(own);
    return known ? TSR_OK : TSR_E_UNSUPPORTED;
}

/* Indexes what the metadata states about layers. */
static tsr_status index_layers(finder *f)
{
    const tsr_catalog *catalog = &f->m->source->catalog;
    const tsr_host *host = f->m->own->host;
    const cJSON *item;
    for (size_t i = 0; i < catalog->metadata_count && !f->layers; i++)
        if (tsr_str_equal(catalog->metadata[i].key, TSR_STR(TSR_COMFY_LAYERS)))
            TSR_TRY(tsr_json_parse(catalog->metadata[i].value, host, &f->layers, f->err));
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(f->layers, "layers");
    if (!cJSON_IsObject(list)) return TSR_OK;
    uint32_t count = 0;
    f->layer_items = tsr_arena_array(f->m->own->arena, (size_t)cJSON_GetArraySize(list), sizeof *f->layer_items, f->err);
    f->layer_names = f->layer_items ? tsr_map_new(host->allocator, 0, f->err) : NULL;
    if (!f->layer_names) return TSR_E_NOMEM;
    cJSON_ArrayForEach(item, list)
    {
        TSR_TRY(tsr_map_put(f->layer_names, tsr_json_key_of(item), count, NULL, NULL, f->err));
        f->layer_items[count++] = item;
    }
    f->done->unflattened = true;
    return TSR_OK;
}

/* Finds the scale of the entry's numbers and how they are multiplied; *scale is NULL if there is none. */
static tsr_status find_scaling(const finder *f, const tsr_entry *entry, tsr_scaling *how, const tsr_entry **scale)
{
    *how = f->scaling;
    how->scheme = TSR_SCALES_FITTING;
    TSR_TRY(check_layer(f, entry));
    TSR_TRY(find_scale(f, entry, scale));
    if (*scale) return choose_int8(f, entry, *scale, how);
    how->scheme = TSR_SCALES_MXFP4;
    TSR_TRY(find_mxfp4(f, entry, scale));
    if (*scale) return TSR_OK;
    how->scheme = TSR_SCALES_NVFP4;
    return find_nvfp4(f, entry, how, scale);
}

/* Sets *is to whether the entry is what ComfyUI states about a layer whose weight is dequantized. */
static tsr_status is_used_marker(const finder *f, const tsr_entry *entry, bool *is)
{
    const tsr_entry *weight, *scale = NULL;
    tsr_scaling how;
    TSR_TRY(find_sibling(f, entry->fqn, COMFY_QUANT, ".weight", &weight));
    if (weight) TSR_TRY(find_scaling(f, weight, &how, &scale));
    *is = scale;
    return TSR_OK;
}

static tsr_status add_row(finder *f, const tsr_scaling *how, const tsr_entry *entry, const tsr_entry *scale, uint64_t order)
{
    tsr_mapped_tensor tensor;
    const tsr_entry **sources = tsr_arena_array(f->m->own->arena, 3, sizeof *sources, f->err);
    tsr_mapped_row *row = sources ? tsr_vec_push(&f->m->rows, f->err) : NULL;
    if (!row) return TSR_E_NOMEM;
    sources[0] = entry;
    sources[1] = scale;
    sources[2] = how->tensor_scale;
    *row =
        (tsr_mapped_row){.order = order, .step = f->m->step, .sources = sources, .source_count = how->tensor_scale ? 3 : 2};
    f->done->found = true;
    TSR_TRY(tsr_mapped_multiply(f->m, how, entry, scale, &tensor, f->err));
    return tsr_mapped_entry(f->m, &tensor, entry, tensor.name, &row->entry, f->err);
}

/* Sets *is to whether the entry is the scale of numbers that are dequantized. */
static tsr_status is_used_scale(const finder *f, const tsr_entry *entry, bool *is)
{
    *is = false;
    if (entry->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    for (size_t i = 0; i < tsr_companion_count && !*is; i++) {
        const tsr_entry *data, *scale;
        tsr_scaling how;
        TSR_TRY(tsr_companion_data(f->m->source, entry, &tsr_companions[i], f->text, &data, f->err));
        if (!data) continue;
        TSR_TRY(find_scaling(f, data, &how, &scale));
        *is = scale && (scale == entry || how.tensor_scale == entry);
    }
    return TSR_OK;
}

static tsr_status add_subclass(finder *f, const tsr_scaling *how, const tsr_subclass_parts *parts, uint64_t order)
{
    TSR_TRY(add_row(f, how, parts->data, parts->scale, order));
    if (!parts->has_input_scale) return TSR_OK;
    return tsr_mapped_add_note(
        f->m,
        tsr_arena_format(f->m->own->arena, f->err,
                         "the layer of '%.*s' also multiplies its inputs by a scale of their own, which no weight contains",
                         TSR_STR_ARG(parts->data->fqn)),
        f->err);
}

static tsr_status multiply_entry(finder *f, const tsr_entry *entry, uint64_t order)
{
    tsr_subclass_parts parts;
    const tsr_entry *scale;
    tsr_scaling how;
    bool is_scale;
    TSR_TRY(find_scaling(f, entry, &how, &scale));
    if (scale) return add_row(f, &how, entry, scale, order);
    how = f->scaling;
    TSR_TRY(tsr_subclass_find(f->m, entry, f->given, &parts, &how, f->err));
    if (parts.data) return add_subclass(f, &how, &parts, order);
    TSR_TRY(refuse_flattened(f, entry));
    TSR_TRY(is_used_scale(f, entry, &is_scale));
    if (!is_scale) TSR_TRY(is_used_marker(f, entry, &is_scale));
    return is_scale ? TSR_OK : tsr_mapped_keep(f->m, entry, order, f->err);
}

/* Adds the weight of torchao that several tensors of a safetensors file are. */
static tsr_status unflatten_entry(finder *f, const tsr_entry *entry, uint64_t order)
{
    tsr_subclass_parts parts;
    tsr_scaling how = f->scaling;
    TSR_TRY(tsr_subclass_find_flattened(f->m, entry, f->pairs, f->given, &parts, &how, f->err));
    if (!parts.data) return TSR_OK;
    TSR_TRY(add_subclass(f, &how, &parts, order));
    tsr_mapped_row *row = (tsr_mapped_row *)f->m->rows.items + f->m->rows.count - 1;
    row->sources = parts.members;
    row->source_count = parts.member_count;
    for (uint32_t i = 0; i < parts.member_count; i++) f->is_packed[parts.members[i] - f->m->source->catalog.entries] = true;
    f->done->unflattened = true;
    return TSR_OK;
}

/* Adds the weight that packed numbers and their companions are, which are not entries of their own then. */
static tsr_status unpack_entry(finder *f, const tsr_entry *entry, uint64_t order)
{
    const tsr_packed_weight *packed;
    uint32_t file;
    const tsr_entry *first = f->m->source->catalog.entries;
    if (f->is_packed[order]) return TSR_OK;
    const size_t rows = f->m->rows.count;
    TSR_TRY(unflatten_entry(f, entry, order));
    if (f->m->rows.count > rows) return TSR_OK;
    TSR_TRY(tsr_packed_find(f->m, entry, f->scaling.dtype, &packed, f->err));
    if (!packed) return TSR_OK;
    tsr_entry *like = TSR_ARENA_NEW(f->m->own->arena, tsr_entry, f->err);
    if (!like) return TSR_E_NOMEM;
    *like = *entry;
    like->fqn = packed->name;
    like->shape = packed->shape;
    like->ndim = packed->ndim;
    like->path = NULL;
    like->path_length = 0;
    const tsr_computed by = {
        .dtype = packed->dtype, .compute = tsr_packed_compute, .ctx = packed, .input = entry, .most = 1 << 20};
    TSR_TRY(tsr_mapped_compute(f->m, like, order, &by, &file, f->err));
    tsr_mapped_row *row = (tsr_mapped_row *)f->m->rows.items + f->m->rows.count - 1;
    row->sources = packed->parts;
    row->source_count = packed->part_count;
    for (uint32_t i = 0; i < packed->part_count; i++) f->is_packed[packed->parts[i] - first] = true;
    f->done->found = true;
    return TSR_OK;
}

/* Remembers why an entry, which is kept unchanged, could not be multiplied. */
static tsr_status remember(finder *f, const tsr_entry *entry, const tsr_error *why)
{
    tsr_dequantize_refusal *refusal = TSR_ARENA_NEW(f->m->own->arena, tsr_dequantize_refusal, f->err);
    if (!refusal) return TSR_E_NOMEM;
    *refusal = (tsr_dequantize_refusal){.fqn = entry->fqn, .why = *why};
    *f->done->end = refusal;
    f->done->end = &refusal->next;
    return TSR_OK;
}

/* Adds the rows of an entry, or keeps it if `add` refuses it. */
static tsr_status add_entry(finder *f, const tsr_entry *entry, uint64_t order,
                            tsr_status (*add)(finder *f, const tsr_entry *entry, uint64_t order))
{
    const size_t rows = f->m->rows.count;
    const bool found = f->done->found;
    tsr_error why = {.status = TSR_OK}, *err = f->err;
    f->err = f->m->maker.err = &why;
    const tsr_status status = add(f, entry, order);
    f->err = f->m->maker.err = err;
    if (status == TSR_OK) return TSR_OK;
    if (status != TSR_E_UNSUPPORTED && status != TSR_E_FORMAT) {
        if (err) *err = why;
        return status;
    }
    f->m->rows.count = rows; /* removes a row that was begun */
    f->done->found = found;
    f->is_packed[order] = true; /* no other form of it is tried */
    TSR_TRY(remember(f, entry, &why));
    return tsr_mapped_keep(f->m, entry, order, f->err);
}

/* ---- scales that are missing ---- */

static tsr_status refuse_unscaled(finder *f, const tsr_entry *entry, const tsr_mapped_row *other)
{
    tsr_error why = {.status = TSR_OK};
    tsr_fail(&why, TSR_E_FORMAT, "'%.*s' is %s and has no scale that fits it, unlike '%.*s', which is scaled by '%.*s'",
             TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name, TSR_STR_ARG(other->sources[0]->fqn),
             TSR_STR_ARG(other->sources[1]->fqn));
    return remember(f, entry, &why);
}

/* Remembers a float8 weight without a scale, if weights are quantized. */
static tsr_status refuse_unknown(finder *f, const tsr_entry *entry)
{
    const tsr_entry *data = NULL;
    tsr_error why = {.status = TSR_OK};
    if (!tsr_is_float8_weight(entry) || !f->is_quantized) return TSR_OK;
    for (size_t i = 0; i < tsr_companion_count && !data; i++)
        TSR_TRY(tsr_companion_data(f->m->source, entry, &tsr_companions[i], f->text, &data, f->err));
    if (data) return TSR_OK; /* the entry is a scale itself */
    tsr_fail(&why, TSR_E_UNSUPPORTED, TSR_UNSCALED, TSR_STR_ARG(entry->fqn), "", tsr_dtype_describe(entry->dtype)->name,
             TSR_STR_ARG(entry->fqn));
    return remember(f, entry, &why);
}

/* Numbers without a scale have lost it if others with the same dtype and last component of their names have one. Unlike a
 * lost weight, that would show nowhere: the numbers would be taken for weights. */
static tsr_status find_unscaled(finder *f, tsr_map *scaled)
{
    const tsr_mapped_row *rows = f->m->rows.items;
    for (size_t i = 0; i < f->m->rows.count; i++)
        if (rows[i].source_count > 1)
            TSR_TRY(tsr_map_put(scaled, tsr_last_component(rows[i].sources[0]->fqn), (uint32_t)i, NULL, NULL, f->err));
    for (size_t i = 0; i < f->m->rows.count; i++) {
        const tsr_entry *entry = rows[i].sources[0];
        const uint32_t other = tsr_map_get(scaled, tsr_last_component(entry->fqn), UINT32_MAX);
        if (rows[i].source_count > 1 || entry->kind != TSR_ENTRY_TENSOR) continue;
        const bool lost = other != UINT32_MAX && rows[other].sources[0]->dtype == entry->dtype;
        TSR_TRY(lost ? refuse_unscaled(f, entry, &rows[other]) : refuse_unknown(f, entry));
    }
    return TSR_OK;
}

/* Indexes the metadata of files that torchao flattened weights into. */
static tsr_status index_metadata(finder *f)
{
    const tsr_catalog *catalog = &f->m->source->catalog;
    bool flattened = false;
    for (size_t i = 0; i < catalog->metadata_count && !flattened; i++)
        flattened = tsr_str_equal(catalog->metadata[i].key, TSR_STR(TSR_FLATTENED_NAMES));
    if (!flattened || catalog->metadata_count >= UINT32_MAX) return TSR_OK;
    f->pairs = tsr_map_new(f->m->own->host->allocator, catalog->metadata_count, f->err);
    if (!f->pairs) return TSR_E_NOMEM;
    for (size_t i = 0; i < catalog->metadata_count; i++)
        TSR_TRY(tsr_map_put(f->pairs, catalog->metadata[i].key, (uint32_t)i, NULL, NULL, f->err));
    return TSR_OK;
}

/* Says which scales stay although a weight that was multiplied does not need them: those of activations and of a cache of keys
 * and values. Only quantized layers load them. */
static tsr_status note_activations(finder *f)
{
    static const char *const endings[] = {".input_scale", ".output_scale", ".k_scale", ".v_scale"};
    for (size_t k = 0; k < sizeof endings / sizeof *endings; k++) {
        const tsr_mapped_row *rows = f->m->rows.items;
        tsr_str first = {NULL, 0};
        uint64_t count = 0;
        for (size_t i = 0; i < f->m->rows.count; i++) {
            const tsr_str name = rows[i].sources[0]->fqn;
            if (rows[i].source_count > 1 || !tsr_str_ends(name, tsr_str_from(endings[k]))) continue;
            if (count++ == 0) first = name;
        }
        if (count)
            TSR_TRY(tsr_mapped_add_note(
                f->m,
                tsr_arena_format(f->m->own->arena, f->err,
                                 "'%.*s'%s%s only loaded by quantized layers; --exclude '**%s' leaves %s out",
                                 TSR_STR_ARG(first), count > 1 ? " and others like it" : "", count > 1 ? " are" : " is",
                                 endings[k], count > 1 ? "them" : "it"),
                f->err));
    }
    return TSR_OK;
}

/* Says that quantized layers also transform what goes into them, as compressed-tensors states it. */
static tsr_status note_transforms(finder *f)
{
    const cJSON *transforms = cJSON_GetObjectItemCaseSensitive(tsr_mapped_quantization(f->m), "transform_config");
    const cJSON *groups = cJSON_GetObjectItemCaseSensitive(transforms, "config_groups");
    if (!cJSON_GetArraySize(groups)) return TSR_OK;
    return tsr_mapped_add_note(
        f->m,
        TSR_STR("quantized layers also transform their inputs (transform_config in config.json), which no "
                "weight contains; without these layers the model computes something else"),
        f->err);
}

static tsr_status find_all(finder *f)
{
    const tsr_catalog *catalog = &f->m->source->catalog;
    TSR_TRY(index_metadata(f));
    TSR_TRY(index_layers(f));
    f->is_packed = tsr_arena_array(f->m->own->arena, (size_t)catalog->entry_count, sizeof *f->is_packed, f->err);
    if (!f->is_packed) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count; i++) TSR_TRY(add_entry(f, &catalog->entries[i], i, unpack_entry));
    for (uint64_t i = 0; i < catalog->entry_count; i++)
        if (!f->is_packed[i]) TSR_TRY(add_entry(f, &catalog->entries[i], i, multiply_entry));
    tsr_map *scaled = tsr_map_new(f->m->own->host->allocator, 0, f->err);
    const tsr_status status = scaled ? find_unscaled(f, scaled) : TSR_E_NOMEM;
    tsr_map_free(scaled);
    if (status != TSR_OK || !f->done->found) return status;
    TSR_TRY(note_activations(f));
    TSR_TRY(note_transforms(f));
    if (!f->is_quantized) return TSR_OK;
    f->m->config_changes.unquantized = true;
    return tsr_mapped_add_config_note(
        f->m,
        TSR_STR(
            "the weights are not quantized any more; remove quantization_config from the config.json that is used with them"),
        f->err);
}

/* `ctx`: the dtype of the products; without one, it is set to that of the config.json, and weights keep a dtype of their own. */
static tsr_status fill_by_scales(tsr_mapped *m, void *ctx, tsr_error *err)
{
    tsr_dtype *dtype = ctx;
    const bool given = *dtype != TSR_DTYPE_NONE;
    if (!given) *dtype = tsr_mapped_product_dtype(m);
    tsr_dequantized *done = TSR_ARENA_NEW(m->own->arena, tsr_dequantized, err);
    tsr_vec text = tsr_vec_of(m->own->host->allocator, 1);
    finder f = {.m = m, .scaling.dtype = *dtype, .given = given, .done = done, .text = &text, .err = err};
    if (!done) return TSR_E_NOMEM;
    *done = (tsr_dequantized){.end = &done->refused};
    m->ctx = done;
    TSR_FAIL_IF(!tsr_cast_possible(TSR_FLOAT32, *dtype), err, TSR_E_USAGE, "scaled numbers cannot become %s",
                tsr_dtype_describe(*dtype)->name);
    TSR_TRY(tsr_mapped_block(m, f.scaling.block, err));
    f.is_quantized = tsr_mapped_quantization(m) != NULL;
    const tsr_status status = find_all(&f);
    tsr_map_free(f.pairs);
    tsr_map_free(f.layer_names);
    cJSON_Delete(f.layers);
    tsr_vec_free(&text);
    m->drops_flattened = done->unflattened;
    return status;
}

tsr_status tsr_mapping_dequantize(tsr_checkpoint *source, tsr_dtype dtype, tsr_dtype *used, tsr_checkpoint **out,
                                  tsr_error *err)
{
    const tsr_mapped_scheme scheme = {.fill = fill_by_scales, .ctx = used, .step = tsr_step_name(TSR_STEP_DEQUANTIZE)};
    *used = dtype;
    return tsr_mapped_open(source, &scheme, out, err);
}
