/* Checks that no expert and no layer lacks a weight that the others have, and the model none that every model has. */
#include "codec/json.h"
#include "mapping/mapping_match.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

tsr_status tsr_match_lacks(const tsr_matcher *s, const tsr_name_match *of, uint32_t pattern, uint64_t index)
{
    const tsr_map_rule *rule = &s->m->rules->rules[of->rule];
    tsr_str values[TSR_MOST_CAPTURES];
    memcpy(values, of->values, rule->capture_count * sizeof *values);
    if (rule->folded != TSR_NO_CAPTURE) {
        values[rule->folded] = tsr_arena_format(s->arena, s->err, "%llu", (unsigned long long)index);
        if (!values[rule->folded].data) return TSR_E_NOMEM;
    }
    const tsr_str name = tsr_pattern_expand(&rule->from[pattern], values, rule->from[pattern].count, s->arena, s->err);
    if (!name.data) return TSR_E_NOMEM;
    return tsr_fail(s->err, TSR_E_FORMAT, "'%.*s' is missing, which the map needs together with '%.*s'", TSR_STR_ARG(name),
                    TSR_STR_ARG(of->entry->fqn));
}

/* The number of components of the pattern before its folded capture. */
static uint32_t prefix_length(const tsr_map_rule *rule, uint32_t pattern)
{
    uint32_t count = 0;
    while (rule->from[pattern].components[count].capture != rule->folded) count++;
    return count;
}

/* The key of a rule's pattern, or of the pattern with one prefix if `prefix` is not empty. */
static tsr_str key_of(const tsr_matcher *s, uint32_t rule, uint32_t pattern, tsr_str prefix)
{
    return tsr_arena_format(s->arena, s->err, "%u.%u %.*s", (unsigned)rule, (unsigned)pattern, TSR_STR_ARG(prefix));
}

static tsr_status note(tsr_matcher *s, tsr_str key)
{
    return key.data ? tsr_map_put(s->members, key, (uint32_t)s->families.count, NULL, NULL, s->err) : TSR_E_NOMEM;
}

tsr_status tsr_family_add(tsr_matcher *s, const tsr_name_match *first, uint64_t members)
{
    const tsr_map_rule *rule = &s->m->rules->rules[first->rule];
    for (uint32_t pattern = 0; pattern < rule->from_count && rule->folded != TSR_NO_CAPTURE; pattern++) {
        const uint32_t components = prefix_length(rule, pattern);
        tsr_family *family = tsr_vec_push(&s->families, s->err);
        if (!family) return TSR_E_NOMEM;
        *family = (tsr_family){.first = first, .pattern = pattern, .members = members};
        family->prefix = tsr_pattern_expand(&rule->from[pattern], first->values, components, s->arena, s->err);
        if (!family->prefix.data) return TSR_E_NOMEM;
        TSR_TRY(note(s, key_of(s, first->rule, pattern, TSR_STR(""))));
        TSR_TRY(note(s, key_of(s, first->rule, pattern, family->prefix)));
    }
    return TSR_OK;
}

/* Whether both patterns are equal up to their folded captures, whatever these are called. */
static bool begin_alike(const tsr_map_rule *a, uint32_t pattern_a, const tsr_map_rule *b, uint32_t pattern_b)
{
    const uint32_t count = prefix_length(a, pattern_a);
    if (count != prefix_length(b, pattern_b)) return false;
    for (uint32_t i = 0; i < count; i++) {
        const struct tsr_name_component *x = &a->from[pattern_a].components[i], *y = &b->from[pattern_b].components[i];
        if ((x->capture == TSR_NO_CAPTURE) != (y->capture == TSR_NO_CAPTURE) || x->rest != y->rest) return false;
        if (x->capture == TSR_NO_CAPTURE && !tsr_str_equal(x->literal, y->literal)) return false;
    }
    return true;
}

