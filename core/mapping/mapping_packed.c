/* Recognizes packed numbers and their companions by their names, dtypes and shapes, and by what config.json says of them. */
#include "mapping/mapping_packed.h"

#include "codec/json.h"
#include "mapping/mapping_match.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

#include <stdlib.h>

enum { MOST_STATE = 1 << 16, INDEX_STEP = 1 << 12 };

/* Everything that is known while one entry is looked at. */
typedef struct search {
    tsr_mapped *m;
    tsr_packed_weight *packed;
    const tsr_entry *entry;
    const char *ending; /* of its name */
    const cJSON *own;   /* what config.json says of this layer alone, or NULL */
    tsr_vec *text;
    tsr_error *err;
} search;

/* ---- companions ---- */

/* Finds a tensor whose name has `other` instead of the ending of the entry's name, and counts it among the parts. */
static tsr_status find_part(search *s, const char *other, const tsr_entry **out)
{
    TSR_TRY(tsr_companion_named(s->m->source, s->entry->fqn, s->ending, other, s->text, out, s->err));
    if (*out && (*out)->kind != TSR_ENTRY_TENSOR) *out = NULL;
    if (*out) s->packed->parts[s->packed->part_count++] = *out;
    return TSR_OK;
}

/* Finds one that the entry cannot be without. */
static tsr_status need_part(search *s, const char *other, const tsr_entry **out)
{
    TSR_TRY(find_part(s, other, out));
    const tsr_str stem = {s->entry->fqn.data, s->entry->fqn.size - strlen(s->ending)};
    TSR_FAIL_IF(!*out, s->err, TSR_E_FORMAT, "'%.*s' is %s, but there is no '%.*s%s'", TSR_STR_ARG(s->entry->fqn),
                s->packed->form, TSR_STR_ARG(stem), other);
    return TSR_OK;
}

/* Sets *out to whether there is one of two companions. Integers without either may be anything. */
static tsr_status has_any(search *s, const char *one, const char *other, bool *out)
{
    const tsr_entry *found;
    TSR_TRY(find_part(s, one, &found));
    if (!found) TSR_TRY(find_part(s, other, &found));
    *out = found != NULL;
    s->packed->part_count = 1; /* they are counted when they are read */
    return TSR_OK;
}

static tsr_shape_text shape_of(const tsr_entry *entry)
{
    const tsr_mapped_tensor tensor = {.ndim = entry->ndim, .shape = (uint64_t *)(uintptr_t)entry->shape};
    return tsr_shape_of(&tensor);
}

static tsr_status misfit(const search *s, const tsr_entry *part)
{
    return tsr_fail(s->err, TSR_E_FORMAT, "'%.*s' (%s %s) does not fit '%.*s' (%s %s), which is %s", TSR_STR_ARG(part->fqn),
                    tsr_dtype_describe(part->dtype)->name, shape_of(part).text, TSR_STR_ARG(s->entry->fqn),
                    tsr_dtype_describe(s->entry->dtype)->name, shape_of(s->entry).text, s->packed->form);
}

static tsr_status refuse(const search *s, const tsr_entry *part, const char *what, const char *found)
{
    return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                    "'%.*s' is scaled by '%.*s', but %s%s%s%s, which --dequantize does not support",
                    TSR_STR_ARG(s->entry->fqn), TSR_STR_ARG(part->fqn), what, *found ? " '" : "", found, *found ? "'" : "");
}

static bool has_shape(const tsr_entry *entry, uint64_t rows, uint64_t columns)
{
    return entry->ndim == 2 && entry->shape[0] == rows && entry->shape[1] == columns;
}

static bool is_word(tsr_dtype dtype)
{
    return dtype == TSR_INT32 || dtype == TSR_UINT32;
}

/* Whether products may have this dtype: those of 16 and 32 bits that libraries scale with. */
static bool is_scale(tsr_dtype dtype)
{
    return dtype == TSR_FLOAT32 || dtype == TSR_FLOAT16 || dtype == TSR_BFLOAT16;
}

/* The number of words of 32 bits for `count` numbers; 0 if it is too large to be counted. */
static uint64_t words_of(uint64_t count, uint64_t bits)
{
    return count > UINT64_MAX / 64 ? 0 : (count * bits + 31) / 32;
}

/* Reads all elements of a small tensor. */
static tsr_status read_small(const search *s, const tsr_entry *entry, uint64_t count, void *out)
{
    const tsr_run run = {.first = 0, .count = count};
    return tsr_read_run(s->m->source, entry, &run, out, (size_t)count * tsr_dtype_size(entry->dtype), s->err);
}

