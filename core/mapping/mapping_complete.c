/* Checks that a model is complete: it has as many layers and experts as config.json states, and no expert lacks a weight
 * that the others have.
 *
 *   model.layers.3.mlp.experts . 7 . up_proj.weight
 *   group                       member  ending         A group ends with "experts", "layers", "blocks" or "h".
 *
 * Only names are considered, so that the result does not depend on how a map uses them. Without config.json a missing layer
 * is not noticed, because modules of a Sequential that have no parameters leave the same gaps. */
#include "codec/json.h"
#include "mapping/mapped.h"
#include "mapping/mapping_match.h"
#include "tessera/read.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/read.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

typedef struct group {
    tsr_str prefix;
    bool experts;
    uint64_t members, endings, names; /* counts of different ones; the last two only for experts */
} group;

/* A member, such as "….experts.7", or an ending, such as ".up_proj.weight". */
typedef struct piece {
    size_t group;
    tsr_str text;
} piece;

typedef struct counter {
    tsr_matcher *s;
    tsr_vec groups;           /* of group */
    tsr_vec members, endings; /* of piece, in groups of experts */
    tsr_map *known;           /* a kind and a text, for groups, members, endings and names; the value of a group is its
                               * index */
} counter;

static bool is_index(tsr_str text)
{
    for (size_t i = 0; i < text.size; i++)
        if (!tsr_is_digit(text.data[i])) return false;
    return text.size > 0;
}

/* Adds `key` of this kind with *value. If it existed before, *fresh is false and *value becomes its earlier value. */
static tsr_status note(const counter *c, char kind, tsr_str key, uint32_t *value, bool *fresh)
{
    uint32_t *place;
    const tsr_str full = tsr_arena_format(c->s->arena, c->s->err, "%c%.*s", kind, TSR_STR_ARG(key));
    if (!full.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(c->known, full, *value, &place, fresh, c->s->err));
    *value = *place;
    return TSR_OK;
}

static tsr_status find_group(counter *c, tsr_str prefix, bool experts, size_t *out)
{
    bool fresh;
    uint32_t number = (uint32_t)c->groups.count;
    TSR_TRY(note(c, 'g', prefix, &number, &fresh));
    *out = number;
    group *added = fresh ? tsr_vec_push(&c->groups, c->s->err) : NULL;
    if (fresh && !added) return TSR_E_NOMEM;
    if (fresh) *added = (group){.prefix = prefix, .experts = experts};
    return TSR_OK;
}

static tsr_status add_piece(const counter *c, tsr_vec *pieces, size_t number, tsr_str text)
{
    piece *added = tsr_vec_push(pieces, c->s->err);
    if (!added) return TSR_E_NOMEM;
    *added = (piece){number, text};
    return TSR_OK;
}

static tsr_status add_ending(counter *c, size_t number, tsr_str text)
{
    bool fresh;
    uint32_t unused = 0;
    group *g = (group *)c->groups.items + number;
    const tsr_str key = tsr_arena_format(c->s->arena, c->s->err, "%zu %.*s", number, TSR_STR_ARG(text));
    if (!key.data) return TSR_E_NOMEM;
    TSR_TRY(note(c, 'e', key, &unused, &fresh));
    g->names++;
    g->endings += fresh;
    return fresh ? add_piece(c, &c->endings, number, text) : TSR_OK;
}

/* Adds the member whose index is name[at, end) to the group before it. */
static tsr_status add_member(counter *c, tsr_str name, size_t at, size_t end, bool experts)
{
    size_t number;
    bool fresh;
    uint32_t unused = 0;
    const tsr_str member = {name.data, end};
    TSR_TRY(find_group(c, (tsr_str){name.data, at - 1}, experts, &number));
    TSR_TRY(note(c, 'm', member, &unused, &fresh));
    ((group *)c->groups.items)[number].members += fresh;
    if (!experts) return TSR_OK;
    if (fresh) TSR_TRY(add_piece(c, &c->members, number, member));
    return add_ending(c, number, tsr_str_after(name, end));
}

