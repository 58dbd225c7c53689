/* Dicts that a container cannot hold as they are (tessera/sys/conversion_counts.h). */
#include <inttypes.h>

#include "tessera/sys/conversion_counts.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/stored_optimizers.h"
#include "tessera/sys/try.h"

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

/* ---- keys that are not texts ---- */

typedef struct listing {
    tsr_arena *arena;
    tsr_str names;
    tsr_str last; /* of the dict that was listed or counted last */
    uint64_t count;
    tsr_error *err;
} listing;

static tsr_status list_dict(listing *l, tsr_str name)
{
    if (l->count && tsr_str_equal(l->last, name)) return TSR_OK; /* the entries of a dict follow each other */
    l->last = name;
    if (l->count++ >= NAMES_SHOWN) return TSR_OK;
    l->names = tsr_arena_format(l->arena, l->err, "%.*s%s%.*s", TSR_STR_ARG(l->names), l->names.size ? ", " : "",
                                TSR_STR_ARG(name.size ? name : TSR_STR("the outermost one")));
    return l->names.data ? TSR_OK : TSR_E_NOMEM;
}

/* Lists the dicts on the way to an entry in which the key is not a text. */
static tsr_status list_dicts(listing *l, const tsr_entry *entry, const tsr_path_item *id)
{
    size_t end = 0;
    for (uint32_t i = 0; entry->path && i < entry->path_length; i++) {
        const tsr_path_item *item = &entry->path[i];
        if (item != id && (item->kind == TSR_PATH_INT_KEY || item->value))
            TSR_TRY(list_dict(l, (tsr_str){entry->fqn.data, end}));
        end += tsr_path_item_size(item) + (i ? 1 : 0);
    }
    return TSR_OK;
}

/* The path item that is an id of an optimizer, if the conversion writes the list of ids too: then reading makes ints of them
 * again. */
static const tsr_path_item *kept_id(const tsr_stored_optimizers *all, const tsr_catalog *catalog,
                                    const tsr_conversion *conversion, const tsr_entry *entry)
{
    const uint64_t number = (uint64_t)(entry - catalog->entries);
    const tsr_path_item *item = tsr_stored_optimizers_id_of(all, catalog, number);
    if (!item) return NULL;
    const tsr_entry *list = all->groups[all->params[all->owner_params[number] - 1].group].list;
    return conversion->rows[list - catalog->entries].written ? item : NULL;
}

tsr_status tsr_conversion_text_keys(tsr_checkpoint *checkpoint, const tsr_conversion *conversion, tsr_arena *arena,
                                    tsr_vec *warnings, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    listing l = {.arena = arena, .names = {"", 0}, .err = err};
    tsr_stored_optimizers all;
    TSR_TRY(tsr_stored_optimizers_find(catalog, tsr_checkpoint_host(checkpoint), arena, &all, err));
    for (uint64_t i = 0; i < conversion->row_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (conversion->rows[i].written) TSR_TRY(list_dicts(&l, entry, kept_id(&all, catalog, conversion, entry)));
    }
    if (!l.count) return TSR_OK;
    if (l.count > NAMES_SHOWN)
        l.names = tsr_arena_format(arena, err, "%.*s and %" PRIu64 " more", TSR_STR_ARG(l.names), l.count - NAMES_SHOWN);
    tsr_str *text = l.names.data ? tsr_vec_push(warnings, err) : NULL;
    if (!text) return TSR_E_NOMEM;
    *text = tsr_arena_format(arena, err, "ints and other keys become texts, the only keys that a DCP has, in: %.*s",
                             TSR_STR_ARG(l.names));
    return text->data ? TSR_OK : TSR_E_NOMEM;
}