/* Accepts the group of every column, or the column numbers of groups that were never set (-1), which count as missing. */
static tsr_status take_groups(search *s, const tsr_entry *index, bool may_be_unset)
{
    tsr_packed_weight *p = s->packed;
    int32_t groups[INDEX_STEP];
    bool is_plain = true; /* it says what the size of groups says */
    if (!index) return TSR_OK;
    if (index->dtype != TSR_INT32 || index->ndim != 1 || index->shape[0] != p->columns) return misfit(s, index);
    for (uint64_t at = 0; at < p->columns; at += INDEX_STEP) {
        const tsr_run run = {.first = at, .count = p->columns - at < INDEX_STEP ? p->columns - at : INDEX_STEP};
        TSR_TRY(tsr_read_run(s->m->source, index, &run, groups, (size_t)run.count * sizeof *groups, s->err));
        for (size_t i = 0; i < run.count; i++) {
            if (may_be_unset && groups[i] == -1) return TSR_OK;
            TSR_FAIL_IF(groups[i] < 0 || (uint64_t)groups[i] >= p->groups, s->err, TSR_E_FORMAT,
                        "'%.*s' states group %d for column %llu of '%.*s', but '%.*s' %s has %llu groups",
                        TSR_STR_ARG(index->fqn), (int)groups[i], (unsigned long long)(at + i), TSR_STR_ARG(s->entry->fqn),
                        TSR_STR_ARG(p->scale->fqn), shape_of(p->scale).text, (unsigned long long)p->groups);
            is_plain = is_plain && (uint64_t)groups[i] == (at + i) / p->group;
        }
    }
    if (!is_plain) p->group_index = index;
    return TSR_OK;
}

/* ---- what config.json says ---- */

/* That of the layer if it has its own, or of all. */
static const cJSON *setting(const search *s, const char *name)
{
    const cJSON *const own = s->own ? cJSON_GetObjectItemCaseSensitive(s->own, name) : NULL;
    return own ? own : cJSON_GetObjectItemCaseSensitive(tsr_mapped_quantization(s->m), name);
}

