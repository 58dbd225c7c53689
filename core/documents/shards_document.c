/* Reads a tessera.shards/1 document. Unknown keys are errors, because misreading a rule would join tensors incorrectly. */
#include "base/line.h"
#include "codec/json.h"
#include "tessera/document_read.h"
#include "tessera/sys/document.h"
#include "tessera/sys/shard_names.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

typedef struct shards_reader {
    tsr_arena *arena;
    char where[48]; /* path of the member being read, for messages */
    tsr_error *err;
} shards_reader;

/* Whether every key of an object is among `keys`. */
static tsr_status check_keys(const shards_reader *r, const cJSON *object, const char *const *keys)
{
    for (const cJSON *member = object->child; member; member = member->next) {
        size_t k = 0;
        while (keys[k] && strcmp(keys[k], member->string) != 0) k++;
        if (keys[k]) continue;
        const char *meant = tsr_suggest(member->string, keys, sizeof *keys);
        return tsr_fail(r->err, TSR_E_FORMAT, "unknown key '%s' in %s%s%s%s", member->string,
                        *r->where ? r->where : "the document", meant ? "; did you mean '" : "", meant ? meant : "",
                        meant ? "'?" : "");
    }
    return TSR_OK;
}

static tsr_status read_text(const shards_reader *r, const cJSON *object, const char *key, tsr_str *out)
{
    const cJSON *item;
    TSR_TRY(tsr_json_find(object, key, TSR_JSON_STRING, r->where, &item, r->err));
    *out = item ? tsr_arena_str(r->arena, tsr_json_text_of(item), r->err) : TSR_STR("");
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status read_sizes(const shards_reader *r, const cJSON *array, const char *key, const uint64_t **out,
                             uint32_t *count)
{
    const cJSON *item;
    const int size = cJSON_GetArraySize(array);
    uint64_t *sizes = tsr_arena_array(r->arena, (size_t)size, sizeof *sizes, r->err);
    if (!sizes) return TSR_E_NOMEM;
    TSR_FAIL_IF(!size, r->err, TSR_E_FORMAT, "%s.%s is an empty list", r->where, key);
    *out = sizes;
    *count = (uint32_t)size;
    cJSON_ArrayForEach(item, array) TSR_TRY(tsr_json_to_u64(item, key, sizes++, r->err));
    return TSR_OK;
}

static tsr_status read_small(const shards_reader *r, const cJSON *item, const char *key, int64_t least, int64_t *out)
{
    TSR_TRY(tsr_json_to_i64(item, key, out, r->err));
    TSR_FAIL_IF(*out < least || *out > INT32_MAX, r->err, TSR_E_FORMAT, "%s.%s is %lld; it must be at least %lld", r->where,
                key, (long long)*out, (long long)least);
    return TSR_OK;
}

/* "blocks": N, or the sizes of each rank's blocks; "copies": N, or one number per block. */
static tsr_status read_blocks(const shards_reader *r, const cJSON *item, tsr_shards_rule *rule)
{
    int64_t count = 1, copies = 1;
    uint32_t listed = 0;
    const cJSON *blocks = cJSON_GetObjectItemCaseSensitive(item, "blocks"),
                *shared = cJSON_GetObjectItemCaseSensitive(item, "copies");
    if (blocks && cJSON_IsArray(blocks)) {
        TSR_TRY(read_sizes(r, blocks, "blocks", &rule->block_sizes, &rule->block_count));
    } else {
        if (blocks) TSR_TRY(read_small(r, blocks, "blocks", 1, &count));
        TSR_FAIL_IF(count > UINT16_MAX, r->err, TSR_E_FORMAT, "%s.blocks is %lld; at most %u are allowed", r->where,
                    (long long)count, (unsigned)UINT16_MAX);
        rule->block_count = (uint32_t)count;
    }
    if (!shared) return TSR_OK;
    if (cJSON_IsArray(shared)) {
        TSR_TRY(read_sizes(r, shared, "copies", &rule->block_copies, &listed));
        TSR_FAIL_IF(listed != rule->block_count, r->err, TSR_E_FORMAT, "%s lists %u copies for %u blocks", r->where, listed,
                    rule->block_count);
        return TSR_OK;
    }
    TSR_TRY(read_small(r, shared, "copies", 1, &copies));
    uint64_t *each = tsr_arena_array(r->arena, rule->block_count, sizeof *each, r->err);
    if (!each) return TSR_E_NOMEM;
    for (uint32_t b = 0; b < rule->block_count; b++) each[b] = (uint64_t)copies;
    rule->block_copies = each;
    return TSR_OK;
}

/* Reads the one key that states what the rule does. */
static tsr_status read_kind(const shards_reader *r, const cJSON *item, tsr_shards_rule *rule)
{
    static const char *const kinds[] = {"concat", "replicate", "only_rank", "stack"};
    const cJSON *value = NULL;
    int64_t number = 0;
    unsigned given = 0;
    for (int k = 0; k < 4; k++) {
        const cJSON *found = cJSON_GetObjectItemCaseSensitive(item, kinds[k]);
        if (!found) continue;
        value = found;
        rule->kind = (tsr_shards_kind)k;
        given++;
    }
    TSR_FAIL_IF(given != 1, r->err, TSR_E_FORMAT,
                "%s has %s of concat, replicate, only_rank and stack; exactly one is needed", r->where,
                given ? "several" : "none");
    TSR_FAIL_IF(rule->kind == TSR_SHARDS_REPLICATE && !cJSON_IsTrue(value), r->err, TSR_E_FORMAT,
                "%s.replicate can only be true", r->where);
    if (rule->kind == TSR_SHARDS_REPLICATE) return TSR_OK;
    const int64_t least = rule->kind == TSR_SHARDS_ONLY_RANK ? 0 : -64;
    TSR_TRY(read_small(r, value, kinds[rule->kind], least, &number));
    if (rule->kind == TSR_SHARDS_ONLY_RANK) rule->rank = (uint32_t)number;
    else rule->dim = (int32_t)number;
    return TSR_OK;
}

static tsr_status read_rule(const shards_reader *r, const cJSON *item, tsr_shards_rule *rule)
{
    static const char *const keys[] = {"match",  "concat", "replicate", "only_rank", "stack",
                                       "blocks", "copies", "trim",      NULL};
    const cJSON *match, *trim;
    TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, r->where, r->err));
    TSR_TRY(check_keys(r, item, keys));
    TSR_TRY(tsr_json_get(item, "match", TSR_JSON_STRING, r->where, &match, r->err));
    TSR_TRY(read_text(r, item, "match", &rule->match));
    TSR_TRY(read_kind(r, item, rule));
    for (size_t k = 5; rule->kind != TSR_SHARDS_CONCAT && keys[k]; k++)
        TSR_FAIL_IF(cJSON_GetObjectItemCaseSensitive(item, keys[k]), r->err, TSR_E_FORMAT,
                    "%s.%s can only be used with concat", r->where, keys[k]);
    TSR_TRY(read_blocks(r, item, rule));
    TSR_TRY(tsr_json_find(item, "trim", TSR_JSON_NUMBER, r->where, &trim, r->err));
    rule->trims = trim != NULL;
    return trim ? tsr_json_to_u64(trim, "trim", &rule->trim, r->err) : TSR_OK;
}

