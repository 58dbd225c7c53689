/* Parses `tessera.map/1` documents. */
#include "codec/json.h"
#include "mapping/mapped.h"
#include "mapping/mapping_rules.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"

/* ---- dims ---- */

/* "dims" of a map: what the dims that "shape" names are in terms of config.json, such as
 *
 *   {"heads": ["$num_attention_heads", "$head_dim"], "$head_dim": ["$hidden_size", "/$num_attention_heads"]}
 *
 * A list is a product that begins with "$name"; "/$name" divides and rounds down; a list inside it is a sum. A key with a $ states
 * what that number of config.json is where config.json does not state it. */

/* Reads "$name" or, after the first term, a number and, outside of sums, "/$name". */
static tsr_status read_term(tsr_arena *arena, const cJSON *item, tsr_map_dim *dim, enum tsr_term_operation operation,
                            tsr_error *err)
{
    tsr_map_term *term = &dim->terms[dim->count++];
    term->operation = operation;
    if (cJSON_IsNumber(item) && dim->count > 1) return tsr_json_to_u64(item, dim->where, &term->value, err);
    TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, dim->where, err));
    const char *text = item->valuestring;
    if (operation == TSR_TERM_TIMES && dim->count > 1 && *text == '/') term->operation = TSR_TERM_DIVIDE, text++;
    TSR_FAIL_IF(text[0] != '$' || !text[1], err, TSR_E_FORMAT,
                "%s: '%s' is not a number; a number of config.json is written \"$name\"", dim->where, item->valuestring);
    term->config = tsr_arena_str(arena, tsr_str_from(text), err);
    return term->config.data ? TSR_OK : TSR_E_NOMEM;
}

/* Reads a product, or a sum inside it. */
static tsr_status read_terms(tsr_arena *arena, const cJSON *list, tsr_map_dim *dim, bool sum, tsr_error *err)
{
    TSR_TRY(tsr_json_expect(list, TSR_JSON_ARRAY, dim->where, err));
    const cJSON *item = list->child;
    do {
        TSR_FAIL_IF(!item || dim->count == TSR_MOST_TERMS, err, TSR_E_FORMAT, "%s must have 1 to %u numbers", dim->where,
                    (unsigned)TSR_MOST_TERMS);
        const enum tsr_term_operation operation = !sum ? TSR_TERM_TIMES : item->next ? TSR_TERM_PLUS : TSR_TERM_END_OF_SUM;
        if (cJSON_IsArray(item) && !sum) TSR_TRY(read_terms(arena, item, dim, true, err));
        else TSR_TRY(read_term(arena, item, dim, operation, err));
        item = item->next;
    } while (item);
    return TSR_OK;
}

static bool shapes_use(const tsr_mapping_rules *rules, tsr_str name)
{
    for (uint32_t r = 0; r < rules->count; r++)
        for (uint32_t s = 0; s < rules->rules[r].shape_count; s++)
            for (uint32_t d = 0; d < rules->rules[r].shapes[s].count; d++)
                if (tsr_str_equal(rules->rules[r].shapes[s].sizes[d].name, name)) return true;
    return false;
}

/* Whether the size of a dim depends on "$name". */
static bool dims_use(const tsr_mapping_rules *rules, tsr_str name)
{
    for (uint32_t d = 0; d < rules->dim_count; d++)
        for (uint32_t t = 0; t < rules->dims[d].count && *rules->dims[d].name.data != '$'; t++)
            if (tsr_str_equal(name, rules->dims[d].terms[t].config)) return true;
    return false;
}

static tsr_status dims_parse(const cJSON *root, tsr_arena *arena, tsr_mapping_rules *rules, tsr_error *err)
{
    const cJSON *object;
    TSR_TRY(tsr_json_find(root, "dims", TSR_JSON_OBJECT, "", &object, err));
    tsr_map_dim *dims = tsr_arena_array(arena, (size_t)cJSON_GetArraySize(object), sizeof *dims, err);
    if (!dims) return TSR_E_NOMEM;
    rules->dims = dims;
    for (const cJSON *item = object ? object->child : NULL; item; item = item->next) {
        tsr_map_dim *dim = &dims[rules->dim_count++];
        dim->where = tsr_arena_format(arena, err, "dims.%s", item->string).data;
        if (!dim->where) return TSR_E_NOMEM;
        dim->name = tsr_str_from(dim->where + strlen("dims."));
        TSR_TRY(read_terms(arena, item, dim, false, err));
    }
    for (uint32_t d = 0; d < rules->dim_count; d++)
        TSR_FAIL_IF(!dims[d].name.size || (!dims_use(rules, dims[d].name) && !shapes_use(rules, dims[d].name)), err,
                    TSR_E_FORMAT, "%s is not used by any \"shape\" or other dim", dims[d].where);
    return TSR_OK;
}