/* Compares a family with the members that another pattern found under the same prefix. */
static tsr_status compare(const tsr_matcher *s, const tsr_family *family, uint32_t rule, uint32_t pattern)
{
    const tsr_str anywhere = key_of(s, rule, pattern, TSR_STR("")), here = key_of(s, rule, pattern, family->prefix);
    if (!anywhere.data || !here.data) return TSR_E_NOMEM;
    const uint32_t some = tsr_map_get(s->members, anywhere, 0), at = tsr_map_get(s->members, here, 0);
    const tsr_family *families = s->families.items;
    if (!some) return TSR_OK;
    if (at && families[at - 1].members < family->members)
        return tsr_match_lacks(s, families[at - 1].first, pattern, families[at - 1].members);
    if (at) return TSR_OK;
    return tsr_fail(s->err, TSR_E_FORMAT, "nothing below '%.*s' matches '%.*s', although '%.*s' exists",
                    TSR_STR_ARG(family->prefix), TSR_STR_ARG(s->m->rules->rules[rule].from[pattern].text),
                    TSR_STR_ARG(family->first->entry->fqn));
}

tsr_status tsr_family_check(tsr_matcher *s)
{
    const tsr_family *families = s->families.items;
    for (size_t i = 0; i < s->families.count; i++) {
        const tsr_map_rule *own = &s->m->rules->rules[families[i].first->rule];
        for (uint32_t r = 0; r < s->m->rules->count; r++) {
            const tsr_map_rule *rule = &s->m->rules->rules[r];
            for (uint32_t p = 0; p < rule->from_count && rule->to_count && rule->folded != TSR_NO_CAPTURE; p++)
                if (begin_alike(own, families[i].pattern, rule, p)) TSR_TRY(compare(s, &families[i], r, p));
        }
    }
    return TSR_OK;
}

/* ---- the whole model ---- */

/* Returns the first rule of the group that takes something, or NULL. */
static const tsr_map_rule *used_with(const tsr_mapping_rules *rules, const bool *used, tsr_str word)
{
    for (uint32_t r = 0; r < rules->count; r++)
        if (used[r] && tsr_str_equal(rules->rules[r].required_with, word)) return &rules->rules[r];
    return NULL;
}

static tsr_status check_required(const tsr_matcher *s, const bool *used, const tsr_map_rule *rule)
{
    const tsr_str word = rule->required_with, name = rule->from[0].text;
    const bool untied = tsr_str_equal(word, TSR_STR("untied")),
               own = cJSON_IsFalse(tsr_mapped_setting(s->m, "tie_word_embeddings"));
    const tsr_map_rule *other = word.size && !untied ? used_with(s->m->rules, used, word) : NULL;
    TSR_FAIL_IF(other, s->err, TSR_E_FORMAT, "'%.*s' is missing, which the map requires of models that have '%.*s'",
                TSR_STR_ARG(name), TSR_STR_ARG(other->from[0].text));
    TSR_FAIL_IF(
        rule->required || (untied && own), s->err, TSR_E_FORMAT,
        "'%.*s' is missing, which the map requires of every model%s; for a part of a model, use a map whose rule does not have \"required\"",
        TSR_STR_ARG(name), untied ? " whose output layer is not the embedding" : "");
    return TSR_OK;
}

tsr_status tsr_required_check(tsr_matcher *s)
{
    const tsr_mapping_rules *rules = s->m->rules;
    const tsr_name_match *matches = s->matches.items;
    bool *used = tsr_arena_array(s->arena, rules->count, sizeof *used, s->err);
    if (!used) return TSR_E_NOMEM;
    memset(used, 0, rules->count * sizeof *used);
    for (size_t i = 0; i < s->matches.count; i++) used[matches[i].rule] = true;
    for (uint32_t r = 0; r < rules->count && rules->unmatched != TSR_UNMATCHED_DROP; r++)
        if (!used[r] && rules->rules[r].from_count) TSR_TRY(check_required(s, used, &rules->rules[r]));
    return TSR_OK;
}

/* ---- layers ---- */

/* Layer paths such as "layers.3", taken from matches of rules that state "layers". */
typedef struct layer_list {
    const tsr_matcher *s;
    tsr_vec paths;  /* of tsr_str */
    tsr_map *known; /* paths, and for each path its rules and kinds → a match */
    bool *used;     /* by rule: whether any layer has it */
} layer_list;

static uint32_t layer_capture(const tsr_map_rule *rule)
{
    uint32_t c = 0;
    while (!tsr_str_equal(rule->captures[c], TSR_STR("layer"))) c++;
    return c;
}

static bool is_of_kind(const tsr_map_rule *rule)
{
    return rule->layers.size && !tsr_str_equal(rule->layers, TSR_STR("all"));
}

