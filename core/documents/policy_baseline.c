/* Reads baselines: earlier tessera.findings/1 and tessera.diff/1 documents. People edit and merge them, so anything that
 * does not follow the schema is reported with its location. If it were skipped, a difference could go unnoticed. */
#include "base/line.h"
#include "codec/json.h"
#include "documents/policy_parts.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

enum { WHERE_BYTES = 64 };

static const tsr_str absent = {NULL, 0};

static void place_of(char where[WHERE_BYTES], const char *key, size_t index)
{
    tsr_line line = tsr_line_on(where, WHERE_BYTES);
    tsr_line_format(&line, "%s[%zu]", key, index);
}

/* ---- tessera.findings/1 ---- */

static tsr_status read_finding(tsr_policy *policy, const cJSON *item, const char *where, tsr_error *err)
{
    tsr_known known;
    TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, where, err));
    TSR_TRY(tsr_json_get_str(item, "rule", where, &known.rule, err));
    TSR_TRY(tsr_json_find_str(item, "file", where, &known.file, err));
    TSR_TRY(tsr_json_find_str(item, "fqn", where, &known.name, err));
    return tsr_policy_know(policy, &known, err);
}

/* Reads {rule: number of findings that the document does not list}. Rules that no longer exist are skipped, since they have
 * no findings. */
static tsr_status read_unlisted(tsr_policy *policy, const cJSON *root, tsr_error *err)
{
    const cJSON *summary, *unlisted, *member;
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    TSR_TRY(tsr_json_find(root, "summary", TSR_JSON_OBJECT, "", &summary, err));
    if (!summary) return TSR_OK;
    TSR_TRY(tsr_json_find(summary, "unlisted", TSR_JSON_OBJECT, "summary", &unlisted, err));
    cJSON_ArrayForEach(member, unlisted)
    {
        uint64_t number;
        const tsr_rule *rule = tsr_rule_find(member->string);
        TSR_TRY(tsr_json_to_u64(member, "summary.unlisted", &number, err));
        if (rule) policy->unlisted[rule - rules] += number;
    }
    return TSR_OK;
}

static tsr_status read_findings(tsr_policy *policy, const cJSON *root, tsr_error *err)
{
    const cJSON *array, *item;
    char where[WHERE_BYTES];
    size_t index = 0;
    TSR_TRY(tsr_json_get(root, "findings", TSR_JSON_ARRAY, "", &array, err));
    cJSON_ArrayForEach(item, array)
    {
        place_of(where, "findings", index++);
        TSR_TRY(read_finding(policy, item, where, err));
    }
    return read_unlisted(policy, root, err);
}

/* ---- tessera.diff/1 ---- */

static tsr_status know_difference(tsr_policy *policy, const char *what, tsr_str name, tsr_str other, tsr_error *err)
{
    char rule[48];
    tsr_line line = tsr_line_on(rule, sizeof rule);
    tsr_line_format(&line, "diff/%s", what);
    return tsr_policy_know(policy, &(tsr_known){{rule, line.used}, other, name}, err);
}

static tsr_status read_added(tsr_policy *policy, const cJSON *name, const char *where, tsr_error *err)
{
    TSR_TRY(tsr_json_expect(name, TSR_JSON_STRING, where, err));
    return know_difference(policy, "added", tsr_json_text_of(name), absent, err);
}

static tsr_status read_removed(tsr_policy *policy, const cJSON *name, const char *where, tsr_error *err)
{
    TSR_TRY(tsr_json_expect(name, TSR_JSON_STRING, where, err));
    return know_difference(policy, "removed", tsr_json_text_of(name), absent, err);
}

static tsr_status read_change(tsr_policy *policy, const cJSON *change, const char *where, tsr_error *err)
{
    const cJSON *what, *item;
    tsr_str name;
    TSR_TRY(tsr_json_expect(change, TSR_JSON_OBJECT, where, err));
    TSR_TRY(tsr_json_get_str(change, "fqn", where, &name, err));
    TSR_TRY(tsr_json_get(change, "what", TSR_JSON_ARRAY, where, &what, err));
    cJSON_ArrayForEach(item, what)
    {
        TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, where, err));
        TSR_TRY(know_difference(policy, item->valuestring, name, absent, err));
    }
    return TSR_OK;
}