/* ---- parse ---- */

typedef struct parser {
    tsr_arena *arena;
    tsr_error *err;
    char where[64]; /* the position in the document, such as "rules[3].do[0].split" */
} parser;

/* Makes a parser for a deeper position: `step` is "do[0]", or the name of a member. */
static tsr_status go_down(const parser *p, tsr_str step, parser *out)
{
    const tsr_str where = tsr_arena_format(p->arena, p->err, "%s.%.*s", p->where, TSR_STR_ARG(step));
    if (!where.data) return TSR_E_NOMEM;
    *out = *p;
    memcpy(out->where, where.data, where.size + 1); /* at most "before[4294967295].do[4294967295].permute_rope" */
    return TSR_OK;
}

static tsr_status copy_text(const parser *p, const cJSON *item, tsr_str *out)
{
    TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, p->where, p->err));
    *out = tsr_arena_str(p->arena, tsr_json_text_of(item), p->err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* Reads a number, or "$name" for a number of config.json. */
static tsr_status read_number(const parser *p, const cJSON *item, tsr_map_number *out)
{
    *out = (tsr_map_number){0};
    if (!cJSON_IsString(item)) return tsr_json_to_u64(item, p->where, &out->value, p->err);
    TSR_TRY(copy_text(p, item, &out->config));
    TSR_FAIL_IF(out->config.size < 2 || out->config.data[0] != '$', p->err, TSR_E_FORMAT,
                "%s: '%s' is not a number; a number of config.json is written \"$name\"", p->where, item->valuestring);
    out->config = tsr_str_after(out->config, 1);
    return TSR_OK;
}

/* Reads a number or a list of numbers. With `has_rest`, one number of a list may be -1: the size that the others leave. */
static tsr_status read_numbers(const parser *p, const cJSON *item, bool has_rest, tsr_map_number **out, uint32_t *count)
{
    const bool is_one = cJSON_IsNumber(item) || cJSON_IsString(item);
    uint32_t rests = 0;
    if (!is_one) TSR_TRY(tsr_json_expect(item, TSR_JSON_ARRAY, p->where, p->err));
    const int size = is_one ? 1 : cJSON_GetArraySize(item);
    TSR_FAIL_IF(size > 4096, p->err, TSR_E_FORMAT, "%s: %d numbers; at most 4096 are allowed", p->where, size);
    *out = tsr_arena_array(p->arena, (size_t)size, sizeof **out, p->err);
    if (!*out) return TSR_E_NOMEM;
    for (const cJSON *n = is_one ? item : item->child; n; n = is_one ? NULL : n->next, ++*count) {
        tsr_map_number *number = &(*out)[*count];
        const bool rest = has_rest && !is_one && cJSON_IsNumber(n) && n->valuedouble == -1;
        if (rest) *number = (tsr_map_number){.rest = true};
        else TSR_TRY(read_number(p, n, number));
        rests += rest;
    }
    TSR_FAIL_IF(rests > 1, p->err, TSR_E_FORMAT, "%s: only one size of a list may be -1", p->where);
    return TSR_OK;
}

static tsr_status read_dtype(const parser *p, const cJSON *item, tsr_dtype *out)
{
    TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, p->where, p->err));
    *out = tsr_dtype_from_text(tsr_json_text_of(item));
    TSR_FAIL_IF(*out == TSR_DTYPE_NONE, p->err, TSR_E_FORMAT, "%s: '%s' is not a dtype", p->where, item->valuestring);
    return TSR_OK;
}

static tsr_status unknown_member(const parser *p, const cJSON *item, tsr_step_kind kind)
{
    return tsr_fail(p->err, TSR_E_FORMAT, "%s: unknown member '%s' of the step '%s'", p->where, item->string,
                    tsr_step_name(kind));
}

