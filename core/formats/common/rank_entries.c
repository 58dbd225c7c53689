/* Collects which rank holds which entry while the ranks' files are read, then groups the holders by entry, each group in
 * order of ranks. */
#include "formats/common/rank_entries.h"

#include "base/cursor.h"
#include "formats/common/file_names.h"
#include "tessera/box.h"
#include "tessera/store.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

#include <stdlib.h>
#include <string.h>

enum { MATCH_DEPTH = 256 };

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

bool tsr_entry_is_one_chunk(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR && entry->chunk_count == 1 &&
           (entry->ndim == 0 || memcmp(entry->chunks[0].sizes, entry->shape, entry->ndim * sizeof *entry->shape) == 0);
}

static tsr_status match_tensors(settling *s, const tsr_entry *a, const tsr_entry *b, bool *same)
{
    *same = false;
    if (!tsr_entry_is_one_chunk(a) || !tsr_entry_is_one_chunk(b) || !are_alike(a, b)) return TSR_OK;
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
    TSR_TRY(list_ranks(s, g, tsr_entry_is_any_tensor, entry));
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

/* Whether an entry is below the module of a sharded flat parameter, as FSDP1 saves it with LOCAL_STATE_DICT. Its parameters are then also
 * listed by their names, and each rank has those elements of them that its shard has. */
static bool is_in_flat_parameter(const settling *s, tsr_str fqn)
{
    static const char flat[] = "_flat_param";
    const tsr_catalog *catalog = &s->ranks->checkpoint->catalog;
    for (uint64_t e = 0; e < catalog->entry_count; e++) {
        const tsr_entry *entry = &catalog->entries[e];
        if (!entry->is_sharded || !tsr_str_ends(entry->fqn, TSR_STR(flat))) continue;
        const tsr_str module = {entry->fqn.data, entry->fqn.size - (sizeof flat - 1)};
        if (tsr_str_starts(fqn, module) && (!module.size || module.data[module.size - 1] == '.')) return true;
    }
    return false;
}

static tsr_status report(const settling *s, const group *g, uint32_t other, tsr_str fqn)
{
    const tsr_rank_entries *ranks = s->ranks;
    tsr_findings *findings = ranks->checkpoint->findings;
    if (is_in_flat_parameter(s, fqn)) return TSR_OK;
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
    settling s = {.ranks = ranks, .bytes_left = tsr_rank_bytes_allowed(ranks->checkpoint->store), .err = err};
    if (ranks->holders.count) qsort(ranks->holders.items, ranks->holders.count, sizeof(holder), by_number);
    s.stages = tsr_map_new(ranks->checkpoint->host->allocator, 0, err);
    if (!s.stages) return TSR_E_NOMEM;
    tsr_status status = settle(&s);
    tsr_map_free(s.stages);
    return status;
}

/* ---- rank bytes ---- */

uint64_t tsr_rank_bytes_allowed(const tsr_store *store)
{
    uint64_t bytes = 0;
    for (uint32_t f = 0; f < store->file_count && bytes < UINT64_MAX / 2; f++)
        bytes += store->files[f].size < UINT64_MAX / 64 ? TSR_RANK_MAX_READS * store->files[f].size : UINT64_MAX / 4;
    return bytes;
}

/* Two views with equal strides are first compared as the byte ranges that they span, which is the usual case and is fast. If
 * that does not decide, their elements are visited in the order of the first view's strides, largest first, so that at least
 * one of the two files is read from front to back. */

enum { BLOCK = 256 << 10, SMALL = 4 << 10, WHOLE = 64 << 20, MAX_VISITS_PER_BYTE = 8 };

/* The part of a file that is in memory. */
typedef struct window {
    uint32_t file;
    uint64_t from, end; /* range of the file that may be read: what the view spans */
    uint64_t at;        /* where `bytes` begins in the file */
    size_t size, most;
    uint8_t *bytes;
} window;

typedef struct dimension {
    uint64_t size, steps[2]; /* steps: bytes from one element to the next, for each of the two views */
} dimension;

typedef struct matching {
    const tsr_checkpoint *checkpoint;
    window windows[2];
    dimension dims[TSR_MAX_NDIM];
    uint32_t rank;
    uint32_t item, unit; /* bytes of an element, and of the numbers in it whose byte order matters */
    bool swap;           /* one of the two is stored big-endian */
    tsr_error *err;
} matching;

static tsr_view view_of(const tsr_chunk *chunk)
{
    return chunk->view ? *chunk->view : (tsr_view){.file = chunk->file, .byte_offset = chunk->byte_offset};
}

static window window_on(const tsr_chunk *chunk, uint8_t *bytes)
{
    const tsr_view view = view_of(chunk);
    const uint64_t end = view.byte_offset + chunk->byte_length;
    return (window){.file = view.file, .from = view.byte_offset, .end = end, .most = SMALL, .bytes = bytes};
}

/* ---- comparing byte ranges ---- */

static tsr_status match_runs(matching *m, bool *same)
{
    window *a = &m->windows[0], *b = &m->windows[1];
    const uint64_t length = a->end - a->from;
    *same = true;
    for (uint64_t done = 0; done < length && *same;) {
        const size_t part = length - done < BLOCK ? (size_t)(length - done) : BLOCK;
        TSR_TRY(tsr_store_read(m->checkpoint->store, a->file, a->from + done, a->bytes, part, m->err));
        TSR_TRY(tsr_store_read(m->checkpoint->store, b->file, b->from + done, b->bytes, part, m->err));
        *same = memcmp(a->bytes, b->bytes, part) == 0;
        done += part;
    }
    return TSR_OK;
}

/* ---- as elements ---- */

/* Makes the bytes at `offset` available. Windows grow while a file is read from front to back. */
static tsr_status slide(matching *m, window *w, uint64_t offset, const uint8_t **out)
{
    if (offset < w->at || offset + m->item > w->at + w->size) {
        const bool onward = w->size && offset >= w->at && offset - w->at <= 2 * w->most;
        w->most = !onward ? SMALL : w->most < BLOCK ? 2 * w->most : BLOCK;
        w->at = offset;
        w->size = w->end - offset < w->most ? (size_t)(w->end - offset) : w->most;
        TSR_TRY(tsr_store_read(m->checkpoint->store, w->file, offset, w->bytes, w->size, m->err));
    }
    *out = w->bytes + (offset - w->at);
    return TSR_OK;
}

static bool same_element(const matching *m, const uint8_t *a, const uint8_t *b)
{
    if (!m->swap) return memcmp(a, b, m->item) == 0;
    for (uint32_t from = 0; from < m->item; from += m->unit)
        for (uint32_t i = 0; i < m->unit; i++)
            if (a[from + i] != b[from + m->unit - 1 - i]) return false;
    return true;
}

static tsr_status walk_elements(matching *m, bool *same)
{
    uint64_t index[TSR_MAX_NDIM] = {0}, offsets[2] = {m->windows[0].from, m->windows[1].from};
    *same = true;
    for (uint32_t d;;) {
        const uint8_t *a, *b;
        TSR_TRY(slide(m, &m->windows[0], offsets[0], &a));
        TSR_TRY(slide(m, &m->windows[1], offsets[1], &b));
        *same = same_element(m, a, b);
        if (!*same) return TSR_OK;
        for (d = m->rank; d-- > 0;) {
            const dimension *dim = &m->dims[d];
            const bool wraps = ++index[d] == dim->size;
            for (int s = 0; s < 2; s++) offsets[s] += wraps ? 0 - dim->steps[s] * (dim->size - 1) : dim->steps[s];
            if (!wraps) break;
            index[d] = 0;
        }
        if (d == UINT32_MAX) return TSR_OK;
    }
}

/* Reads the whole range of a window into memory, if it is small. Otherwise one of the two views might be read in many small
 * pieces that are far apart. */
static tsr_status load_whole(matching *m, window *w, uint8_t **memory)
{
    const size_t size = (size_t)(w->end - w->from);
    *memory = NULL;
    if (w->end - w->from > WHOLE) return TSR_OK;
    *memory = tsr_alloc(m->checkpoint->host->allocator, size, 1, m->err);
    if (!*memory) return TSR_E_NOMEM;
    w->bytes = *memory;
    w->at = w->from;
    w->size = size;
    return tsr_store_read(m->checkpoint->store, w->file, w->from, w->bytes, size, m->err);
}

static tsr_status match_elements(matching *m, bool *same)
{
    const tsr_allocator *allocator = m->checkpoint->host->allocator;
    uint8_t *first, *second = NULL;
    tsr_status status = load_whole(m, &m->windows[0], &first);
    if (status == TSR_OK) status = load_whole(m, &m->windows[1], &second);
    if (status == TSR_OK) status = walk_elements(m, same);
    tsr_free(allocator, first, (size_t)(m->windows[0].end - m->windows[0].from), 1);
    tsr_free(allocator, second, (size_t)(m->windows[1].end - m->windows[1].from), 1);
    return status;
}

static int by_first_step(const void *left, const void *right)
{
    const dimension *a = left, *b = right;
    return (a->steps[0] < b->steps[0]) - (a->steps[0] > b->steps[0]);
}

/* Collects the dimensions that have to be walked: those with several elements, unless all of them are the same stored
 * element in both views. Returns false if there would be too many visits compared with the number of stored bytes. */
static bool take_dimensions(matching *m, const tsr_entry *entry, const uint64_t *strides_a, const uint64_t *strides_b)
{
    uint64_t row_major = 1, visits = 1, stored = 0;
    for (uint32_t d = entry->ndim; d-- > 0;) {
        const uint64_t size = entry->shape[d];
        const dimension dim = {
            size, {(strides_a ? strides_a[d] : row_major) * m->item, (strides_b ? strides_b[d] : row_major) * m->item}};
        row_major *= size;
        if (size == 1 || (!dim.steps[0] && !dim.steps[1])) continue;
        m->dims[m->rank++] = dim;
        if (!tsr_mul_u64(visits, size, &visits)) return false;
    }
    for (int s = 0; s < 2; s++) stored += m->windows[s].end - m->windows[s].from;
    if (m->rank) qsort(m->dims, m->rank, sizeof *m->dims, by_first_step);
    return visits / MAX_VISITS_PER_BYTE <= stored;
}

static bool same_strides(const tsr_entry *entry, const tsr_view *a, const tsr_view *b)
{
    if (!a->strides || !b->strides) return a->strides == b->strides;
    return memcmp(a->strides, b->strides, entry->ndim * sizeof *a->strides) == 0;
}

static tsr_status match(matching *m, const tsr_entry *entry, const tsr_view *a, const tsr_view *b, bool *same)
{
    const bool alike = same_strides(entry, a, b) && a->swap == b->swap;
    *same = false;
    if (a->conj != b->conj || a->neg != b->neg) return TSR_OK;
    if (alike && m->windows[0].end - m->windows[0].from == m->windows[1].end - m->windows[1].from) {
        TSR_TRY(match_runs(m, same));
        if (*same || !a->strides) return TSR_OK; /* they may differ only in bytes between the elements */
        *same = false;
    }
    if (!m->item || entry->ndim > TSR_MAX_NDIM || !take_dimensions(m, entry, a->strides, b->strides)) return TSR_OK;
    return match_elements(m, same);
}

tsr_status tsr_rank_bytes_match(const tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *same,
                                tsr_error *err)
{
    uint64_t elements = 0;
    const tsr_allocator *allocator = checkpoint->host->allocator;
    *same = tsr_entry_elements(a, &elements) && elements == 0;
    if (*same || a->chunks[0].file == TSR_NO_FILE || b->chunks[0].file == TSR_NO_FILE) return TSR_OK;
    uint8_t *memory = tsr_alloc(allocator, 2, BLOCK, err);
    if (!memory) return TSR_E_NOMEM;
    const tsr_view first = view_of(a->chunks), second = view_of(b->chunks);
    matching m = {.checkpoint = checkpoint,
                  .windows = {window_on(a->chunks, memory), window_on(b->chunks, memory + BLOCK)},
                  .item = tsr_dtype_size(a->dtype),
                  .unit = tsr_dtype_describe(a->dtype)->swap_bytes,
                  .swap = first.swap != second.swap,
                  .err = err};
    if (!m.unit) m.unit = 1;
    tsr_status status = match(&m, a, &first, &second, same);
    tsr_free(allocator, memory, 2, BLOCK);
    return status;
}

/* ---- joined entries ---- */

/* Combines the entries of several ranks into one: replicas of one tensor, or a list of tensors that differ. */

static void append(tsr_chunk **end, const tsr_chunk *chunks, uint64_t count)
{
    if (count) memcpy(*end, chunks, (size_t)count * sizeof *chunks);
    *end += count;
}

tsr_status tsr_entry_add_replicas(tsr_entry *entry, const tsr_entry *copy, tsr_arena *arena, tsr_error *err)
{
    const uint64_t count = entry->replica_count + copy->chunk_count + copy->replica_count;
    tsr_chunk *replicas = tsr_arena_array(arena, (size_t)count, sizeof *replicas, err), *end = replicas;
    if (!replicas) return TSR_E_NOMEM;
    append(&end, entry->replicas, entry->replica_count);
    append(&end, copy->chunks, copy->chunk_count);
    append(&end, copy->replicas, copy->replica_count);
    entry->replicas = replicas;
    entry->replica_count = count;
    return TSR_OK;
}

static tsr_dtype common_dtype(const tsr_entry *const *tensors, uint32_t count)
{
    const tsr_entry *first = NULL;
    for (uint32_t r = 0; r < count; r++) {
        if (!tensors[r]) continue;
        if (!first) first = tensors[r];
        if (tensors[r]->dtype != first->dtype) return TSR_DTYPE_NONE;
    }
    return first ? first->dtype : TSR_DTYPE_NONE;
}

tsr_status tsr_entry_list_per_rank(tsr_entry *entry, const tsr_entry **tensors, uint32_t count, tsr_arena *arena,
                                   tsr_error *err)
{
    tsr_per_rank *per_rank = TSR_ARENA_NEW(arena, tsr_per_rank, err);
    if (!per_rank) return TSR_E_NOMEM;
    *per_rank = (tsr_per_rank){tensors, count};
    *entry = (tsr_entry){.fqn = entry->fqn,
                         .path = entry->path,
                         .path_length = entry->path_length,
                         .kind = TSR_ENTRY_OPAQUE,
                         .dtype = common_dtype(tensors, count),
                         .type = TSR_STR("per-rank tensor"),
                         .per_rank = per_rank};
    return TSR_OK;
}

/* Bytes from a box's first element to the end of its last. Cannot overflow, because the span of the whole chunk was checked. */
static uint64_t span_of(uint32_t ndim, const uint64_t *sizes, const uint64_t *strides, uint64_t item)
{
    uint64_t last = 0;
    for (uint32_t d = 0; d < ndim; d++) {
        if (sizes[d] == 0) return 0;
        last += (sizes[d] - 1) * strides[d];
    }
    return (last + 1) * item;
}

tsr_status tsr_chunk_cut(const tsr_chunk *chunk, tsr_box box, uint32_t item, tsr_arena *arena, tsr_chunk *out,
                         tsr_error *err)
{
    const uint32_t ndim = box.ndim;
    const tsr_box outer = {ndim, chunk->offsets, chunk->sizes};
    uint64_t *sizes = tsr_arena_array(arena, ndim, sizeof *sizes, err);
    uint64_t *strides = tsr_arena_array(arena, ndim, sizeof *strides, err);
    uint64_t step = 1, offset = 0;
    *out = *chunk;
    if (!sizes || !strides) return TSR_E_NOMEM;
    if (ndim) memcpy(sizes, box.sizes, ndim * sizeof *sizes);
    out->sizes = sizes;
    if (!ndim || !memcmp(sizes, chunk->sizes, ndim * sizeof *sizes)) return TSR_OK;
    for (uint32_t d = ndim; d-- > 0; step *= chunk->sizes[d]) {
        strides[d] = chunk->view && chunk->view->strides ? chunk->view->strides[d] : step;
        offset += (tsr_box_offset(box, d) - tsr_box_offset(outer, d)) * strides[d] * item;
    }
    const tsr_box parent = {ndim, NULL, chunk->sizes}, inner = {ndim, NULL, sizes};
    const bool is_run = tsr_box_is_contiguous(parent, inner) && !(chunk->view && chunk->view->strides);
    const bool is_zstd = chunk->view && chunk->view->zstd;
    if (!is_zstd && out->file != TSR_NO_FILE) {
        out->byte_offset += offset;
        out->byte_length = span_of(ndim, sizes, strides, item);
    }
    if (is_run && !chunk->view) return TSR_OK;
    tsr_view *view = tsr_arena_array(arena, 1, sizeof *view, err);
    if (!view) return TSR_E_NOMEM;
    *view = chunk->view ? *chunk->view : (tsr_view){.file = chunk->file, .byte_offset = chunk->byte_offset};
    view->byte_offset += offset;
    if (!is_run) view->strides = strides;
    out->view = view;
    return TSR_OK;
}

typedef struct piece {
    tsr_chunk chunk;
    const tsr_value *value;
    uint32_t ndim;
} piece;

static int by_offsets(const void *left, const void *right)
{
    const piece *a = left, *b = right;
    for (uint32_t d = 0; d < a->ndim; d++)
        if (a->chunk.offsets[d] != b->chunk.offsets[d]) return a->chunk.offsets[d] < b->chunk.offsets[d] ? -1 : 1;
    return 0;
}

static bool covers(const tsr_chunk *chunk, const tsr_entry *entry)
{
    for (uint32_t d = 0; d < entry->ndim; d++)
        if (chunk->sizes[d] != entry->shape[d]) return false;
    return true;
}

tsr_status tsr_entry_set_pieces(tsr_entry *entry, tsr_chunk *chunks, const tsr_value **values, uint64_t count,
                                tsr_arena *arena, tsr_error *err)
{
    piece *sorted = tsr_arena_array(arena, (size_t)count, sizeof *sorted, err);
    if (!sorted) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < count; i++) sorted[i] = (piece){chunks[i], values[i], entry->ndim};
    if (count) qsort(sorted, (size_t)count, sizeof *sorted, by_offsets);
    for (uint64_t i = 0; i < count; i++) {
        chunks[i] = sorted[i].chunk;
        values[i] = sorted[i].value;
    }
    entry->chunks = chunks;
    entry->chunk_count = count;
    entry->is_sharded = count != 1 || !covers(&chunks[0], entry);
    entry->value = entry->is_sharded ? tsr_value_items(arena, TSR_VALUE_LIST, values, (size_t)count, err) : values[0];
    return entry->value ? TSR_OK : TSR_E_NOMEM;
}
