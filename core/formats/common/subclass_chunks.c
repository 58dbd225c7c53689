/* See subclass_chunks.h. */
#include "formats/common/subclass_chunks.h"

#include <stdlib.h>
#include <string.h>

#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"

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
