#include "work/copies.h"

#include "check/compare_copy.h"
#include "tessera/sys/checkpoint_bytes.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

typedef struct copies {
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry;
    tsr_ring *ring;
    tsr_map *boxes;     /* offsets and sizes → chunk */
    tsr_arena *scratch; /* keys, strides */
    tsr_gather *chunks; /* NULL until something must be read */
    tsr_error *err;
} copies;

static tsr_str key_of(const copies *c, const tsr_chunk *chunk)
{
    const size_t row = c->entry->ndim * sizeof(uint64_t);
    char *key = tsr_arena_array(c->scratch, 2 * row + 1, 1, c->err);
    if (!key) return (tsr_str){NULL, 0};
    if (row) memcpy(key, chunk->offsets, row);
    if (row) memcpy(key + row, chunk->sizes, row);
    return (tsr_str){key, 2 * row};
}

static tsr_status index_chunks(copies *c)
{
    for (uint64_t i = 0; i < c->entry->chunk_count && i < UINT32_MAX; i++) {
        const tsr_str key = key_of(c, &c->entry->chunks[i]);
        if (!key.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_map_put(c->boxes, key, (uint32_t)i, NULL, NULL, c->err));
    }
    return TSR_OK;
}

/* Whether the source states equal CRCs for both chunks. */
static tsr_status match_sums(copies *c, const tsr_chunk *chunk, const tsr_chunk *replica, bool *same)
{
    tsr_stated_crc first, second;
    *same = false;
    if (!tsr_checkpoint_has_crcs(c->checkpoint)) return TSR_OK;
    TSR_TRY(tsr_checkpoint_crc(c->checkpoint, c->entry, chunk, c->scratch, &first, c->err));
    if (!first.is_stated) return TSR_OK;
    TSR_TRY(tsr_checkpoint_crc(c->checkpoint, c->entry, replica, c->scratch, &second, c->err));
    *same = second.is_stated && first.crc32 == second.crc32;
    return TSR_OK;
}

static tsr_status check_copy(copies *c, const tsr_chunk *replica)
{
    bool same = false;
    tsr_difference difference = {0};
    const tsr_store *store = tsr_checkpoint_store(c->checkpoint);
    const tsr_str key = key_of(c, replica);
    if (!key.data) return TSR_E_NOMEM;
    const uint32_t at = tsr_map_get(c->boxes, key, UINT32_MAX);
    if (replica->file >= store->file_count) return TSR_OK; /* missing files are findings already */
    if (at != UINT32_MAX && c->entry->chunks[at].file < store->file_count)
        TSR_TRY(match_sums(c, &c->entry->chunks[at], replica, &same));
    if (same) return TSR_OK;
    if (!c->chunks) TSR_TRY(tsr_gather_open(c->checkpoint, c->entry, NULL, &c->chunks, c->err));
    TSR_TRY(tsr_compare_copy(c->chunks, replica, c->ring, &difference, c->err));
    TSR_FAIL_AT(
        difference.differing, c->err, TSR_E_FORMAT, replica->byte_offset,
        "'%.*s' is replicated, but %llu of %llu elements of the copy in %.*s differ from the first copy; leave it out with "
        "--exclude, or replace the file",
        TSR_STR_ARG(c->entry->fqn), (unsigned long long)difference.differing, (unsigned long long)difference.elements,
        TSR_STR_ARG(store->files[replica->file].name));
    return TSR_OK;
}

tsr_status tsr_check_copies(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    copies c = {.checkpoint = checkpoint, .entry = entry, .ring = ring, .err = err};
    c.boxes = tsr_map_new(host->allocator, 0, err);
    c.scratch = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    tsr_status status = c.boxes && c.scratch ? index_chunks(&c) : TSR_E_NOMEM;
    for (uint64_t i = 0; i < entry->replica_count && status == TSR_OK; i++) status = check_copy(&c, &entry->replicas[i]);
    tsr_gather_close(c.chunks);
    tsr_map_free(c.boxes);
    tsr_arena_free(c.scratch);
    return status;
}