/* Reads a member of a step other than the one that names the step. */
static tsr_status read_argument(const parser *p, const cJSON *item, tsr_map_step *step)
{
    const tsr_step_kind kind = step->kind;
    const tsr_str key = tsr_json_key_of(item);
    const bool cuts = kind == TSR_STEP_SPLIT || kind == TSR_STEP_CONCAT,
               fits = kind == TSR_STEP_TRIM || kind == TSR_STEP_PAD;
    if (cuts && tsr_str_equal(key, TSR_STR("sizes")))
        return read_numbers(p, item, true, &step->numbers, &step->number_count);
    if ((cuts || kind == TSR_STEP_INTERLEAVE) && tsr_str_equal(key, TSR_STR("parts")))
        return read_number(p, item, &step->parts);
    if (fits && tsr_str_equal(key, TSR_STR("to"))) return read_number(p, item, &step->to);
    if (kind == TSR_STEP_RESHAPE && tsr_str_equal(key, TSR_STR("from")))
        return read_numbers(p, item, true, &step->from, &step->from_count);
    if (fits && tsr_str_equal(key, TSR_STR("from"))) return read_numbers(p, item, false, &step->from, &step->from_count);
    if (fits && tsr_str_equal(key, TSR_STR("value"))) {
        TSR_TRY(tsr_json_expect(item, TSR_JSON_NUMBER, p->where, p->err));
        step->value = item->valuedouble;
        step->has_value = true;
        return TSR_OK;
    }
    return unknown_member(p, item, kind);
}

/* Reads one pattern, or one for each pattern of `from`. */
static tsr_status read_scales(const parser *p, const cJSON *item, tsr_scale_names *out)
{
    const bool list = cJSON_IsArray(item);
    const int size = list ? cJSON_GetArraySize(item) : 1;
    tsr_str *names = tsr_arena_array(p->arena, (size_t)size, sizeof *names, p->err);
    if (!names) return TSR_E_NOMEM;
    *out = (tsr_scale_names){.names = names};
    for (const cJSON *one = list ? item->child : item; one; one = list ? one->next : NULL)
        TSR_TRY(copy_text(p, one, &names[out->count++]));
    return TSR_OK;
}

static tsr_status read_scheme(const parser *p, const cJSON *item, tsr_scale_scheme *out)
{
    static const char *const words[] = {"block", "row", "tensor", "mxfp4", "nvfp4"};
    TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, p->where, p->err));
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        *out = (tsr_scale_scheme)(TSR_SCALES_BLOCK + i);
        if (!strcmp(words[i], item->valuestring)) return TSR_OK;
    }
    return tsr_fail(p->err, TSR_E_FORMAT, "%s: the scheme is '%s'; allowed are block, row, tensor, mxfp4 and nvfp4",
                    p->where, item->valuestring);
}

/* The name of the scales of whole tensors states whether they multiply or divide. */
static tsr_status read_tensor_scales(const parser *p, const cJSON *item, bool divides, tsr_map_step *step)
{
    TSR_FAIL_IF(step->tensor_scales.count, p->err, TSR_E_FORMAT,
                "%s: the step 'dequantize' takes tensor_scale or global_scale, not both", p->where);
    step->divides = divides;
    return read_scales(p, item, &step->tensor_scales);
}

/* Reads {"scale": PATTERN, "scheme": …, "tensor_scale" | "global_scale": PATTERN, "block": [ROWS, COLUMNS], "dtype":
 * DTYPE}. */
static tsr_status read_dequantize(const parser *p, const cJSON *item, tsr_map_step *step)
{
    TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, p->where, p->err));
    for (const cJSON *member = item->child; member; member = member->next) {
        const tsr_str key = tsr_json_key_of(member);
        if (tsr_str_equal(key, TSR_STR("scale"))) TSR_TRY(read_scales(p, member, &step->scales));
        else if (tsr_str_equal(key, TSR_STR("tensor_scale"))) TSR_TRY(read_tensor_scales(p, member, false, step));
        else if (tsr_str_equal(key, TSR_STR("global_scale"))) TSR_TRY(read_tensor_scales(p, member, true, step));
        else if (tsr_str_equal(key, TSR_STR("scheme"))) TSR_TRY(read_scheme(p, member, &step->scheme));
        else if (tsr_str_equal(key, TSR_STR("block")))
            TSR_TRY(read_numbers(p, member, false, &step->numbers, &step->number_count));
        else if (tsr_str_equal(key, TSR_STR("dtype"))) TSR_TRY(read_dtype(p, member, &step->dtype));
        else return unknown_member(p, member, step->kind);
    }
    return TSR_OK;
}

