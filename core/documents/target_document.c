/* Reads a tessera.target/1 document. Lists of placements become comma-separated texts as on the command line, so that there
 * is only one parser for placements (layout/mesh.c). */
#include <stdlib.h>

#include "base/line.h"
#include "documents/document_parts.h"
#include "tessera/sys/document.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/try.h"

typedef struct target_reader {
    tsr_arena *arena;
    tsr_error *err;
} target_reader;

/* ["shard(0)", "replicate"] → "shard(0),replicate" */
static tsr_status join(const target_reader *r, const cJSON *array, const char *where, tsr_str *out)
{
    size_t size = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, array)
    {
        TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, where, r->err));
        size += strlen(item->valuestring) + 1;
    }
    char *text = tsr_arena_array(r->arena, size + 1, 1, r->err);
    if (!text) return TSR_E_NOMEM;
    tsr_line line = tsr_line_on(text, size + 1);
    cJSON_ArrayForEach(item, array)
    {
        if (line.used) tsr_line_put(&line, ",", 1);
        tsr_line_put(&line, item->valuestring, strlen(item->valuestring));
    }
    *out = (tsr_str){text, line.used};
    return TSR_OK;
}

/* {"shape": [4, 2], "dim_names": ["dp", "tp"]} → "dp=4,tp=2" */
static tsr_status read_mesh(const target_reader *r, const cJSON *mesh, tsr_str *out)
{
    const cJSON *shape, *names, *item;
    TSR_TRY(tsr_json_get(mesh, "shape", TSR_JSON_ARRAY, "mesh", &shape, r->err));
    TSR_TRY(tsr_json_find(mesh, "dim_names", TSR_JSON_ARRAY, "mesh", &names, r->err));
    TSR_FAIL_IF(names && cJSON_GetArraySize(names) != cJSON_GetArraySize(shape), r->err, TSR_E_FORMAT,
                "target: mesh has %d sizes and %d dim_names", cJSON_GetArraySize(shape), cJSON_GetArraySize(names));
    const cJSON *name = names ? names->child : NULL;
    *out = TSR_STR("");
    cJSON_ArrayForEach(item, shape)
    {
        uint64_t size;
        TSR_TRY(tsr_json_to_u64(item, "mesh.shape", &size, r->err));
        if (name) TSR_TRY(tsr_json_expect(name, TSR_JSON_STRING, "mesh.dim_names", r->err));
        *out = tsr_arena_format(r->arena, r->err, "%.*s%s%s%s%llu", TSR_STR_ARG(*out), out->size ? "," : "",
                                name ? name->valuestring : "", name ? "=" : "", (unsigned long long)size);
        if (!out->data) return TSR_E_NOMEM;
        name = name ? name->next : NULL;
    }
    return TSR_OK;
}

/* "ranks": [0, 2] */
static tsr_status read_ranks(const target_reader *r, const cJSON *list, const char *where, tsr_target_rule_text *rule)
{
    const cJSON *item;
    uint64_t *ranks = tsr_arena_array(r->arena, (size_t)cJSON_GetArraySize(list), sizeof *ranks, r->err);
    if (!ranks) return TSR_E_NOMEM;
    TSR_FAIL_IF(!list->child, r->err, TSR_E_FORMAT, "target: %s.ranks is empty; list at least one rank", where);
    cJSON_ArrayForEach(item, list) TSR_TRY(tsr_json_to_u64(item, where, &ranks[rule->rank_count++], r->err));
    rule->ranks = ranks;
    return TSR_OK;
}

/* [[0, 4], [4, 8]]: layers [first, end) of each stage. */
static tsr_status read_ranges(const target_reader *r, const cJSON *list, const char *where, tsr_target_rule_text *rule)
{
    const cJSON *item;
    tsr_span *ranges = tsr_arena_array(r->arena, (size_t)cJSON_GetArraySize(list), sizeof *ranges, r->err);
    if (!ranges) return TSR_E_NOMEM;
    rule->stage_ranges = ranges;
    cJSON_ArrayForEach(item, list)
    {
        uint64_t end;
        tsr_span *range = &ranges[rule->stage_range_count++];
        TSR_TRY(tsr_json_expect(item, TSR_JSON_ARRAY, where, r->err));
        TSR_FAIL_IF(cJSON_GetArraySize(item) != 2, r->err, TSR_E_FORMAT,
                    "target: %s.stage: a range of layers must be a list of two numbers, [first, end)", where);
        TSR_TRY(tsr_json_to_u64(item->child, where, &range->offset, r->err));
        TSR_TRY(tsr_json_to_u64(item->child->next, where, &end, r->err));
        TSR_FAIL_IF(end < range->offset, r->err, TSR_E_FORMAT,
                    "target: %s.stage: the range [%llu, %llu] of layers ends before it begins", where,
                    (unsigned long long)range->offset, (unsigned long long)end);
        range->size = end - range->offset;
    }
    return TSR_OK;
}

