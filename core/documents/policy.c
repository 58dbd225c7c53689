/* Sets the levels of rules, and applies them to findings. See tessera/sys/document.h. */
#include "tessera/sys/document.h"

#include "base/line.h"
#include "base/utf8.h"
#include "codec/json.h"
#include "tessera/host.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

enum { TSR_LEVEL_OFF = -1, TSR_LEVEL_USUAL = -2 };

struct tsr_policy {
    tsr_policy_scope scope;
    const tsr_host *host;
    tsr_arena *arena; /* for keys */
    tsr_map *known;   /* keys of everything the baseline lists */
    bool has_baseline, has_rules_off;
    tsr_selection names;
    int levels[TSR_MAX_RULES];        /* a tsr_level, or one of the above */
    uint64_t unlisted[TSR_MAX_RULES]; /* findings that the baseline counts but does not list */
};

/* What identifies a finding or difference across runs. Absent names have no data. Bytes that are not valid UTF-8 (lone
 * surrogates aside) are treated as U+FFFD, which documents contain in their place. */
typedef struct tsr_known {
    tsr_str rule, file, name;
} tsr_known;

static const char diff_area[] = "diff/";

tsr_policy *tsr_policy_new(tsr_policy_scope scope, const tsr_host *host, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    tsr_policy *policy = arena ? TSR_ARENA_NEW(arena, tsr_policy, err) : NULL;
    tsr_map *known = policy ? tsr_map_new(host->allocator, 0, err) : NULL;
    if (!known) {
        tsr_arena_free(arena);
        return NULL;
    }
    policy->scope = scope;
    policy->host = host;
    policy->arena = arena;
    policy->known = known;
    for (size_t i = 0; i < TSR_MAX_RULES; i++) policy->levels[i] = TSR_LEVEL_USUAL;
    return policy;
}

void tsr_policy_free(tsr_policy *policy)
{
    if (!policy) return;
    tsr_map_free(policy->known);
    tsr_arena_free(policy->arena);
}

/* ---- rules ---- */

bool tsr_policy_has_rule(tsr_policy_scope scope, const tsr_rule *rule)
{
    return (strncmp(rule->id, diff_area, sizeof diff_area - 1) == 0) == (scope == TSR_POLICY_DIFF);
}

static bool fits(tsr_str pattern, const char *id)
{
    const tsr_str name = tsr_str_from(id);
    if (!tsr_str_ends(pattern, TSR_STR("*"))) return tsr_str_equal(pattern, name);
    return tsr_str_starts(name, (tsr_str){pattern.data, pattern.size - 1});
}

static tsr_status refuse_rule(const tsr_policy *policy, tsr_str pattern, tsr_error *err)
{
    const int shown = pattern.size < 100 ? (int)pattern.size : 100;
    const char *command = policy->scope == TSR_POLICY_DIFF ? "diff" : "validate";
    char id[64] = "";
    if (pattern.size < sizeof id) memcpy(id, pattern.data, pattern.size);
    const tsr_rule *rule = tsr_rule_find(id), *meant = *id ? tsr_rule_suggest(id) : NULL;
    if (rule) {
        return tsr_fail(err, TSR_E_USAGE, "--rule: '%s' is not a rule of %s", id, command);
    }
    if (meant && tsr_policy_has_rule(policy->scope, meant) && !tsr_str_ends(pattern, TSR_STR("*"))) {
        return tsr_fail(err, TSR_E_USAGE, "--rule: there is no rule '%.*s'; did you mean '%s'?", shown, pattern.data,
                        meant->id);
    }
    return tsr_fail(err, TSR_E_USAGE, "--rule: no rule of %s is called '%.*s'; `tessera %s --list-rules` lists them",
                    command, shown, pattern.data, command);
}

static tsr_status read_level(const char *word, int *out, tsr_error *err)
{
    static const char *const words[] = {"note", "warning", "error", "off", NULL};
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], word) != 0) continue;
        *out = i <= TSR_ERROR ? i : TSR_LEVEL_OFF;
        return TSR_OK;
    }
    const char *meant = tsr_suggest(word, words, sizeof *words);
    return tsr_fail(err, TSR_E_USAGE, "--rule: '%s' is not a level (error, warning, note or off)%s%s%s", word,
                    meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
}

