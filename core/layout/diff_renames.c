/* Suggests which tensors were renamed. Each relation between names defines keys such that related names have a key in
 * common. If exactly one removed and one added tensor have a key, they become a suggestion:
 *
 *   prefix      module.fc.weight → fc.weight        keys: the whole name against all dotted tails
 *   component   h.0.attn.weight → h.0.attention.weight    keys: the name with one component blanked
 *   only one    tok.weight → embed.tokens.weight    key: the last component
 *
 * Strong relations are tried first, and weaker ones only consider the tensors that are left. */
#include "layout/diff_renames.h"

#include <stdlib.h>

#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

#define MOST_COMPONENTS 64u /* in a name; the rest of a longer one is not split */

typedef struct key {
    uint64_t hash;
    uint32_t at;
    bool is_added;
} key;

typedef struct search {
    tsr_arena *arena;
    tsr_unmatched_list sides[2]; /* removed, added */
    tsr_vec keys;
    tsr_vec found; /* of tsr_diff_rename */
} search;

static tsr_status add_key(search *s, bool is_added, size_t at, tsr_str head, tsr_str tail, tsr_error *err)
{
    key *k = tsr_vec_push(&s->keys, err);
    if (!k) return TSR_E_NOMEM;
    uint64_t hash = tsr_hash_bytes(tail.data, tail.size, s->sides[is_added].items[at].kind);
    *k = (key){tsr_hash_bytes(head.data, head.size, hash), (uint32_t)at, is_added};
    return TSR_OK;
}

static tsr_str from(tsr_str name, size_t at)
{
    return (tsr_str){name.data + at, name.size - at};
}
static tsr_str until(tsr_str name, size_t at)
{
    return (tsr_str){name.data, at};
}

/* The position after the next dot at or after `at`; size + 1 if there is none. */
static size_t next_component(tsr_str name, size_t at)
{
    const char *dot = at < name.size ? memchr(name.data + at, '.', name.size - at) : NULL;
    return dot ? (size_t)(dot - name.data) + 1 : name.size + 1;
}

/* Adds whole names of one side, and the dotted tails of the names of the other side, as keys. */
static tsr_status key_prefixes(search *s, bool whole_side, tsr_error *err)
{
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < s->sides[side].count; i++) {
            tsr_str name = s->sides[side].items[i].name, none = {NULL, 0};
            if (s->sides[side].items[i].taken) continue;
            if (side == whole_side) {
                TSR_TRY(add_key(s, side, i, none, name, err));
                continue;
            }
            size_t at = next_component(name, 0);
            for (unsigned n = 0; at <= name.size && n < MOST_COMPONENTS; n++, at = next_component(name, at)) {
                TSR_TRY(add_key(s, side, i, none, from(name, at), err));
            }
        }
    }
    return TSR_OK;
}

static tsr_status key_components(search *s, bool whole_side, tsr_error *err)
{
    (void)whole_side;
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < s->sides[side].count; i++) {
            tsr_str name = s->sides[side].items[i].name;
            if (s->sides[side].items[i].taken) continue;
            size_t at = 0;
            for (unsigned n = 0; at <= name.size && n < MOST_COMPONENTS; n++) {
                size_t next = next_component(name, at);
                TSR_TRY(
                    add_key(s, side, i, until(name, at), next <= name.size ? from(name, next - 1) : TSR_STR("end"), err));
                at = next;
            }
        }
    }
    return TSR_OK;
}

static tsr_status key_last(search *s, bool whole_side, tsr_error *err)
{
    (void)whole_side;
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < s->sides[side].count; i++) {
            tsr_str name = s->sides[side].items[i].name, none = {NULL, 0};
            if (s->sides[side].items[i].taken) continue;
            TSR_TRY(add_key(s, side, i, none, tsr_last_component(name), err));
        }
    }
    return TSR_OK;
}

/* Says how the names are related. Empty if only their hashes are equal. */
static tsr_str explain_prefix(search *s, tsr_str a, tsr_str b, tsr_error *err)
{
    tsr_str longer = a.size > b.size ? a : b, shorter = a.size > b.size ? b : a;
    if (longer.size <= shorter.size || !tsr_str_ends(longer, shorter)) return (tsr_str){NULL, 0};
    tsr_str prefix = until(longer, longer.size - shorter.size);
    return tsr_arena_format(s->arena, err, "the same name %s '%.*s', with the same dtype and shape",
                            a.size > b.size ? "without" : "after", TSR_STR_ARG(prefix));
}

