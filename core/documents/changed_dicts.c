/* See tsr_conversion_changed_dicts in tessera/sys/conversion_counts.h. */
#include <inttypes.h>

#include "tessera/sys/conversion_counts.h"
#include "tessera/sys/entries.h"

#define NAMES_SHOWN 5u

/* Whether something in the dict is written. Its entries follow each other. */
static bool is_written(const tsr_conversion *conversion, const tsr_mapping *mapping)
{
    const tsr_str name = mapping->fqn;
    for (uint64_t i = mapping->entries_before; i < conversion->row_count; i++) {
        const tsr_converted *row = &conversion->rows[i];
        const tsr_str fqn = row->entry->fqn;
        const bool inside =
            !mapping->path_length || (tsr_str_starts(fqn, name) && fqn.size > name.size && fqn.data[name.size] == '.');
        if (!inside) return false;
        if (row->written) return true;
    }
    return false;
}

static bool is_changed(const tsr_conversion *conversion, const tsr_mapping *mapping, const tsr_selection *selection)
{
    if (mapping->value->variant != TSR_VARIANT_DEFAULTDICT) return false;
    return mapping->value->count ? is_written(conversion, mapping) : tsr_selection_keeps(selection, mapping->fqn);
}

tsr_status tsr_conversion_changed_dicts(const tsr_catalog *catalog, const tsr_conversion *conversion,
                                        const tsr_selection *selection, tsr_arena *arena, tsr_vec *warnings, tsr_error *err)
{
    uint64_t count = 0;
    tsr_str names = {"", 0};
    for (uint64_t i = 0; i < catalog->mapping_count && names.data; i++) {
        const tsr_str name = catalog->mappings[i].fqn;
        if (!is_changed(conversion, &catalog->mappings[i], selection) || count++ >= NAMES_SHOWN) continue;
        names = tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(names), names.size ? ", " : "",
                                 TSR_STR_ARG(name.size ? name : TSR_STR("the outermost one")));
    }
    if (count > NAMES_SHOWN && names.data)
        names = tsr_arena_format(arena, err, "%.*s and %" PRIu64 " more", TSR_STR_ARG(names), count - NAMES_SHOWN);
    if (!names.data || !count) return count ? TSR_E_NOMEM : TSR_OK;
    tsr_str *text = tsr_vec_push(warnings, err);
    if (!text) return TSR_E_NOMEM;
    *text = tsr_arena_format(arena, err,
                             "written as dict, because torch.load(weights_only=True) refuses collections.defaultdict: %.*s",
                             TSR_STR_ARG(names));
    return text->data ? TSR_OK : TSR_E_NOMEM;
}