static tsr_status read_rules(shards_reader *r, const cJSON *list, tsr_shards *out)
{
    const cJSON *item;
    tsr_shards_rule *rules = tsr_arena_array(r->arena, (size_t)cJSON_GetArraySize(list), sizeof *rules, r->err);
    if (!rules) return TSR_E_NOMEM;
    out->rules = rules;
    cJSON_ArrayForEach(item, list)
    {
        tsr_line place = tsr_line_on(r->where, sizeof r->where);
        tsr_line_format(&place, "rules[%u]", out->rule_count);
        TSR_TRY(read_rule(r, item, &rules[out->rule_count++]));
    }
    return TSR_OK;
}

static tsr_status read_stages(shards_reader *r, const cJSON *stages, tsr_shards *out)
{
    static const char *const keys[] = {"pattern", "layers", NULL};
    const cJSON *pattern, *layers;
    tsr_line place = tsr_line_on(r->where, sizeof r->where);
    tsr_line_put(&place, "stages", 6);
    TSR_TRY(check_keys(r, stages, keys));
    TSR_TRY(tsr_json_get(stages, "pattern", TSR_JSON_STRING, r->where, &pattern, r->err));
    TSR_TRY(read_text(r, stages, "pattern", &out->stage_pattern));
    const char *wrong = tsr_shards_stages_wrong(out->stage_pattern);
    TSR_FAIL_IF(wrong, r->err, TSR_E_FORMAT, "stages.pattern '%.*s' %s", TSR_STR_ARG(out->stage_pattern), wrong);
    TSR_TRY(tsr_json_get(stages, "layers", TSR_JSON_ARRAY, r->where, &layers, r->err));
    TSR_TRY(read_sizes(r, layers, "layers", &out->stage_layers, &out->stage_count));
    for (uint32_t s = 0; s < out->stage_count; s++)
        TSR_FAIL_IF(out->stage_layers[s] > INT32_MAX, r->err, TSR_E_FORMAT, "stages.layers: %llu layers are too many",
                    (unsigned long long)out->stage_layers[s]);
    return TSR_OK;
}

static tsr_status read_map(shards_reader *r, const cJSON *root, tsr_shards *out)
{
    static const char *const keys[] = {"schema", "ranks", "stages", "rules", NULL};
    const cJSON *schema, *stages, *rules;
    TSR_TRY(tsr_json_get(root, "schema", TSR_JSON_STRING, "", &schema, r->err));
    TSR_FAIL_IF(strcmp(schema->valuestring, "tessera.shards/1") != 0, r->err, TSR_E_FORMAT,
                "unexpected schema '%s'; expected tessera.shards/1", schema->valuestring);
    TSR_TRY(check_keys(r, root, keys));
    TSR_TRY(read_text(r, root, "ranks", &out->ranks));
    const char *wrong = out->ranks.size ? tsr_shards_ranks_wrong(out->ranks) : NULL;
    TSR_FAIL_IF(wrong, r->err, TSR_E_FORMAT, "ranks '%.*s' %s", TSR_STR_ARG(out->ranks), wrong);
    TSR_TRY(tsr_json_find(root, "stages", TSR_JSON_OBJECT, "", &stages, r->err));
    TSR_TRY(tsr_json_get(root, "rules", TSR_JSON_ARRAY, "", &rules, r->err));
    TSR_TRY(read_rules(r, rules, out));
    return stages ? read_stages(r, stages, out) : TSR_OK;
}

tsr_status tsr_shards_read(tsr_str text, const tsr_host *host, tsr_arena *arena, tsr_shards *out, tsr_error *err)
{
    cJSON *root;
    shards_reader r = {.arena = arena, .err = err};
    *out = (tsr_shards){.name = TSR_STR("the map")};
    TSR_TRY(tsr_json_parse(text, host, &root, err));
    tsr_status status = tsr_json_expect(root, TSR_JSON_OBJECT, "", err);
    if (status == TSR_OK) status = read_map(&r, root, out);
    cJSON_Delete(root);
    return status;
}