tsr_status tsr_policy_rule(tsr_policy *policy, const char *text, tsr_error *err)
{
    size_t count;
    int level = TSR_LEVEL_OFF;
    bool found = false;
    const tsr_rule *rules = tsr_rules(&count);
    const char *equals = strchr(text, '=');
    TSR_FAIL_IF(!equals, err, TSR_E_USAGE, "--rule expects ID=LEVEL, such as values/nan=error; found '%s'", text);
    TSR_TRY(read_level(equals + 1, &level, err));
    const tsr_str pattern = {text, (size_t)(equals - text)};
    for (size_t i = 0; i < count; i++) {
        if (!fits(pattern, rules[i].id) || !tsr_policy_has_rule(policy->scope, &rules[i])) continue;
        policy->levels[i] = level;
        found = true;
    }
    if (!found) return refuse_rule(policy, pattern, err);
    policy->has_rules_off = policy->has_rules_off || level == TSR_LEVEL_OFF;
    return TSR_OK;
}

/* The level that the policy gives to a finding, or TSR_LEVEL_OFF. */
static int policy_level(const tsr_policy *policy, const tsr_rule *rule, tsr_level level)
{
    size_t count;
    const int changed = policy->levels[rule - tsr_rules(&count)];
    return changed == TSR_LEVEL_USUAL ? (int)level : changed;
}

/* ---- keys ---- */

/* Appends ":name", or "-" if it is absent, and a terminator that no name contains. */
static tsr_status append_name(tsr_vec *key, tsr_str name, tsr_error *err)
{
    TSR_TRY(tsr_vec_append(key, name.data ? ":" : "-", 1, err));
    for (size_t at = 0; at < name.size;) {
        const tsr_str rest = {name.data + at, name.size - at};
        const size_t valid = tsr_utf8_length(rest), length = valid ? valid : tsr_utf8_lone_surrogate(rest);
        if (length) TSR_TRY(tsr_vec_append(key, name.data + at, length, err));
        else TSR_TRY(tsr_vec_append(key, "\xEF\xBF\xBD", 3, err));
        at += length ? length : 1;
    }
    return tsr_vec_append(key, "\xFF", 1, err);
}

static tsr_status make_key(tsr_vec *key, const tsr_known *known, tsr_error *err)
{
    key->count = 0;
    TSR_TRY(append_name(key, known->rule, err));
    TSR_TRY(append_name(key, known->file, err));
    return append_name(key, known->name, err);
}

static tsr_status policy_know(tsr_policy *policy, const tsr_known *known, tsr_error *err)
{
    tsr_vec key = tsr_vec_of(policy->host->allocator, 1);
    tsr_status status = make_key(&key, known, err);
    const tsr_str copy = status == TSR_OK ? tsr_arena_str(policy->arena, (tsr_str){key.items, key.count}, err) : TSR_STR("");
    if (status == TSR_OK) status = copy.data ? tsr_map_put(policy->known, copy, 0, NULL, NULL, err) : TSR_E_NOMEM;
    tsr_vec_free(&key);
    return status;
}

/* Sets *out if the baseline lists it. `key` is memory that is reused. */
static tsr_status policy_knows(const tsr_policy *policy, const tsr_known *known, tsr_vec *key, bool *out, tsr_error *err)
{
    *out = false;
    if (tsr_map_count(policy->known) == 0) return TSR_OK;
    TSR_TRY(make_key(key, known, err));
    *out = tsr_map_get(policy->known, (tsr_str){key->items, key->count}, UINT32_MAX) != UINT32_MAX;
    return TSR_OK;
}

/* ---- findings ---- */

void tsr_policy_names(tsr_policy *policy, tsr_selection names)
{
    policy->names = names;
}

