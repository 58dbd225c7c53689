/* Reduces a checkpoint that consists of parts to one of them. */
#include "formats/common/shown_names.h"
#include "formats/recognize/recognize.h"
#include "tessera/sys/try.h"

static tsr_status refuse_part(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    tsr_shown_names names = {.used = 0};
    TSR_FAIL_IF(checkpoint->incomplete.size, err, TSR_E_UNSUPPORTED, "there is no part '%.*s': %.*s",
                TSR_STR_ARG(checkpoint->options.part),
                TSR_STR_ARG(checkpoint->incomplete)); /* the part may be in the missing file */
    for (uint32_t p = 0; p < catalog->part_count; p++) tsr_shown_names_add(&names, catalog->parts[p].name);
    TSR_FAIL_IF(!names.count, err, TSR_E_NOT_FOUND, "there is no part '%.*s': the checkpoint (%s) does not consist of parts",
                TSR_STR_ARG(checkpoint->options.part), tsr_format_name(catalog->format));
    return tsr_fail(err, TSR_E_NOT_FOUND, "there is no part '%.*s'; the checkpoint (%s) has %s%s",
                    TSR_STR_ARG(checkpoint->options.part), tsr_format_name(catalog->format), names.text,
                    tsr_shown_names_rest(&names));
}

/* Removes the part's name from a name that begins with it: "model.a.b" → "a.b", "model" → "". */
static bool strip(tsr_str *fqn, tsr_str part)
{
    if (part.size == 0 || !tsr_str_starts(*fqn, part) || (fqn->size > part.size && fqn->data[part.size] != '.'))
        return false;
    const size_t size = fqn->size > part.size ? part.size + 1 : part.size;
    *fqn = (tsr_str){fqn->data + size, fqn->size - size};
    return true;
}

/* Removes the first item of a path if it is the part's name. If no item is left, the entry has a flat key, unless it is the
 * root itself. */
static void strip_path(const tsr_path_item **path, uint32_t *length, tsr_str part)
{
    if (!*path || *length == 0 || (*path)->kind != TSR_PATH_KEY || !tsr_str_equal((*path)->key, part)) return;
    ++*path;
    --*length;
}

/* Works in place, because readers identify their entries by address. */
static void keep_entries(tsr_catalog *catalog, const tsr_part *part)
{
    tsr_entry *entries = (tsr_entry *)catalog->entries + part->first_entry;
    for (uint64_t i = 0; i < part->entry_count; i++)
        if (strip(&entries[i].fqn, part->name)) strip_path(&entries[i].path, &entries[i].path_length, part->name);
    catalog->entries = entries;
    catalog->entry_count = part->entry_count;
}

static tsr_status keep_mappings(tsr_checkpoint *checkpoint, const tsr_part *part, tsr_error *err)
{
    tsr_catalog *catalog = &checkpoint->catalog;
    const uint64_t count = catalog->mapping_count, last = part->first_entry + part->entry_count;
    tsr_mapping *kept = tsr_arena_array(checkpoint->arena, (size_t)count, sizeof *kept, err);
    if (!kept) return TSR_E_NOMEM;
    uint64_t used = 0;
    for (uint64_t i = 0; i < count; i++) {
        tsr_mapping mapping = catalog->mappings[i];
        const bool inside = mapping.entries_before >= part->first_entry && mapping.entries_before <= last;
        if (!inside || (part->name.size && !strip(&mapping.fqn, part->name))) continue;
        strip_path(&mapping.path, &mapping.path_length, part->name);
        mapping.entries_before -= part->first_entry;
        kept[used++] = mapping;
    }
    catalog->mappings = kept;
    catalog->mapping_count = used;
    return TSR_OK;
}

tsr_status tsr_keep_part(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_catalog *catalog = &checkpoint->catalog;
    const tsr_part *part = NULL;
    if (!checkpoint->options.part.data) return TSR_OK;
    for (uint32_t p = 0; p < catalog->part_count && !part; p++)
        if (tsr_str_equal(catalog->parts[p].name, checkpoint->options.part)) part = &catalog->parts[p];
    if (!part) return refuse_part(checkpoint, err);
    keep_entries(catalog, part);
    TSR_TRY(keep_mappings(checkpoint, part, err));
    catalog->format = part->format;
    catalog->metadata = part->metadata;
    catalog->metadata_count = part->metadata_count;
    catalog->differing_count = 0;
    catalog->parts = NULL;
    catalog->part_count = 0;
    return TSR_OK;
}