static tsr_status read_rename(tsr_policy *policy, const cJSON *rename, const char *where, tsr_error *err)
{
    tsr_str a, b;
    TSR_TRY(tsr_json_expect(rename, TSR_JSON_OBJECT, where, err));
    TSR_TRY(tsr_json_get_str(rename, "a", where, &a, err));
    TSR_TRY(tsr_json_get_str(rename, "b", where, &b, err));
    return know_difference(policy, "renamed", a, b, err);
}

static tsr_status read_text(tsr_policy *policy, const cJSON *text, const char *where, tsr_error *err)
{
    tsr_str key;
    TSR_TRY(tsr_json_expect(text, TSR_JSON_OBJECT, where, err));
    TSR_TRY(tsr_json_get_str(text, "key", where, &key, err));
    return know_difference(policy, "metadata", key, absent, err);
}

static tsr_status read_items(tsr_policy *policy, const cJSON *root, const char *key,
                             tsr_status (*read)(tsr_policy *, const cJSON *, const char *, tsr_error *), tsr_error *err)
{
    const cJSON *array, *item;
    char where[WHERE_BYTES];
    size_t index = 0;
    TSR_TRY(tsr_json_get(root, key, TSR_JSON_ARRAY, "", &array, err));
    cJSON_ArrayForEach(item, array)
    {
        place_of(where, key, index++);
        TSR_TRY(read(policy, item, where, err));
    }
    return TSR_OK;
}

/* Documents of earlier versions have no metadata. */
static tsr_status read_metadata(tsr_policy *policy, const cJSON *root, tsr_error *err)
{
    const cJSON *metadata;
    TSR_TRY(tsr_json_find(root, "metadata", TSR_JSON_OBJECT, "", &metadata, err));
    if (!metadata) return TSR_OK;
    TSR_TRY(read_items(policy, metadata, "added", read_text, err));
    TSR_TRY(read_items(policy, metadata, "removed", read_text, err));
    return read_items(policy, metadata, "changed", read_text, err);
}

static tsr_status read_diff(tsr_policy *policy, const cJSON *root, tsr_error *err)
{
    TSR_TRY(read_items(policy, root, "added", read_added, err));
    TSR_TRY(read_items(policy, root, "removed", read_removed, err));
    TSR_TRY(read_items(policy, root, "changed", read_change, err));
    TSR_TRY(read_metadata(policy, root, err));
    return read_items(policy, root, "renamed", read_rename, err);
}

/* ---- both ---- */

static tsr_status read_document(tsr_policy *policy, const cJSON *root, tsr_error *err)
{
    const bool is_diff = policy->scope == TSR_POLICY_DIFF;
    const char *wanted = is_diff ? "tessera.diff/1" : "tessera.findings/1", *command = is_diff ? "diff" : "validate";
    const cJSON *schema = cJSON_IsObject(root) ? cJSON_GetObjectItemCaseSensitive(root, "schema") : NULL;
    TSR_FAIL_IF(!cJSON_IsString(schema), err, TSR_E_FORMAT,
                "baseline: not a %s document; --baseline expects the output of `tessera %s --json`", wanted, command);
    TSR_FAIL_IF(strcmp(schema->valuestring, wanted) != 0, err, TSR_E_FORMAT,
                "baseline: the schema is '%.64s', not %s; --baseline expects the output of `tessera %s --json`",
                schema->valuestring, wanted, command);
    return is_diff ? read_diff(policy, root, err) : read_findings(policy, root, err);
}

tsr_status tsr_policy_baseline(tsr_policy *policy, tsr_str text, tsr_error *err)
{
    cJSON *root = NULL;
    TSR_TRY(tsr_json_parse(text, policy->host, &root, err));
    const tsr_status status = read_document(policy, root, err);
    cJSON_Delete(root);
    policy->has_baseline = true;
    return status;
}
