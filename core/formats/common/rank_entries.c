/* Collects which rank holds which entry while the ranks' files are read, then groups the holders by entry, each group in
 * order of ranks. */
#include "formats/common/rank_entries.h"

#include <stdlib.h>

#include "formats/common/rank_bytes.h"
#include "formats/common/shown_names.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

enum { MATCH_DEPTH = 256, MAX_READS = 16 };

typedef struct holder {
    uint32_t number, rank;
    const tsr_entry *entry;
} holder;

/* The holders of one name. */
typedef struct group {
    const holder *holders;
    uint32_t count;
} group;

typedef struct settling {
    tsr_rank_entries *ranks;
    tsr_map *stages; /* the sets of ranks that hold some sharded tensor, if not all ranks do */
    tsr_shown_names differing;
    /* How many bytes may still be compared: many views of one storage must not cost more than a few times the files'
     * bytes. */
    uint64_t bytes_left;
    tsr_error *err;
} settling;

tsr_status tsr_rank_entries_add(tsr_rank_entries *ranks, uint32_t number, uint32_t rank, const tsr_entry *entry,
                                tsr_error *err)
{
    if (!ranks->holders.items) ranks->holders = tsr_vec_of(ranks->checkpoint->host->allocator, sizeof(holder));
    holder *added = tsr_vec_push(&ranks->holders, err);
    if (!added) return TSR_E_NOMEM;
    *added = (holder){number, rank, entry};
    if (entry->is_sharded) ranks->sharded = true;
    return TSR_OK;
}

void tsr_rank_entries_close(tsr_rank_entries *ranks)
{
    if (ranks->holders.items) tsr_vec_free(&ranks->holders);
}

static int by_number(const void *left, const void *right)
{
    const holder *a = left, *b = right;
    if (a->number != b->number) return a->number < b->number ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

static bool next_group(const tsr_rank_entries *ranks, size_t *at, group *out)
{
    const holder *all = ranks->holders.items;
    const size_t from = *at;
    if (from == ranks->holders.count) return false;
    while (*at < ranks->holders.count && all[*at].number == all[from].number) ++*at;
    *out = (group){all + from, (uint32_t)(*at - from)};
    return true;
}

/* ---- stages ---- */

/* A key for the set of ranks in a group. A 64-bit hash is enough to distinguish the sets of one checkpoint. */
static uint64_t set_of(const group *g)
{
    uint64_t set = 0;
    for (uint32_t i = 0; i < g->count; i++) set = tsr_hash_bytes(&g->holders[i].rank, sizeof g->holders[i].rank, set);
    return set;
}

static bool is_sharded(const group *g)
{
    for (uint32_t i = 0; i < g->count; i++)
        if (!g->holders[i].entry->is_sharded) return false;
    return true;
}

static tsr_status note_stages(settling *s)
{
    group g;
    for (size_t at = 0; next_group(s->ranks, &at, &g);) {
        if (!is_sharded(&g) || g.count == s->ranks->ranks) continue;
        const uint64_t set = set_of(&g);
        tsr_str key = tsr_arena_str(s->ranks->checkpoint->arena, (tsr_str){(const char *)&set, sizeof set}, s->err);
        if (!key.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_map_put(s->stages, key, 1, NULL, NULL, s->err));
    }
    return TSR_OK;
}

static bool is_stage(const settling *s, const group *g)
{
    const uint64_t set = set_of(g);
    return tsr_map_get(s->stages, (tsr_str){(const char *)&set, sizeof set}, 0) == 1;
}

/* ---- equality ---- */

static bool are_alike(const tsr_entry *a, const tsr_entry *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && tsr_entry_same_shape(a, b);
}

/* Whether a tensor is stored as a single chunk that covers it. */
static bool is_whole(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR && entry->chunk_count == 1 &&
           (entry->ndim == 0 || memcmp(entry->chunks[0].sizes, entry->shape, entry->ndim * sizeof *entry->shape) == 0);
}

static tsr_status match_tensors(settling *s, const tsr_entry *a, const tsr_entry *b, bool *same)
{
    *same = false;
    if (!is_whole(a) || !is_whole(b) || !are_alike(a, b)) return TSR_OK;
    if (s->ranks->decide && s->ranks->decide(s->ranks->checkpoint, a, b, same)) return TSR_OK;
    const uint64_t bytes = a->chunks[0].byte_length + b->chunks[0].byte_length;
    if (bytes > s->bytes_left) return TSR_OK; /* treated as different: both are then listed, and nothing is lost */
    s->bytes_left -= bytes;
    return tsr_rank_bytes_match(s->ranks->checkpoint, a, b, same, s->err);
}

typedef struct inner_match {
    settling *settling;
    tsr_status status;
} inner_match;

static bool match_inner(void *ctx, const tsr_entry *a, const tsr_entry *b)
{
    inner_match *m = ctx;
    bool same = a->kind != TSR_ENTRY_TENSOR || a->chunk_count != 1; /* nothing to compare: a tensor without storage */
    if (!same) m->status = match_tensors(m->settling, a, b, &same);
    return same && m->status == TSR_OK;
}

/* Compares values that contain tensors (quantized or sparse tensors, tensor subclasses), including those inner tensors. */
static tsr_status match_values(settling *s, const tsr_entry *a, const tsr_entry *b, bool *same)
{
    inner_match m = {s, TSR_OK};
    const uint64_t nodes = s->ranks->checkpoint->host->limits.expansion;
    *same = a->value && b->value && are_alike(a, b) &&
            tsr_value_match_tensors(a->value, b->value, MATCH_DEPTH, nodes, match_inner, &m) == TSR_SAME;
    return m.status;
}

/* Whether the entries of a group must be equal on all ranks. Groups of opaque tensors next to sharded ones are not compared:
 * the opaque ones are shards whose offsets are unknown, and another rank's shard has them. */
static bool is_compared(const group *g, bool *dense)
{
    uint32_t plain = 0, opaque = 0, sharded = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        const tsr_entry *entry = g->holders[i].entry;
        if (entry->is_sharded) sharded++;
        else if (entry->kind == TSR_ENTRY_TENSOR) plain++;
        else opaque += entry->kind == TSR_ENTRY_OPAQUE && entry->dtype != TSR_DTYPE_NONE;
    }
    *dense = plain > 0;
    return plain > 0 || (opaque > 0 && sharded == 0);
}