/* Reads the value of the member that names the step: a dim, a list or a dtype. */
static tsr_status read_main(const parser *p, const cJSON *item, tsr_map_step *step)
{
    const cJSON *heads;
    switch (step->kind) {
    case TSR_STEP_TRANSPOSE: return read_numbers(p, item, false, &step->numbers, &step->number_count);
    case TSR_STEP_RESHAPE: return read_numbers(p, item, true, &step->numbers, &step->number_count);
    case TSR_STEP_CAST: return read_dtype(p, item, &step->dtype);
    case TSR_STEP_DEQUANTIZE: return read_dequantize(p, item, step);
    case TSR_STEP_PERMUTE_ROPE:
        TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, p->where, p->err));
        heads = cJSON_GetObjectItemCaseSensitive(item, "heads");
        TSR_FAIL_IF(!heads || heads->next || item->child != heads, p->err, TSR_E_FORMAT,
                    "%s: the step takes {\"heads\": N} and nothing else", p->where);
        return read_number(p, heads, &step->parts);
    default: return tsr_json_to_i64(item, p->where, &step->dim, p->err);
    }
}

static tsr_status check_step(const parser *p, const tsr_map_step *step)
{
    const char *lacks = NULL;
    if (step->kind == TSR_STEP_SPLIT && !step->number_count == !tsr_map_number_given(&step->parts))
        lacks = "either sizes or parts";
    if (step->kind == TSR_STEP_CONCAT && step->number_count && tsr_map_number_given(&step->parts))
        lacks = "sizes or parts, not both";
    if (step->kind == TSR_STEP_INTERLEAVE && !tsr_map_number_given(&step->parts)) lacks = "parts";
    if ((step->kind == TSR_STEP_TRIM || step->kind == TSR_STEP_PAD) && !tsr_map_number_given(&step->to)) lacks = "to";
    if (step->kind == TSR_STEP_PAD && !step->has_value) lacks = "value";
    if (step->kind == TSR_STEP_DEQUANTIZE && (!step->scales.count || step->scheme == TSR_SCALES_FITTING))
        lacks = "scale and scheme";
    if (step->kind == TSR_STEP_DEQUANTIZE && !step->tensor_scales.count != (step->scheme != TSR_SCALES_NVFP4))
        lacks = "tensor_scale or global_scale with the scheme nvfp4, and only with it";
    if (step->kind == TSR_STEP_DEQUANTIZE && step->number_count &&
        (step->number_count != 2 || step->scheme != TSR_SCALES_BLOCK))
        lacks = "a block of two numbers, and only with the scheme block";
    if (step->kind == TSR_STEP_PERMUTE_ROPE && !tsr_map_number_given(&step->parts)) lacks = "heads of 1 or more";
    TSR_FAIL_IF(lacks, p->err, TSR_E_FORMAT, "%s: the step '%s' needs %s", p->where, tsr_step_name(step->kind), lacks);
    return TSR_OK;
}

static tsr_status read_step(const parser *p, const cJSON *item, tsr_map_step *step)
{
    TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, p->where, p->err));
    const cJSON *main = NULL;
    for (unsigned kind = 0; kind < TSR_STEP_KINDS && !main; kind++) {
        main = cJSON_GetObjectItemCaseSensitive(item, tsr_step_name((tsr_step_kind)kind));
        step->kind = (tsr_step_kind)kind;
    }
    TSR_FAIL_IF(!main, p->err, TSR_E_FORMAT,
                "%s: unknown step '%s'; allowed are concat, split, interleave, stack, unstack, transpose, reshape, "
                "permute_rope, trim, "
                "pad, cast and dequantize",
                p->where, item->child ? item->child->string : "");
    parser below;
    TSR_TRY(go_down(p, tsr_str_from(tsr_step_name(step->kind)), &below));
    TSR_TRY(read_main(&below, main, step));
    for (const cJSON *member = item->child; member; member = member->next)
        if (member != main) TSR_TRY(read_argument(p, member, step));
    return check_step(p, step);
}

static tsr_status read_patterns(const parser *p, const cJSON *rule, const char *key, tsr_captures *captures,
                                tsr_name_pattern **out, uint32_t *count)
{
    const cJSON *list;
    TSR_TRY(tsr_json_get(rule, key, TSR_JSON_ARRAY, p->where, &list, p->err));
    tsr_name_pattern *patterns = *out =
        tsr_arena_array(p->arena, (size_t)cJSON_GetArraySize(list), sizeof *patterns, p->err);
    if (!patterns) return TSR_E_NOMEM;
    for (const cJSON *item = list->child; item; item = item->next) {
        tsr_str text;
        TSR_TRY(copy_text(p, item, &text));
        TSR_TRY(tsr_pattern_parse(text, p->arena, captures, &patterns[(*count)++], p->err));
    }
    return TSR_OK;
}

