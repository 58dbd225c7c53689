/* Matches two catalogs by name, using a hash map over B's names and one pass over each side. */
#include "tessera/diff.h"

#include <stdlib.h>

#include "layout/shard.h"
#include "tessera/box.h"
#include "tessera/host.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/options.h"
#include "tessera/sys/stored_optimizers.h"
#include "tessera/sys/try.h"

/* An unmatched entry of one side, with the name by which it is compared, and its dtype and shape in PyTorch's elements. */
typedef struct tsr_unmatched {
    const tsr_entry *entry;
    tsr_str name;
    uint64_t kind; /* hash of dtype and shape */
    bool taken;
} tsr_unmatched;

typedef struct tsr_unmatched_list {
    tsr_unmatched *items;
    size_t count;
} tsr_unmatched_list;

/* ---- diff renames ---- */

/* Suggests which tensors were renamed. Each relation between names defines keys such that related names have a key in
 * common. If exactly one removed and one added tensor have a key, they become a suggestion:
 *
 *   prefix      module.fc.weight → fc.weight        keys: the whole name against all dotted tails
 *   component   h.0.attn.weight → h.0.attention.weight    keys: the name with one component blanked
 *   only one    tok.weight → embed.tokens.weight    key: the last component
 *
 * Strong relations are tried first, and weaker ones only consider the tensors that are left. */

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
    tsr_diff_rename *found; /* of each removed tensor; without `a` if there is none */
} search;