/* A setting that is a word; "" if it is not stated. */
static const char *word_of(const search *s, const char *name)
{
    const cJSON *item = setting(s, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

/* The first of them that is stated. */
static const char *first_word(const search *s, const char *const *names, size_t count)
{
    const char *word = "";
    for (size_t i = 0; i < count && !*word; i++) word = word_of(s, names[i]);
    return word;
}

/* A setting that is a positive number; 0 if it is not stated, or if it is -1, which means all columns. */
static uint64_t size_of(const cJSON *item)
{
    uint64_t size = 0;
    if (!cJSON_IsNumber(item) || tsr_json_to_u64(item, "", &size, NULL) != TSR_OK) return 0;
    return size;
}

/* ---- compressed-tensors ---- */

/* Which of config.json's groups of layers these numbers can belong to. */
typedef struct scheme_counts {
    bool stated; /* there are any */
    unsigned fitting, asymmetric;
} scheme_counts;

static scheme_counts count_schemes(const search *s, uint64_t bits, uint64_t group, uint64_t columns)
{
    scheme_counts found = {.fitting = 0};
    const cJSON *scheme = NULL;
    cJSON_ArrayForEach(scheme, setting(s, "config_groups"))
    {
        const cJSON *weights = cJSON_GetObjectItemCaseSensitive(scheme, "weights");
        const uint64_t size = size_of(cJSON_GetObjectItemCaseSensitive(weights, "group_size"));
        if (!cJSON_IsObject(weights)) continue;
        found.stated = true;
        if (size_of(cJSON_GetObjectItemCaseSensitive(weights, "num_bits")) != bits || (size ? size : columns) != group)
            continue;
        found.fitting++;
        found.asymmetric += cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(weights, "symmetric"));
    }
    return found;
}

/* Reads weight_shape. The words state the number of columns only up to the size of a word. */
static tsr_status read_shape(search *s, const tsr_entry *shape)
{
    tsr_packed_weight *p = s->packed;
    const uint32_t ndim = s->entry->ndim;
    int64_t wide[3] = {0};
    int32_t narrow[3] = {0};
    const bool is_wide = shape->dtype == TSR_INT64;
    if ((!is_wide && shape->dtype != TSR_INT32) || shape->ndim != 1 || shape->shape[0] != ndim) return misfit(s, shape);
    TSR_TRY(read_small(s, shape, ndim, is_wide ? (void *)wide : (void *)narrow));
    uint64_t *sizes = tsr_arena_array(s->m->own->arena, ndim, sizeof *sizes, s->err);
    if (!sizes) return TSR_E_NOMEM;
    for (uint32_t d = 0; d < ndim; d++) {
        const int64_t size = is_wide ? wide[d] : narrow[d];
        const bool fits = d + 1 < ndim ? (uint64_t)size == s->entry->shape[d] : size > 0;
        TSR_FAIL_IF(!fits, s->err, TSR_E_FORMAT, "'%.*s' states the size %lld for dim %u of '%.*s' %s",
                    TSR_STR_ARG(shape->fqn), (long long)size, (unsigned)d, TSR_STR_ARG(s->entry->fqn),
                    shape_of(s->entry).text);
        sizes[d] = (uint64_t)size;
    }
    p->shape = sizes;
    p->ndim = ndim;
    p->matrices = ndim == 3 ? sizes[0] : 1;
    p->rows = sizes[ndim - 2];
    p->columns = sizes[ndim - 1];
    return TSR_OK;
}

/* Accepts one scale, one per row, or one per row and group. */
static bool take_scales(search *s, const tsr_entry *scale)
{
    tsr_packed_weight *p = s->packed;
    uint64_t count;
    if (!is_scale(scale->dtype) || !tsr_entry_elements(scale, &count) || !count) return false;
    p->scale = scale;
    p->groups = 1;
    p->one_scale = count == 1;
    if (scale->ndim == p->ndim) {
        for (uint32_t d = 0; d + 1 < p->ndim && count != 1; d++)
            if (scale->shape[d] != p->shape[d]) return false;
        p->groups = scale->shape[p->ndim - 1];
    } else if (count != 1 && (scale->ndim != 1 || p->ndim != 2 || count != p->rows)) {
        return false;
    }
    if (p->one_scale) p->groups = 1;
    p->group = p->columns / p->groups;
    p->one_scale = p->one_scale && p->rows * p->matrices > 1;
    p->rounded = scale->dtype;
    return p->group && p->columns % p->groups == 0;
}

/* Finds out how many bits a number has: that many that the words are neither too few nor too many, and that config.json states, if
 * it states any. */
static tsr_status find_bits(search *s, unsigned *asymmetric)
{
    tsr_packed_weight *p = s->packed;
    const uint64_t words = s->entry->shape[s->entry->ndim - 1];
    unsigned found = 0, candidates = 0;
    for (unsigned bits = 1; bits <= 8; bits++) {
        const scheme_counts schemes = count_schemes(s, bits, p->group, p->columns);
        if (words_of(p->columns, bits) != words) continue;
        candidates++;
        if (schemes.stated && !schemes.fitting) continue;
        found++;
        p->numbers.bits = bits;
        *asymmetric = schemes.asymmetric && schemes.asymmetric == schemes.fitting;
    }
    TSR_FAIL_IF(!candidates, s->err, TSR_E_FORMAT, "'%.*s' %s does not hold %llu numbers per row, which '%.*s' states",
                TSR_STR_ARG(s->entry->fqn), shape_of(s->entry).text, (unsigned long long)p->columns,
                TSR_STR_ARG(p->parts[2]->fqn));
    TSR_FAIL_IF(
        !found, s->err, TSR_E_FORMAT,
        "'%.*s' %s with '%.*s' %s does not have the bits and the group size of any of the config_groups in config.json",
        TSR_STR_ARG(s->entry->fqn), shape_of(s->entry).text, TSR_STR_ARG(p->scale->fqn), shape_of(p->scale).text);
    TSR_FAIL_IF(
        found > 1, s->err, TSR_E_UNSUPPORTED,
        "'%.*s' %s, scaled by '%.*s', may have numbers of several sizes; give the directory with the config.json that "
        "states num_bits",
        TSR_STR_ARG(s->entry->fqn), shape_of(s->entry).text, TSR_STR_ARG(p->scale->fqn));
    return TSR_OK;
}

/* Zero points are packed down the rows; those of one scale per tensor are not packed. */
static tsr_status take_zeros(search *s, const tsr_entry *zero)
{
    tsr_packed_weight *p = s->packed;
    const uint32_t ndim = p->scale->ndim;
    const bool packed = is_word(zero->dtype), same_dims = zero->ndim == ndim;
    p->zeros = (tsr_codes){.entry = zero, .bits = p->numbers.bits, .down = true, .bias = p->numbers.bias};
    if (!packed) p->zeros = (tsr_codes){.entry = zero, .bits = 8, .flip = 0x80, .bias = 0x80};
    bool fits = same_dims && (packed ? ndim > 1 : zero->dtype == TSR_INT8);
    for (uint32_t d = 0; d < ndim && fits; d++) {
        const uint64_t size = p->scale->shape[d];
        fits = zero->shape[d] == (packed && d + 2 == ndim ? words_of(size, p->numbers.bits) : size);
    }
    return fits ? TSR_OK : misfit(s, zero);
}

static tsr_status open_compressed(search *s)
{
    tsr_packed_weight *p = s->packed;
    const tsr_entry *scale, *zero, *shape, *index;
    unsigned asymmetric = 0;
    bool any;
    if (!is_word(s->entry->dtype) || s->entry->ndim < 2 || s->entry->ndim > 3) return TSR_OK;
    TSR_TRY(has_any(s, "_scale", "_shape", &any));
    if (!any) return TSR_OK;
    TSR_TRY(need_part(s, "_scale", &scale));
    TSR_TRY(need_part(s, "_shape", &shape));
    TSR_TRY(find_part(s, "_zero_point", &zero));
    TSR_TRY(find_part(s, "_g_idx", &index));
    TSR_TRY(read_shape(s, shape));
    if (!take_scales(s, scale)) return misfit(s, scale);
    TSR_TRY(find_bits(s, &asymmetric));
    p->numbers.bias = 1 << (p->numbers.bits - 1);
    TSR_FAIL_IF(asymmetric && !zero, s->err, TSR_E_FORMAT,
                "'%.*s', scaled by '%.*s', is not symmetric by config.json, but has no zero points",
                TSR_STR_ARG(s->entry->fqn), TSR_STR_ARG(scale->fqn));
    if (zero) TSR_TRY(take_zeros(s, zero));
    TSR_TRY(take_groups(s, index, true));
    p->numbers.entry = s->entry;
    return TSR_OK;
}

/* ---- GPTQ and AWQ ---- */

/* A weight of out_features rows, which is stored transposed. */
static tsr_status set_matrix(search *s, uint64_t rows, uint64_t columns)
{
    tsr_packed_weight *p = s->packed;
    uint64_t *shape = tsr_arena_array(s->m->own->arena, 2, sizeof *shape, s->err);
    if (!shape) return TSR_E_NOMEM;
    p->rows = shape[0] = rows;
    p->columns = shape[1] = columns;
    p->shape = shape;
    p->ndim = 2;
    p->transposed = true;
    return TSR_OK;
}

/* Finds out how many columns the numbers of GPTQ have, and of how many bits they are. */
static tsr_status measure_gptq(search *s, const tsr_entry *index, uint64_t *columns)
{
    tsr_packed_weight *p = s->packed;
    const uint64_t stated = size_of(setting(s, "bits")), words = s->entry->shape[0];
    static const uint8_t sizes[] = {2, 3, 4, 8};
    unsigned found = 0;
    const bool counted = index && index->ndim == 1;
    for (size_t i = 0; i < sizeof sizes; i++) {
        const uint64_t count = counted ? index->shape[0] : words > UINT64_MAX / 32 ? 0 : words * 32 / sizes[i];
        const bool fits = count && words_of(count, sizes[i]) == words && (counted || stated == sizes[i]);
        if (!fits || (found && stated != sizes[i])) continue;
        found++;
        *columns = count;
        p->numbers.bits = sizes[i];
        if (stated == sizes[i]) return TSR_OK;
    }
    if (found == 1) return TSR_OK; /* config.json may state other bits for some layers ("dynamic") */
    if (index) return misfit(s, index);
    return refuse(s, p->scale, "config.json does not state 2, 3, 4 or 8 bits", "");
}

static bool is_one_of(const char *text, const char *one, const char *other)
{
    return text && (!strcmp(text, one) || !strcmp(text, other));
}

/* The layout of AutoRound's models, "" if it is not stated; NULL for other libraries'. AutoRound adds its own name to it. Source:
 * auto_round/inference/backend.py, convert_model.py */
static const char *packing_of(const search *s)
{
    return !TSR_IS_SMALL && strstr(word_of(s, "quant_method"), "auto-round") ? word_of(s, "packing_format") : NULL;
}

static bool packs_as_awq(const char *packing)
{
    return is_one_of(packing, "auto_round:auto_awq", "auto_round:awq");
}

/* Whether zeros are stored as they are, as in the second version of GPTQ. */
static bool stores_zeros(const char *packing)
{
    return is_one_of(packing, "auto_round", "auto_round:gptqmodel");
}

/* Refuses settings of layers that are not there under their names: patterns, and names that only transformers uses. */
static tsr_status check_layer(const search *s, const cJSON *own)
{
    static const char *const stored[] = {".qweight", ".weight"};
    const tsr_entry *found = NULL;
    for (size_t i = 0; i < 2 && !found; i++)
        TSR_TRY(tsr_companion_named(s->m->source, tsr_json_key_of(own), "", stored[i], s->text, &found, s->err));
    if (found || size_of(cJSON_GetObjectItemCaseSensitive(own, "bits")) > 8) return TSR_OK;
    return refuse(s, s->packed->scale, "no tensor has a name that extra_config of config.json states,", own->string);
}

static int by_name(const void *a, const void *b)
{
    const cJSON *const *const x = a, *const *const y = b;
    return tsr_str_compare(tsr_json_key_of(*x), tsr_json_key_of(*y));
}

/* Lists the layers that have settings of their own (extra_config), which mixed precision has for each of them. */
static tsr_status list_layers(search *s)
{
    const cJSON *const settings = cJSON_GetObjectItemCaseSensitive(tsr_mapped_quantization(s->m), "extra_config"),
                       *own = NULL;
    const size_t count = (size_t)cJSON_GetArraySize(settings);
    const cJSON **const layers = tsr_arena_array(s->m->own->arena, count, sizeof *layers, s->err);
    if (!layers) return TSR_E_NOMEM;
    size_t n = 0;
    cJSON_ArrayForEach(own, settings)
    {
        TSR_TRY(check_layer(s, own));
        layers[n++] = own;
    }
    if (count) qsort(layers, count, sizeof *layers, by_name);
    s->m->layers = layers;
    s->m->layer_count = count;
    return TSR_OK;
}

/* Refuses what is packed in another way, and finds the settings of the layer. */
static tsr_status find_layer(search *s, const char *packing)
{
    const size_t stem = s->entry->fqn.size - strlen(s->ending);
    const tsr_str layer = {s->entry->fqn.data, stem ? stem - 1 : 0};
    const bool known = packs_as_awq(packing) || stores_zeros(packing) || is_one_of(packing, "auto", "") ||
                       is_one_of(packing, "auto_round:auto_gptq", "auto_round:gptq");
    if (!known) return refuse(s, s->packed->scale, "its packing_format is", packing);
    if (!s->m->layers) TSR_TRY(list_layers(s));
    for (size_t from = 0, to = s->m->layer_count; from < to && !s->own;) {
        const size_t middle = from + (to - from) / 2;
        const int order = tsr_str_compare(tsr_json_key_of(s->m->layers[middle]), layer);
        if (order == 0) s->own = s->m->layers[middle];
        else if (order < 0) from = middle + 1;
        else to = middle;
    }
    return TSR_OK;
}

static tsr_status open_gptq(search *s)
{
    static const char *const formats[] = {"checkpoint_format", "format"};
    tsr_packed_weight *p = s->packed;
    const tsr_entry *zero, *index;
    uint64_t columns = 0;
    const char *const format = first_word(s, formats, 2), *const packing = packing_of(s);
    const bool second = !strcmp(format, "gptq_v2") || stores_zeros(packing);
    if (*format && strcmp(format, "gptq") != 0 && !second) return refuse(s, p->scale, "its format is", format);
    TSR_TRY(need_part(s, "qzeros", &zero));
    TSR_TRY(find_part(s, "g_idx", &index));
    TSR_FAIL_IF(!index && cJSON_IsTrue(setting(s, "desc_act")), s->err, TSR_E_FORMAT,
                "'%.*s', scaled by '%.*s', is ordered by activations (desc_act), but has no g_idx",
                TSR_STR_ARG(s->entry->fqn), TSR_STR_ARG(p->scale->fqn));
    TSR_TRY(measure_gptq(s, index, &columns));
    TSR_TRY(set_matrix(s, s->entry->shape[1], columns));
    p->groups = p->scale->shape[0];
    p->group = size_of(setting(s, "group_size"));
    if (!p->group || p->group > columns) p->group = columns;
    if (p->scale->shape[1] != p->rows || !p->groups) return misfit(s, p->scale);
    if (!index && (columns - 1) / p->group + 1 != p->groups) return misfit(s, p->scale);
    if (!is_word(zero->dtype) || !has_shape(zero, p->groups, words_of(p->rows, p->numbers.bits))) return misfit(s, zero);
    p->numbers.down = true;
    p->zeros = (tsr_codes){.entry = zero, .bits = p->numbers.bits, .add = second ? 0 : 1};
    if (packing && !second) p->zeros.add = 0, p->zeros.bias = -1; /* AutoRound adds 1 to the largest zero, too */
    TSR_TRY(take_groups(s, index, false));
    p->numbers.entry = s->entry;
    return TSR_OK;
}

static tsr_status open_awq(search *s)
{
    static const uint8_t order[] = {0, 4, 1, 5, 2, 6, 3, 7};
    static const char *const formats[] = {"version", "checkpoint_format", "format"};
    tsr_packed_weight *p = s->packed;
    const tsr_entry *zero;
    const char *const format = first_word(s, formats, 3);
    const uint64_t stated = size_of(setting(s, "group_size"));
    if (*format && strcmp(format, "gemm") != 0 && strcmp(format, "GEMM") != 0)
        return refuse(s, p->scale, "its format is", format);
    const cJSON *const bits = setting(s, "bits");
    if (bits && size_of(bits) != 4) return refuse(s, p->scale, "it does not have 4 bits", "");
    TSR_TRY(need_part(s, "qzeros", &zero));
    TSR_TRY(set_matrix(s, p->scale->shape[1], s->entry->shape[0]));
    p->groups = p->scale->shape[0];
    if (p->rows % 8 || s->entry->shape[1] != p->rows / 8 || !p->groups || !p->columns || p->columns % p->groups)
        return misfit(s, p->scale);
    p->group = p->columns / p->groups;
    if (stated && stated != p->group) return misfit(s, p->scale);
    if (!is_word(zero->dtype) || !has_shape(zero, p->groups, p->rows / 8)) return misfit(s, zero);
    p->numbers = (tsr_codes){.entry = s->entry, .bits = 4, .order = order, .period = 8};
    p->zeros = p->numbers;
    p->zeros.entry = zero;
    return TSR_OK;
}

/* The names are the same for both, and the shapes may be. */
static tsr_status open_transposed(search *s)
{
    tsr_packed_weight *p = s->packed;
    const char *const method = word_of(s, "quant_method"), *const packing = packing_of(s);
    const bool awq = !strcmp(method, "awq") || packs_as_awq(packing);
    const tsr_entry *scale;
    bool any;
    if (!is_word(s->entry->dtype)) return TSR_OK;
    TSR_TRY(has_any(s, "scales", "qzeros", &any));
    if (!any) return TSR_OK;
    p->form = awq ? "AWQ" : "GPTQ";
    TSR_TRY(need_part(s, "scales", &scale));
    p->scale = scale;
    if (!*method) return refuse(s, scale, "its quant_method, which config.json next to it would state, is not known", "");
    if (packing) TSR_TRY(find_layer(s, packing));
    else if (!awq && strcmp(method, "gptq") != 0) return refuse(s, scale, "its quant_method is", method);
    if (s->entry->ndim != 2 || scale->ndim != 2 || !is_scale(scale->dtype)) return misfit(s, scale);
    p->rounded = scale->dtype;
    return awq ? open_awq(s) : open_gptq(s);
}

/* ---- bitsandbytes ---- */

/* The numbers that bitsandbytes' codes of 4 bits stand for. */
static const float nf4[16] = {-1.0f,
                              -0.6961928009986877f,
                              -0.5250730514526367f,
                              -0.39491748809814453f,
                              -0.28444138169288635f,
                              -0.18477343022823334f,
                              -0.09105003625154495f,
                              0.0f,
                              0.07958029955625534f,
                              0.16093020141124725f,
                              0.24611230194568634f,
                              0.33791524171829224f,
                              0.44070982933044434f,
                              0.5626170039176941f,
                              0.7229568362236023f,
                              1.0f};
/* Code 8 is -0 in the kernels, and 0 in the code that bitsandbytes has for rows of an odd length. */
#define FP4(eighth) \
    { \
        0.0f, 0.0625f / 12, 8.0f / 12, 1.0f, 4.0f / 12, 0.5f, 2.0f / 12, 0.25f, eighth, -0.0625f / 12, -8.0f / 12, -1.0f, \
            -4.0f / 12, -0.5f, -2.0f / 12, -0.25f \
    }
static const float fp4[2][16] = {FP4(-0.0f), FP4(0.0f)};

/* Sets the shape of the weight from the state, and checks that the packed numbers are as many. */
static tsr_status take_shape(search *s, const cJSON *state, const tsr_entry *holder)
{
    tsr_packed_weight *p = s->packed;
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(state, "shape"), *item = NULL;
    const size_t count = tsr_json_count(list);
    uint64_t elements = 0, bytes = 0;
    uint64_t *shape = tsr_arena_array(s->m->own->arena, count, sizeof *shape, s->err);
    bool stated = cJSON_IsArray(list) && count && count <= TSR_MAX_NDIM;
    if (!shape) return TSR_E_NOMEM;
    cJSON_ArrayForEach(item, list) if (stated) stated = tsr_json_to_u64(item, "", &shape[p->ndim++], NULL) == TSR_OK;
    TSR_FAIL_IF(!stated, s->err, TSR_E_FORMAT, "'%.*s' does not state the shape of '%.*s'", TSR_STR_ARG(holder->fqn),
                TSR_STR_ARG(s->entry->fqn));
    p->shape = shape;
    const tsr_entry like = {.shape = shape, .ndim = p->ndim};
    const bool counted = tsr_entry_elements(&like, &elements) && elements && tsr_entry_elements(s->entry, &bytes) &&
                         bytes <= UINT64_MAX / tsr_dtype_size(s->entry->dtype);
    bytes *= tsr_dtype_size(s->entry->dtype);
    TSR_FAIL_IF(!counted || bytes != elements / 2 + elements % 2, s->err, TSR_E_FORMAT,
                "'%.*s' states the shape %s, which does not fit '%.*s' %s of %s", TSR_STR_ARG(holder->fqn),
                shape_of(&like).text, TSR_STR_ARG(s->entry->fqn), shape_of(s->entry).text,
                tsr_dtype_describe(s->entry->dtype)->name);
    p->rows = 1;
    p->columns = elements;
    return TSR_OK;
}

static uint64_t blocks_of(uint64_t count, uint64_t block)
{
    return count / block + (count % block != 0);
}

/* Scales that are codes themselves. */
static tsr_status take_nested(search *s, const cJSON *state, const tsr_entry *holder)
{
    tsr_nested_scale *n = &s->packed->nested;
    const cJSON *offset = cJSON_GetObjectItemCaseSensitive(state, "nested_offset");
    const char *const dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(state, "nested_dtype"));
    uint64_t count;
    TSR_TRY(need_part(s, ".nested_absmax", &n->scale));
    TSR_TRY(need_part(s, ".nested_quant_map", &n->table));
    n->block = size_of(cJSON_GetObjectItemCaseSensitive(state, "nested_blocksize"));
    TSR_FAIL_IF(!n->block || !cJSON_IsNumber(offset) || (dtype && strcmp(dtype, "float32") != 0), s->err, TSR_E_FORMAT,
                "'%.*s' does not state the blocks and the offset in float32 of '%.*s'", TSR_STR_ARG(holder->fqn),
                TSR_STR_ARG(n->scale->fqn));
    n->offset = (float)offset->valuedouble;
    if (n->table->dtype != TSR_FLOAT32 || !tsr_entry_elements(n->table, &count) || count != 256) return misfit(s, n->table);
    if (n->scale->dtype != TSR_FLOAT32 || !tsr_entry_elements(n->scale, &count) ||
        count != blocks_of(s->packed->groups, n->block))
        return misfit(s, n->scale);
    return TSR_OK;
}

