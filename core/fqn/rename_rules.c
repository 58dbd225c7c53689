/* Finds a small set of renames that turns one set of names into another. Every pair proposes some. Those proposed by the
 * most pairs are tried first, and one is kept if no name that it matches would get a wrong name.
 *
 *   layers.0._orig_mod.fc.weight → layers.0.fc.weight
 *   prefix           layers.0._orig_mod.=layers.0.                 what comes before the common end
 *   longer prefix    layers.0._orig_mod.fc.=layers.0.fc.           and one component of the common end
 *   end              *._orig_mod.fc.weight=*.fc.weight             what comes after the common beginning
 *   whole name       layers.0._orig_mod.fc.weight=layers.0.fc.weight */
#include <stdlib.h>

#include "tessera/fqn.h"
#include "tessera/glob.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/try.h"

#define MOST_TRIED 256u /* proposals; each is tried on all names */

typedef struct proposal {
    tsr_str text; /* FROM=TO */
    size_t pairs;
} proposal;

typedef struct search {
    const tsr_name_pair *pairs;
    size_t count;
    tsr_arena *arena;
    tsr_map *proposed; /* text → proposal */
    tsr_vec proposals;
    tsr_map *taken; /* names that will exist: the wanted ones, and those without a counterpart */
    tsr_str *names; /* one per pair: what the rules so far make of it */
    bool *done;     /* one per pair */
    tsr_vec rules;  /* tsr_rename_rule */
} search;

/* The number of bytes in the longest common end that consists of whole components. */
static size_t common_end(tsr_str a, tsr_str b)
{
    size_t same = 0, whole = 0;
    while (same < a.size && same < b.size && a.data[a.size - 1 - same] == b.data[b.size - 1 - same]) {
        same++;
        bool a_edge = same == a.size || a.data[a.size - same - 1] == '.',
             b_edge = same == b.size || b.data[b.size - same - 1] == '.';
        if (a_edge && b_edge) whole = same;
    }
    return whole;
}

/* The number of bytes in the longest common beginning that consists of whole components, without its last dot. */
static size_t common_beginning(tsr_str a, tsr_str b)
{
    size_t whole = 0;
    for (size_t i = 0; i < a.size && i < b.size && a.data[i] == b.data[i]; i++) {
        if (a.data[i] == '.') whole = i;
    }
    return whole;
}

/* Whether names can be part of a rename: FROM ends at the first "=", and "*" has a special meaning. */
static bool can_spell(tsr_str from, tsr_str to)
{
    return (!from.size || (!memchr(from.data, '=', from.size) && !memchr(from.data, '*', from.size))) &&
           (!to.size || !memchr(to.data, '*', to.size));
}

static tsr_status propose(search *s, const char *star, tsr_str from, tsr_str to, tsr_error *err)
{
    uint32_t *at;
    bool fresh;
    if (!can_spell(from, to)) return TSR_OK;
    tsr_str text = tsr_arena_format(s->arena, err, "%s%.*s=%s%.*s", star, TSR_STR_ARG(from), star, TSR_STR_ARG(to));
    if (!text.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(s->proposed, text, (uint32_t)s->proposals.count, &at, &fresh, err));
    proposal *p = fresh ? tsr_vec_push(&s->proposals, err) : (proposal *)s->proposals.items + *at;
    if (!p) return TSR_E_NOMEM;
    p->text = text;
    p->pairs++;
    return TSR_OK;
}

static tsr_str head(tsr_str name, size_t size)
{
    return (tsr_str){name.data, size};
}

static tsr_status propose_all(search *s, tsr_str a, tsr_str b, tsr_error *err)
{
    size_t end = common_end(a, b), beginning = common_beginning(a, b);
    const char *dot = end ? memchr(a.data + a.size - end, '.', end) : NULL;
    TSR_TRY(propose(s, "", head(a, a.size - end), head(b, b.size - end), err));
    if (dot) {
        size_t left = (size_t)(a.data + a.size - dot) - 1;
        TSR_TRY(propose(s, "", head(a, a.size - left), head(b, b.size - left), err));
    }
    if (beginning) {
        TSR_TRY(propose(s, "*", tsr_str_after(a, beginning), tsr_str_after(b, beginning), err));
    }
    return propose(s, "", a, b, err);
}

