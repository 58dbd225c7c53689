/* Which rule takes which entry of the source, and that nothing is left over or missing. */
#include <stdlib.h>

#include "base/line.h"
#include "mapping/mapping_match.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

enum { NAMED = 5, LAST_INDEX = 1000000, MOST_CAPTURES = 16 };

static tsr_status read_index(const tsr_matcher *s, const tsr_map_rule *rule, const tsr_entry *entry, tsr_str text, uint64_t *out)
{
    *out = 0;
    bool digits = text.size && (text.size == 1 || text.data[0] != '0');
    for (size_t i = 0; i < text.size && digits; i++) {
        digits = text.data[i] >= '0' && text.data[i] <= '9' && *out <= LAST_INDEX;
        *out = *out * 10 + (uint64_t)(text.data[i] - '0');
    }
    TSR_FAIL_IF(!digits, s->err, TSR_E_FORMAT, "'%.*s': {%.*s} is '%.*s', not an index that can be stacked",
                TSR_STR_ARG(entry->fqn), TSR_STR_ARG(rule->captures[rule->folded]), TSR_STR_ARG(text));
    return TSR_OK;
}

static tsr_status set_key(const tsr_matcher *s, const tsr_map_rule *rule, tsr_name_match *found)
{
    size_t size = 0, used = 0;
    for (uint32_t c = 0; c < rule->capture_count; c++) size += found->values[c].size + 1;
    char *key = tsr_arena_array(s->arena, size, 1, s->err);
    if (!key) return TSR_E_NOMEM;
    for (uint32_t c = 0; c < rule->capture_count; c++) {
        if (c != rule->folded && found->values[c].size) memcpy(key + used, found->values[c].data, found->values[c].size);
        used += c == rule->folded ? 1 : found->values[c].size + 1;
    }
    found->key = (tsr_str){key, used};
    return TSR_OK;
}

static tsr_status add_match(tsr_matcher *s, const tsr_name_match *like, const tsr_str *values)
{
    const tsr_map_rule *rule = &s->m->rules->rules[like->rule];
    tsr_str *kept = tsr_arena_array(s->arena, rule->capture_count, sizeof *kept, s->err);
    tsr_name_match *found = kept ? tsr_vec_push(&s->matches, s->err) : NULL;
    if (!found) return TSR_E_NOMEM;
    if (rule->capture_count) memcpy(kept, values, rule->capture_count * sizeof *kept);
    *found = *like;
    found->values = kept;
    TSR_TRY(set_key(s, rule, found));
    return rule->folded == TSR_NO_CAPTURE ? TSR_OK : read_index(s, rule, like->entry, kept[rule->folded], &found->index);
}

/* The first rule that matches the name, from match->rule on; values[c] is set for the captures of its pattern. */
static bool find_rule(const tsr_mapping_rules *rules, tsr_str name, tsr_name_match *match, tsr_str *values)
{
    for (; match->rule < rules->count; match->rule++) {
        const tsr_map_rule *rule = &rules->rules[match->rule];
        for (match->pattern = 0; match->pattern < rule->from_count; match->pattern++) {
            memset(values, 0, MOST_CAPTURES * sizeof *values);
            if (tsr_pattern_match(&rule->from[match->pattern], name, values)) return true;
        }
    }
    return false;
}

/* The name that a rule of an inverse makes, and whether the map takes it by that very rule. */
static tsr_status comes_from(const tsr_matcher *s, const tsr_map_rule *rule, tsr_str *values, tsr_str *name, bool *does)
{
    const tsr_mapping_rules *forward = s->m->rules->forward;
    tsr_name_match found = {.rule = 0};
    tsr_str others[MOST_CAPTURES];
    if (rule->unfolded != TSR_NO_CAPTURE) values[rule->unfolded] = TSR_STR("0");
    *name = tsr_pattern_expand(&rule->to[0], values, rule->to[0].count, s->arena, s->err);
    if (!name->data) return TSR_E_NOMEM;
    *does = find_rule(forward, *name, &found, others) && &forward->rules[found.rule] == rule->forward;
    return TSR_OK;
}

/* Whether every name that `a` matches is matched by `b`, too, but not the other way round. */
static bool is_exception(const tsr_name_pattern *a, const tsr_name_pattern *b)
{
    tsr_str values[MOST_CAPTURES];
    return tsr_pattern_match(b, a->text, values) && !tsr_pattern_match(a, b->text, values);
}