/* Sets *other to the first holder whose tensor differs from that of the first holder, or to `count` if none does. */
static tsr_status find_other(settling *s, const group *g, bool dense, uint32_t *other)
{
    for (*other = 1; *other < g->count; ++*other) {
        bool same;
        const tsr_entry *a = g->holders[0].entry, *b = g->holders[*other].entry;
        TSR_TRY(dense ? match_tensors(s, a, b, &same) : match_values(s, a, b, &same));
        if (!same) return TSR_OK;
    }
    return TSR_OK;
}

/* ---- marking ---- */

static bool is_tensor(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR || entry->dtype != TSR_DTYPE_NONE;
}

/* Gives an entry the table of what each rank holds: the holders' entries that `counts` accepts, or all of them (NULL). */
static tsr_status list_ranks(settling *s, const group *g, bool (*counts)(const tsr_entry *entry), tsr_entry *entry)
{
    tsr_arena *arena = s->ranks->checkpoint->arena;
    const tsr_entry **tensors = tsr_arena_array(arena, s->ranks->ranks, sizeof *tensors, s->err);
    tsr_per_rank *per_rank = TSR_ARENA_NEW(arena, tsr_per_rank, s->err);
    if (!tensors || !per_rank) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < g->count; i++)
        if (!counts || counts(g->holders[i].entry)) tensors[g->holders[i].rank] = g->holders[i].entry;
    *per_rank = (tsr_per_rank){tensors, s->ranks->ranks};
    entry->per_rank = per_rank;
    return TSR_OK;
}

static tsr_status mark(settling *s, const group *g, tsr_entry *entry)
{
    TSR_TRY(list_ranks(s, g, is_tensor, entry));
    for (uint32_t i = 0; i < g->count; i++)
        if (g->holders[i].entry->dtype != entry->dtype) entry->dtype = TSR_DTYPE_NONE;
    if (entry->kind == TSR_ENTRY_TENSOR) entry->type = TSR_STR("per-rank tensor");
    entry->kind = TSR_ENTRY_OPAQUE;
    entry->value = NULL;
    entry->shape = NULL;
    entry->chunks = entry->replicas = NULL;
    entry->chunk_count = entry->replica_count = 0;
    entry->ndim = entry->storage_id = 0;
    tsr_shown_names_add(&s->differing, entry->fqn);
    return TSR_OK;
}

/* The lowest rank that does not have an entry of this name. */
static uint32_t absent_from(const group *g)
{
    uint32_t rank = 0;
    while (rank < g->count && g->holders[rank].rank == rank) rank++;
    return rank;
}

static tsr_status report(const settling *s, const group *g, uint32_t other, tsr_str fqn)
{
    const tsr_rank_entries *ranks = s->ranks;
    tsr_findings *findings = ranks->checkpoint->findings;
    const tsr_str first = ranks->names[g->holders[0].rank];
    if (other == g->count) {
        const tsr_str lacking = ranks->names[absent_from(g)];
        return tsr_finding_add(findings, "torch/rank-differs", (tsr_place){lacking, TSR_NO_POSITION, fqn}, s->err,
                               "'%.*s' is in '%.*s', but not in '%.*s'", TSR_STR_ARG(fqn), TSR_STR_ARG(first),
                               TSR_STR_ARG(lacking));
    }
    const tsr_entry *a = g->holders[0].entry, *b = g->holders[other].entry;
    const tsr_str second = ranks->names[g->holders[other].rank];
    const char *what = a->kind != b->kind     ? "a different kind"
                       : a->dtype != b->dtype ? "a different dtype"
                       : !are_alike(a, b)     ? "a different shape"
                                              : "different values";
    return tsr_finding_add(findings, "torch/rank-differs", (tsr_place){second, TSR_NO_POSITION, fqn}, s->err,
                           "'%.*s' has %s than in '%.*s'", TSR_STR_ARG(fqn), what, TSR_STR_ARG(first));
}

