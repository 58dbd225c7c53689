/* Rejects casts that would separate quantized numbers from their scales.
 *
 *   weight (float8, int8, or packed in uint8 … uint32)  ×  weight_scale  =  the actual weight
 *
 * A loader does not multiply bfloat16 numbers by a scale, and a rounded scale gives different weights. Scales are found by
 * the names that quantization libraries use. The dtype also matters: bfloat16 numbers are the weights themselves, whatever
 * is next to them. A scale counts even if it is not selected. */
#include "base/line.h"
#include "tessera/convert.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/options.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

/* The name of a scale is that of its numbers, with the ending `data` replaced by `scale`. */
typedef struct companion {
    const char *data, *scale;
    bool words; /* the numbers may be packed in integers with more than 8 bits */
} companion;

static const companion companions[] = {
    {"", "_scale_inv", false},                   /* DeepSeek, transformers' finegrained_fp8 */
    {"", "_scale", false},                       /* compressed-tensors, fbgemm, modelopt */
    {"", "_scale_2", false},                     /* modelopt's NVFP4 */
    {"", "_scales", false},                      /* EETQ */
    {"", ".absmax", false},                      /* bitsandbytes, 4 bits */
    {"_blocks", "_scales", false},               /* MXFP4 of gpt-oss */
    {"_packed", "_scale", true},                 /* compressed-tensors */
    {"_packed", "_global_scale", true},          /* its NVFP4 */
    {"_data", "_scale", false},                  /* quanto */
    {"_qdata", "_scale", false},                 /* torchao in safetensors */
    {"qweight", "scales", true},                 /* GPTQ, AWQ */
    {"weight", "scales", true},                  /* MLX, gpt-fast */
    {"weight", "scale", false},                  /* DeepSeek's own files */
    {"weight", "weights_scaling_factor", false}, /* TensorRT-LLM */
    {"weight", "SCB", false},                    /* bitsandbytes, 8 bits */
    {"W_q", "scale", true},                      /* HQQ */
    {"state1", "absmax1", false},                /* bitsandbytes' optimizers */
    {"state2", "absmax2", false},
};

typedef struct search {
    const tsr_catalog *catalog;
    const tsr_convert_options *options; /* for a cast; */
    const tsr_selection *selection;     /* otherwise, for what is merged */
    tsr_map *names;                     /* name of every entry → index */
    tsr_vec text;
    const tsr_entry *data; /* the first one that is rejected */
    tsr_str scale;         /* name of its scale */
    uint64_t count;
    tsr_error *err;
} search;

static bool may_hold(tsr_dtype dtype, bool words)
{
    switch (dtype) {
    case TSR_FLOAT8_E4M3FN:
    case TSR_FLOAT8_E4M3FNUZ:
    case TSR_FLOAT8_E5M2:
    case TSR_FLOAT8_E5M2FNUZ:
    case TSR_FLOAT8_E8M0FNU:
    case TSR_FLOAT6_E2M3:
    case TSR_FLOAT6_E3M2:
    case TSR_FLOAT4_E2M1FN_X2:
    case TSR_FLOAT4_E2M1FN:
    case TSR_INT8:
    case TSR_UINT8: return true;
    case TSR_INT16:
    case TSR_INT32:
    case TSR_UINT32: return words;
    default: return false;
    }
}

static bool is_wanted(const search *s, const tsr_entry *entry)
{
    if (s->selection) return tsr_selection_keeps(s->selection, entry->fqn);
    return !s->options->want || s->options->want(s->options->want_ctx, entry->fqn);
}

/* Whether the cast would change the numbers or the scale. Numbers that it cannot change (packed ones) cannot get the
 * requested dtype either, so they count, too. */
static bool is_touched(const search *s, const tsr_entry *data, const tsr_entry *scale)
{
    if (s->selection) return is_wanted(s, data) || is_wanted(s, scale);
    const tsr_dtype dtype = s->options->dtype;
    if (is_wanted(s, data) && data->dtype != dtype) return true;
    return is_wanted(s, scale) && scale->dtype != dtype && tsr_cast_possible(scale->dtype, dtype);
}