static tsr_status read_steps(const parser *p, const cJSON *rule, tsr_map_rule *out)
{
    const cJSON *list;
    TSR_TRY(tsr_json_find(rule, "do", TSR_JSON_ARRAY, p->where, &list, p->err));
    tsr_map_step *steps = tsr_arena_array(p->arena, list ? (size_t)cJSON_GetArraySize(list) : 0, sizeof *steps, p->err);
    if (!steps) return TSR_E_NOMEM;
    out->steps = steps;
    for (const cJSON *item = list ? list->child : NULL; item; item = item->next) {
        parser below;
        const tsr_str at = tsr_arena_format(p->arena, p->err, "do[%u]", (unsigned)out->step_count);
        if (!at.data) return TSR_E_NOMEM;
        TSR_TRY(go_down(p, at, &below));
        TSR_TRY(read_step(&below, item, &steps[out->step_count++]));
    }
    return TSR_OK;
}

/* Adds patterns after those of `from`, which has room for them. */
static tsr_status add_patterns(const parser *p, tsr_captures *captures, const tsr_scale_names *scales, uint32_t tensors,
                               tsr_map_rule *rule)
{
    tsr_name_pattern *all = (tsr_name_pattern *)(uintptr_t)rule->from;
    TSR_FAIL_IF(scales->count != tensors, p->err, TSR_E_FORMAT, "%s: the step 'dequantize' names %u scales for %u tensors",
                p->where, (unsigned)scales->count, (unsigned)tensors);
    for (uint32_t i = 0; i < tensors; i++, rule->from_count++)
        TSR_TRY(tsr_pattern_parse(scales->names[i], p->arena, captures, &all[rule->from_count], p->err));
    return TSR_OK;
}

/* The scales of a dequantize step are also sources: the rule takes them, and reports those that are missing. */
static tsr_status add_scales(const parser *p, tsr_captures *captures, tsr_map_rule *rule)
{
    const tsr_map_step *step = rule->step_count && rule->steps[0].kind == TSR_STEP_DEQUANTIZE ? &rule->steps[0] : NULL;
    if (!step) return TSR_OK;
    tsr_name_pattern *all = tsr_arena_array(p->arena, 3 * (size_t)rule->from_count, sizeof *all, p->err);
    if (!all) return TSR_E_NOMEM;
    memcpy(all, rule->from, rule->from_count * sizeof *all);
    const uint32_t tensors = rule->from_count;
    rule->from = all;
    TSR_TRY(add_patterns(p, captures, &step->scales, tensors, rule));
    if (step->tensor_scales.count) TSR_TRY(add_patterns(p, captures, &step->tensor_scales, tensors, rule));
    rule->scale_count = rule->from_count - tensors;
    return TSR_OK;
}

/* Reads a shape such as ["experts", 8, "$hidden_size"]: names, and numbers as in steps. */
static tsr_status read_shape(const parser *p, const cJSON *list, tsr_map_shape *out)
{
    TSR_TRY(tsr_json_expect(list, TSR_JSON_ARRAY, p->where, p->err));
    tsr_map_size *sizes = tsr_arena_array(p->arena, (size_t)cJSON_GetArraySize(list), sizeof *sizes, p->err);
    if (!sizes) return TSR_E_NOMEM;
    out->sizes = sizes;
    for (const cJSON *item = list->child; item; item = item->next, out->count++) {
        tsr_map_size *size = &sizes[out->count];
        const bool named = cJSON_IsString(item) && item->valuestring[0] && item->valuestring[0] != '$';
        TSR_TRY(named ? copy_text(p, item, &size->name) : read_number(p, item, &size->number));
    }
    return TSR_OK;
}

/* Reads one shape, or a list with one per pattern of `to`. */
static tsr_status read_shapes(const parser *p, const cJSON *rule, tsr_map_rule *out)
{
    const cJSON *list;
    TSR_TRY(tsr_json_find(rule, "shape", TSR_JSON_ARRAY, p->where, &list, p->err));
    if (!list) return TSR_OK;
    const bool several = cJSON_IsArray(list->child);
    const uint32_t count = several ? (uint32_t)cJSON_GetArraySize(list) : 1;
    TSR_FAIL_IF(several && count != out->to_count, p->err, TSR_E_FORMAT, "%s: %u shapes for %u names in \"to\"", p->where,
                (unsigned)count, (unsigned)out->to_count);
    tsr_map_shape *shapes = tsr_arena_array(p->arena, count, sizeof *shapes, p->err);
    if (!shapes) return TSR_E_NOMEM;
    out->shapes = shapes;
    for (const cJSON *item = several ? list->child : list; out->shape_count < count; item = item->next)
        TSR_TRY(read_shape(p, item, &shapes[out->shape_count++]));
    return TSR_OK;
}