static tsr_str explain_component(search *s, tsr_str a, tsr_str b, tsr_error *err)
{
    size_t same = 0, at = 0, tail = 0;
    while (same < a.size && same < b.size && a.data[same] == b.data[same]) {
        if (a.data[same++] == '.') at = same;
    }
    size_t a_next = next_component(a, at), b_next = next_component(b, at);
    tail = a_next <= a.size ? a.size - a_next : 0;
    bool equal_tails = (a_next <= a.size) == (b_next <= b.size) &&
                       (a_next > a.size || (b.size - b_next == tail && tsr_str_ends(b, from(a, a_next))));
    if (!equal_tails) return (tsr_str){NULL, 0};
    tsr_str was = {a.data + at, a_next - 1 - at}, is = {b.data + at, b_next - 1 - at};
    return tsr_arena_format(s->arena, err, "one component differs ('%.*s' and '%.*s'), with the same dtype and shape",
                            TSR_STR_ARG(was), TSR_STR_ARG(is));
}

static tsr_str explain_last(search *s, tsr_str a, tsr_str b, tsr_error *err)
{
    tsr_str last = tsr_last_component(a);
    if (!tsr_str_equal(last, tsr_last_component(b))) return (tsr_str){NULL, 0};
    return tsr_arena_format(s->arena, err, "it is the only '%.*s' of this dtype and shape that was removed and added",
                            TSR_STR_ARG(last));
}

typedef struct relation {
    tsr_status (*keys)(search *s, bool whole_side, tsr_error *err);
    tsr_str (*explain)(search *s, tsr_str a, tsr_str b, tsr_error *err);
    bool whole_side;
} relation;

static int compare_keys(const void *left, const void *right)
{
    const key *a = left, *b = right;
    if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
    if (a->is_added != b->is_added) return a->is_added ? 1 : -1;
    return (a->at > b->at) - (a->at < b->at);
}

static tsr_status take_pair(search *s, const relation *r, const key *pair, tsr_error *err)
{
    tsr_unmatched *a = &s->sides[0].items[pair[0].at], *b = &s->sides[1].items[pair[1].at];
    if (pair[0].is_added || !pair[1].is_added || a->taken || b->taken || a->kind != b->kind) return TSR_OK;
    tsr_error local = {0};
    tsr_str why = r->explain(s, a->name, b->name, &local);
    TSR_FAIL_IF(local.status, err, local.status, "%s", local.message);
    if (why.size == 0) return TSR_OK;
    tsr_diff_rename *rename = tsr_vec_push(&s->found, err);
    if (!rename) return TSR_E_NOMEM;
    *rename = (tsr_diff_rename){a->entry, b->entry, why};
    a->taken = b->taken = true;
    return TSR_OK;
}

static tsr_status apply(search *s, const relation *r, tsr_error *err)
{
    s->keys.count = 0;
    TSR_TRY(r->keys(s, r->whole_side, err));
    key *keys = s->keys.items;
    size_t count = s->keys.count;
    if (count) qsort(keys, count, sizeof *keys, compare_keys);
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && keys[end].hash == keys[i].hash;) end++;
        if (end - i == 2) TSR_TRY(take_pair(s, r, &keys[i], err));
    }
    return TSR_OK;
}

static tsr_status apply_all(search *s, tsr_error *err)
{
    static const relation relations[] = {
        {key_prefixes, explain_prefix, false},
        {key_prefixes, explain_prefix, true},
        {key_components, explain_component, false},
        {key_last, explain_last, false},
    };
    for (size_t i = 0; i < sizeof relations / sizeof relations[0]; i++) TSR_TRY(apply(s, &relations[i], err));
    return TSR_OK;
}

tsr_status tsr_diff_suggest_renames(const tsr_host *host, tsr_arena *arena, tsr_unmatched_list removed,
                                    tsr_unmatched_list added, tsr_diff *diff, tsr_error *err)
{
    if (removed.count == 0 || added.count == 0) return TSR_OK;
    search s = {arena, {removed, added}, {0}, {0}};
    s.keys = tsr_vec_of(host->allocator, sizeof(key));
    s.found = tsr_vec_of(host->allocator, sizeof(tsr_diff_rename));
    tsr_status status = apply_all(&s, err);
    if (status == TSR_OK && s.found.count) {
        diff->renamed = tsr_arena_array(arena, s.found.count, sizeof *diff->renamed, err);
        diff->renamed_count = diff->renamed ? s.found.count : 0;
        if (diff->renamed) memcpy(diff->renamed, s.found.items, s.found.count * sizeof *diff->renamed);
        status = diff->renamed ? TSR_OK : TSR_E_NOMEM;
    }
    tsr_vec_free(&s.keys);
    tsr_vec_free(&s.found);
    return status;
}