/* What the quant_state says. */
static tsr_status take_state(search *s, const cJSON *state, const tsr_entry *holder)
{
    tsr_packed_weight *p = s->packed;
    const cJSON *const name = cJSON_GetObjectItemCaseSensitive(state, "dtype");
    uint64_t count;
    p->rounded = cJSON_IsString(name) ? tsr_dtype_from_name(tsr_json_text_of(name)) : TSR_DTYPE_NONE;
    p->group = size_of(cJSON_GetObjectItemCaseSensitive(state, "blocksize"));
    TSR_FAIL_IF(
        !is_scale(p->rounded) || p->group < 32 || p->group > 4096 || (p->group & (p->group - 1)), s->err, TSR_E_FORMAT,
        "'%.*s' of '%.*s' must state a dtype of float32, float16 or bfloat16, and a blocksize that is a power of 2 from "
        "32 to 4096",
        TSR_STR_ARG(holder->fqn), TSR_STR_ARG(s->entry->fqn));
    TSR_TRY(take_shape(s, state, holder));
    p->groups = blocks_of(p->columns, p->group);
    const bool nested = cJSON_HasObjectItem(state, "nested_blocksize");
    if (p->scale->dtype != (nested ? TSR_UINT8 : TSR_FLOAT32) || !tsr_entry_elements(p->scale, &count) || count != p->groups)
        return misfit(s, p->scale);
    return nested ? take_nested(s, state, holder) : TSR_OK;
}