/* Several rules of a map may make one name of different ones, so that their order does not say where it came from. The inverse takes
 * the rule that the map would use for what it makes, and if those are several, the first where it is an exception to the others. */
static tsr_status choose_rule(const tsr_matcher *s, tsr_name_match *like, tsr_str *values)
{
    const tsr_map_rule *rules = s->m->rules->rules;
    tsr_str others[MOST_CAPTURES], name, other;
    bool sure, does;
    TSR_TRY(comes_from(s, &rules[like->rule], values, &name, &sure));
    for (tsr_name_match next = {.rule = like->rule + 1}; find_rule(s->m->rules, like->entry->fqn, &next, others); next.rule++) {
        TSR_TRY(comes_from(s, &rules[next.rule], others, &other, &does));
        if (!does) continue;
        TSR_FAIL_IF(sure && !is_exception(&rules[like->rule].from[like->pattern], &rules[next.rule].from[next.pattern]), s->err,
                    TSR_E_FORMAT, "'%.*s' may come from '%.*s' or from '%.*s': the map makes it by two rules, so it has no inverse here",
                    TSR_STR_ARG(like->entry->fqn), TSR_STR_ARG(name), TSR_STR_ARG(other));
        if (sure) continue;
        sure = true;
        name = other;
        like->rule = next.rule, like->pattern = next.pattern;
        memcpy(values, others, sizeof others);
    }
    return TSR_OK;
}