static tsr_status keep_listed(const tsr_policy *policy, const tsr_finding *f, tsr_findings *to, tsr_vec *key,
                              tsr_policy_result *result, tsr_error *err)
{
    bool is_known;
    const int level = policy_level(policy, f->rule, f->level);
    if (f->fqn.size && policy->names.keeps && !policy->names.keeps(policy->names.ctx, f->fqn)) return TSR_OK;
    const tsr_str file = {f->file.size ? f->file.data : NULL, f->file.size}; /* documents omit it if it is empty */
    const tsr_known known = {tsr_str_from(f->rule->id), file, f->fqn};
    TSR_TRY(policy_knows(policy, &known, key, &is_known, err));
    result->turned_off += level == TSR_LEVEL_OFF;
    result->left_out += level != TSR_LEVEL_OFF && is_known;
    if (level == TSR_LEVEL_OFF || is_known) return TSR_OK;
    const tsr_place place = {f->file, f->byte_offset, f->fqn};
    return tsr_finding_add_at(to, (tsr_rated_rule){f->rule->id, (tsr_level)level}, place, err, "%.*s",
                              TSR_STR_ARG(f->message));
}

/* Keeps the findings that were only counted, not listed. Those that the baseline allows are subtracted from the lowest
 * levels first. */
static void keep_unlisted(const tsr_policy *policy, const tsr_rule *rule, const tsr_findings *from, tsr_findings *to,
                          tsr_policy_result *result)
{
    size_t count;
    uint64_t allowed = policy->unlisted[rule - tsr_rules(&count)];
    for (int usual = TSR_NOTE; usual <= TSR_ERROR; usual++) {
        const int level = policy_level(policy, rule, (tsr_level)usual);
        uint64_t left = tsr_findings_unlisted(from, rule, (tsr_level)usual);
        if (level == TSR_LEVEL_OFF) {
            result->turned_off += left;
            continue;
        }
        const uint64_t known = left < allowed ? left : allowed;
        allowed -= known;
        left -= known;
        result->left_out += known;
        if (left) tsr_findings_count_more(to, rule, (tsr_level)level, left);
    }
}

tsr_status tsr_policy_findings(const tsr_policy *policy, const tsr_findings *from, tsr_findings *to,
                               tsr_policy_result *result, tsr_error *err)
{
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    tsr_vec key = tsr_vec_of(policy->host->allocator, 1);
    tsr_status status = TSR_OK;
    result->has_baseline = policy->has_baseline;
    result->has_rules_off = policy->has_rules_off;
    for (size_t i = 0; i < tsr_findings_count(from) && status == TSR_OK; i++)
        status = keep_listed(policy, tsr_findings_at(from, i), to, &key, result, err);
    for (size_t i = 0; i < count; i++) keep_unlisted(policy, &rules[i], from, to, result);
    tsr_vec_free(&key);
    return status;
}

/* ---- policy baseline ---- */

/* Reads baselines: earlier tessera.findings/1 and tessera.diff/1 documents. People edit and merge them, so anything that
 * does not follow the schema is reported with its location. If it were skipped, a difference could go unnoticed. */

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
    return policy_know(policy, &known, err);
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
    return policy_know(policy, &(tsr_known){{rule, line.used}, other, name}, err);
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

/* ---- policy diff ---- */

/* Applies a policy to a diff. Its differences have the rules diff/…, so that every difference belongs to a rule and none is
 * lost. */

typedef struct filter {
    const tsr_policy *policy;
    tsr_policy_result *result;
    tsr_vec key; /* memory reused for each key */
    tsr_error *err;
} filter;

/* Decides whether a difference is kept, and counts it. `other` is the second name of a rename. */
static tsr_status keep(filter *f, const char *rule_id, tsr_str name, tsr_str other, bool *out)
{
    bool is_known;
    const tsr_rule *rule = tsr_rule_find(rule_id);
    const int level = policy_level(f->policy, rule, rule->level);
    const tsr_known known = {tsr_str_from(rule_id), other, name};
    TSR_TRY(policy_knows(f->policy, &known, &f->key, &is_known, f->err));
    *out = level != TSR_LEVEL_OFF && !is_known;
    if (level == TSR_LEVEL_OFF) f->result->turned_off++;
    else if (is_known) f->result->left_out++;
    else f->result->totals[level]++;
    return TSR_OK;
}