/* "stage": {"dim": "pp", "layers": {"capture": "layers.{n}.", "ranges": [[0, 4], [4, 8]]}} */
static tsr_status read_stage(const target_reader *r, const cJSON *stage, const char *where, tsr_target_rule_text *rule)
{
    const cJSON *dim, *layers, *capture, *ranges;
    TSR_TRY(tsr_json_get(stage, "dim", TSR_JSON_STRING, where, &dim, r->err));
    TSR_TRY(tsr_json_get(stage, "layers", TSR_JSON_OBJECT, where, &layers, r->err));
    TSR_TRY(tsr_json_get(layers, "capture", TSR_JSON_STRING, where, &capture, r->err));
    TSR_TRY(tsr_json_get(layers, "ranges", TSR_JSON_ARRAY, where, &ranges, r->err));
    rule->stage_dim = tsr_arena_str(r->arena, tsr_json_text_of(dim), r->err);
    rule->stage_capture = tsr_arena_str(r->arena, tsr_json_text_of(capture), r->err);
    if (!rule->stage_dim.data || !rule->stage_capture.data) return TSR_E_NOMEM;
    return read_ranges(r, ranges, where, rule);
}

static tsr_status read_holders(const target_reader *r, const cJSON *item, const char *where, tsr_target_rule_text *rule)
{
    const cJSON *ranks, *stage, *placements;
    TSR_TRY(tsr_json_find(item, "ranks", TSR_JSON_ARRAY, where, &ranks, r->err));
    TSR_TRY(tsr_json_find(item, "stage", TSR_JSON_OBJECT, where, &stage, r->err));
    TSR_FAIL_IF(ranks && stage, r->err, TSR_E_FORMAT,
                "target: %s has both ranks and a stage; a rule can have only one of them", where);
    if (ranks) TSR_TRY(read_ranks(r, ranks, where, rule));
    if (stage) TSR_TRY(read_stage(r, stage, where, rule));
    if (ranks || stage) TSR_TRY(tsr_json_find(item, "placements", TSR_JSON_ARRAY, where, &placements, r->err));
    else TSR_TRY(tsr_json_get(item, "placements", TSR_JSON_ARRAY, where, &placements, r->err));
    rule->placements = TSR_STR("");
    return placements ? join(r, placements, where, &rule->placements) : TSR_OK;
}

static tsr_status read_rules(const target_reader *r, const cJSON *list, tsr_target_texts *out)
{
    size_t count = (size_t)cJSON_GetArraySize(list), index = 0;
    tsr_target_rule_text *rules = tsr_arena_array(r->arena, count, sizeof *rules, r->err);
    const cJSON *item, *match;
    if (!rules) return TSR_E_NOMEM;
    cJSON_ArrayForEach(item, list)
    {
        char where[48];
        tsr_line place = tsr_line_on(where, sizeof where);
        tsr_line_format(&place, "rules[%zu]", index);
        TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, where, r->err));
        TSR_TRY(tsr_json_get(item, "match", TSR_JSON_STRING, where, &match, r->err));
        rules[index].match = tsr_arena_str(r->arena, tsr_json_text_of(match), r->err);
        if (!rules[index].match.data) return TSR_E_NOMEM;
        TSR_TRY(read_holders(r, item, where, &rules[index]));
        index++;
    }
    out->rules = rules;
    out->rule_count = (uint32_t)count;
    return TSR_OK;
}