/* Whether the pattern contains the capture. */
static bool has_capture(const tsr_name_pattern *pattern, uint32_t capture)
{
    return tsr_pattern_plus(pattern, capture) != NULL;
}

/* Reads "all" or the name of a kind of layer. The patterns must have a {layer}. */
static tsr_status read_layers(const parser *p, const cJSON *rule, tsr_map_rule *out)
{
    const cJSON *item;
    bool has = false;
    TSR_TRY(tsr_json_find(rule, "layers", TSR_JSON_STRING, p->where, &item, p->err));
    if (!item) return TSR_OK;
    TSR_TRY(copy_text(p, item, &out->layers));
    for (uint32_t c = 0; c < out->capture_count; c++) {
        if (!tsr_str_equal(out->captures[c], TSR_STR("layer")) || !out->from_count || !out->to_count) continue;
        has = has_capture(&out->from[0], c) && has_capture(&out->to[0], c);
    }
    TSR_FAIL_IF(!has || !out->layers.size, p->err, TSR_E_FORMAT,
                "%s: \"layers\" is \"all\" or a kind of layer, and for rules that have {layer} on both sides", p->where);
    return TSR_OK;
}

/* Reads a name such as "tok_embeddings.weight". The rule must take one tensor, and have no captures. */
static tsr_status read_tied(const parser *p, const cJSON *rule, const char *member, tsr_map_rule *out)
{
    const cJSON *item;
    TSR_TRY(tsr_json_find(rule, member, TSR_JSON_STRING, p->where, &item, p->err));
    if (!item) return TSR_OK;
    TSR_FAIL_IF(out->capture_count || out->from_count != 1 || out->to_count != 1 || out->tied_to.size, p->err, TSR_E_FORMAT,
                "%s: \"%s\" is for rules from one tensor to one, without captures and tied to no other", p->where, member);
    out->tied_by_inverse = !strcmp(member, "copy_of");
    return copy_text(p, item, &out->tied_to);
}

static tsr_status check_members(const parser *p, const cJSON *object, const char *const *allowed)
{
    for (const cJSON *member = object->child; member; member = member->next) {
        size_t i = 0;
        while (allowed[i] && strcmp(allowed[i], member->string)) i++;
        TSR_FAIL_IF(!allowed[i], p->err, TSR_E_FORMAT, "%s: unknown member '%s'", p->where, member->string);
    }
    return TSR_OK;
}

/* false, "alike" or {"with": PATTERN}, whose captures are those of "to". */
static tsr_status read_inverse(const parser *p, const cJSON *rule, tsr_captures *captures, tsr_map_rule *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(rule, "inverse"),
                *with = cJSON_GetObjectItemCaseSensitive(item, "with");
    bool known =
        !item || cJSON_IsBool(item) || (cJSON_IsObject(item) && cJSON_IsString(with) && item->child == with && !with->next);
    tsr_str text;
    out->one_way = cJSON_IsFalse(item);
    out->alike = cJSON_IsString(item) && !strcmp(item->valuestring, "alike");
    if (known && with) {
        TSR_TRY(copy_text(p, with, &text));
        TSR_TRY(tsr_pattern_parse(text, p->arena, captures, &out->with, p->err));
        for (uint32_t c = 0; c < captures->count; c++) {
            const tsr_map_number *plus = tsr_pattern_plus(&out->with, c);
            known = known && (!plus || (!tsr_map_number_given(plus) && out->to_count && has_capture(&out->to[0], c)));
        }
    }
    TSR_FAIL_IF(!known && !out->alike, p->err, TSR_E_FORMAT, "%s.inverse must be true, false, \"alike\" or {\"with\": NAME}",
                p->where);
    return TSR_OK;
}

/* true, or the word of a group of rules. */
static tsr_status read_required(const parser *p, const cJSON *rule, tsr_map_rule *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(rule, "required");
    const bool word = cJSON_IsString(item) && item->valuestring[0];
    TSR_FAIL_IF(item && !cJSON_IsBool(item) && !word, p->err, TSR_E_FORMAT, "%s.required must be true, false or a word",
                p->where);
    out->required = cJSON_IsTrue(item);
    return word ? copy_text(p, item, &out->required_with) : TSR_OK;
}

/* Finds the capture that all patterns of one side have and the other side does not have; *out is TSR_NO_CAPTURE if there is
 * none. */