/* For objects and sharded tensors. Joining them kept the first rank's entry, so the ranks that differ from it are
 * reported. */
static tsr_status report_joined(settling *s, const group *g)
{
    const tsr_entry *first = g->holders[0].entry;
    tsr_findings *findings = s->ranks->checkpoint->findings;
    for (uint32_t i = 1; i < g->count; i++) {
        const tsr_entry *entry = g->holders[i].entry;
        bool same = entry->kind == TSR_ENTRY_TENSOR || (entry->is_sharded && first->is_sharded);
        const tsr_place place = {s->ranks->names[g->holders[i].rank], TSR_NO_POSITION, entry->fqn};
        if (are_alike(first, entry) && !same) TSR_TRY(match_values(s, first, entry, &same));
        if (!are_alike(first, entry))
            TSR_TRY(tsr_finding_add(findings, "torch/rank-differs", place, s->err,
                                    "'%.*s' has a different dtype, shape or kind than in the files of lower ranks",
                                    TSR_STR_ARG(entry->fqn)));
        else if (!same)
            TSR_TRY(tsr_finding_add(findings, "torch/rank-object", place, s->err,
                                    "'%.*s' differs between ranks; the value of the lowest rank is shown",
                                    TSR_STR_ARG(entry->fqn)));
    }
    return TSR_OK;
}

static tsr_status settle_group(settling *s, const group *g)
{
    bool dense;
    uint32_t other;
    tsr_entry *entry = (tsr_entry *)s->ranks->checkpoint->catalog.entries + g->holders[0].number;
    if (!is_compared(g, &dense)) return report_joined(s, g);
    TSR_TRY(find_other(s, g, dense, &other));
    const bool everywhere = g->count == s->ranks->ranks || (s->ranks->sharded && is_stage(s, g));
    if (other == g->count && everywhere) return TSR_OK;
    if (s->ranks->sharded) TSR_TRY(report(s, g, other, entry->fqn));
    return mark(s, g, entry);
}

/* For a map of shards, which decides how the ranks' tensors are joined. */
static tsr_status keep_all(settling *s)
{
    group g;
    tsr_entry *entries = (tsr_entry *)s->ranks->checkpoint->catalog.entries;
    for (size_t at = 0; next_group(s->ranks, &at, &g);) {
        bool dense;
        if (!is_compared(&g, &dense)) TSR_TRY(report_joined(s, &g));
        TSR_TRY(list_ranks(s, &g, NULL, &entries[g.holders[0].number]));
    }
    s->ranks->checkpoint->joined_ranks = s->ranks->ranks;
    return TSR_OK;
}

static tsr_status settle(settling *s)
{
    group g;
    tsr_checkpoint *checkpoint = s->ranks->checkpoint;
    if (checkpoint->options.shards && !s->ranks->sharded) return keep_all(s);
    TSR_TRY(note_stages(s));
    for (size_t at = 0; next_group(s->ranks, &at, &g);) TSR_TRY(settle_group(s, &g));
    if (s->differing.count == 0 || s->ranks->sharded) return TSR_OK;
    checkpoint->catalog.format = TSR_FORMAT_SHARDS;
    return tsr_finding_add_at(checkpoint->findings, (tsr_rated_rule){"torch/rank-differs", TSR_NOTE}, TSR_NOWHERE, s->err,
                              "%llu %s between the %u ranks: %s%s", (unsigned long long)s->differing.count,
                              s->differing.count == 1 ? "tensor differs" : "tensors differ", s->ranks->ranks,
                              s->differing.text, tsr_shown_names_rest(&s->differing));
}

tsr_status tsr_rank_entries_settle(tsr_rank_entries *ranks, tsr_error *err)
{
    settling s = {.ranks = ranks, .err = err};
    const tsr_store *store = ranks->checkpoint->store;
    for (uint32_t f = 0; f < store->file_count && s.bytes_left < UINT64_MAX / 2; f++)
        s.bytes_left += store->files[f].size < UINT64_MAX / 64 ? MAX_READS * store->files[f].size : UINT64_MAX / 4;
    if (ranks->holders.count) qsort(ranks->holders.items, ranks->holders.count, sizeof(holder), by_number);
    s.stages = tsr_map_new(ranks->checkpoint->host->allocator, 0, err);
    if (!s.stages) return TSR_E_NOMEM;
    tsr_status status = settle(&s);
    tsr_map_free(s.stages);
    return status;
}
