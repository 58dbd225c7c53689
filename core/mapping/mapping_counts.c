/* Checks that a model is complete: it has as many layers and experts as config.json states, and no expert lacks a weight
 * that the others have.
 *
 *   model.layers.3.mlp.experts . 7 . up_proj.weight
 *   group                       member  ending         A group ends with "experts", "layers", "blocks" or "h".
 *
 * Only names are considered, so that the result does not depend on how a map uses them. Without config.json a missing layer
 * is not noticed, because modules of a Sequential that have no parameters leave the same gaps. */
#include "codec/json.h"
#include "mapping/mapping_match.h"
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
        if (text.data[i] < '0' || text.data[i] > '9') return false;
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
    return add_ending(c, number, (tsr_str){name.data + end, name.size - end});
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

/* A name inside a layer in three parts, such as "model.layers.3", "3" and "mlp.gate.weight". */
typedef struct layered {
    tsr_str layer, index, rest;
} layered;

static bool find_layer(tsr_str name, layered *out)
{
    unsigned kind = NEITHER;
    for (size_t at = 0, end; at < name.size; at = end + 1) {
        out->index = component_at(name, at, &end);
        out->layer = (tsr_str){name.data, end};
        out->rest = (tsr_str){name.data + end + 1, name.size - end - 1};
        if (kind == LAYERS && is_index(out->index)) return end < name.size;
        kind = kind_of(out->index);
    }
    return false;
}

/* Returns "layer 3" for "model.layers.3.mlp.experts", or the prefix in quotes if it is not inside a layer. */
static tsr_str layer_of(const counter *c, tsr_str prefix)
{
    layered found;
    if (find_layer(prefix, &found)) return tsr_arena_format(c->s->arena, c->s->err, "layer %.*s", TSR_STR_ARG(found.index));
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

tsr_status tsr_counts_check(tsr_matcher *s)
{
    TSR_TRY(check(s, add_sources));
    return check(s, add_targets);
}