static tsr_status read_globs(const target_reader *r, const cJSON *strategy, const char *key, const char *where,
                             const tsr_str **out, uint32_t *count)
{
    const cJSON *list, *item;
    TSR_TRY(tsr_json_find(strategy, key, TSR_JSON_ARRAY, "strategy", &list, r->err));
    tsr_str *texts = tsr_arena_array(r->arena, list ? (size_t)cJSON_GetArraySize(list) : 0, sizeof *texts, r->err);
    if (!texts) return TSR_E_NOMEM;
    *out = texts;
    cJSON_ArrayForEach(item, list)
    {
        TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, where, r->err));
        texts[*count] = tsr_arena_str(r->arena, tsr_json_text_of(item), r->err);
        if (!texts[(*count)++].data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

/* {"name": "fsdp1", "units": ["layers.0.**"], "ignored": ["**.running_*"], "use_orig_params": true} */
static tsr_status read_strategy(const target_reader *r, const cJSON *strategy, tsr_target_texts *out)
{
    const cJSON *name, *orig;
    TSR_TRY(tsr_json_get(strategy, "name", TSR_JSON_STRING, "strategy", &name, r->err));
    TSR_FAIL_IF(strcmp(name->valuestring, "fsdp1") != 0, r->err, TSR_E_FORMAT,
                "target: unknown strategy '%s'; the only one is fsdp1, and everything else is written as placements",
                name->valuestring);
    TSR_TRY(tsr_json_find(strategy, "use_orig_params", TSR_JSON_BOOL, "strategy", &orig, r->err));
    out->fsdp1 = true;
    out->use_orig_params = !orig || cJSON_IsTrue(orig);
    TSR_TRY(read_globs(r, strategy, "units", "strategy.units", &out->units, &out->unit_count));
    return read_globs(r, strategy, "ignored", "strategy.ignored", &out->ignored, &out->ignored_count);
}

static tsr_status read_target(const target_reader *r, const cJSON *root, tsr_target_texts *out)
{
    const cJSON *schema, *mesh, *rules, *others, *strategy;
    *out = (tsr_target_texts){0};
    TSR_TRY(tsr_json_get(root, "schema", TSR_JSON_STRING, "", &schema, r->err));
    TSR_FAIL_IF(strcmp(schema->valuestring, "tessera.target/1") != 0, r->err, TSR_E_FORMAT,
                "target: unexpected schema '%s'; expected tessera.target/1", schema->valuestring);
    TSR_TRY(tsr_json_get(root, "mesh", TSR_JSON_OBJECT, "", &mesh, r->err));
    TSR_TRY(read_mesh(r, mesh, &out->mesh));
    TSR_TRY(tsr_json_find(root, "rules", TSR_JSON_ARRAY, "", &rules, r->err));
    if (rules) TSR_TRY(read_rules(r, rules, out));
    TSR_TRY(tsr_json_find(root, "default", TSR_JSON_ARRAY, "", &others, r->err));
    if (others) TSR_TRY(join(r, others, "default", &out->default_placements));
    TSR_TRY(tsr_json_find(root, "strategy", TSR_JSON_OBJECT, "", &strategy, r->err));
    TSR_FAIL_IF(strategy && (out->rule_count || others), r->err, TSR_E_FORMAT,
                "target: a strategy replaces rules and default; remove either of them");
    return strategy ? read_strategy(r, strategy, out) : TSR_OK;
}

tsr_status tsr_target_texts_of(const cJSON *root, tsr_arena *arena, tsr_target_texts *out, tsr_error *err)
{
    const target_reader r = {arena, err};
    return read_target(&r, root, out);
}

tsr_status tsr_target_texts_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_target_texts *out,
                                 tsr_error *err)
{
    cJSON *root;
    TSR_TRY(tsr_json_parse(json_text, host, &root, err));
    const tsr_status status = tsr_target_texts_of(root, arena, out, err);
    cJSON_Delete(root);
    return status;
}

/* ---- target texts ---- */

/* Makes a target from the texts of a document or of the command line. */

static tsr_status parse_list(const tsr_mesh *mesh, tsr_str text, tsr_str rule, tsr_arena *arena, const tsr_placement **out,
                             tsr_error *err)
{
    tsr_placement *list;
    uint32_t count;
    TSR_TRY(tsr_placements_parse(text, arena, &list, &count, err));
    TSR_FAIL_IF(count != mesh->dim_count, err, TSR_E_USAGE,
                "expected one placement per mesh dim (%u), found %u in '%.*s' of the rule '%.*s'", mesh->dim_count, count,
                TSR_STR_ARG(text), TSR_STR_ARG(rule));
    *out = list;
    return TSR_OK;
}