enum { EXPERTS, LAYERS, NEITHER };

static unsigned kind_of(tsr_str component)
{
    static const char *const layers[] = {"layers", "blocks", "h"};
    if (tsr_str_equal(component, TSR_STR("experts"))) return EXPERTS;
    for (unsigned i = 0; i < 3; i++)
        if (tsr_str_equal(component, tsr_str_from(layers[i]))) return LAYERS;
    return NEITHER;
}

/* Returns the component of the name that begins at `at`. *end is where it ends. */
static tsr_str component_at(tsr_str name, size_t at, size_t *end)
{
    for (*end = at; *end < name.size && name.data[*end] != '.';) ++*end;
    return (tsr_str){name.data + at, *end - at};
}

/* Adds a name to its groups, if they are of the `wanted` kind: EXPERTS, LAYERS, or NEITHER for both. */
static tsr_status add_name(counter *c, tsr_str name, unsigned wanted)
{
    bool fresh;
    uint32_t unused = 0;
    unsigned kind = NEITHER;
    TSR_TRY(note(c, 'n', name, &unused, &fresh));
    for (size_t at = 0, end; at < name.size; at = end + 1) {
        const tsr_str component = component_at(name, at, &end);
        const bool counts = kind != NEITHER && (wanted == NEITHER || wanted == kind);
        if (counts && is_index(component)) TSR_TRY(add_member(c, name, at, end, kind == EXPERTS));
        kind = kind_of(component);
    }
    return TSR_OK;
}

/* ---- comparison with each other ---- */

/* The "3" of "model.layers.3.mlp.gate.weight"; false if the name is not inside a layer. */
static bool find_layer(tsr_str name, tsr_str *index)
{
    unsigned kind = NEITHER;
    for (size_t at = 0, end; at < name.size; at = end + 1) {
        *index = component_at(name, at, &end);
        if (kind == LAYERS && is_index(*index)) return end < name.size;
        kind = kind_of(*index);
    }
    return false;
}

/* Returns "layer 3" for "model.layers.3.mlp.experts", or the prefix in quotes if it is not inside a layer. */
static tsr_str layer_of(const counter *c, tsr_str prefix)
{
    tsr_str index;
    if (find_layer(prefix, &index)) return tsr_arena_format(c->s->arena, c->s->err, "layer %.*s", TSR_STR_ARG(index));
    return tsr_arena_format(c->s->arena, c->s->err, "'%.*s'", TSR_STR_ARG(prefix));
}

/* Whether the member has a tensor with this ending. */
static tsr_status has_tensor(const counter *c, const piece *member, const piece *end, bool *has)
{
    const tsr_str name =
        tsr_arena_format(c->s->arena, c->s->err, "n%.*s%.*s", TSR_STR_ARG(member->text), TSR_STR_ARG(end->text));
    if (!name.data) return TSR_E_NOMEM;
    *has = tsr_map_get(c->known, name, UINT32_MAX) != UINT32_MAX;
    return TSR_OK;
}

static tsr_status refuse_tensor(const counter *c, const piece *member, const piece *end)
{
    const piece *members = c->members.items;
    const group *g = (const group *)c->groups.items + member->group;
    const tsr_str layer = layer_of(c, g->prefix);
    const tsr_str expert = {member->text.data + g->prefix.size + 1, member->text.size - g->prefix.size - 1};
    uint64_t have = 0;
    if (!layer.data) return TSR_E_NOMEM;
    for (size_t i = 0; i < c->members.count; i++) {
        bool has = false;
        if (members[i].group == end->group) TSR_TRY(has_tensor(c, &members[i], end, &has));
        have += has;
    }
    return tsr_fail(c->s->err, TSR_E_FORMAT,
                    "expert %.*s of %.*s does not have '%.*s%.*s', which %llu of the %llu experts there have",
                    TSR_STR_ARG(expert), TSR_STR_ARG(layer), TSR_STR_ARG(member->text), TSR_STR_ARG(end->text),
                    (unsigned long long)have, (unsigned long long)g->members);
}

