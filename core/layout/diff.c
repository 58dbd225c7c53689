/* Matches two catalogs by name, using a hash map over B's names and one pass over each side. */
#include "tessera/diff.h"

#include "layout/box_set.h"
#include "layout/diff_renames.h"
#include "tessera/box.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/options.h"
#include "tessera/sys/stored_optimizers.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

#define ABSENT UINT32_MAX

typedef struct side {
    const tsr_catalog *catalog;
    tsr_str *names; /* the names by which the entries are matched */
    tsr_map *index; /* name → entry number */
} side;

typedef struct job {
    const tsr_diff_options *options;
    const tsr_host *host;
    tsr_arena *arena;
    side a, b;
} job;

static tsr_status read_names(const job *j, side *s, tsr_error *err)
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

static bool same_object(const job *j, const tsr_entry *a, const tsr_entry *b)
{
    const tsr_limits *limits = &j->host->limits;
    if (!a->value || !b->value) return a->value == b->value && tsr_str_equal(a->type, b->type);
    return tsr_value_match(a->value, b->value, limits->depth, limits->expansion) == TSR_SAME;
}

static bool keeps_keys(const side *s, const tsr_entry *entry)
{
    return tsr_format_keeps_keys(tsr_entry_format(s->catalog, (uint64_t)(entry - s->catalog->entries)));
}

static tsr_status compare_pair(const job *j, tsr_diff_pair *pair, tsr_error *err)
{
    const tsr_entry *a = pair->a, *b = pair->b;
    if (tsr_path_other_type(a, b) && keeps_keys(&j->a, a) && keeps_keys(&j->b, b)) pair->what |= TSR_DIFF_KEY;
    if (a->kind == TSR_ENTRY_TENSOR && b->kind == TSR_ENTRY_TENSOR) return compare_tensors(j, pair, err);
    if (a->kind != b->kind || (!j->options->skip_objects && !same_object(j, a, b))) pair->what |= TSR_DIFF_OBJECT;
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
static tsr_status list_unmatched(const job *j, const side *s, const tsr_entry *const *entries, uint64_t count,
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
    return tsr_diff_suggest_renames(j->host, j->arena, removed, added, out, err);
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