/* Tries a rename on all names. Counts how many open pairs it settles, and clears *sound if any name would become wrong. */
static tsr_status try_rename(const search *s, const tsr_rename *rename, tsr_arena *scratch, size_t *settled, bool *sound,
                             tsr_error *err)
{
    *settled = 0;
    *sound = true;
    for (size_t i = 0; i < s->count && *sound; i++) {
        const tsr_name_pair *pair = &s->pairs[i];
        tsr_str name;
        TSR_TRY(tsr_rename_apply(rename, 1, s->names[i], scratch, &name, err));
        if (name.data == s->names[i].data) continue; /* the rename does not match */
        if (pair->to.data) *sound = tsr_str_equal(name, pair->to);
        else *sound = rename->from_head.size + rename->from_tail.size > 0 && !tsr_map_get(s->taken, name, 0);
        *settled += *sound && pair->to.data && !s->done[i];
    }
    return TSR_OK;
}

static tsr_status keep(search *s, const tsr_rename *rename, tsr_str text, size_t settled, tsr_error *err)
{
    tsr_rename_rule *rule = tsr_vec_push(&s->rules, err);
    if (!rule) return TSR_E_NOMEM;
    *rule = (tsr_rename_rule){text, settled};
    for (size_t i = 0; i < s->count; i++) {
        const tsr_str before = s->names[i];
        TSR_TRY(tsr_rename_apply(rename, 1, before, s->arena, &s->names[i], err));
        if (s->names[i].data != before.data) s->done[i] = true;
    }
    return TSR_OK;
}

static tsr_status try_proposal(search *s, const proposal *p, bool *kept, tsr_error *err)
{
    tsr_rename rename;
    size_t settled;
    bool sound;
    tsr_arena *scratch = tsr_arena_new(tsr_arena_allocator(s->arena), 0, err);
    tsr_status status = scratch ? tsr_rename_parse(p->text, &rename, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = try_rename(s, &rename, scratch, &settled, &sound, err);
    *kept = status == TSR_OK && sound && settled;
    if (*kept) status = keep(s, &rename, p->text, settled, err);
    tsr_arena_free(scratch);
    return status;
}

static int most_first(const void *left, const void *right)
{
    const proposal *a = left, *b = right;
    if (a->pairs != b->pairs) return a->pairs > b->pairs ? -1 : 1;
    if (a->text.size != b->text.size) return a->text.size < b->text.size ? -1 : 1;
    return tsr_str_compare(a->text, b->text);
}

static tsr_status run(search *s, tsr_error *err)
{
    size_t open = 0;
    for (size_t i = 0; i < s->count; i++) {
        const tsr_name_pair *pair = &s->pairs[i];
        TSR_TRY(tsr_map_put(s->taken, pair->to.data ? pair->to : pair->from, 1, NULL, NULL, err));
        s->names[i] = pair->from;
        s->done[i] = !pair->to.data || tsr_str_equal(pair->from, pair->to);
        open += !s->done[i];
        if (!s->done[i]) TSR_TRY(propose_all(s, pair->from, pair->to, err));
    }
    proposal *proposals = s->proposals.items;
    if (s->proposals.count) qsort(proposals, s->proposals.count, sizeof *proposals, most_first);
    for (size_t i = 0, tried = 0; i < s->proposals.count && open && tried < MOST_TRIED; i++, tried++) {
        bool kept;
        TSR_TRY(try_proposal(s, &proposals[i], &kept, err));
        if (kept) open -= ((tsr_rename_rule *)s->rules.items)[s->rules.count - 1].names;
    }
    return TSR_OK;
}

tsr_status tsr_fqn_rename_rules(const tsr_name_pair *pairs, size_t count, tsr_arena *arena, tsr_rename_rule **out,
                                size_t *out_count, tsr_error *err)
{
    const tsr_allocator *a = tsr_arena_allocator(arena);
    search s = {.pairs = pairs,
                .count = count,
                .arena = arena,
                .proposed = tsr_map_new(a, 0, err),
                .proposals = tsr_vec_of(a, sizeof(proposal)),
                .taken = tsr_map_new(a, count, err),
                .names = tsr_arena_array(arena, count, sizeof(tsr_str), err),
                .done = tsr_arena_array(arena, count, sizeof(bool), err),
                .rules = tsr_vec_of(a, sizeof(tsr_rename_rule))};
    tsr_status status = s.proposed && s.taken && s.names && s.done ? run(&s, err) : TSR_E_NOMEM;
    if (status == TSR_OK) {
        *out_count = s.rules.count;
        *out = tsr_arena_array(arena, *out_count, sizeof **out, err);
        if (*out && *out_count) memcpy(*out, s.rules.items, *out_count * sizeof **out);
        status = *out ? TSR_OK : TSR_E_NOMEM;
    }
    tsr_vec_free(&s.rules);
    tsr_map_free(s.taken);
    tsr_vec_free(&s.proposals);
    tsr_map_free(s.proposed);
    return status;
}