/* Fails, naming the first weight that a member of group `number` lacks. */
static tsr_status refuse_missing(const counter *c, size_t number)
{
    for (size_t i = 0; i < c->members.count; i++) {
        const piece *member = (const piece *)c->members.items + i;
        for (size_t k = 0; k < c->endings.count && member->group == number; k++) {
            const piece *end = (const piece *)c->endings.items + k;
            bool has;
            if (end->group != number) continue;
            TSR_TRY(has_tensor(c, member, end, &has));
            if (!has) return refuse_tensor(c, member, end);
        }
    }
    return TSR_OK;
}

static tsr_status check_experts(const counter *c)
{
    const group *groups = c->groups.items;
    for (size_t i = 0; i < c->groups.count; i++)
        if (groups[i].experts && groups[i].names != groups[i].members * groups[i].endings) TSR_TRY(refuse_missing(c, i));
    return TSR_OK;
}

/* ---- comparison with config.json ---- */

/* Finds the first of `names` that config.json states as a number. */
static bool find_number(const tsr_mapped *m, const char *const *names, const char **name, uint64_t *out)
{
    for (; *names; names++) {
        const cJSON *item = tsr_mapped_stated(m, *names);
        if (!cJSON_IsNumber(item) || tsr_json_to_u64(item, *names, out, NULL) != TSR_OK) continue;
        *name = item->string;
        return true;
    }
    return false;
}

static tsr_status refuse_count(const counter *c, const group *g, const char *name, uint64_t stated)
{
    return tsr_fail(c->s->err, TSR_E_FORMAT, "'%.*s' has %llu %s%s, but %s of %s is %llu", TSR_STR_ARG(g->prefix),
                    (unsigned long long)g->members, g->experts ? "expert" : "layer", g->members == 1 ? "" : "s", name,
                    c->s->m->config_name, (unsigned long long)stated);
}

static tsr_status check_expert_counts(const counter *c)
{
    static const char *const names[] = {"num_experts", "num_local_experts", "n_routed_experts", NULL};
    const group *groups = c->groups.items;
    const char *name;
    uint64_t stated;
    if (!find_number(c->s->m, names, &name, &stated)) return TSR_OK;
    for (size_t i = 0; i < c->groups.count; i++)
        if (groups[i].experts && groups[i].members != stated) return refuse_count(c, &groups[i], name, stated);
    return TSR_OK;
}

/* It is enough that one group has the stated number: a model may have further towers, and layers that predict several tokens
 * follow the others. */
static tsr_status check_layer_counts(const counter *c)
{
    static const char *const names[] = {"num_hidden_layers", NULL}, *const more[] = {"num_nextn_predict_layers", NULL};
    const group *groups = c->groups.items, *largest = NULL;
    const char *name, *unused;
    uint64_t stated, following = 0;
    if (!find_number(c->s->m, names, &name, &stated)) return TSR_OK;
    if (!find_number(c->s->m, more, &unused, &following)) following = 0;
    for (size_t i = 0; i < c->groups.count; i++) {
        if (groups[i].experts) continue;
        if (groups[i].members == stated || groups[i].members == stated + following) return TSR_OK;
        if (!largest || groups[i].members > largest->members) largest = &groups[i];
    }
    return largest ? refuse_count(c, largest, name, stated) : TSR_OK;
}

/* ---- both checks ---- */

/* With "unmatched": "drop", a map concerns a part of the model, so only the names that rules take are checked. */
static bool is_whole(const tsr_matcher *s)
{
    return s->m->rules->unmatched != TSR_UNMATCHED_DROP;
}

static tsr_status add_matches(counter *c)
{
    const tsr_name_match *matches = c->s->matches.items;
    for (size_t i = 0; i < c->s->matches.count; i++)
        if (c->s->m->rules->rules[matches[i].rule].to_count) TSR_TRY(add_name(c, matches[i].entry->fqn, NEITHER));
    return TSR_OK;
}

