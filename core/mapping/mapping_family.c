/* That no expert lacks a weight which the others have. */
#include "mapping/mapping_match.h"
#include "tessera/sys/try.h"

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
    return tsr_raise(s->err, TSR_E_FORMAT, TSR_NO_POSITION, "'%.*s' is missing, which the map needs together with '%.*s'", TSR_STR_ARG(name),
                     TSR_STR_ARG(of->entry->fqn));
}

/* Components of the pattern before its folded capture. */
static uint32_t prefix_length(const tsr_map_rule *rule, uint32_t pattern)
{
    uint32_t count = 0;
    while (rule->from[pattern].components[count].capture != rule->folded) count++;
    return count;
}

/* Key of a pattern of a rule, and of one of its prefixes where there is one. */
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

/* Whether both patterns are the same up to their folded captures, which go by any name. */
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

/* The family as `rule` and `pattern` have it, compared with the same family of another pattern. */
static tsr_status compare(const tsr_matcher *s, const tsr_family *family, uint32_t rule, uint32_t pattern)
{
    const tsr_str anywhere = key_of(s, rule, pattern, TSR_STR("")), here = key_of(s, rule, pattern, family->prefix);
    if (!anywhere.data || !here.data) return TSR_E_NOMEM;
    const uint32_t some = tsr_map_get(s->members, anywhere, 0), at = tsr_map_get(s->members, here, 0);
    const tsr_family *families = s->families.items;
    if (!some) return TSR_OK;
    if (at && families[at - 1].members < family->members) return tsr_match_lacks(s, families[at - 1].first, pattern, families[at - 1].members);
    if (at) return TSR_OK;
    return tsr_raise(s->err, TSR_E_FORMAT, TSR_NO_POSITION, "nothing below '%.*s' matches '%.*s', although '%.*s' exists",
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
