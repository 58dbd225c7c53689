/* What the files' __metadata__ says of the checkpoint: pairs of texts, and second names of tensors. */
#include "formats/common/metadata.h"
#include "formats/safetensors/safetensors_reader.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

/* The pairs of a file that describe the checkpoint: without second names, and without the places of shards if they are those
 * of one file of several. */
static tsr_status describe(const tsr_safetensors *opened, bool is_one_of_several, tsr_arena *arena, tsr_text_pairs *out,
                           tsr_error *err)
{
    const tsr_safetensors_second *second = opened->seconds, *last = second + opened->second_count;
    tsr_text_pair *kept = tsr_arena_array(arena, opened->metadata_count, sizeof *kept, err);
    if (!kept) return TSR_E_NOMEM;
    *out = (tsr_text_pairs){kept, 0};
    for (size_t i = 0; i < opened->metadata_count; i++) {
        const tsr_text_pair *pair = &opened->metadata[i];
        const bool is_name = second != last && second->pair == i && !second->is_text;
        if (second != last && second->pair == i) second++;
        if (is_name || tsr_safetensors_is_own_key(pair->key)) continue;
        if (is_one_of_several && tsr_str_equal(pair->key, TSR_STR(TSR_SAFETENSORS_SHARDING))) continue;
        kept[out->count++] = *pair;
    }
    return TSR_OK;
}

tsr_status tsr_safetensors_keep_metadata(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, uint32_t count,
                                         tsr_error *err)
{
    tsr_text_pairs *lists = tsr_arena_array(checkpoint->arena, count, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < count; f++) TSR_TRY(describe(&opened[f], count > 1, checkpoint->arena, &lists[f], err));
    tsr_part *parts = (tsr_part *)checkpoint->catalog.parts;
    for (uint32_t p = 0; p < checkpoint->catalog.part_count; p++) { /* one per file */
        parts[p].metadata = lists[p].pairs;
        parts[p].metadata_count = lists[p].count;
    }
    TSR_TRY(tsr_metadata_join(checkpoint, lists, count, "files", err));
    if (checkpoint->catalog.entry_count) return TSR_OK;
    return tsr_finding_add(checkpoint->findings, "safetensors/no-tensors", TSR_NOWHERE, err,
                           count == 1 ? "the file contains no tensors" : "the files contain no tensors");
}

static tsr_status settle(tsr_safetensors *opened, uint32_t count, tsr_map *names, tsr_error *err)
{
    for (uint32_t f = 0; f < count; f++)
        for (uint64_t i = 0; i < opened[f].count; i++)
            TSR_TRY(tsr_map_put(names, opened[f].tensors[i].name, f, NULL, NULL, err));
    for (uint32_t f = 0; f < count; f++) {
        for (size_t i = 0; i < opened[f].second_count; i++) {
            tsr_safetensors_second *second = &opened[f].seconds[i];
            bool is_new;
            TSR_TRY(tsr_map_put(names, opened[f].metadata[second->pair].key, f, NULL, &is_new, err));
            second->is_text = !is_new;
        }
    }
    return TSR_OK;
}

tsr_status tsr_safetensors_settle_seconds(tsr_checkpoint *checkpoint, tsr_safetensors *opened, uint32_t count,
                                          tsr_error *err)
{
    size_t seconds = 0;
    for (uint32_t f = 0; f < count; f++) seconds += opened[f].second_count;
    if (count < 2 || !seconds) return TSR_OK;
    tsr_map *names = tsr_map_new(checkpoint->host->allocator, 0, err);
    const tsr_status status = names ? settle(opened, count, names, err) : TSR_E_NOMEM;
    tsr_map_free(names);
    return status;
}

tsr_entry tsr_safetensors_second_entry(tsr_entry *first, tsr_str name, uint32_t *storages)
{
    if (!first->storage_id) first->storage_id = ++*storages;
    tsr_entry entry = *first;
    entry.fqn = name;
    entry.is_second_name = true;
    entry.replicas = NULL; /* they are listed once */
    entry.replica_count = 0;
    return entry;
}