static tsr_status add_sources(counter *c)
{
    const tsr_catalog *catalog = &c->s->m->source->catalog;
    if (!is_whole(c->s)) return add_matches(c);
    for (uint64_t i = 0; i < catalog->entry_count; i++) TSR_TRY(add_name(c, catalog->entries[i].fqn, NEITHER));
    return TSR_OK;
}

/* The kind of group that the rule takes out of stacks: EXPERTS, LAYERS or NEITHER. */
static unsigned unfolded_kind(const tsr_map_rule *rule)
{
    const tsr_name_pattern *to = &rule->to[0];
    for (uint32_t i = 1; i < to->count; i++)
        if (to->components[i].capture == rule->unfolded && to->components[i - 1].capture == TSR_NO_CAPTURE)
            return kind_of(to->components[i - 1].literal);
    return NEITHER;
}

/* Adds only names that come from stacks: other members of the same groups may be left out, or may come from several
 * rules. */
static tsr_status add_targets(counter *c)
{
    const tsr_mapped_row *rows = c->s->m->rows.items;
    for (size_t i = 0; i < c->s->m->rows.count; i++) {
        const tsr_map_rule *rule = rows[i].rule;
        const unsigned kind = rule && rule->unfolded != TSR_NO_CAPTURE ? unfolded_kind(rule) : NEITHER;
        if (kind != NEITHER) TSR_TRY(add_name(c, rows[i].entry.fqn, kind));
    }
    return TSR_OK;
}

static tsr_status check(tsr_matcher *s, tsr_status (*add)(counter *c))
{
    const tsr_allocator *allocator = s->m->own->host->allocator;
    counter c = {.s = s,
                 .groups = tsr_vec_of(allocator, sizeof(group)),
                 .members = tsr_vec_of(allocator, sizeof(piece)),
                 .endings = tsr_vec_of(allocator, sizeof(piece)),
                 .known = tsr_map_new(allocator, 0, s->err)};
    tsr_status status = c.known ? add(&c) : TSR_E_NOMEM;
    if (status == TSR_OK) status = check_experts(&c);
    if (status == TSR_OK && is_whole(s)) status = check_expert_counts(&c);
    if (status == TSR_OK && is_whole(s)) status = check_layer_counts(&c);
    tsr_map_free(c.known);
    tsr_vec_free(&c.groups);
    tsr_vec_free(&c.members);
    tsr_vec_free(&c.endings);
    return status;
}

/* Checks the layers and experts of the source, and those that rules took out of stacks. */
static tsr_status check_counts(tsr_matcher *s)
{
    TSR_TRY(check(s, add_sources));
    return check(s, add_targets);
}

/* ---- family ---- */

/* Checks that no expert and no layer lacks a weight that the others have, and the model none that every model has. */

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

static tsr_status family_note(tsr_matcher *s, tsr_str key)
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
        TSR_TRY(family_note(s, key_of(s, first->rule, pattern, TSR_STR(""))));
        TSR_TRY(family_note(s, key_of(s, first->rule, pattern, family->prefix)));
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

/* Checks that families with the same prefix have equally many members, in all patterns that begin alike ("….experts.{expert}.") and
 * match something. */
static tsr_status check_families(tsr_matcher *s)
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
    return tsr_str_after(path, *begin);
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
    if (!tsr_component_number(index, &number) || !number) return TSR_OK;
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

/* Checks that every layer has what the "layers" of the rules state, and that no layer between others is missing. */
static tsr_status check_layer_list(tsr_matcher *s)
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

tsr_status tsr_complete_check(tsr_matcher *s)
{
    TSR_TRY(check_families(s));
    TSR_TRY(check_counts(s));
    return check_layer_list(s);
}

/* ---- tied ---- */

/* Tensors that a map leaves out as the same ones as others, as config.json states: whether their values are the same. */

enum { PIECE = 1 << 20 };

