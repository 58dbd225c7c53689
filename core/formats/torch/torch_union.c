/* The union is built in two steps: entries and chunks are collected in order of arrival, then each entry gets its run of one
 * array of chunks and one of replicas. */
#include "formats/torch/torch_union.h"

#include "formats/common/subclass_chunks.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/try.h"

typedef struct joined_chunk {
    uint32_t entry;
    bool replica;
    tsr_chunk chunk;
    const tsr_value *piece; /* of a sharded tensor subclass: what the chunk holds */
} joined_chunk;

static bool is_sharded_subclass(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_OPAQUE && entry->is_sharded;
}

tsr_status tsr_torch_union_open(tsr_torch_union *u, tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    *u = (tsr_torch_union){.checkpoint = checkpoint,
                           .entries = tsr_vec_of(allocator, sizeof(tsr_entry)),
                           .chunks = tsr_vec_of(allocator, sizeof(joined_chunk))};
    u->names = tsr_map_new(allocator, 0, err);
    u->boxes = u->names ? tsr_map_new(allocator, 0, err) : NULL;
    return u->boxes ? TSR_OK : TSR_E_NOMEM;
}

void tsr_torch_union_close(tsr_torch_union *u)
{
    tsr_map_free(u->names);
    tsr_map_free(u->boxes);
    tsr_vec_free(&u->entries);
    tsr_vec_free(&u->chunks);
}

tsr_status tsr_torch_keep_shared(const tsr_host *host, tsr_entry *entries, uint64_t count, uint32_t storages, tsr_error *err)
{
    uint32_t *uses = tsr_alloc(host->allocator, (size_t)storages + 1, sizeof *uses, err);
    if (!uses) return TSR_E_NOMEM;
    memset(uses, 0, ((size_t)storages + 1) * sizeof *uses);
    for (uint64_t i = 0; i < count; i++) uses[entries[i].storage_id]++;
    for (uint64_t i = 0; i < count; i++)
        if (uses[entries[i].storage_id] == 1) entries[i].storage_id = 0;
    tsr_free(host->allocator, uses, (size_t)storages + 1, sizeof *uses);
    return TSR_OK;
}

/* Whether the box is new to the entry. */
static tsr_status is_new_box(tsr_torch_union *u, uint32_t number, const tsr_chunk *chunk, uint32_t ndim, bool *fresh,
                             tsr_error *err)
{
    size_t row = ndim * sizeof(uint64_t);
    char *key = tsr_arena_array(u->checkpoint->arena, sizeof number + 2 * row, 1, err);
    if (!key) return TSR_E_NOMEM;
    memcpy(key, &number, sizeof number);
    if (ndim) memcpy(key + sizeof number, chunk->offsets, row);
    if (ndim) memcpy(key + sizeof number + row, chunk->sizes, row);
    return tsr_map_put(u->boxes, (tsr_str){key, sizeof number + 2 * row}, 0, NULL, fresh, err);
}

static tsr_status add_chunks(tsr_torch_union *u, uint32_t number, const tsr_entry *entry, tsr_error *err)
{
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        bool fresh;
        TSR_TRY(is_new_box(u, number, &entry->chunks[i], entry->ndim, &fresh, err));
        joined_chunk *added = tsr_vec_push(&u->chunks, err);
        if (!added) return TSR_E_NOMEM;
        *added = (joined_chunk){number, !fresh, entry->chunks[i], NULL};
        if (is_sharded_subclass(entry)) added->piece = entry->value->items[i];
    }
    return TSR_OK;
}

static tsr_joined compare(const tsr_entry *a, const tsr_entry *b)
{
    bool same = a->kind == b->kind && a->dtype == b->dtype && tsr_entry_same_shape(a, b);
    if (!same) return TSR_JOINED_MISMATCH;
    if (is_sharded_subclass(a) != is_sharded_subclass(b)) return TSR_JOINED_MISMATCH;
    return a->kind == TSR_ENTRY_TENSOR || is_sharded_subclass(a) ? TSR_JOINED_CHUNKS : TSR_JOINED_NOTHING;
}

