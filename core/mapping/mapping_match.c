/* Binds the entries of the source to rules, and checks that none is left over or missing. */
#include <stdlib.h>

#include "base/line.h"
#include "codec/json.h"
#include "mapping/mapped.h"
#include "mapping/mapping_builtin.h"
#include "mapping/mapping_match.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* ---- the names that entries of an inverse come from ---- */

/* Finds the names that the entries of an inverse come from. A name may only go back to one from which the map makes it, by
 * the same rule and the same pattern of that rule. Otherwise the inverse would give tensors names that the map uses
 * differently. */

/* Whether the name matches, and captures with a number on either side are indices that leave none below 0. */
static bool matches(const tsr_mapped *m, const tsr_map_rule *rule, const tsr_name_pattern *pattern, tsr_str name,
                    tsr_str *values)
{
    uint64_t index;
    if (!tsr_pattern_match(pattern, name, values)) return false;
    for (uint32_t c = 0; c < rule->capture_count; c++) {
        const tsr_map_number *own = tsr_pattern_plus(pattern, c),
                             *to = rule->to_count ? tsr_pattern_plus(&rule->to[0], c) : NULL;
        if (own && !tsr_mapped_reaches(m, own, values[c])) return false;
        if (own && to && tsr_map_number_given(to) && !tsr_component_number(values[c], &index)) return false;
    }
    return true;
}

/* Finds the first rule that matches the name, starting with match->rule. Sets values[c] (TSR_MOST_CAPTURES of them) for the
 * captures of its pattern, which are texts of the name also where the pattern has {name+N}. Returns false if none matches. */
static bool match_rule(const tsr_mapped *m, const tsr_mapping_rules *rules, tsr_str name, tsr_name_match *match,
                       tsr_str *values)
{
    for (; match->rule < rules->count; match->rule++) {
        const tsr_map_rule *rule = &rules->rules[match->rule];
        for (match->pattern = 0; match->pattern < rule->from_count; match->pattern++) {
            memset(values, 0, TSR_MOST_CAPTURES * sizeof *values);
            if (matches(m, rule, &rule->from[match->pattern], name, values)) return true;
        }
    }
    return false;
}

/* Turns the values of a match into those for the names of rule->to, where {name+N} has another N. Errors:
 * TSR_E_NOT_FOUND if config.json does not state N; TSR_E_NOMEM. */