static tsr_status add_key(search *s, bool is_added, size_t at, tsr_str head, tsr_str tail, tsr_error *err)
{
    key *k = tsr_vec_push(&s->keys, err);
    if (!k) return TSR_E_NOMEM;
    uint64_t hash = tsr_hash_bytes(tail.data, tail.size, s->sides[is_added].items[at].kind);
    *k = (key){tsr_hash_bytes(head.data, head.size, hash), (uint32_t)at, is_added};
    return TSR_OK;
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
static tsr_status key_prefixes(search *s, bool is_added, size_t i, tsr_str name, bool whole, tsr_error *err)
{
    const tsr_str none = {NULL, 0};
    if (whole) return add_key(s, is_added, i, none, name, err);
    size_t at = next_component(name, 0);
    for (unsigned n = 0; at <= name.size && n < MOST_COMPONENTS; n++, at = next_component(name, at))
        TSR_TRY(add_key(s, is_added, i, none, tsr_str_after(name, at), err));
    return TSR_OK;
}

static tsr_status key_components(search *s, bool is_added, size_t i, tsr_str name, bool whole, tsr_error *err)
{
    (void)whole;
    size_t at = 0;
    for (unsigned n = 0; at <= name.size && n < MOST_COMPONENTS; n++) {
        const size_t next = next_component(name, at);
        TSR_TRY(add_key(s, is_added, i, until(name, at), next <= name.size ? tsr_str_after(name, next - 1) : TSR_STR("end"),
                        err));
        at = next;
    }
    return TSR_OK;
}

static tsr_status key_last(search *s, bool is_added, size_t i, tsr_str name, bool whole, tsr_error *err)
{
    (void)whole;
    return add_key(s, is_added, i, (tsr_str){NULL, 0}, tsr_last_component(name), err);
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
                       (a_next > a.size || (b.size - b_next == tail && tsr_str_ends(b, tsr_str_after(a, a_next))));
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
    /* Adds the keys of a tensor's name. */
    tsr_status (*keys)(search *s, bool is_added, size_t i, tsr_str name, bool whole, tsr_error *err);
    tsr_str (*explain)(search *s, tsr_str a, tsr_str b, tsr_error *err);
    bool whole_side; /* the side whose names are `whole` */
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
    s->found[pair[0].at] = (tsr_diff_rename){a->entry, b->entry, why};
    a->taken = b->taken = true;
    return TSR_OK;
}

static tsr_status apply(search *s, const relation *r, tsr_error *err)
{
    s->keys.count = 0;
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < s->sides[side].count; i++) {
            const tsr_unmatched *item = &s->sides[side].items[i];
            if (!item->taken) TSR_TRY(r->keys(s, side, i, item->name, side == r->whole_side, err));
        }
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

/* Fills diff->renamed, in A's order, from the tensors that are only in A and only in B. A suggestion requires the same dtype
 * and shape, and names with a relation that no other pair has: one is the other with a prefix; they differ in one component;
 * or no others have the same dtype, shape and last component. O(n log n) in the number of components of all names. */
static tsr_status diff_suggest_renames(const tsr_host *host, tsr_arena *arena, tsr_unmatched_list removed,
                                       tsr_unmatched_list added, tsr_diff *diff, tsr_error *err)
{
    if (removed.count == 0 || added.count == 0) return TSR_OK;
    search s = {arena, {removed, added}, tsr_vec_of(host->allocator, sizeof(key)), NULL};
    s.found = tsr_arena_array(arena, removed.count, sizeof *s.found, err);
    tsr_status status = s.found ? apply_all(&s, err) : TSR_E_NOMEM;
    tsr_vec_free(&s.keys);
    if (status != TSR_OK) return status;
    diff->renamed = s.found;
    for (size_t i = 0; i < removed.count; i++) {
        if (s.found[i].a) diff->renamed[diff->renamed_count++] = s.found[i];
    }
    return TSR_OK;
}

/* ---- diff ---- */

#define ABSENT UINT32_MAX

typedef struct diff_side {
    const tsr_catalog *catalog;
    tsr_str *names; /* the names by which the entries are matched */
    tsr_map *index; /* name → entry number */
} diff_side;

typedef struct job {
    const tsr_diff_options *options;
    const tsr_host *host;
    tsr_arena *arena;
    diff_side a, b;
} job;

static tsr_status read_names(const job *j, diff_side *s, tsr_error *err)
{
    const tsr_diff_options *o = j->options;
    uint64_t count = s->catalog->entry_count;
    s->names = tsr_arena_array(j->arena, count, sizeof *s->names, err);
    s->index = s->names ? tsr_map_new(j->host->allocator, count, err) : NULL;
    if (!s->index) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t *first;
        bool inserted;
        tsr_str fqn = s->catalog->entries[i].fqn;
        s->names[i] = fqn;
        if (o->canonical) TSR_TRY(o->canonical(o->canonical_ctx, fqn, j->arena, &s->names[i], err));
        TSR_TRY(tsr_map_put(s->index, s->names[i], (uint32_t)i, &first, &inserted, err));
        TSR_FAIL_IF(!inserted, err, TSR_E_USAGE, "'%.*s' and '%.*s' both become '%.*s'",
                    TSR_STR_ARG(s->catalog->entries[*first].fqn), TSR_STR_ARG(fqn), TSR_STR_ARG(s->names[i]));
    }
    return TSR_OK;
}

/* The dtype and the size of the last dimension in PyTorch's elements, so that float4 tensors match whether they are counted
 * in pairs or not. */
static tsr_dtype packed(const tsr_entry *entry, uint64_t *last_size)
{
    tsr_dtype dtype = entry->dtype;
    *last_size = entry->ndim ? entry->shape[entry->ndim - 1] : 0;
    if (entry->ndim) tsr_dtype_pack(&dtype, last_size);
    return dtype;
}

static bool same_shape(const tsr_entry *a, const tsr_entry *b)
{
    uint64_t a_last, b_last;
    packed(a, &a_last);
    packed(b, &b_last);
    if (a->ndim != b->ndim || a_last != b_last) return false;
    for (uint32_t d = 0; d + 1 < a->ndim; d++) {
        if (a->shape[d] != b->shape[d]) return false;
    }
    return true;
}

static tsr_status compare_tensors(const job *j, tsr_diff_pair *pair, tsr_error *err)
{
    uint64_t last;
    bool same_boxes = true;
    if (packed(pair->a, &last) != packed(pair->b, &last)) pair->what |= TSR_DIFF_DTYPE;
    if (!same_shape(pair->a, pair->b)) {
        pair->what |= TSR_DIFF_SHAPE;
    } else if (j->options->layout) {
        TSR_TRY(tsr_box_sets_equal(j->host->allocator, pair->a, pair->b, &same_boxes, err));
    }
    if (!same_boxes) pair->what |= TSR_DIFF_LAYOUT;
    return TSR_OK;
}