/* "replicate" for every mesh dim. */
static tsr_str replicate_everywhere(uint32_t dim_count, tsr_arena *arena, tsr_error *err)
{
    tsr_str text = TSR_STR("replicate");
    for (uint32_t i = 1; i < dim_count && text.data; i++)
        text = tsr_arena_format(arena, err, "%.*s,replicate", TSR_STR_ARG(text));
    return text;
}

static int by_number(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Sorts the ranks that hold the tensors of a rule. */
static tsr_status sort_ranks(const tsr_mesh *mesh, const tsr_target_rule_text *text, tsr_arena *arena, tsr_target_rule *out,
                             tsr_error *err)
{
    uint64_t *ranks = tsr_arena_array(arena, (size_t)text->rank_count, sizeof *ranks, err);
    if (!ranks) return TSR_E_NOMEM;
    memcpy(ranks, text->ranks, (size_t)text->rank_count * sizeof *ranks);
    qsort(ranks, (size_t)text->rank_count, sizeof *ranks, by_number);
    for (uint64_t i = 0; i < text->rank_count; i++) {
        TSR_FAIL_IF(ranks[i] >= tsr_mesh_ranks(mesh), err, TSR_E_USAGE,
                    "the rule '%.*s' names rank %llu, but the mesh has only %llu ranks", TSR_STR_ARG(text->match),
                    (unsigned long long)ranks[i], (unsigned long long)tsr_mesh_ranks(mesh));
        TSR_FAIL_IF(i && ranks[i] == ranks[i - 1], err, TSR_E_USAGE, "the rule '%.*s' names rank %llu twice",
                    TSR_STR_ARG(text->match), (unsigned long long)ranks[i]);
    }
    out->ranks = ranks;
    out->rank_count = text->rank_count;
    return TSR_OK;
}

/* Splits "layers.{n}." at the number. */
static bool split_capture(tsr_str capture, tsr_target_stage *out)
{
    for (size_t at = 0; at + 3 <= capture.size; at++) {
        if (memcmp(capture.data + at, "{n}", 3) != 0) continue;
        out->head = (tsr_str){capture.data, at};
        out->tail = tsr_str_after(capture, at + 3);
        return true;
    }
    return false;
}

static tsr_status parse_stage(const tsr_mesh *mesh, const tsr_target_rule_text *text, tsr_arena *arena, tsr_target_rule *out,
                              tsr_error *err)
{
    uint32_t dim = 0;
    tsr_target_stage *stage = TSR_ARENA_NEW(arena, tsr_target_stage, err);
    if (!stage) return TSR_E_NOMEM;
    while (dim < mesh->dim_count && !(text->stage_dim.size && tsr_str_equal(mesh->names[dim], text->stage_dim))) dim++;
    TSR_FAIL_IF(dim == mesh->dim_count, err, TSR_E_USAGE,
                "the rule '%.*s' has stages of the mesh dim '%.*s', which the mesh does not have", TSR_STR_ARG(text->match),
                TSR_STR_ARG(text->stage_dim));
    TSR_FAIL_IF(!split_capture(text->stage_capture, stage), err, TSR_E_USAGE,
                "the rule '%.*s' captures layers with '%.*s', which does not contain {n}", TSR_STR_ARG(text->match),
                TSR_STR_ARG(text->stage_capture));
    TSR_FAIL_IF(text->stage_range_count != mesh->shape[dim], err, TSR_E_USAGE,
                "the rule '%.*s' has %u ranges of layers for the %llu stages of '%.*s'", TSR_STR_ARG(text->match),
                text->stage_range_count, (unsigned long long)mesh->shape[dim], TSR_STR_ARG(text->stage_dim));
    stage->mesh_dim = dim;
    stage->ranges = text->stage_ranges;
    out->stage = stage;
    return TSR_OK;
}

static tsr_status parse_rule(const tsr_mesh *mesh, tsr_target_rule_text *text, tsr_arena *arena, tsr_target_rule *out,
                             tsr_error *err)
{
    *out = (tsr_target_rule){.match = text->match};
    const bool may_lack = text->ranks || text->stage_capture.data;
    if (!text->placements.size && may_lack) text->placements = replicate_everywhere(mesh->dim_count, arena, err);
    if (!text->placements.data) return TSR_E_NOMEM;
    TSR_TRY(parse_list(mesh, text->placements, text->match, arena, &out->placements, err));
    if (text->ranks) TSR_TRY(sort_ranks(mesh, text, arena, out, err));
    return text->stage_capture.data ? parse_stage(mesh, text, arena, out, err) : TSR_OK;
}

tsr_status tsr_target_from_texts(tsr_target_texts *texts, bool (*match)(tsr_str glob, tsr_str name), tsr_arena *arena,
                                 tsr_target *out, tsr_error *err)
{
    *out = (tsr_target){.rule_count = texts->rule_count, .match = match};
    TSR_TRY(tsr_mesh_parse(texts->mesh, arena, &out->mesh, err));
    if (!texts->default_placements.data) texts->default_placements = replicate_everywhere(out->mesh.dim_count, arena, err);
    if (!texts->default_placements.data) return TSR_E_NOMEM;
    TSR_TRY(parse_list(&out->mesh, texts->default_placements, TSR_STR("default"), arena, &out->default_placements, err));
    tsr_target_rule *rules = tsr_arena_array(arena, texts->rule_count, sizeof *rules, err);
    if (!rules) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < texts->rule_count; i++)
        TSR_TRY(parse_rule(&out->mesh, &texts->rules[i], arena, &rules[i], err));
    out->rules = rules;
    return tsr_target_check(out, err);
}