/* Rows [first, first + rows) of a tensor, or the whole of one that has no dims. */
static tsr_box rows_of(const tsr_entry *entry, uint64_t first, uint64_t rows, uint64_t *numbers)
{
    for (uint32_t d = 0; d < entry->ndim; d++) numbers[d] = 0, numbers[TSR_MAX_NDIM + d] = entry->shape[d];
    if (entry->ndim) numbers[0] = first, numbers[TSR_MAX_NDIM] = rows;
    return (tsr_box){entry->ndim, numbers, numbers + TSR_MAX_NDIM};
}

static tsr_status check_repeats(tsr_checkpoint *source, const tsr_tied *tied, tsr_error *err)
{
    tsr_repeats repeats;
    tsr_repeats_open(&repeats, source);
    tsr_status status = tsr_repeats_add(&repeats, tied->left_out, NULL, NULL, NULL, err);
    if (status == TSR_OK) status = tsr_repeats_add(&repeats, tied->kept, NULL, NULL, NULL, err);
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, err);
    tsr_repeats_close(&repeats);
    return status;
}

static tsr_status refuse(const tsr_mapped *m, const tsr_tied *tied, uint64_t row, tsr_error *err)
{
    return tsr_fail(
        err, TSR_E_FORMAT,
        "tie_word_embeddings of %s is true, but '%.*s' and '%.*s' differ, first in row %llu; set it to false to keep both",
        m->config_name, TSR_STR_ARG(tied->left_out->fqn), TSR_STR_ARG(tied->kept->fqn), (unsigned long long)row);
}

static tsr_status tied_compare(const tsr_mapped *m, const tsr_tied *tied, uint64_t row_bytes, uint8_t *buffer,
                               tsr_error *err)
{
    const uint64_t count = tied->kept->ndim ? tied->kept->shape[0] : 1, most = row_bytes < PIECE ? PIECE / row_bytes : 1;
    uint64_t numbers[2 * TSR_MAX_NDIM];
    for (uint64_t row = 0; row < count; row += most) {
        const uint64_t rows = count - row < most ? count - row : most;
        const size_t size = (size_t)(rows * row_bytes);
        const tsr_box box = rows_of(tied->kept, row, rows, numbers);
        TSR_TRY(tsr_read_box(m->source, tied->kept, box, buffer, size, err));
        TSR_TRY(tsr_read_box(m->source, tied->left_out, box, buffer + size, size, err));
        for (uint64_t i = 0; i < rows; i++)
            if (memcmp(buffer + i * row_bytes, buffer + size + i * row_bytes, (size_t)row_bytes))
                return refuse(m, tied, row + i, err);
    }
    return TSR_OK;
}

static tsr_status tied_check(const tsr_mapped *m, tsr_error *err)
{
    const tsr_tied *tied = &m->tied;
    uint64_t bytes;
    TSR_TRY(tsr_tensor_bytes(tied->kept, &bytes, err));
    const uint64_t count = tied->kept->ndim ? tied->kept->shape[0] : 1, row_bytes = count ? bytes / count : 0;
    if (!row_bytes) return TSR_OK;
    TSR_TRY(check_repeats(m->source, tied, err));
    const size_t capacity = (size_t)(row_bytes < PIECE ? PIECE : row_bytes);
    uint8_t *buffer = tsr_alloc(m->own->host->allocator, 2 * capacity, 1, err);
    if (!buffer) return TSR_E_NOMEM;
    const tsr_status status = tied_compare(m, tied, row_bytes, buffer, err);
    tsr_free(m->own->host->allocator, buffer, 2 * capacity, 1);
    return status;
}

tsr_status tsr_mapping_check_tied(const tsr_checkpoint *mapped, tsr_error *err)
{
    for (const tsr_mapped *m = tsr_mapped_state(mapped); m; m = tsr_mapped_state(m->source))
        if (m->tied.left_out) TSR_TRY(tied_check(m, err));
    return TSR_OK;
}