static tsr_status find_one_sided(const tsr_map_rule *rule, bool from_side, uint32_t *out, tsr_error *err)
{
    const tsr_name_pattern *own = from_side ? rule->from : rule->to, *other = from_side ? rule->to : rule->from;
    const uint32_t own_count = from_side ? rule->from_count : rule->to_count,
                   others = from_side ? rule->to_count : rule->from_count;
    *out = TSR_NO_CAPTURE;
    for (uint32_t c = 0; c < rule->capture_count && own_count; c++) {
        const tsr_map_number *has = tsr_pattern_plus(&own[0], c);
        for (uint32_t i = 1; i < own_count; i++) {
            const tsr_map_number *too = tsr_pattern_plus(&own[i], c);
            TSR_FAIL_IF(!too != !has || (has && (has->value != too->value || !tsr_str_equal(has->config, too->config))), err,
                        TSR_E_FORMAT, "'%.*s' and '%.*s' do not have the same captures", TSR_STR_ARG(own[0].text),
                        TSR_STR_ARG(own[i].text));
        }
        if (!has || !others || has_capture(&other[0], c)) continue;
        TSR_FAIL_IF(*out != TSR_NO_CAPTURE || tsr_map_number_given(has), err, TSR_E_FORMAT,
                    "'%.*s': only one capture of a side may be missing on the other side, and none with +",
                    TSR_STR_ARG(own[0].text));
        *out = c;
    }
    return TSR_OK;
}

static uint32_t count_kind(const tsr_map_rule *rule, tsr_step_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < rule->step_count; i++) count += rule->steps[i].kind == kind;
    return count;
}

static tsr_status check_folds(const tsr_map_rule *rule, tsr_step_kind kind, uint32_t capture, tsr_error *err)
{
    const uint32_t count = count_kind(rule, kind), wanted = capture != TSR_NO_CAPTURE;
    TSR_FAIL_IF(wanted && !count, err, TSR_E_FORMAT, "'%.*s': {%.*s} is on one side only, which needs the step '%s'",
                TSR_STR_ARG(rule->from[0].text), TSR_STR_ARG(rule->captures[capture]), tsr_step_name(kind));
    TSR_FAIL_IF(count > wanted, err, TSR_E_FORMAT, "'%.*s': the step '%s' has no capture of one side to go with",
                TSR_STR_ARG(rule->from[0].text), tsr_step_name(kind));
    return TSR_OK;
}

/* Sets the folded and the unfolded capture of a rule, and checks that its steps agree with them.
 * TSR_E_FORMAT otherwise. */
static tsr_status check_rule(tsr_map_rule *rule, tsr_error *err)
{
    const bool says_more = rule->required || rule->required_with.size || rule->one_way || rule->alike || rule->with.count;
    TSR_FAIL_IF(
        !rule->from_count && (!rule->to_count || says_more), err, TSR_E_FORMAT,
        "a rule has an empty 'from'; only one that drops names in the inverse has none, with nothing but 'to' and 'about'");
    TSR_TRY(find_one_sided(rule, true, &rule->folded, err));
    TSR_TRY(find_one_sided(rule, false, &rule->unfolded, err));
    TSR_FAIL_IF((!rule->from_count || !rule->to_count) && (rule->step_count || rule->shape_count), err, TSR_E_FORMAT,
                "'%.*s': a rule that drops takes no steps and no shape",
                TSR_STR_ARG((rule->from_count ? rule->from : rule->to)[0].text));
    if (!rule->from_count || !rule->to_count) return TSR_OK;
    for (uint32_t i = 1; i < rule->step_count; i++)
        TSR_FAIL_IF(rule->steps[i].kind == TSR_STEP_DEQUANTIZE, err, TSR_E_FORMAT,
                    "'%.*s': the step 'dequantize' must be the first, because scales are for tensors as they are stored",
                    TSR_STR_ARG(rule->from[0].text));
    TSR_TRY(check_folds(rule, TSR_STEP_STACK, rule->folded, err));
    return check_folds(rule, TSR_STEP_UNSTACK, rule->unfolded, err);
}