tsr_status tsr_torch_union_add(tsr_torch_union *u, const tsr_entry *entry, uint32_t storage_base, uint32_t *number,
                               tsr_joined *joined, tsr_error *err)
{
    uint32_t *existing;
    bool inserted;
    TSR_FAIL_IF(u->entries.count >= u->checkpoint->host->limits.entries || u->entries.count >= UINT32_MAX - 1, err,
                TSR_E_LIMIT, "torch: more than %zu entries (limit entries)", u->entries.count);
    TSR_TRY(tsr_map_put(u->names, entry->fqn, (uint32_t)u->entries.count, &existing, &inserted, err));
    uint32_t at = *existing;
    if (number) *number = at;
    *joined = inserted ? TSR_JOINED_NEW : compare((const tsr_entry *)u->entries.items + at, entry);
    if (inserted) {
        tsr_entry *added = tsr_vec_push(&u->entries, err);
        if (!added) return TSR_E_NOMEM;
        *added = *entry;
        added->chunks = NULL;
        added->chunk_count = 0;
        if (added->storage_id) added->storage_id += storage_base;
    }
    return inserted || *joined == TSR_JOINED_CHUNKS ? add_chunks(u, at, entry, err) : TSR_OK;
}

/* Gives the sharded tensor subclasses what their chunks hold. */
static tsr_status keep_pieces(const tsr_torch_union *u, tsr_entry *entries, size_t count, tsr_error *err)
{
    tsr_arena *arena = u->checkpoint->arena;
    const joined_chunk *joined = u->chunks.items;
    const tsr_value **pieces = tsr_arena_array(arena, u->chunks.count, sizeof *pieces, err);
    if (!pieces) return TSR_E_NOMEM;
    for (size_t e = 0; e < count; e++) {
        size_t n = 0;
        if (!is_sharded_subclass(&entries[e])) continue;
        for (size_t i = 0; i < u->chunks.count; i++)
            if (joined[i].entry == e && !joined[i].replica) pieces[n++] = joined[i].piece;
        TSR_TRY(tsr_entry_set_pieces(&entries[e], (tsr_chunk *)entries[e].chunks, pieces, n, arena, err));
        pieces += n;
    }
    return TSR_OK;
}

tsr_status tsr_torch_union_keep(tsr_torch_union *u, uint32_t storages, tsr_error *err)
{
    tsr_arena *arena = u->checkpoint->arena;
    const joined_chunk *joined = u->chunks.items;
    size_t count = u->entries.count;
    tsr_entry *entries = tsr_arena_array(arena, count, sizeof *entries, err);
    tsr_chunk *chunks = tsr_arena_array(arena, u->chunks.count, sizeof *chunks, err);
    if (!entries || !chunks) return TSR_E_NOMEM;
    if (count) memcpy(entries, u->entries.items, count * sizeof *entries);
    for (size_t i = 0; i < u->chunks.count; i++) {
        if (joined[i].replica) entries[joined[i].entry].replica_count++;
        else entries[joined[i].entry].chunk_count++;
    }
    for (size_t i = 0; i < count; i++) { /* each entry's chunks, then its replicas */
        entries[i].chunks = chunks;
        chunks += entries[i].chunk_count;
        entries[i].replicas = chunks;
        chunks += entries[i].replica_count;
        entries[i].chunk_count = entries[i].replica_count = 0;
    }
    for (size_t i = 0; i < u->chunks.count; i++) {
        tsr_entry *entry = &entries[joined[i].entry];
        if (joined[i].replica) ((tsr_chunk *)entry->replicas)[entry->replica_count++] = joined[i].chunk;
        else ((tsr_chunk *)entry->chunks)[entry->chunk_count++] = joined[i].chunk;
    }
    TSR_TRY(keep_pieces(u, entries, count, err));
    u->checkpoint->catalog.entries = entries;
    u->checkpoint->catalog.entry_count = count;
    return tsr_torch_keep_shared(u->checkpoint->host, entries, count, storages, err);
}