/* The first rule that matches takes the entry. */
static tsr_status match_entry(tsr_matcher *s, const tsr_entry *entry, uint64_t order)
{
    tsr_str values[MOST_CAPTURES];
    tsr_name_match like = {.entry = entry, .order = order};
    if (find_rule(s->m->rules, entry->fqn, &like, values)) {
        if (s->m->rules->forward) TSR_TRY(choose_rule(s, &like, values));
        return add_match(s, &like, values);
    }
    const tsr_entry **left = tsr_vec_push(&s->unmatched, s->err);
    if (!left) return TSR_E_NOMEM;
    *left = entry;
    if (s->m->rules->unmatched == TSR_UNMATCHED_KEEP) return tsr_mapped_keep(s->m, entry, order, s->err);
    if (s->m->rules->unmatched == TSR_UNMATCHED_REFUSE) return TSR_OK;
    const tsr_entry **dropped = tsr_vec_push(&s->m->dropped, s->err);
    if (dropped) *dropped = entry;
    return dropped ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status refuse_unmatched(const tsr_matcher *s)
{
    char names[400];
    tsr_line line = tsr_line_on(names, sizeof names);
    const tsr_entry *const *left = s->unmatched.items;
    if (s->m->rules->unmatched != TSR_UNMATCHED_REFUSE || !s->unmatched.count) return TSR_OK;
    for (size_t i = 0; i < s->unmatched.count && i < NAMED; i++)
        tsr_line_format(&line, "%s'%.*s'", i ? ", " : "", TSR_STR_ARG(left[i]->fqn));
    if (s->unmatched.count > NAMED) tsr_line_format(&line, " and %zu more", s->unmatched.count - NAMED);
    return tsr_raise(s->err, TSR_E_FORMAT, TSR_NO_POSITION,
                     "no rule of the map matches %s; add a rule, or set \"unmatched\" to \"keep\" or \"drop\"", names);
}

static int by_binding(const void *a, const void *b)
{
    const tsr_name_match *x = a, *y = b;
    if (x->rule != y->rule) return x->rule < y->rule ? -1 : 1;
    const int key = tsr_str_compare(x->key, y->key);
    if (key) return key;
    if (x->pattern != y->pattern) return x->pattern < y->pattern ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Members of the binding whose matches are [first, first + count): as many as the highest index says. */
static tsr_status check_complete(const tsr_matcher *s, const tsr_name_match *first, size_t count, uint64_t *members)
{
    const tsr_map_rule *rule = &s->m->rules->rules[first->rule];
    *members = 1;
    for (size_t i = 0; i < count; i++)
        if (first[i].index + 1 > *members) *members = first[i].index + 1;
    for (uint32_t pattern = 0, at = 0; pattern < rule->from_count; pattern++) {
        for (uint64_t index = 0; index < *members; index++, at++) {
            if (at == count || first[at].pattern != pattern || first[at].index != index) return tsr_match_lacks(s, first, pattern, index);
        }
    }
    return TSR_OK;
}

static tsr_status drop_all(tsr_matcher *s, const tsr_name_match *first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const tsr_entry **dropped = tsr_vec_push(&s->m->dropped, s->err);
        if (!dropped) return TSR_E_NOMEM;
        *dropped = first[i].entry;
    }
    return TSR_OK;
}

static tsr_status bind(tsr_matcher *s, const tsr_name_match *first, size_t count)
{
    tsr_map_binding binding = {.rule = &s->m->rules->rules[first->rule], .order = first->order};
    tsr_arena *arena = s->m->own->arena;
    if (!binding.rule->to_count) return drop_all(s, first, count);
    TSR_TRY(check_complete(s, first, count, &binding.members));
    TSR_TRY(tsr_family_add(s, first, binding.members));
    binding.sources = tsr_arena_array(arena, count, sizeof *binding.sources, s->err);
    binding.values = tsr_arena_array(s->arena, binding.rule->capture_count, sizeof *binding.values, s->err);
    if (!binding.sources || !binding.values) return TSR_E_NOMEM;
    if (binding.rule->capture_count) memcpy(binding.values, first->values, binding.rule->capture_count * sizeof *binding.values);
    for (size_t i = 0; i < count; i++) {
        binding.sources[i] = first[i].entry;
        if (first[i].order < binding.order) binding.order = first[i].order;
    }
    return tsr_mapped_build(s->m, &binding, s->err);
}

static tsr_status bind_all(tsr_matcher *s)
{
    tsr_name_match *matches = s->matches.items;
    if (s->matches.count > 1) qsort(matches, s->matches.count, sizeof *matches, by_binding);
    for (size_t i = 0, next; i < s->matches.count; i = next) {
        for (next = i + 1; next < s->matches.count; next++)
            if (matches[next].rule != matches[i].rule || !tsr_str_equal(matches[next].key, matches[i].key)) break;
        TSR_TRY(bind(s, &matches[i], next - i));
    }
    return TSR_OK;
}

static tsr_status check_targets(const tsr_matcher *s)
{
    const tsr_mapped_row *rows = s->m->rows.items;
    tsr_map *names = tsr_map_new(s->m->own->host->allocator, s->m->rows.count, s->err);
    tsr_status status = names ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < s->m->rows.count && status == TSR_OK; i++) {
        uint32_t *first;
        bool fresh;
        status = tsr_map_put(names, rows[i].entry.fqn, (uint32_t)i, &first, &fresh, s->err);
        if (status == TSR_OK && !fresh)
            status = tsr_raise(s->err, TSR_E_FORMAT, TSR_NO_POSITION, "'%.*s' would be written twice: from '%.*s' and from '%.*s'",
                               TSR_STR_ARG(rows[i].entry.fqn), TSR_STR_ARG(rows[*first].sources[0]->fqn),
                               TSR_STR_ARG(rows[i].sources[0]->fqn));
    }
    tsr_map_free(names);
    return status;
}

tsr_status tsr_mapped_apply(tsr_mapped *m, tsr_error *err)
{
    const tsr_allocator *allocator = m->own->host->allocator;
    const tsr_catalog *catalog = &m->source->catalog;
    tsr_matcher s = {.m = m,
                     .matches = tsr_vec_of(allocator, sizeof(tsr_name_match)),
                     .unmatched = tsr_vec_of(allocator, sizeof(tsr_entry *)),
                     .families = tsr_vec_of(allocator, sizeof(tsr_family)),
                     .err = err};
    s.arena = tsr_arena_new(allocator, 0, err);
    s.members = tsr_map_new(allocator, 0, err);
    tsr_status status = s.arena && s.members ? TSR_OK : TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) status = match_entry(&s, &catalog->entries[i], i);
    if (status == TSR_OK) status = refuse_unmatched(&s);
    if (status == TSR_OK) status = bind_all(&s);
    if (status == TSR_OK) status = tsr_family_check(&s);
    if (status == TSR_OK) status = tsr_counts_check(&s);
    if (status == TSR_OK) status = tsr_shapes_check(m, err);
    if (status == TSR_OK) status = check_targets(&s);
    tsr_map_free(s.members);
    tsr_vec_free(&s.families);
    tsr_vec_free(&s.matches);
    tsr_vec_free(&s.unmatched);
    tsr_arena_free(s.arena);
    return status;
}