/* Finds the match that a path has for a rule, for a kind ("" means any kind) or for itself; *match is UINT32_MAX if there is
 * none. */
static tsr_status look_up(const layer_list *l, const char *what, tsr_str name, tsr_str path, uint32_t *match)
{
    const tsr_str key = tsr_arena_format(l->s->arena, l->s->err, "%s%.*s %.*s", what, TSR_STR_ARG(name), TSR_STR_ARG(path));
    if (!key.data) return TSR_E_NOMEM;
    *match = tsr_map_get(l->known, key, UINT32_MAX);
    return TSR_OK;
}

static tsr_status put(const layer_list *l, const char *what, tsr_str name, tsr_str path, uint32_t match, bool *fresh)
{
    const tsr_str key = tsr_arena_format(l->s->arena, l->s->err, "%s%.*s %.*s", what, TSR_STR_ARG(name), TSR_STR_ARG(path));
    return key.data ? tsr_map_put(l->known, key, match, NULL, fresh, l->s->err) : TSR_E_NOMEM;
}

/* Identifies a rule: no two patterns on one side of a map have the same text. */
static tsr_str text_of(const tsr_map_rule *rule)
{
    return rule->from[0].text;
}

static tsr_status add_layer(layer_list *l, uint32_t number)
{
    const tsr_name_match *match = (const tsr_name_match *)l->s->matches.items + number;
    const tsr_map_rule *rule = &l->s->m->rules->rules[match->rule];
    const tsr_name_pattern *pattern = &rule->from[match->pattern];
    uint32_t components = 0;
    bool fresh;
    if (!rule->layers.size) return TSR_OK;
    while (pattern->components[components].capture != layer_capture(rule)) components++;
    const tsr_str path = tsr_pattern_expand(pattern, match->values, components + 1, l->s->arena, l->s->err);
    if (!path.data) return TSR_E_NOMEM;
    l->used[match->rule] = true;
    TSR_TRY(put(l, "r", text_of(rule), path, number, &fresh));
    if (is_of_kind(rule)) TSR_TRY(put(l, "k", rule->layers, path, number, &fresh));
    if (is_of_kind(rule)) TSR_TRY(put(l, "k", TSR_STR(""), path, number, &fresh));
    TSR_TRY(put(l, "p", TSR_STR(""), path, number, &fresh));
    tsr_str *added = fresh ? tsr_vec_push(&l->paths, l->s->err) : NULL;
    if (added) *added = path;
    return fresh && !added ? TSR_E_NOMEM : TSR_OK;
}

/* Returns the name that the rule would take in the layer, such as "layers.3.moe.experts.{expert}.w1". */
static tsr_str wanted_name(const layer_list *l, const tsr_map_rule *rule, tsr_str index)
{
    tsr_str values[TSR_MOST_CAPTURES];
    for (uint32_t c = 0; c < rule->capture_count; c++) {
        values[c] = c == layer_capture(rule)
                        ? index
                        : tsr_arena_format(l->s->arena, l->s->err, "{%.*s}", TSR_STR_ARG(rule->captures[c]));
        if (!values[c].data) return (tsr_str){NULL, 0};
    }
    return tsr_pattern_expand(&rule->from[0], values, rule->from[0].count, l->s->arena, l->s->err);
}

/* Returns the path's last component. *begin is where it begins. */
static tsr_str index_of(tsr_str path, size_t *begin)
{
    *begin = path.size;
    while (*begin && path.data[*begin - 1] != '.') --*begin;
    return (tsr_str){path.data + *begin, path.size - *begin};
}

/* Whether the rule states "layers" and {layer+N}: then every layer from N on has what it takes, even if none has it. */
static bool begins_at(const tsr_map_rule *rule)
{
    const tsr_map_number *plus = rule->layers.size ? tsr_pattern_plus(&rule->from[0], layer_capture(rule)) : NULL;
    return plus && tsr_map_number_given(plus);
}

