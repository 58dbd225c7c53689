/* Restores the parts of a checkpoint that were written as one safetensors file per part.
 *
 *     model.safetensors       __metadata__: {"format": "pt", "tessera.part": "model"}        w        → model.w
 *     optim.safetensors       __metadata__: {"format": "pt", "tessera.part": "optim"}        state.…  → optim.state.… */
#include "formats/safetensors/safetensors_reader.h"
#include "tessera/sys/try.h"

bool tsr_safetensors_are_parts(const tsr_checkpoint *checkpoint, const tsr_safetensors *opened)
{
    const uint32_t count = checkpoint->file_count;
    if (checkpoint->store->primary != TSR_NO_FILE) return false; /* the user chose a file, and its names are its own */
    for (uint32_t f = 0; f < count; f++) {
        const tsr_str part = tsr_safetensors_metadata(&opened[f], TSR_STR(TSR_SAFETENSORS_PART));
        if (!part.data) return false;
        for (uint32_t other = 0; other < f; other++)
            if (tsr_str_equal(part, tsr_safetensors_metadata(&opened[other], TSR_STR(TSR_SAFETENSORS_PART)))) return false;
    }
    return true;
}

static tsr_status name_entry(tsr_entry *entry, tsr_str part, tsr_arena *arena, tsr_error *err)
{
    tsr_path_item *path = tsr_arena_array(arena, 2, sizeof *path, err);
    if (!path) return TSR_E_NOMEM;
    path[0] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = part};
    path[1] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = entry->fqn};
    entry->path = path;
    entry->path_length = entry->fqn.size ? 2 : 1;
    entry->fqn =
        entry->fqn.size ? tsr_arena_format(arena, err, "%.*s.%.*s", TSR_STR_ARG(part), TSR_STR_ARG(entry->fqn)) : part;
    return entry->fqn.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status name_part(tsr_entry *entries, const tsr_part *part, tsr_arena *arena, tsr_error *err)
{
    if (part->name.size == 0) return TSR_OK; /* entries of a format that belong to no part */
    for (uint64_t i = 0; i < part->entry_count; i++)
        TSR_TRY(name_entry(&entries[part->first_entry + i], part->name, arena, err));
    return TSR_OK;
}

tsr_status tsr_safetensors_name_parts(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, const uint64_t *counts,
                                      tsr_error *err)
{
    const uint32_t count = checkpoint->file_count;
    tsr_catalog *catalog = &checkpoint->catalog;
    uint64_t first = 0;
    if (!tsr_safetensors_are_parts(checkpoint, opened)) return TSR_OK;
    tsr_part *parts = tsr_arena_array(checkpoint->arena, count, sizeof *parts, err);
    if (!parts) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < count; first += counts[f++]) {
        parts[f] = (tsr_part){.name = tsr_safetensors_metadata(&opened[f], TSR_STR(TSR_SAFETENSORS_PART)),
                              .format = TSR_FORMAT_SAFETENSORS,
                              .files = 1,
                              .first_entry = first,
                              .entry_count = counts[f]};
        TSR_TRY(name_part((tsr_entry *)catalog->entries, &parts[f], checkpoint->arena, err));
    }
    catalog->parts = parts;
    catalog->part_count = count;
    return TSR_OK;
}