static tsr_status shift_values(const tsr_matcher *s, const tsr_map_rule *rule, tsr_str *values)
{
    for (uint32_t c = 0; c < rule->capture_count && rule->to_count; c++) {
        const tsr_map_number *from = tsr_pattern_plus(&rule->from[0], c), *to = tsr_pattern_plus(&rule->to[0], c);
        uint64_t number, before, after;
        if (!from || !to || (!tsr_map_number_given(from) && !tsr_map_number_given(to))) continue;
        TSR_TRY(tsr_mapped_number(s->m, from, &before, s->err));
        TSR_TRY(tsr_mapped_number(s->m, to, &after, s->err));
        (void)tsr_component_number(values[c], &number); /* it is an index, because it matched */
        values[c] = tsr_arena_format(s->arena, s->err, "%llu", (unsigned long long)(number - before + after));
        if (!values[c].data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

/* The rule and the pattern that apply to a name. `by` is NULL if there is none. */
typedef struct taken {
    const tsr_map_rule *by;
    uint32_t pattern;
} taken;

static taken take(const tsr_mapped *m, const tsr_mapping_rules *map, tsr_str name)
{
    tsr_name_match found = {.rule = 0};
    tsr_str values[TSR_MOST_CAPTURES];
    if (!match_rule(m, map, name, &found, values)) return (taken){NULL, 0};
    return (taken){&map->rules[found.rule], found.pattern};
}

/* Sets *applies to whether the rule of the inverse may be used: rules that stack layers only where these are alike, and a
 * rule "with" a name only where the source has that name. */
static tsr_status applies_here(const tsr_matcher *s, const tsr_map_rule *rule, const tsr_str *values, bool *applies)
{
    *applies = !rule->alike || !s->layers_differ;
    if (!rule->with.count) return TSR_OK;
    const tsr_str other = tsr_pattern_expand(&rule->with, values, rule->with.count, s->arena, s->err);
    *applies = other.data && tsr_checkpoint_entry(s->m->source, other);
    return other.data ? TSR_OK : TSR_E_NOMEM;
}

/* Sets *name to the first name that a rule of the inverse makes, and *does to whether the map takes all these names by that
 * same rule. */
static tsr_status comes_from(const tsr_matcher *s, const tsr_map_rule *rule, const tsr_str *found, tsr_str *name, bool *does)
{
    tsr_str values[TSR_MOST_CAPTURES];
    memcpy(values, found, sizeof values);
    if (rule->unfolded != TSR_NO_CAPTURE) values[rule->unfolded] = TSR_STR("0");
    TSR_TRY(applies_here(s, rule, values, does));
    TSR_TRY(shift_values(s, rule, values));
    for (uint32_t i = 0; i < rule->to_count && *does; i++) {
        const tsr_str made = tsr_pattern_expand(&rule->to[i], values, rule->to[i].count, s->arena, s->err);
        if (!made.data) return TSR_E_NOMEM;
        const taken t = take(s->m, s->m->rules->forward, made);
        *does = t.by == rule->forward && t.pattern == i;
        if (i == 0 || !*does) *name = made;
    }
    return TSR_OK;
}

/* Whether `b` matches every name that `a` matches, but not the other way round. */
static bool is_exception(const tsr_name_pattern *a, const tsr_name_pattern *b)
{
    tsr_str values[TSR_MOST_CAPTURES];
    return tsr_pattern_match(b, a->text, values) && !tsr_pattern_match(a, b->text, values);
}

/* Fails because the map does not make the entry's name. The inverse would call it `made`, by rule `own`, but the map takes
 * that name by another rule. If no rule makes the name, `made` is the name itself and `own` is NULL. */
static tsr_status refuse_name(const tsr_matcher *s, tsr_str fqn, tsr_str made, const tsr_map_rule *own)
{
    const taken t = take(s->m, s->m->rules->forward, made);
    const tsr_str by = own ? own->from[0].text : TSR_STR("unmatched"), from = t.by->from[t.pattern].text;
    return tsr_fail(s->err, TSR_E_FORMAT,
                    "'%.*s' has no way back to '%.*s', because the map's rule '%.*s' takes that, not '%.*s'",
                    TSR_STR_ARG(fqn), TSR_STR_ARG(made), TSR_STR_ARG(from), TSR_STR_ARG(by));
}

/* Several rules of a map may make the same name from different ones, so their order does not show where it came from. The
 * inverse chooses the rule that the map would use for the resulting name. If there are several, it chooses the first,
 * provided it is an exception to the others. */
static tsr_status choose_rule(const tsr_matcher *s, tsr_name_match *like, tsr_str *values, tsr_str *name, bool *sure)
{
    const tsr_map_rule *rules = s->m->rules->rules;
    tsr_str others[TSR_MOST_CAPTURES], other;
    bool does;
    TSR_TRY(comes_from(s, &rules[like->rule], values, name, sure));
    for (tsr_name_match next = {.rule = like->rule + 1}; match_rule(s->m, s->m->rules, like->entry->fqn, &next, others);
         next.rule++) {
        TSR_TRY(comes_from(s, &rules[next.rule], others, &other, &does));
        if (!does) continue;
        /* A rule that needs another name "with" its own is an exception to those that do not. */
        const bool needs = rules[like->rule].with.count && !rules[next.rule].with.count;
        TSR_FAIL_IF(*sure && !needs &&
                        !is_exception(&rules[like->rule].from[like->pattern], &rules[next.rule].from[next.pattern]),
                    s->err, TSR_E_FORMAT,
                    "'%.*s' may come from '%.*s' or from '%.*s': the map makes it by two rules, so it has no inverse here",
                    TSR_STR_ARG(like->entry->fqn), TSR_STR_ARG(*name), TSR_STR_ARG(other));
        if (*sure && !like->other.data) like->other = other;
        if (*sure) continue;
        *sure = true;
        *name = other;
        like->rule = next.rule, like->pattern = next.pattern;
        memcpy(values, others, sizeof others);
    }
    return TSR_OK;
}

/* The map may have made the name from another one, or may have kept it: the checkpoint does not show which. */
static tsr_status note_guess(tsr_matcher *s, tsr_name_match *like, tsr_str name)
{
    if (s->m->note.data) return TSR_OK;
    s->m->note = tsr_arena_format(s->m->own->arena, s->err,
                                  "'%.*s', for example, is taken to come from '%.*s', but may also come from '%.*s'",
                                  TSR_STR_ARG(like->entry->fqn), TSR_STR_ARG(name), TSR_STR_ARG(like->other));
    return s->m->note.data ? TSR_OK : TSR_E_NOMEM;
}

/* Chooses the rule of an inverse for an entry. *found and `like` are the first rule that matches. *found
 * becomes false for a name that the map kept. TSR_E_FORMAT, naming the rules, if the map makes the name in several equally
 * likely ways, or cannot make it. */
static tsr_status choose_origin(tsr_matcher *s, tsr_name_match *like, tsr_str *values, bool *found)
{
    const tsr_mapping_rules *rules = s->m->rules;
    const tsr_str fqn = like->entry->fqn;
    const bool keeps = rules->unmatched == TSR_UNMATCHED_KEEP, kept = keeps && !take(s->m, rules->forward, fqn).by;
    bool sure = false;
    tsr_str name = {NULL, 0};
    if (*found) TSR_TRY(choose_rule(s, like, values, &name, &sure));
    *found = *found && (sure || name.data); /* no name: no rule may be used here */
    if (!sure && kept) {
        *found = false;
        return TSR_OK;
    }
    if (*found && !sure) return refuse_name(s, fqn, name, rules->rules[like->rule].forward);
    if (!*found) return keeps ? refuse_name(s, fqn, fqn, NULL) : TSR_OK;
    if (kept && !rules->normalizes && !like->other.data) like->other = fqn;
    return like->other.data ? note_guess(s, like, name) : TSR_OK;
}

/* Checks, after all rules of an inverse are bound, that the map would take each resulting name by the rule that it was
 * inverted from. TSR_E_FORMAT, naming both rules, if it would not. */
static tsr_status check_origins(const tsr_matcher *s)
{
    const tsr_mapped_row *rows = s->m->rows.items;
    if (!s->m->rules->forward) return TSR_OK;
    for (size_t i = 0; i < s->m->rows.count; i++) {
        if (!rows[i].rule) continue;
        const taken t = take(s->m, s->m->rules->forward, rows[i].entry.fqn);
        if (t.by == rows[i].rule->forward && t.pattern == rows[i].pattern) continue;
        return refuse_name(s, rows[i].sources[0]->fqn, rows[i].entry.fqn, rows[i].rule->forward);
    }
    return TSR_OK;
}

/* ---- matches ---- */

enum { NAMED = 5 };

static tsr_status read_index(const tsr_matcher *s, const tsr_map_rule *rule, const tsr_entry *entry, tsr_str text,
                             uint64_t *out)
{
    TSR_FAIL_IF(!tsr_component_number(text, out), s->err, TSR_E_FORMAT,
                "'%.*s': {%.*s} is '%.*s', not an index that can be stacked", TSR_STR_ARG(entry->fqn),
                TSR_STR_ARG(rule->captures[rule->folded]), TSR_STR_ARG(text));
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

/* Binds an entry to the first rule that matches it; in an inverse, to the rule by which the map made it. */
static tsr_status match_entry(tsr_matcher *s, const tsr_entry *entry, uint64_t order)
{
    tsr_str values[TSR_MOST_CAPTURES];
    tsr_name_match like = {.entry = entry, .order = order};
    bool found = match_rule(s->m, s->m->rules, entry->fqn, &like, values);
    if (s->m->rules->forward) TSR_TRY(choose_origin(s, &like, values, &found));
    if (found) return add_match(s, &like, values);
    const tsr_entry **left = tsr_vec_push(&s->unmatched, s->err);
    if (!left) return TSR_E_NOMEM;
    *left = entry;
    if (s->m->rules->unmatched == TSR_UNMATCHED_KEEP) return tsr_mapped_keep(s->m, entry, order, s->err);
    if (s->m->rules->unmatched == TSR_UNMATCHED_REFUSE) return TSR_OK;
    const tsr_entry **dropped = tsr_vec_push(&s->m->dropped, s->err);
    if (dropped) *dropped = entry;
    return dropped ? TSR_OK : TSR_E_NOMEM;
}

/* ---- numbers and scales that a map would separate ---- */

/* Whether a rule gives these numbers another name or layout. */
static bool is_moved(const tsr_matcher *s, const tsr_entry *data)
{
    tsr_str values[TSR_MOST_CAPTURES];
    tsr_name_match found = {.rule = 0};
    if (!match_rule(s->m, s->m->rules, data->fqn, &found, values)) return false;
    const tsr_map_rule *rule = &s->m->rules->rules[found.rule];
    const bool same = !rule->step_count && found.pattern < rule->to_count &&
                      tsr_str_equal(rule->from[found.pattern].text, rule->to[found.pattern].text);
    return rule->to_count && !same;
}

/* Finds the numbers that have this scale, if a rule moves them; *data is NULL otherwise. */
static tsr_status find_parted(const tsr_matcher *s, const tsr_entry *scale, tsr_vec *text, const tsr_entry **data)
{
    *data = NULL;
    for (size_t i = 0; i < tsr_companion_count && !*data; i++) {
        TSR_TRY(tsr_companion_data(s->m->source, scale, &tsr_companions[i], text, data, s->err));
        if (*data && !is_moved(s, *data)) *data = NULL;
    }
    return TSR_OK;
}

static tsr_status check_parted(const tsr_matcher *s, tsr_vec *text)
{
    const tsr_entry *const *left = s->unmatched.items;
    for (size_t i = 0; i < s->unmatched.count; i++) {
        const tsr_entry *data;
        TSR_TRY(find_parted(s, left[i], text, &data));
        TSR_FAIL_IF(
            data, s->err, TSR_E_FORMAT,
            "the map takes '%.*s', but not '%.*s', by which it is scaled; pass --dequantize, or add a rule for the scale",
            TSR_STR_ARG(data->fqn), TSR_STR_ARG(left[i]->fqn));
    }
    return TSR_OK;
}

/* Checks that no rule gives quantized numbers another name or layout while their scale is kept or dropped.
 * TSR_E_FORMAT, naming both. */
static tsr_status check_all_parted(const tsr_matcher *s)
{
    tsr_vec text = tsr_vec_of(s->m->own->host->allocator, 1);
    const tsr_status status = check_parted(s, &text);
    tsr_vec_free(&text);
    return status;
}

/* ---- bindings ---- */

static tsr_status refuse_unmatched(const tsr_matcher *s)
{
    char names[400];
    tsr_line line = tsr_line_on(names, sizeof names);
    const tsr_entry *const *left = s->unmatched.items;
    if (s->m->rules->unmatched != TSR_UNMATCHED_REFUSE || !s->unmatched.count) return TSR_OK;
    for (size_t i = 0; i < s->unmatched.count && i < NAMED; i++)
        tsr_line_format(&line, "%s'%.*s'", i ? ", " : "", TSR_STR_ARG(left[i]->fqn));
    if (s->unmatched.count > NAMED) tsr_line_format(&line, " and %zu more", s->unmatched.count - NAMED);
    return tsr_fail(s->err, TSR_E_FORMAT,
                    "no rule of the map matches %s; add a rule, or set \"unmatched\" to \"keep\" or \"drop\"", names);
}

/* A map of which no rule matches belongs to another model, or to the opposite direction. */
static tsr_status refuse_unused(const tsr_matcher *s)
{
    const tsr_catalog *catalog = &s->m->source->catalog;
    if (s->matches.count || !s->m->rules->count || !catalog->entry_count || s->m->rules->normalizes) return TSR_OK;
    return tsr_fail(s->err, TSR_E_FORMAT,
                    "no rule of the map matches any name, such as '%.*s'; is it the map of another model?",
                    TSR_STR_ARG(catalog->entries[0].fqn));
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

/* Checks that the binding with the matches [first, first + count) has every member up to its highest index, in every
 * pattern. */
static tsr_status check_complete(const tsr_matcher *s, const tsr_name_match *first, size_t count, uint64_t *members)
{
    const tsr_map_rule *rule = &s->m->rules->rules[first->rule];
    *members = 1;
    for (size_t i = 0; i < count; i++)
        if (first[i].index + 1 > *members) *members = first[i].index + 1;
    for (uint32_t pattern = 0, at = 0; pattern < rule->from_count; pattern++) {
        for (uint64_t index = 0; index < *members; index++, at++) {
            if (at == count || first[at].pattern != pattern || first[at].index != index)
                return tsr_match_lacks(s, first, pattern, index);
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

/* ---- tied tensors ---- */

/* Whether config.json ties the output layer to the embedding. */
static bool ties(const tsr_mapped *m)
{
    return cJSON_IsTrue(tsr_mapped_setting(m, "tie_word_embeddings"));
}

/* Whether the rule leaves out a tied tensor; the rule of the opposite direction restores it. */
static bool leaves_out(const tsr_matcher *s, const tsr_map_rule *rule)
{
    return (s->m->rules->forward != NULL) == rule->tied_by_inverse;
}

/* Finds the tensor that config.json ties to this one, so that this one is left out; *other is NULL if it is not tied. */
static tsr_status find_tied(const tsr_matcher *s, const tsr_map_rule *rule, const tsr_entry *entry, const tsr_entry **other)
{
    *other = NULL;
    if (!rule->tied_to.size || !leaves_out(s, rule) || !ties(s->m)) return TSR_OK;
    *other = tsr_checkpoint_entry(s->m->source, rule->tied_to);
    if (!*other) return TSR_OK;
    const bool alike = entry->kind == TSR_ENTRY_TENSOR && (*other)->kind == TSR_ENTRY_TENSOR &&
                       entry->dtype == (*other)->dtype && entry->ndim == (*other)->ndim;
    TSR_FAIL_IF(!alike || memcmp(entry->shape, (*other)->shape, entry->ndim * sizeof *entry->shape) != 0, s->err,
                TSR_E_FORMAT, "tie_word_embeddings of %s is true, but '%.*s' and '%.*s' do not have one dtype and shape",
                s->m->config_name, TSR_STR_ARG(entry->fqn), TSR_STR_ARG((*other)->fqn));
    return TSR_OK;
}

static tsr_status note_tied(const tsr_matcher *s, tsr_str name, const char *what, tsr_str other)
{
    return tsr_mapped_add_note(s->m,
                               tsr_arena_format(s->m->own->arena, s->err,
                                                "'%.*s' %s '%.*s', because tie_word_embeddings of %s is true",
                                                TSR_STR_ARG(name), what, TSR_STR_ARG(other), s->m->config_name),
                               s->err);
}

/* Restores the tensor that the opposite direction leaves out as tied, if the source does not have it either. */
static tsr_status restore_tied(const tsr_matcher *s, uint32_t number)
{
    const tsr_map_rule *rule = &s->m->rules->rules[number];
    const tsr_name_match *matches = s->matches.items;
    const tsr_mapped_row *rows = s->m->rows.items;
    if (!rule->tied_to.size || rule->step_count || leaves_out(s, rule) || !ties(s->m)) return TSR_OK;
    for (size_t i = 0; i < s->matches.count; i++)
        if (matches[i].rule == number) return TSR_OK;
    for (size_t i = 0; i < s->m->rows.count; i++) {
        if (!tsr_str_equal(rows[i].entry.fqn, rule->tied_to) || rows[i].source_count != 1 ||
            (rows[i].rule && rows[i].rule->step_count))
            continue;
        const tsr_map_binding binding = {
            .rule = rule, .sources = (const tsr_entry **)(uintptr_t)rows[i].sources, .members = 1, .order = rows[i].order};
        TSR_TRY(note_tied(s, rule->to[0].text, "is a copy of", rows[i].sources[0]->fqn));
        return tsr_mapped_build(s->m, &binding, s->err);
    }
    return TSR_OK;
}

static tsr_status bind(tsr_matcher *s, const tsr_name_match *first, size_t count)
{
    tsr_map_binding binding = {.rule = &s->m->rules->rules[first->rule], .order = first->order};
    tsr_arena *arena = s->m->own->arena;
    const tsr_entry *tied;
    TSR_TRY(find_tied(s, binding.rule, first->entry, &tied));
    if (tied) {
        s->m->tied = (tsr_tied){first->entry, tied};
        TSR_TRY(note_tied(s, first->entry->fqn, "is left out as the same tensor as", tied->fqn));
        return drop_all(s, first, count);
    }
    if (!binding.rule->to_count) return drop_all(s, first, count);
    TSR_TRY(check_complete(s, first, count, &binding.members));
    TSR_TRY(tsr_family_add(s, first, binding.members));
    binding.sources = tsr_arena_array(arena, count, sizeof *binding.sources, s->err);
    binding.values = tsr_arena_array(s->arena, binding.rule->capture_count, sizeof *binding.values, s->err);
    if (!binding.sources || !binding.values) return TSR_E_NOMEM;
    if (binding.rule->capture_count)
        memcpy(binding.values, first->values, binding.rule->capture_count * sizeof *binding.values);
    TSR_TRY(shift_values(s, binding.rule, binding.values));
    for (size_t i = 0; i < count; i++) {
        binding.sources[i] = first[i].entry;
        if (first[i].other.data) binding.other = first[i].other;
        if (first[i].order < binding.order) binding.order = first[i].order;
    }
    return tsr_mapped_build(s->m, &binding, s->err);
}

/* Returns the number of the first match after those of the binding that begins at `i`. */
static size_t next_binding(const tsr_matcher *s, size_t i)
{
    const tsr_name_match *matches = s->matches.items, *first = &matches[i];
    while (++i < s->matches.count)
        if (matches[i].rule != first->rule || !tsr_str_equal(matches[i].key, first->key)) break;
    return i;
}

static tsr_status bind_all(tsr_matcher *s)
{
    for (size_t i = 0, next; i < s->matches.count; i = next) {
        next = next_binding(s, i);
        TSR_TRY(bind(s, (tsr_name_match *)s->matches.items + i, next - i));
    }
    for (uint32_t r = 0; r < s->m->rules->count; r++) TSR_TRY(restore_tied(s, r));
    return TSR_OK;
}

/* Users easily miss that a map drops numbers, which the target does not have, so this is noted. */
static tsr_status note_dropped(const tsr_matcher *s)
{
    const tsr_entry *const *dropped = s->m->dropped.items;
    const size_t count = s->m->dropped.count - (s->m->tied.left_out != NULL);
    if (!count) return TSR_OK;
    if (dropped[0] == s->m->tied.left_out) dropped++; /* it has its own note */
    tsr_arena *arena = s->m->own->arena;
    return tsr_mapped_add_note(
        s->m,
        count == 1 ? tsr_arena_format(arena, s->err, "the map leaves out '%.*s'", TSR_STR_ARG(dropped[0]->fqn))
                   : tsr_arena_format(arena, s->err, "the map leaves out %zu entries, such as '%.*s'", count,
                                      TSR_STR_ARG(dropped[0]->fqn)),
        s->err);
}

/* Nor does the inverse restore what the map drops. */
static tsr_status note_not_restored(const tsr_matcher *s)
{
    const tsr_mapping_rules *forward = s->m->rules->forward;
    for (uint32_t r = 0; forward && r < forward->count; r++) {
        const tsr_map_rule *rule = &forward->rules[r];
        if (rule->to_count) continue;
        return tsr_mapped_add_note(s->m,
                                   tsr_arena_format(s->m->own->arena, s->err,
                                                    "the inverse does not bring back what the map drops, '%.*s'",
                                                    TSR_STR_ARG(rule->from[0].text)),
                                   s->err);
    }
    return TSR_OK;
}

static void sort_matches(tsr_matcher *s)
{
    if (s->matches.count > 1) qsort(s->matches.items, s->matches.count, sizeof(tsr_name_match), by_binding);
}

static tsr_status match_all(tsr_matcher *s)
{
    const tsr_catalog *catalog = &s->m->source->catalog;
    for (uint64_t i = 0; i < catalog->entry_count; i++) TSR_TRY(match_entry(s, &catalog->entries[i], i));
    sort_matches(s);
    return TSR_OK;
}

/* Adds the match of every name with every rule that says "alike". */
static tsr_status match_alike(tsr_matcher *s)
{
    const tsr_catalog *catalog = &s->m->source->catalog;
    tsr_str values[TSR_MOST_CAPTURES];
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        tsr_name_match like = {.entry = &catalog->entries[i]};
        for (; match_rule(s->m, s->m->rules, like.entry->fqn, &like, values); like.rule++)
            if (s->m->rules->rules[like.rule].alike) TSR_TRY(add_match(s, &like, values));
    }
    sort_matches(s);
    return TSR_OK;
}

/* Layers that differ cannot be stacked. Where rules say "alike", the inverse leaves every layer its own names, as
 * Megatron-Core does. It also does so whenever its moe_layer_freq is a list, even if that is the same for all layers. */
static tsr_status compare_layers(tsr_matcher *s)
{
    const tsr_name_match *matches = s->matches.items;
    const bool listed = cJSON_IsArray(tsr_mapped_setting(s->m, "moe_layer_freq"));
    uint64_t layers = 0;
    for (size_t i = 0; i < s->matches.count; i++)
        if (matches[i].index >= layers) layers = matches[i].index + 1;
    for (size_t i = 0, next; i < s->matches.count && !s->layers_differ; i = next) {
        next = next_binding(s, i);
        if (!listed && next - i == layers * s->m->rules->rules[matches[i].rule].from_count) continue;
        s->layers_differ = true;
        const tsr_str note =
            tsr_arena_format(s->m->own->arena, s->err,
                             listed ? "layers are numbered, not stacked, because moe_layer_freq is a list"
                                    : "layers are numbered, not stacked, because not all of them have a tensor like '%.*s'",
                             TSR_STR_ARG(matches[i].entry->fqn));
        TSR_TRY(tsr_mapped_add_note(s->m, note, s->err));
    }
    s->matches.count = 0;
    return TSR_OK;
}

static tsr_status match_source(tsr_matcher *s)
{
    if (s->m->rules->forward) TSR_TRY(match_alike(s));
    TSR_TRY(compare_layers(s));
    return match_all(s);
}

/* ---- opening ---- */

#define TRANSFORMERS "transformers-"

/* Whether the text is that of a built-in map from Hugging Face's names to those in the memory of transformers. */
static bool is_for_transformers(const void *text)
{
    tsr_str name;
    for (size_t i = 0; (name = tsr_mapping_builtin_name(i)).size; i++)
        if (tsr_builtin_documents[tsr_builtin_numbers[i]].text == text) return tsr_str_starts(name, TSR_STR(TRANSFORMERS));
    return false;
}

/* Refuses a built-in map transformers-NAME if config.json's model_type has another one: maps keep names that they
 * do not know, so the result would look whole. */
static tsr_status model_check(const tsr_mapped *m, tsr_arena *arena, tsr_error *err)
{
    const cJSON *item = tsr_mapped_setting(m, "model_type");
    if (!cJSON_IsString(item) || !is_for_transformers(m->rules->text)) return TSR_OK;
    const tsr_str name = tsr_arena_format(arena, err, TRANSFORMERS "%s", item->valuestring);
    if (!name.data) return TSR_E_NOMEM;
    const tsr_str other = tsr_mapping_builtin(name);
    TSR_FAIL_IF(other.size && other.data != m->rules->text, err, TSR_E_FORMAT,
                "the map is not for the model_type of %s, '%s'; use the map %s", m->config_name, item->valuestring,
                name.data);
    return TSR_OK;
}

/* Fills m->rows and m->dropped. */
static tsr_status fill_by_rules(tsr_mapped *m, void *rules, tsr_error *err)
{
    m->rules = rules;
    const tsr_allocator *allocator = m->own->host->allocator;
    tsr_matcher s = {.m = m,
                     .matches = tsr_vec_of(allocator, sizeof(tsr_name_match)),
                     .unmatched = tsr_vec_of(allocator, sizeof(tsr_entry *)),
                     .families = tsr_vec_of(allocator, sizeof(tsr_family)),
                     .err = err};
    s.arena = tsr_arena_new(allocator, 0, err);
    s.members = tsr_map_new(allocator, 0, err);
    tsr_status status = s.arena && s.members ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK) status = model_check(m, s.arena, err);
    if (status == TSR_OK) status = match_source(&s);
    if (status == TSR_OK) status = refuse_unmatched(&s);
    if (status == TSR_OK) status = check_all_parted(&s);
    if (status == TSR_OK) status = bind_all(&s);
    if (status == TSR_OK) status = tsr_complete_check(&s);
    if (status == TSR_OK) status = tsr_shapes_check(m, err);
    if (status == TSR_OK) status = refuse_unused(&s);
    if (status == TSR_OK) status = tsr_required_check(&s);
    if (status == TSR_OK) status = check_origins(&s);
    if (status == TSR_OK) status = note_dropped(&s);
    if (status == TSR_OK) status = note_not_restored(&s);
    tsr_map_free(s.members);
    tsr_vec_free(&s.families);
    tsr_vec_free(&s.matches);
    tsr_vec_free(&s.unmatched);
    tsr_arena_free(s.arena);
    return status;
}

tsr_status tsr_mapping_open(tsr_checkpoint *source, const tsr_mapping_rules *rules, tsr_checkpoint **out, tsr_error *err)
{
    const tsr_mapped_scheme scheme = {.fill = fill_by_rules, .ctx = (void *)(uintptr_t)rules};
    tsr_checkpoint *below = NULL;
    *out = NULL;
    if (rules->before) TSR_TRY(tsr_mapping_open(source, rules->before, &below, err));
    const tsr_status status = tsr_mapped_open(below ? below : source, &scheme, out, err);
    if (status == TSR_OK) ((tsr_mapped *)(*out)->state)->below = below;
    else tsr_checkpoint_close(below);
    return status;
}

/* ---- alike ---- */

/* Compares the layers of a mapped checkpoint whose names a rule takes as they are, by {rest...}. No rule states which weights
 * such layers have, and layers may differ, as those with cross attention do. So a layer is noted, not refused, and only if it
 * has some of the names of another, but not all, while no layer has the same names as it, and another has those of the other. */

/* More layers are not compared with each other. No model has as many. */
enum { MOST_LAYERS = 1000 };

typedef struct layer_name {
    tsr_str stack; /* such as "model.layers" */
    tsr_str index;
    tsr_str rest; /* what follows the index */
} layer_name;

typedef struct layer {
    const layer_name *names; /* in the order of `rest` */
    size_t count;
    bool has_twin; /* another layer has the same names */
} layer;

static bool is_taken_as_is(const tsr_mapped_row *row)
{
    const tsr_map_rule *rule = row->rule;
    if (!rule || rule->to_count != 1 || rule->step_count) return false;
    return rule->to->count && rule->to->components[rule->to->count - 1].rest;
}

/* Splits a name at its first component that is a number. */
static bool split(tsr_str fqn, layer_name *out)
{
    size_t start = 0;
    uint64_t number;
    for (size_t i = 0; i < fqn.size; i++) {
        if (fqn.data[i] != '.') continue;
        const tsr_str component = {fqn.data + start, i - start};
        if (start && tsr_component_number(component, &number)) {
            *out = (layer_name){{fqn.data, start - 1}, component, {fqn.data + i + 1, fqn.size - i - 1}};
            return true;
        }
        start = i + 1;
    }
    return false;
}

static int name_order(const void *a, const void *b)
{
    const layer_name *x = a, *y = b;
    int order = tsr_str_compare(x->stack, y->stack);
    if (!order) order = tsr_str_compare(x->index, y->index);
    return order ? order : tsr_str_compare(x->rest, y->rest);
}

/* Returns how many names of `b` layer `a` lacks, and the first of them; SIZE_MAX if `a` has names that `b` does not have. */
static size_t lacks(const layer *a, const layer *b, tsr_str *first)
{
    size_t at = 0, count = 0;
    if (a->count > b->count) return SIZE_MAX;
    for (size_t i = 0; i < b->count; i++) {
        if (at < a->count && tsr_str_equal(a->names[at].rest, b->names[i].rest)) at++;
        else if (count++ == 0) *first = b->names[i].rest;
        if (count > b->count - a->count) return SIZE_MAX;
    }
    return at == a->count ? count : SIZE_MAX;
}

static tsr_status alike_note(tsr_mapped *m, const layer *a, const layer *b, tsr_str first, size_t count, tsr_error *err)
{
    tsr_arena *arena = m->own->arena;
    tsr_str more = TSR_STR("");
    if (count > 1) more = tsr_arena_format(arena, err, " and %zu other names", count - 1);
    if (!more.data) return TSR_E_NOMEM;
    return tsr_mapped_add_note(
        m,
        tsr_arena_format(arena, err, "'%.*s.%.*s' may be incomplete: it lacks '%.*s'%.*s, but is otherwise like '%.*s.%.*s'",
                         TSR_STR_ARG(a->names->stack), TSR_STR_ARG(a->names->index), TSR_STR_ARG(first), TSR_STR_ARG(more),
                         TSR_STR_ARG(b->names->stack), TSR_STR_ARG(b->names->index)),
        err);
}

/* Compares the layers of one stack. */
static tsr_status compare(tsr_mapped *m, layer *layers, size_t count, tsr_error *err)
{
    tsr_str first = {0};
    if (count < 3 || count > MOST_LAYERS) return TSR_OK;
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count && !layers[i].has_twin; j++)
            layers[i].has_twin = i != j && layers[i].count == layers[j].count && !lacks(&layers[i], &layers[j], &first);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count && !layers[i].has_twin; j++) {
            const size_t missing = layers[j].has_twin ? lacks(&layers[i], &layers[j], &first) : SIZE_MAX;
            if (missing == SIZE_MAX) continue;
            return alike_note(m, &layers[i], &layers[j], first, missing, err); /* one such layer of a stack is enough */
        }
    return TSR_OK;
}

static tsr_status compare_all(tsr_mapped *m, const layer_name *names, size_t count, layer *layers, tsr_error *err)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const bool same_stack = i && tsr_str_equal(names[i].stack, names[i - 1].stack);
        if (!same_stack) {
            TSR_TRY(compare(m, layers, used, err));
            used = 0;
        }
        if (!same_stack || !tsr_str_equal(names[i].index, names[i - 1].index)) layers[used++] = (layer){names + i, 0, false};
        layers[used - 1].count++;
    }
    return compare(m, layers, used, err);
}

tsr_status tsr_mapping_compare_layers(tsr_checkpoint *mapped, tsr_error *err)
{
    tsr_mapped *m = (tsr_mapped *)(uintptr_t)tsr_mapped_state(mapped);
    if (!m || !m->rules || !m->rows.count) return TSR_OK;
    const tsr_mapped_row *rows = m->rows.items;
    layer_name *names = tsr_arena_array(m->own->arena, m->rows.count, sizeof *names, err);
    layer *layers = tsr_arena_array(m->own->arena, m->rows.count, sizeof *layers, err);
    if (!names || !layers) return TSR_E_NOMEM;
    size_t count = 0;
    for (size_t i = 0; i < m->rows.count; i++)
        if (is_taken_as_is(&rows[i]) && split(rows[i].entry.fqn, &names[count])) count++;
    if (count) qsort(names, count, sizeof *names, name_order);
    return compare_all(m, names, count, layers, err);
}