/* ---- writing ---- */

/* Splits a text into placements at the commas outside of parentheses. */
static void put_placements(tsr_json *json, tsr_str text)
{
    tsr_json_array(json);
    unsigned depth = 0;
    for (size_t from = 0, at = 0; text.size && at <= text.size; at++) {
        char c = at < text.size ? text.data[at] : ',';
        depth += c == '(';
        depth -= c == ')' && depth;
        if (c != ',' || depth) continue;
        tsr_json_str(json, (tsr_str){text.data + from, at - from});
        from = at + 1;
    }
    tsr_json_array_end(json);
}

static void put_strategy(tsr_json *json, const tsr_target_texts *texts)
{
    tsr_json_put_object(json, "strategy");
    tsr_json_put_text(json, "name", "fsdp1");
    tsr_json_put_strs(json, "units", texts->units, texts->unit_count);
    if (texts->ignored_count) tsr_json_put_strs(json, "ignored", texts->ignored, texts->ignored_count);
    tsr_json_put_bool(json, "use_orig_params", texts->use_orig_params);
    tsr_json_object_end(json);
}

static void put_holders(tsr_json *json, const tsr_target_rule_text *rule)
{
    if (rule->ranks) tsr_json_put_u64s(json, "ranks", rule->ranks, (uint32_t)rule->rank_count);
    if (!rule->stage_capture.size) return;
    tsr_json_put_object(json, "stage");
    tsr_json_put_str(json, "dim", rule->stage_dim);
    tsr_json_put_object(json, "layers");
    tsr_json_put_str(json, "capture", rule->stage_capture);
    tsr_json_put_array(json, "ranges");
    for (uint32_t i = 0; i < rule->stage_range_count; i++) {
        const uint64_t range[] = {rule->stage_ranges[i].offset, rule->stage_ranges[i].offset + rule->stage_ranges[i].size};
        tsr_json_u64s(json, range, 2);
    }
    tsr_json_array_end(json);
    tsr_json_object_end(json);
    tsr_json_object_end(json);
}

void tsr_target_texts_write(tsr_json *json, const tsr_target_texts *texts, const tsr_mesh *mesh)
{
    bool named = mesh->dim_count && mesh->names[0].size;
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.target/1");
    tsr_json_put_object(json, "mesh");
    tsr_json_put_u64s(json, "shape", mesh->shape, mesh->dim_count);
    if (named) tsr_json_put_array(json, "dim_names");
    for (uint32_t i = 0; named && i < mesh->dim_count; i++) tsr_json_str(json, mesh->names[i]);
    if (named) tsr_json_array_end(json);
    tsr_json_object_end(json);
    if (texts->fsdp1) {
        put_strategy(json, texts);
        tsr_json_object_end(json);
        return;
    }
    tsr_json_put_array(json, "rules");
    for (uint32_t i = 0; i < texts->rule_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "match", texts->rules[i].match);
        tsr_json_key(json, "placements");
        put_placements(json, texts->rules[i].placements);
        put_holders(json, &texts->rules[i]);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_key(json, "default");
    put_placements(json, texts->default_placements);
    tsr_json_object_end(json);
}
