/* See deepspeed_parts.h. */
#include "formats/deepspeed/deepspeed_parts.h"

#include "formats/torch/torch_file.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_union.h"
#include "tessera/sys/try.h"

/* Whether an entry belongs to the part `name`: its path begins with that key. */
static bool is_of(const tsr_entry *entry, tsr_str name)
{
    return entry->path_length && tsr_str_equal(entry->path[0].key, name);
}

/* Counts the files that contain bytes of an entry range. Objects are in the files that were opened, so the count is at least
 * one. */
static tsr_status count_files(tsr_checkpoint *checkpoint, tsr_part *part, tsr_error *err)
{
    const uint32_t count = checkpoint->store->file_count;
    bool *used = tsr_alloc(checkpoint->host->allocator, count, sizeof *used, err);
    if (!used) return TSR_E_NOMEM;
    memset(used, 0, count);
    for (uint64_t e = 0; e < part->entry_count; e++) {
        const tsr_entry *entry = &checkpoint->catalog.entries[part->first_entry + e];
        for (uint64_t c = 0; c < entry->chunk_count; c++)
            if (entry->chunks[c].file != TSR_NO_FILE) used[entry->chunks[c].file] = true;
    }
    for (uint32_t f = 0; f < count; f++) part->files += used[f];
    if (part->files == 0) part->files = 1;
    tsr_free(checkpoint->host->allocator, used, count, sizeof *used);
    return TSR_OK;
}

static tsr_status list_parts(tsr_checkpoint *checkpoint, const tsr_ds_part *parts, size_t count, tsr_error *err)
{
    tsr_catalog *catalog = &checkpoint->catalog;
    tsr_part *list = tsr_arena_array(checkpoint->arena, count, sizeof *list, err);
    uint64_t at = 0;
    if (!list) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        tsr_part *part = &list[catalog->part_count];
        *part = (tsr_part){.name = tsr_str_from(parts[i].name), .format = catalog->format, .first_entry = at};
        while (at < catalog->entry_count && is_of(&catalog->entries[at], part->name)) at++;
        part->entry_count = at - part->first_entry;
        if (part->entry_count == 0) continue;
        TSR_TRY(count_files(checkpoint, part, err));
        catalog->part_count++;
    }
    catalog->parts = list;
    return TSR_OK;
}

tsr_status tsr_ds_mount(tsr_checkpoint *checkpoint, const tsr_ds_part *parts, size_t count, uint32_t storages,
                        tsr_error *err)
{
    tsr_torch_flat flat;
    tsr_catalog *catalog = &checkpoint->catalog;
    const tsr_value **items = tsr_arena_array(checkpoint->arena, 2 * count, sizeof *items, err);
    size_t used = 0;
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        if (!parts[i].tree) continue;
        items[used] = tsr_value_str(checkpoint->arena, tsr_str_from(parts[i].name), err);
        if (!items[used++]) return TSR_E_NOMEM;
        items[used++] = parts[i].tree;
    }
    const tsr_value *root = tsr_value_items(checkpoint->arena, TSR_VALUE_DICT, items, used, err);
    if (!root) return TSR_E_NOMEM;
    TSR_TRY(tsr_torch_flatten(root, checkpoint->host, &checkpoint->expansion, checkpoint->arena, &flat, err));
    catalog->entries = flat.entries;
    catalog->entry_count = flat.entry_count;
    catalog->mappings = flat.mappings;
    catalog->mapping_count = flat.mapping_count;
    TSR_TRY(tsr_torch_keep_shared(checkpoint->host, flat.entries, flat.entry_count, storages, err));
    return list_parts(checkpoint, parts, count, err);
}