static tsr_status read_rule(const parser *p, const cJSON *item, tsr_map_rule *rule)
{
    static const char *const members[] = {"from",    "to",       "do",      "shape", "layers", "tied_to",
                                          "copy_of", "required", "inverse", "about", NULL};
    tsr_name_pattern *from, *to;
    TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, p->where, p->err));
    TSR_TRY(check_members(p, item, members));
    tsr_captures captures = {tsr_arena_array(p->arena, TSR_MOST_CAPTURES, sizeof *captures.names, p->err), 0,
                             TSR_MOST_CAPTURES};
    if (!captures.names) return TSR_E_NOMEM;
    TSR_TRY(read_patterns(p, item, "from", &captures, &from, &rule->from_count));
    TSR_TRY(read_patterns(p, item, "to", &captures, &to, &rule->to_count));
    rule->from = from;
    rule->to = to;
    TSR_TRY(read_steps(p, item, rule));
    TSR_TRY(add_scales(p, &captures, rule));
    rule->captures = captures.names;
    rule->capture_count = captures.count;
    TSR_TRY(read_shapes(p, item, rule));
    TSR_TRY(read_layers(p, item, rule));
    TSR_TRY(read_tied(p, item, "tied_to", rule));
    TSR_TRY(read_tied(p, item, "copy_of", rule));
    TSR_TRY(read_required(p, item, rule));
    TSR_TRY(read_inverse(p, item, &captures, rule));
    return check_rule(rule, p->err);
}

static tsr_status read_unmatched(parser *p, const cJSON *root, tsr_unmatched *out)
{
    static const char *const words[] = {"refuse", "keep", "drop"};
    const cJSON *item;
    TSR_TRY(tsr_json_find(root, "unmatched", TSR_JSON_STRING, "", &item, p->err));
    for (unsigned i = 0; i < 3; i++) {
        *out = (tsr_unmatched)i;
        if (!item || !strcmp(words[i], item->valuestring)) return TSR_OK;
    }
    return tsr_fail(p->err, TSR_E_FORMAT, "unmatched is '%s'; allowed are refuse, keep and drop", item->valuestring);
}

static tsr_status read_rules(parser *p, const cJSON *root, const char *key, tsr_mapping_rules *out)
{
    const cJSON *list;
    TSR_TRY(tsr_json_get(root, key, TSR_JSON_ARRAY, "", &list, p->err));
    tsr_map_rule *rules = tsr_arena_array(p->arena, (size_t)cJSON_GetArraySize(list), sizeof *rules, p->err);
    if (!rules) return TSR_E_NOMEM;
    out->rules = rules;
    for (const cJSON *item = list->child; item; item = item->next) {
        const tsr_str where = tsr_arena_format(p->arena, p->err, "%s[%u]", key, (unsigned)out->count);
        if (!where.data) return TSR_E_NOMEM;
        memcpy(p->where, where.data, where.size + 1);
        TSR_TRY(read_rule(p, item, &rules[out->count++]));
    }
    return TSR_OK;
}

/* Rules that bring several forms of a model to one, which the other rules take; what they do not match is kept. */
static tsr_status read_before(parser *p, const cJSON *root, tsr_mapping_rules *out)
{
    if (!cJSON_GetObjectItemCaseSensitive(root, "before")) return TSR_OK;
    tsr_mapping_rules *before = TSR_ARENA_NEW(p->arena, tsr_mapping_rules, p->err);
    if (!before) return TSR_E_NOMEM;
    *before = (tsr_mapping_rules){.unmatched = TSR_UNMATCHED_KEEP, .normalizes = true};
    out->before = before;
    return read_rules(p, root, "before", before);
}

static tsr_status read_document(parser *p, const cJSON *root, tsr_mapping_rules *out)
{
    static const char *const members[] = {"schema", "before", "rules", "unmatched", "dims", "models", "about", NULL};
    const cJSON *schema;
    TSR_TRY(tsr_json_expect(root, TSR_JSON_OBJECT, "", p->err));
    TSR_TRY(tsr_json_get(root, "schema", TSR_JSON_STRING, "", &schema, p->err));
    TSR_FAIL_IF(strcmp(schema->valuestring, "tessera.map/1"), p->err, TSR_E_FORMAT,
                "the schema is '%s'; expected tessera.map/1", schema->valuestring);
    TSR_TRY(check_members(p, root, members));
    TSR_TRY(read_unmatched(p, root, &out->unmatched));
    TSR_TRY(read_before(p, root, out));
    TSR_TRY(read_rules(p, root, "rules", out));
    return dims_parse(root, p->arena, out, p->err);
}

tsr_status tsr_mapping_parse(tsr_str text, const tsr_host *host, tsr_arena *arena, const tsr_mapping_rules **out,
                             tsr_error *err)
{
    parser p = {.arena = arena, .err = err, .where = "the map"};
    cJSON *root;
    tsr_mapping_rules *rules = TSR_ARENA_NEW(arena, tsr_mapping_rules, err);
    if (!rules) return TSR_E_NOMEM;
    TSR_TRY(tsr_json_parse(text, host, &root, err));
    const tsr_status status = read_document(&p, root, rules);
    rules->text = text.data;
    cJSON_Delete(root);
    *out = rules;
    return status;
}