static tsr_status open_state(search *s, const tsr_entry *holder)
{
    uint64_t size;
    cJSON *state;
    if (holder->dtype != TSR_UINT8 || !tsr_entry_elements(holder, &size) || size > MOST_STATE) return misfit(s, holder);
    char *text = tsr_alloc(s->m->own->host->allocator, (size_t)size, 1, s->err);
    if (!text) return TSR_E_NOMEM;
    tsr_status status = read_small(s, holder, size, text);
    if (status == TSR_OK) {
        status = tsr_json_parse((tsr_str){text, (size_t)size}, s->m->own->host, &state, s->err);
        if (status == TSR_OK) {
            status = take_state(s, state, holder);
            cJSON_Delete(state);
        } else {
            tsr_error_context(s->err, "'%.*s' of '%.*s'", TSR_STR_ARG(holder->fqn), TSR_STR_ARG(s->entry->fqn));
        }
    }
    tsr_free(s->m->own->host->allocator, text, (size_t)size, 1);
    return status;
}

static tsr_status open_four_bits(search *s)
{
    static const uint8_t order[] = {1, 0}; /* the first number of a byte is its high half */
    static const char *const states[] = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"};
    tsr_packed_weight *p = s->packed;
    const tsr_entry *holder = NULL, *map;
    const bool single = tsr_dtype_size(s->entry->dtype) == 1;
    for (size_t i = 0; i < 2 && !holder; i++) {
        TSR_TRY(find_part(s, states[i], &holder));
        p->table = i ? fp4[0] : nf4;
    }
    if (!holder && single) TSR_TRY(find_part(s, ".absmax", &map));
    if (!holder && (!single || !map)) return TSR_OK;
    TSR_FAIL_IF(!holder, s->err, TSR_E_FORMAT, "'%.*s' is scaled by '%.*s', but has no quant_state of bitsandbytes",
                TSR_STR_ARG(s->entry->fqn), TSR_STR_ARG(map->fqn));
    TSR_TRY(need_part(s, ".absmax", &p->scale));
    TSR_TRY(find_part(s, ".quant_map", &map)); /* bitsandbytes itself computes with its own table */
    p->flat = true;
    TSR_TRY(open_state(s, holder));
    if (p->table == fp4[0]) p->table = fp4[p->shape[p->ndim - 1] % 2];
    p->numbers = (tsr_codes){.entry = s->entry, .bits = 4, .order = order, .period = 2};
    return TSR_OK;
}