/* The value of an object as it is compared. */
static tsr_status value_of(const job *j, const tsr_entry *entry, const tsr_value **out, tsr_error *err)
{
    const tsr_diff_options *o = j->options;
    *out = entry->value;
    return o->canonical_value && entry->value ? o->canonical_value(o->canonical_ctx, entry, j->arena, out, err) : TSR_OK;
}

static tsr_status same_object(const job *j, const tsr_entry *a, const tsr_entry *b, bool *same, tsr_error *err)
{
    const tsr_limits *limits = &j->host->limits;
    const tsr_value *x, *y;
    *same = a->value == b->value && tsr_str_equal(a->type, b->type);
    if (!a->value || !b->value) return TSR_OK;
    TSR_TRY(value_of(j, a, &x, err));
    TSR_TRY(value_of(j, b, &y, err));
    *same = tsr_value_match(x, y, limits->depth, limits->expansion) == TSR_SAME;
    return TSR_OK;
}

static bool keeps_keys(const diff_side *s, const tsr_entry *entry)
{
    return tsr_format_keeps_keys(tsr_entry_format(s->catalog, (uint64_t)(entry - s->catalog->entries)));
}

static tsr_status compare_pair(const job *j, tsr_diff_pair *pair, tsr_error *err)
{
    const tsr_entry *a = pair->a, *b = pair->b;
    if (tsr_path_other_type(a, b) && keeps_keys(&j->a, a) && keeps_keys(&j->b, b)) pair->what |= TSR_DIFF_KEY;
    if (a->kind == TSR_ENTRY_TENSOR && b->kind == TSR_ENTRY_TENSOR) return compare_tensors(j, pair, err);
    bool same = a->kind == b->kind;
    if (same && !j->options->skip_objects) TSR_TRY(same_object(j, a, b, &same, err));
    if (!same) pair->what |= TSR_DIFF_OBJECT;
    return TSR_OK;
}

static tsr_status match_entries(const job *j, tsr_diff *out, tsr_error *err)
{
    const tsr_catalog *a = j->a.catalog, *b = j->b.catalog;
    out->pairs = tsr_arena_array(j->arena, a->entry_count, sizeof *out->pairs, err);
    out->removed = out->pairs ? tsr_arena_array(j->arena, a->entry_count, sizeof *out->removed, err) : NULL;
    out->added = out->removed ? tsr_arena_array(j->arena, b->entry_count, sizeof *out->added, err) : NULL;
    if (!out->added) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < a->entry_count; i++) {
        uint32_t at = tsr_map_get(j->b.index, j->a.names[i], ABSENT);
        if (at == ABSENT) {
            out->removed[out->removed_count++] = &a->entries[i];
        } else {
            tsr_diff_pair *pair = &out->pairs[out->pair_count++];
            *pair = (tsr_diff_pair){&a->entries[i], &b->entries[at], 0};
            TSR_TRY(compare_pair(j, pair, err));
        }
    }
    for (uint64_t i = 0; i < b->entry_count; i++) {
        if (tsr_map_get(j->a.index, j->b.names[i], ABSENT) == ABSENT) out->added[out->added_count++] = &b->entries[i];
    }
    return TSR_OK;
}

/* Lists the tensors among one side's unmatched entries. */
static tsr_status list_unmatched(const job *j, const diff_side *s, const tsr_entry *const *entries, uint64_t count,
                                 tsr_unmatched_list *out, tsr_error *err)
{
    *out = (tsr_unmatched_list){tsr_arena_array(j->arena, count, sizeof *out->items, err), 0};
    if (!out->items) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < count; i++) {
        const tsr_entry *entry = entries[i];
        uint64_t last, kind;
        if (entry->kind != TSR_ENTRY_TENSOR) continue;
        kind = tsr_hash_bytes(entry->shape, (entry->ndim ? entry->ndim - 1 : 0) * sizeof *entry->shape,
                              packed(entry, &last) + ((uint64_t)entry->ndim << 32));
        kind = tsr_hash_bytes(&last, sizeof last, kind);
        out->items[out->count++] = (tsr_unmatched){entry, s->names[entry - s->catalog->entries], kind, false};
    }
    return TSR_OK;
}

