/* Finds the names that the entries of an inverse come from. A name may only go back to one from which the map makes it, by
 * the same rule and the same pattern of that rule. Otherwise the inverse would give tensors names that the map uses
 * differently. */
#include "mapping/mapping_match.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/try.h"

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
        if (own && to && tsr_map_number_given(to) && !tsr_index_parse(values[c], &index)) return false;
    }
    return true;
}

bool tsr_match_rule(const tsr_mapped *m, const tsr_mapping_rules *rules, tsr_str name, tsr_name_match *match,
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

tsr_status tsr_match_shift(const tsr_matcher *s, const tsr_map_rule *rule, tsr_str *values)
{
    for (uint32_t c = 0; c < rule->capture_count && rule->to_count; c++) {
        const tsr_map_number *from = tsr_pattern_plus(&rule->from[0], c), *to = tsr_pattern_plus(&rule->to[0], c);
        uint64_t number, before, after;
        if (!from || !to || (!tsr_map_number_given(from) && !tsr_map_number_given(to))) continue;
        TSR_TRY(tsr_mapped_number(s->m, from, &before, s->err));
        TSR_TRY(tsr_mapped_number(s->m, to, &after, s->err));
        (void)tsr_index_parse(values[c], &number); /* it is an index, because it matched */
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
    if (!tsr_match_rule(m, map, name, &found, values)) return (taken){NULL, 0};
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
    TSR_TRY(tsr_match_shift(s, rule, values));
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
    for (tsr_name_match next = {.rule = like->rule + 1}; tsr_match_rule(s->m, s->m->rules, like->entry->fqn, &next, others);
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

tsr_status tsr_origin_choose(tsr_matcher *s, tsr_name_match *like, tsr_str *values, bool *found)
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

tsr_status tsr_origin_check(const tsr_matcher *s)
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

static tsr_status append_note(tsr_mapped *m, tsr_str *note, tsr_str sentence, tsr_error *err)
{
    const tsr_str before = *note;
    if (!sentence.data) return TSR_E_NOMEM;
    *note = !before.data ? sentence
                         : tsr_arena_format(m->own->arena, err, "%.*s; %.*s", TSR_STR_ARG(before), TSR_STR_ARG(sentence));
    return note->data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_mapped_add_note(tsr_mapped *m, tsr_str sentence, tsr_error *err)
{
    return append_note(m, &m->note, sentence, err);
}

tsr_status tsr_mapped_add_config_note(tsr_mapped *m, tsr_str sentence, tsr_error *err)
{
    return append_note(m, &m->config_note, sentence, err);
}

tsr_str tsr_mapping_note(const tsr_checkpoint *mapped, bool configured, size_t index)
{
    for (const tsr_mapped *m = tsr_mapped_state(mapped); m; m = tsr_mapped_state(m->source)) {
        if (m->note.data && !index--) return m->note;
        if (m->config_note.data && !configured && !index--) return m->config_note;
    }
    return TSR_STR("");
}

tsr_status tsr_mapping_add_notes(const tsr_checkpoint *mapped, bool configured, tsr_vec *out, tsr_error *err)
{
    for (size_t i = 0; tsr_mapping_note(mapped, configured, i).size; i++) {
        tsr_str *note = tsr_vec_push(out, err);
        if (!note) return TSR_E_NOMEM;
        *note = tsr_mapping_note(mapped, configured, i);
    }
    return TSR_OK;
}

void tsr_mapping_change_config(const tsr_checkpoint *mapped, tsr_config_changes *changes)
{
    for (const tsr_mapped *m = tsr_mapped_state(mapped); m; m = tsr_mapped_state(m->source)) {
        changes->unquantized |= m->config_changes.unquantized;
        changes->untied |= m->config_changes.untied;
        if (m->config_changes.more_tokens)
            changes->tokens = m->config_changes.tokens, changes->more_tokens = m->config_changes.more_tokens;
    }
}