static tsr_status check_rule(const layer_list *l, const tsr_map_rule *rule, tsr_str path)
{
    uint32_t match, kind = UINT32_MAX;
    size_t begin;
    TSR_TRY(look_up(l, "r", text_of(rule), path, &match));
    if (match != UINT32_MAX ||
        !tsr_mapped_reaches(l->s->m, tsr_pattern_plus(&rule->from[0], layer_capture(rule)), index_of(path, &begin)))
        return TSR_OK;
    if (is_of_kind(rule)) TSR_TRY(look_up(l, "k", rule->layers, path, &kind));
    if (is_of_kind(rule) && kind == UINT32_MAX) return TSR_OK;
    const tsr_str name = wanted_name(l, rule, index_of(path, &begin));
    if (!name.data) return TSR_E_NOMEM;
    TSR_FAIL_IF(!is_of_kind(rule), l->s->err, TSR_E_FORMAT, "'%.*s' is missing, which %s", TSR_STR_ARG(name),
                begins_at(rule) ? "the map requires of such a layer" : "other layers have");
    return tsr_fail(l->s->err, TSR_E_FORMAT, "'%.*s' is missing, which other layers have together with '%.*s'",
                    TSR_STR_ARG(name), TSR_STR_ARG(((const tsr_name_match *)l->s->matches.items)[kind].entry->fqn));
}

/* Refuses a layer that has nothing of any kind although there are kinds, and a layer whose predecessor is missing. */
static tsr_status check_kinds(const layer_list *l, tsr_str path, const tsr_map_rule *first, bool any)
{
    uint32_t match = 0, before = 0;
    size_t begin;
    uint64_t number = 0;
    const tsr_str index = index_of(path, &begin);
    if (first) TSR_TRY(look_up(l, "k", TSR_STR(""), path, &match));
    TSR_FAIL_IF(match == UINT32_MAX, l->s->err, TSR_E_FORMAT, "'%.*s' has nothing like '%.*s', which %s layers have",
                TSR_STR_ARG(path), TSR_STR_ARG(first->from[0].text), any ? "other" : "all");
    if (!tsr_index_parse(index, &number) || !number) return TSR_OK;
    const tsr_str lower =
        tsr_arena_format(l->s->arena, l->s->err, "%.*s%llu", (int)begin, path.data, (unsigned long long)number - 1);
    if (!lower.data) return TSR_E_NOMEM;
    TSR_TRY(look_up(l, "p", TSR_STR(""), lower, &before));
    TSR_FAIL_IF(before == UINT32_MAX, l->s->err, TSR_E_FORMAT, "there is '%.*s', but not '%.*s'", TSR_STR_ARG(path),
                TSR_STR_ARG(lower));
    return TSR_OK;
}

static tsr_status check_layers(layer_list *l)
{
    const tsr_mapping_rules *rules = l->s->m->rules;
    const tsr_map_rule *first = NULL; /* the first rule for a kind of layer; if possible, one that some layer has */
    for (uint32_t i = 0; i < l->s->matches.count; i++) TSR_TRY(add_layer(l, i));
    bool any = false;
    for (uint32_t r = rules->count; r--;) {
        if (!is_of_kind(&rules->rules[r]) || (any && !l->used[r])) continue;
        first = &rules->rules[r];
        any = any || l->used[r];
    }
    for (size_t i = 0; i < l->paths.count; i++) {
        const tsr_str path = ((const tsr_str *)l->paths.items)[i];
        for (uint32_t r = 0; r < rules->count; r++)
            if (l->used[r] || begins_at(&rules->rules[r])) TSR_TRY(check_rule(l, &rules->rules[r], path));
        TSR_TRY(check_kinds(l, path, first, any));
    }
    return TSR_OK;
}

tsr_status tsr_layers_check(tsr_matcher *s)
{
    const tsr_allocator *allocator = s->m->own->host->allocator;
    layer_list l = {.s = s, .paths = tsr_vec_of(allocator, sizeof(tsr_str)), .known = tsr_map_new(allocator, 0, s->err)};
    l.used = tsr_arena_array(s->arena, s->m->rules->count, sizeof *l.used, s->err);
    tsr_status status = l.known && l.used ? TSR_OK : TSR_E_NOMEM;
    if (l.used && s->m->rules->count) memset(l.used, 0, s->m->rules->count * sizeof *l.used);
    if (status == TSR_OK && s->m->rules->unmatched != TSR_UNMATCHED_DROP) status = check_layers(&l);
    tsr_map_free(l.known);
    tsr_vec_free(&l.paths);
    return status;
}