static void refuse(search *s, const tsr_entry *data, tsr_str scale)
{
    if (s->count++) return;
    s->data = data;
    s->scale = scale;
}

/* Finds the entry with the companion's name; NULL if there is none. */
static tsr_status look_up(search *s, tsr_str fqn, const companion *c, const tsr_entry **out)
{
    const tsr_str data = tsr_str_from(c->data), scale = tsr_str_from(c->scale);
    *out = NULL;
    if (!tsr_str_ends(fqn, data)) return TSR_OK;
    const size_t stem = fqn.size - data.size;
    s->text.count = 0;
    TSR_TRY(tsr_vec_reserve(&s->text, stem + scale.size, s->err));
    if (stem) memcpy(s->text.items, fqn.data, stem);
    memcpy((char *)s->text.items + stem, scale.data, scale.size);
    const uint32_t index = tsr_map_get(s->names, (tsr_str){s->text.items, stem + scale.size}, UINT32_MAX);
    if (index != UINT32_MAX) *out = &s->catalog->entries[index];
    return TSR_OK;
}

static tsr_status check_tensor(search *s, const tsr_entry *data)
{
    if (!may_hold(data->dtype, true)) return TSR_OK;
    for (size_t i = 0; i < sizeof companions / sizeof companions[0]; i++) {
        const tsr_entry *scale;
        if (!may_hold(data->dtype, companions[i].words)) continue;
        TSR_TRY(look_up(s, data->fqn, &companions[i], &scale));
        if (!scale || scale->kind != TSR_ENTRY_TENSOR || !is_touched(s, data, scale)) continue;
        refuse(s, data, scale->fqn);
        return TSR_OK;
    }
    return TSR_OK;
}

static bool is_scale(tsr_str key)
{
    return tsr_str_ends(key, TSR_STR("scale")) || tsr_str_ends(key, TSR_STR("scales"));
}

/* The key of the scale inside a tensor subclass, such as torchao's. The inner tensors are in a dictionary, which may be the
 * state of an object inside the value. */
static tsr_str inner_scale(const tsr_value *value)
{
    for (unsigned depth = 0; depth < 8; depth++) {
        const tsr_value *next = NULL;
        if (value->kind == TSR_VALUE_OBJECT) next = value->count ? value->items[value->count > 1] : NULL;
        for (size_t i = 0; value->kind == TSR_VALUE_DICT && i + 1 < value->count; i += 2) {
            const tsr_value *key = value->items[i], *item = value->items[i + 1];
            const bool named = key->kind == TSR_VALUE_STR;
            if (named && item->kind == TSR_VALUE_TENSOR && is_scale(key->text)) return key->text;
            const bool state = named && tsr_str_equal(key->text, TSR_STR("state"));
            if (!next && (state || item->kind == TSR_VALUE_OBJECT)) next = item;
        }
        if (!next) break;
        value = next;
    }
    return (tsr_str){NULL, 0};
}

static tsr_status check_entries(search *s)
{
    for (uint64_t i = 0; i < s->catalog->entry_count; i++) {
        const tsr_entry *entry = &s->catalog->entries[i];
        if (entry->kind == TSR_ENTRY_TENSOR) TSR_TRY(check_tensor(s, entry));
        if (entry->kind != TSR_ENTRY_OPAQUE || !entry->value || !is_wanted(s, entry)) continue;
        const tsr_str scale = inner_scale(entry->value);
        if (scale.size) refuse(s, entry, scale);
    }
    return TSR_OK;
}

static tsr_status fill_names(search *s)
{
    TSR_FAIL_IF(s->catalog->entry_count > UINT32_MAX - 1, s->err, TSR_E_LIMIT, "too many entries to convert");
    for (uint64_t i = 0; i < s->catalog->entry_count; i++)
        TSR_TRY(tsr_map_put(s->names, s->catalog->entries[i].fqn, (uint32_t)i, NULL, NULL, s->err));
    return check_entries(s);
}

