/* Matches replicas with their chunks by sorting both lists by box, and then chooses for every chunk the copy whose file has
 * the fewest bytes to read. */
#include "plan/plan_sources.h"

#include <stdlib.h>

#include "tessera/sys/try.h"

#include "tessera/sys/alloc.h"

typedef struct copy {
    uint32_t ndim;
    const tsr_chunk *chunk;
    uint64_t number; /* number of the chunk; replicas are numbered after all chunks */
} copy;

static int compare_boxes(const copy *a, const copy *b)
{
    for (uint32_t d = 0; d < a->ndim; d++) {
        const tsr_chunk *x = a->chunk, *y = b->chunk;
        if (x->offsets[d] != y->offsets[d]) return x->offsets[d] < y->offsets[d] ? -1 : 1;
        if (x->sizes[d] != y->sizes[d]) return x->sizes[d] < y->sizes[d] ? -1 : 1;
    }
    return 0;
}

static int compare_copies(const void *left, const void *right)
{
    const copy *a = left, *b = right;
    int order = compare_boxes(a, b);
    return order ? order : (a->number > b->number) - (a->number < b->number);
}

/* The bytes to be read from a file. A missing file has more than any other. */
static uint64_t load_of(const tsr_source_loads *loads, uint32_t file)
{
    if (file == TSR_NO_FILE) return UINT64_MAX;
    return file < loads->bytes.count ? ((const uint64_t *)loads->bytes.items)[file] : 0;
}

static tsr_status add_load(tsr_source_loads *loads, const tsr_chunk *chunk, tsr_error *err)
{
    if (chunk->file == TSR_NO_FILE) return TSR_OK;
    while (loads->bytes.count <= chunk->file) {
        if (!tsr_vec_push(&loads->bytes, err)) return TSR_E_NOMEM;
    }
    ((uint64_t *)loads->bytes.items)[chunk->file] += chunk->byte_length;
    return TSR_OK;
}

/* Chooses the best copy in each run of equal boxes. The first of a run is the chunk, unless no chunk has that box. */
static tsr_status choose(tsr_source_loads *loads, const copy *copies, uint64_t count, uint64_t chunk_count,
                         const tsr_chunk **chosen, tsr_error *err)
{
    for (uint64_t i = 0, end; i < count; i = end) {
        const tsr_chunk *best = copies[i].chunk;
        for (end = i + 1; end < count && compare_boxes(&copies[i], &copies[end]) == 0; end++) {
            if (load_of(loads, copies[end].chunk->file) < load_of(loads, best->file)) best = copies[end].chunk;
        }
        if (copies[i].number >= chunk_count) continue;
        chosen[copies[i].number] = best;
        TSR_TRY(add_load(loads, best, err));
    }
    return TSR_OK;
}

tsr_status tsr_sources_choose(tsr_source_loads *loads, const tsr_entry *entry, tsr_arena *arena,
                              const tsr_chunk *const **out, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_arena_allocator(arena);
    uint64_t count = entry->chunk_count + entry->replica_count;
    *out = NULL;
    if (entry->replica_count == 0) {
        for (uint64_t i = 0; i < entry->chunk_count; i++) TSR_TRY(add_load(loads, &entry->chunks[i], err));
        return TSR_OK;
    }
    const tsr_chunk **chosen = tsr_arena_array(arena, entry->chunk_count, sizeof *chosen, err);
    copy *copies = chosen ? tsr_alloc(allocator, count, sizeof *copies, err) : NULL;
    if (!copies) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        copies[i] = (copy){entry->ndim, &entry->chunks[i], i};
        chosen[i] = &entry->chunks[i];
    }
    for (uint64_t i = entry->chunk_count; i < count; i++) {
        copies[i] = (copy){entry->ndim, &entry->replicas[i - entry->chunk_count], i};
    }
    qsort(copies, count, sizeof *copies, compare_copies);
    tsr_status status = choose(loads, copies, count, entry->chunk_count, chosen, err);
    tsr_free(allocator, copies, count, sizeof *copies);
    *out = chosen;
    return status;
}
