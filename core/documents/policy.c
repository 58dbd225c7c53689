/* Sets the levels of rules, and applies them to findings. See tessera/sys/policy.h. */
#include "base/utf8.h"
#include "documents/policy_parts.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

#include "tessera/sys/finding_add.h"
#include "tessera/sys/suggest.h"

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

int tsr_policy_level(const tsr_policy *policy, const tsr_rule *rule, tsr_level level)
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

tsr_status tsr_policy_know(tsr_policy *policy, const tsr_known *known, tsr_error *err)
{
    tsr_vec key = tsr_vec_of(policy->host->allocator, 1);
    tsr_status status = make_key(&key, known, err);
    const tsr_str copy = status == TSR_OK ? tsr_arena_str(policy->arena, (tsr_str){key.items, key.count}, err) : TSR_STR("");
    if (status == TSR_OK) status = copy.data ? tsr_map_put(policy->known, copy, 0, NULL, NULL, err) : TSR_E_NOMEM;
    tsr_vec_free(&key);
    return status;
}

tsr_status tsr_policy_knows(const tsr_policy *policy, const tsr_known *known, tsr_vec *key, bool *out, tsr_error *err)
{
    *out = false;
    if (tsr_map_count(policy->known) == 0) return TSR_OK;
    TSR_TRY(make_key(key, known, err));
    *out = tsr_map_get(policy->known, (tsr_str){key->items, key->count}, UINT32_MAX) != UINT32_MAX;
    return TSR_OK;
}

/* ---- findings ---- */

static tsr_status keep_listed(const tsr_policy *policy, const tsr_finding *f, tsr_findings *to, tsr_vec *key,
                              tsr_policy_result *result, tsr_error *err)
{
    bool is_known;
    const int level = tsr_policy_level(policy, f->rule, f->level);
    const tsr_str file = {f->file.size ? f->file.data : NULL, f->file.size}; /* documents omit it if it is empty */
    const tsr_known known = {tsr_str_from(f->rule->id), file, f->fqn};
    TSR_TRY(tsr_policy_knows(policy, &known, key, &is_known, err));
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
        const int level = tsr_policy_level(policy, rule, (tsr_level)usual);
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