static tsr_status keep_entries(filter *f, const char *rule_id, const tsr_entry **entries, uint64_t *count)
{
    uint64_t kept = 0;
    bool stays;
    for (uint64_t i = 0; i < *count; i++) {
        TSR_TRY(keep(f, rule_id, entries[i]->fqn, (tsr_str){NULL, 0}, &stays));
        if (stays) entries[kept++] = entries[i];
    }
    *count = kept;
    return TSR_OK;
}

static tsr_status keep_pairs(filter *f, tsr_diff *diff)
{
    static const struct {
        uint32_t bit;
        const char *rule;
    } kinds[] = {{TSR_DIFF_DTYPE, "diff/dtype"},   {TSR_DIFF_SHAPE, "diff/shape"},   {TSR_DIFF_VALUE, "diff/value"},
                 {TSR_DIFF_LAYOUT, "diff/layout"}, {TSR_DIFF_OBJECT, "diff/object"}, {TSR_DIFF_KEY, "diff/key"}};
    for (uint64_t i = 0; i < diff->pair_count; i++) {
        tsr_diff_pair *pair = &diff->pairs[i];
        const uint32_t before = pair->what;
        bool stays;
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            if (!(before & kinds[k].bit)) continue;
            TSR_TRY(keep(f, kinds[k].rule, pair->a->fqn, (tsr_str){NULL, 0}, &stays));
            if (!stays) pair->what &= ~kinds[k].bit;
        }
        f->result->pairs += before && !pair->what;
    }
    return TSR_OK;
}

static tsr_status keep_texts(filter *f, tsr_diff *diff)
{
    uint64_t kept = 0;
    bool stays;
    for (uint64_t i = 0; i < diff->metadata_count; i++) {
        const tsr_diff_text *text = &diff->metadata[i];
        TSR_TRY(keep(f, "diff/metadata", text->a ? text->a->key : text->b->key, (tsr_str){NULL, 0}, &stays));
        if (stays) diff->metadata[kept++] = *text;
    }
    diff->metadata_count = kept;
    return TSR_OK;
}

static tsr_status keep_renames(filter *f, tsr_diff *diff)
{
    uint64_t kept = 0;
    bool stays;
    for (uint64_t i = 0; i < diff->renamed_count; i++) {
        TSR_TRY(keep(f, "diff/renamed", diff->renamed[i].a->fqn, diff->renamed[i].b->fqn, &stays));
        if (stays) diff->renamed[kept++] = diff->renamed[i];
    }
    diff->renamed_count = kept;
    return TSR_OK;
}

static void *copied(tsr_arena *arena, const void *items, uint64_t count, size_t size, tsr_error *err)
{
    void *out = tsr_arena_array(arena, (size_t)count, size, err);
    if (out && count) memcpy(out, items, (size_t)count * size);
    return out;
}

static tsr_status filter_all(filter *f, tsr_diff *diff)
{
    TSR_TRY(keep_entries(f, "diff/removed", diff->removed, &diff->removed_count));
    TSR_TRY(keep_entries(f, "diff/added", diff->added, &diff->added_count));
    TSR_TRY(keep_pairs(f, diff));
    TSR_TRY(keep_texts(f, diff));
    return keep_renames(f, diff);
}

tsr_status tsr_policy_diff(const tsr_policy *policy, const tsr_diff *from, tsr_arena *arena, tsr_diff *to,
                           tsr_policy_result *result, tsr_error *err)
{
    filter f = {policy, result, tsr_vec_of(policy->host->allocator, 1), err};
    result->has_baseline = policy->has_baseline;
    result->has_rules_off = policy->has_rules_off;
    *to = *from;
    to->pairs = copied(arena, from->pairs, from->pair_count, sizeof *from->pairs, err);
    to->added = copied(arena, from->added, from->added_count, sizeof *from->added, err);
    to->removed = copied(arena, from->removed, from->removed_count, sizeof *from->removed, err);
    to->renamed = copied(arena, from->renamed, from->renamed_count, sizeof *from->renamed, err);
    to->metadata = copied(arena, from->metadata, from->metadata_count, sizeof *from->metadata, err);
    if (!to->pairs || !to->added || !to->removed || !to->renamed || !to->metadata) return TSR_E_NOMEM;
    const tsr_status status = filter_all(&f, to);
    tsr_vec_free(&f.key);
    return status;
}