static tsr_status report(const search *s)
{
    char more[64] = "";
    if (s->count == 0) return TSR_OK;
    tsr_line line = tsr_line_on(more, sizeof more);
    if (s->count > 1) tsr_line_format(&line, " (and %llu more like it)", (unsigned long long)(s->count - 1));
    TSR_FAIL_IF(s->selection, s->err, TSR_E_UNSUPPORTED,
                "'%.*s' is scaled by '%.*s'%s, which a sum of the stored numbers would not apply; pass --dequantize",
                TSR_STR_ARG(s->data->fqn), TSR_STR_ARG(s->scale), more);
    const char *const dtype = tsr_dtype_describe(s->options->dtype)->name;
    return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                    "'%.*s' is scaled by '%.*s'%s, which a cast to %s would not apply; pass --raw-cast to cast the stored "
                    "numbers as they are",
                    TSR_STR_ARG(s->data->fqn), TSR_STR_ARG(s->scale), more, dtype);
}

static tsr_status run_search(tsr_checkpoint *checkpoint, search *s)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    s->catalog = tsr_checkpoint_catalog(checkpoint);
    s->text = tsr_vec_of(allocator, 1);
    s->names = tsr_map_new(allocator, (size_t)s->catalog->entry_count, s->err);
    tsr_status status = s->names ? fill_names(s) : TSR_E_NOMEM;
    if (status == TSR_OK) status = report(s);
    tsr_map_free(s->names);
    tsr_vec_free(&s->text);
    return status;
}

tsr_status tsr_check_cast_target(tsr_dtype dtype, tsr_error *err)
{
    const bool known = dtype == TSR_DTYPE_NONE || tsr_cast_possible(dtype, dtype);
    TSR_FAIL_IF(!known, err, TSR_E_USAGE, "tensors can only be cast to floating-point types, not to %s",
                tsr_dtype_describe(dtype)->name);
    return TSR_OK;
}

tsr_status tsr_check_casts(tsr_checkpoint *checkpoint, const tsr_convert_options *options, tsr_error *err)
{
    tsr_convert_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_convert_options, err));
    TSR_TRY(tsr_check_cast_target(own.dtype, err));
    search s = {.options = &own, .err = err};
    if (own.dtype == TSR_DTYPE_NONE || own.raw_cast) return TSR_OK;
    return run_search(checkpoint, &s);
}

tsr_status tsr_check_sums(tsr_checkpoint *checkpoint, const tsr_selection *selection, tsr_error *err)
{
    search s = {.selection = selection, .err = err};
    return run_search(checkpoint, &s);
}

tsr_status tsr_cast_parse(tsr_str dtype, bool raw_cast, tsr_dtype *out, tsr_error *err)
{
    *out = dtype.data ? tsr_dtype_from_text(dtype) : TSR_DTYPE_NONE;
    TSR_FAIL_IF(dtype.data && *out == TSR_DTYPE_NONE, err, TSR_E_USAGE,
                "unknown dtype '%.*s'; choose a floating-point dtype such as float32, bfloat16, float16 or float8_e4m3fn",
                TSR_STR_ARG(dtype));
    TSR_FAIL_IF(raw_cast && !dtype.data, err, TSR_E_USAGE, "--raw-cast needs --dtype");
    return TSR_OK;
}

tsr_status tsr_for_torch_parse(tsr_str version, tsr_container to, tsr_torch_version *out, tsr_error *err)
{
    *out = 0;
    if (!version.data) return TSR_OK;
    TSR_FAIL_IF(to == TSR_TO_SAFETENSORS, err, TSR_E_USAGE,
                "--for-torch cannot be used with --to safetensors, whose files are the same for every version");
    return tsr_torch_version_parse(version, out, err);
}