/* A file without a format is a file of PyTorch. */
static bool is_default(const tsr_text_pair *pair)
{
    return tsr_str_equal(pair->key, TSR_STR("format")) && tsr_str_equal(pair->value, TSR_STR("pt"));
}

static void add_text(tsr_diff *out, const tsr_text_pair *a, const tsr_text_pair *b)
{
    if ((!a || !b) && is_default(a ? a : b)) return;
    if (!a || !b || !tsr_str_equal(a->value, b->value)) out->metadata[out->metadata_count++] = (tsr_diff_text){a, b};
}

static tsr_status index_pairs(const tsr_catalog *catalog, const tsr_host *host, tsr_map **out, tsr_error *err)
{
    *out = tsr_map_new(host->allocator, catalog->metadata_count, err);
    tsr_status status = *out ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < catalog->metadata_count && status == TSR_OK; i++)
        status = tsr_map_put(*out, catalog->metadata[i].key, (uint32_t)i, NULL, NULL, err);
    return status;
}

static tsr_status compare_metadata(const job *j, tsr_diff *out, tsr_error *err)
{
    const tsr_catalog *a = j->a.catalog, *b = j->b.catalog;
    tsr_map *in_a = NULL, *in_b = NULL;
    out->metadata = tsr_arena_array(j->arena, a->metadata_count + b->metadata_count, sizeof *out->metadata, err);
    tsr_status status = out->metadata ? index_pairs(a, j->host, &in_a, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = index_pairs(b, j->host, &in_b, err);
    for (size_t i = 0; i < a->metadata_count && status == TSR_OK; i++) {
        const uint32_t at = tsr_map_get(in_b, a->metadata[i].key, ABSENT);
        add_text(out, &a->metadata[i], at == ABSENT ? NULL : &b->metadata[at]);
    }
    for (size_t i = 0; i < b->metadata_count && status == TSR_OK; i++)
        if (tsr_map_get(in_a, b->metadata[i].key, ABSENT) == ABSENT) add_text(out, NULL, &b->metadata[i]);
    tsr_map_free(in_a);
    tsr_map_free(in_b);
    return status;
}

static tsr_status run(job *j, tsr_diff *out, tsr_error *err)
{
    tsr_unmatched_list removed, added;
    TSR_TRY(compare_metadata(j, out, err));
    TSR_TRY(read_names(j, &j->a, err));
    TSR_TRY(read_names(j, &j->b, err));
    TSR_TRY(match_entries(j, out, err));
    TSR_TRY(list_unmatched(j, &j->a, out->removed, out->removed_count, &removed, err));
    TSR_TRY(list_unmatched(j, &j->b, out->added, out->added_count, &added, err));
    return diff_suggest_renames(j->host, j->arena, removed, added, out, err);
}

tsr_status tsr_diff_catalogs(tsr_catalog_pair of, const tsr_diff_options *options, const tsr_host *host, tsr_arena *arena,
                             tsr_diff *out, tsr_error *err)
{
    tsr_diff_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_diff_options, err));
    job j = {&own, host, arena, {of.a, NULL, NULL}, {of.b, NULL, NULL}};
    memset(out, 0, sizeof *out);
    tsr_status status = run(&j, out, err);
    tsr_map_free(j.a.index);
    tsr_map_free(j.b.index);
    return status;
}

bool tsr_diff_is_same(const tsr_diff *diff)
{
    if (diff->added_count || diff->removed_count) return false;
    for (uint64_t i = 0; i < diff->pair_count; i++) {
        if (diff->pairs[i].what) return false;
    }
    return true;
}
