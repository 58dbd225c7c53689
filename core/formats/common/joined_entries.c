/* Combines the entries of several ranks into one: replicas of one tensor, or a list of tensors that differ. */
#include "formats/common/joined_entries.h"

#include <string.h>

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