static tsr_status open_eight_bits(search *s)
{
    tsr_packed_weight *p = s->packed;
    const tsr_entry *layout;
    uint64_t count;
    uint8_t number = 0;
    if (s->entry->dtype != TSR_INT8) return TSR_OK;
    TSR_TRY(find_part(s, "SCB", &p->scale));
    if (!p->scale) return TSR_OK;
    TSR_TRY(find_part(s, "weight_format", &layout));
    const bool fits = s->entry->ndim == 2 && p->scale->dtype == TSR_FLOAT32 && tsr_entry_elements(p->scale, &count) &&
                      p->scale->ndim == 1 && count == s->entry->shape[0] && s->entry->shape[1];
    if (!fits) return misfit(s, p->scale);
    if (layout && (layout->dtype != TSR_UINT8 || !tsr_entry_elements(layout, &count) || count != 1))
        return misfit(s, layout);
    if (layout) TSR_TRY(read_small(s, layout, 1, &number));
    if (number) return refuse(s, p->scale, "its weight_format is not row by row", "");
    p->shape = s->entry->shape;
    p->ndim = 2;
    p->rows = p->shape[0];
    p->columns = p->group = p->shape[1];
    p->groups = 1;
    p->rounded = TSR_FLOAT32;
    p->factor = 7.874015718698502e-3f; /* 1 / 127 as bitsandbytes has it */
    p->numbers = (tsr_codes){.entry = s->entry, .bits = 8, .flip = 0x80, .bias = 0x80};
    return TSR_OK;
}

/* ---- all forms ---- */

/* The name of the numbers ends in `packed`, and that of the weight in `weight` instead. */
static const struct {
    const char *form, *packed, *weight;
    tsr_status (*open)(search *s); /* sets s->packed->numbers.entry if the entry has this form */
} forms[] = {
    {"compressed-tensors' pack-quantized", "_packed", "", open_compressed},
    {"GPTQ", "qweight", "weight", open_transposed},
    {"bitsandbytes' 4 bits", "", "", open_four_bits},
    {"bitsandbytes' 8 bits", "weight", "weight", open_eight_bits},
};

static tsr_status open_form(search *s, size_t form)
{
    tsr_packed_weight *p = s->packed;
    *p = (tsr_packed_weight){
        .mapped = s->m, .source = s->m->source, .form = forms[form].form, .factor = 1, .matrices = 1, .dtype = p->dtype};
    p->parts[p->part_count++] = s->entry;
    s->ending = forms[form].packed;
    TSR_TRY(forms[form].open(s));
    if (!p->numbers.entry) return TSR_OK;
    const tsr_str stem = {s->entry->fqn.data, s->entry->fqn.size - strlen(s->ending)};
    const bool once = p->rounded == TSR_FLOAT32 || p->rounded == p->dtype;
    p->rounding = tsr_lossy_of(TSR_FLOAT32, once ? p->dtype : p->rounded);
    p->casting = tsr_lossy_of(p->rounded, p->dtype);
    p->name = tsr_arena_format(s->m->own->arena, s->err, "%.*s%s", TSR_STR_ARG(stem), forms[form].weight);
    return p->name.data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_packed_find(tsr_mapped *m, const tsr_entry *entry, tsr_dtype dtype, const tsr_packed_weight **out,
                           tsr_error *err)
{
    tsr_packed_weight found = {.dtype = dtype}, *kept;
    tsr_vec text = tsr_vec_of(m->own->host->allocator, 1);
    search s = {.m = m, .packed = &found, .entry = entry, .text = &text, .err = err};
    tsr_status status = TSR_OK;
    *out = NULL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms && status == TSR_OK && !found.numbers.entry; i++)
        if (entry->kind == TSR_ENTRY_TENSOR && tsr_str_ends(entry->fqn, tsr_str_from(forms[i].packed)))
            status = open_form(&s, i);
    tsr_vec_free(&text);
    if (status != TSR_OK || !found.numbers.entry) return status;
    *out = kept = TSR_ARENA_NEW(m->own->arena, tsr_packed_weight, err);
    if (!kept) return TSR_E_NOMEM;
    *kept = found;
    return TSR_OK;
}
