/* Builds the nested value that a conversion to torch.save writes, from the written rows and from the mappings that the
 * source describes in more detail than its entries do. */
#include "convert/convert_to.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/stored_optimizers.h"
#include "tessera/sys/try.h"

#include <string.h>

/* Empty dicts pass the same filter as entries. A renamed one is dropped, because the other entries' paths do not show where
 * it belongs. */
static tsr_status wants(const tsr_chosen *chosen, const tsr_mapping *mapping, bool *yes, tsr_error *err)
{
    const tsr_convert_options *options = chosen->options;
    tsr_str name = mapping->fqn;
    *yes = true;
    if (mapping->value->count) return TSR_OK;
    *yes = !options->want || options->want(options->want_ctx, mapping->fqn);
    if (options->rename) TSR_TRY(options->rename(options->rename_ctx, mapping->fqn, chosen->arena, &name, err));
    *yes = *yes && tsr_str_equal(name, mapping->fqn);
    return TSR_OK;
}

static tsr_status add_mappings(const tsr_chosen *chosen, uint64_t entries_before, uint64_t *next, tsr_leaf *leaves,
                               size_t *count, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(chosen->checkpoint);
    for (; *next < catalog->mapping_count && catalog->mappings[*next].entries_before <= entries_before; ++*next) {
        const tsr_mapping *mapping = &catalog->mappings[*next];
        bool yes;
        TSR_TRY(wants(chosen, mapping, &yes, err));
        if (!yes) continue;
        leaves[(*count)++] = (tsr_leaf){.path = mapping->path,
                                        .path_length = mapping->path_length,
                                        .value = mapping->value,
                                        .name = mapping->fqn,
                                        .mapping = true};
    }
    return TSR_OK;
}

/* A leaf's path; with an optimizer's ids as ints, of which a DCP makes texts. */
static tsr_status find_path(const tsr_converted *row, const tsr_path_item *restored, tsr_arena *arena, tsr_leaf *leaf,
                            tsr_error *err)
{
    tsr_entry entry = *row->entry;
    if (restored) entry.path = restored;
    return tsr_renamed_path(&entry, row->name, arena, &leaf->path, &leaf->path_length, err);
}

static bool is_key(const tsr_entry *entry, uint32_t length, uint32_t from_end, const char *key)
{
    const tsr_path_item *item = length >= from_end ? &entry->path[length - from_end] : NULL;
    return item && item->kind == TSR_PATH_KEY && !item->value && tsr_str_equal(item->key, tsr_str_from(key));
}

/* The "state" of an optimizer that has none, such as SGD's without momentum: next to the list of parameters in its first group.
 * Without the empty dict, of which a DCP has no trace, Optimizer.load_state_dict fails. */
static tsr_status add_empty_state(const tsr_chosen *chosen, const tsr_entry *list, tsr_leaf *leaves, size_t *count,
                                  tsr_error *err)
{
    static const tsr_value empty = {.kind = TSR_VALUE_DICT};
    const uint64_t number = (uint64_t)(list - tsr_checkpoint_catalog(chosen->checkpoint)->entries);
    const tsr_converted *row = number < chosen->count ? &chosen->rows[number] : NULL;
    if (!row || !row->written || row->entry->path != list->path || !tsr_str_equal(row->name, list->fqn)) return TSR_OK;
    uint32_t above = list->path_length; /* the items before param_groups, or before param_groups.0.params */
    if (is_key(list, above, 1, "param_groups")) above -= 1;
    else if (is_key(list, above, 3, "param_groups")) above -= 3;
    else return TSR_OK; /* a flat dict, whose keys are whole names */
    tsr_path_item *path = tsr_arena_array(chosen->arena, above + 1, sizeof *path, err);
    if (!path) return TSR_E_NOMEM;
    memcpy(path, list->path, above * sizeof *path);
    path[above] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = TSR_STR("state")};
    leaves[(*count)++] =
        (tsr_leaf){.path = path, .path_length = above + 1, .value = &empty, .name = list->fqn, .mapping = true};
    return TSR_OK;
}

static tsr_status add_empty_states(const tsr_chosen *chosen, const tsr_stored_optimizers *all, tsr_leaf *leaves,
                                   size_t *count, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(chosen->checkpoint);
    bool *has_state = tsr_arena_array(chosen->arena, all->count, sizeof *has_state, err);
    if (!has_state) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count; i++)
        if (all->owners[i]) has_state[all->owners[i] - 1] = true;
    for (uint32_t i = 0; i < all->count; i++) {
        const tsr_stored_optimizer *optimizer = &all->items[i];
        const tsr_entry *list = optimizer->param_count ? all->groups[all->params[optimizer->first_param].group].list : NULL;
        if (has_state[i] || !list || !list->path) continue;
        if (!tsr_format_keeps_keys(tsr_entry_format(catalog, (uint64_t)(list - catalog->entries))))
            TSR_TRY(add_empty_state(chosen, list, leaves, count, err));
    }
    return TSR_OK;
}

static int64_t id_of(tsr_str key)
{
    int64_t id = 0;
    for (size_t i = 0; i < key.size; i++)
        if (key.data[i] != '-') id = 10 * id + (key.data[i] - '0');
    return key.data[0] == '-' ? -id : id;
}

/* The path with the key in `state` as the int that it is the text of. */
static tsr_status restore_path(const tsr_entry *entry, const tsr_path_item *key, tsr_arena *arena, const tsr_path_item **out,
                               tsr_error *err)
{
    tsr_path_item *path = tsr_arena_array(arena, entry->path_length, sizeof *path, err);
    if (!path) return TSR_E_NOMEM;
    memcpy(path, entry->path, entry->path_length * sizeof *path);
    path[key - entry->path] = (tsr_path_item){.kind = TSR_PATH_INT_KEY, .integer = id_of(key->key)};
    *out = path;
    return TSR_OK;
}

/* The paths that the entries of a DCP had before it made texts of an optimizer's ids: where the key in `state` is the text of
 * an int that `param_groups` lists, it is that int again. One path per entry of the catalog, NULL where nothing changes; the
 * array itself is NULL if there is none. `catalog` is the one that was searched. Allocated in `arena`. TSR_E_NOMEM. */
static tsr_status stored_optimizers_restore_ids(const tsr_stored_optimizers *all, const tsr_catalog *catalog,
                                                tsr_arena *arena, const tsr_path_item *const **out, tsr_error *err)
{
    *out = NULL;
    const tsr_path_item **paths = tsr_arena_array(arena, (size_t)catalog->entry_count, sizeof *paths, err);
    if (!paths) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_path_item *key = tsr_stored_optimizers_id_of(all, catalog, i);
        if (!key || key->kind != TSR_PATH_KEY || tsr_format_keeps_keys(tsr_entry_format(catalog, i))) continue;
        TSR_TRY(restore_path(&catalog->entries[i], key, arena, &paths[i], err));
        *out = paths;
    }
    return TSR_OK;
}

tsr_status tsr_nest_rows(const tsr_chosen *chosen, const tsr_value *const *values, tsr_arena *arena, const tsr_value **root,
                         tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(chosen->checkpoint);
    const tsr_catalog *catalog = tsr_checkpoint_catalog(chosen->checkpoint);
    const uint64_t mappings = catalog->mapping_count;
    const tsr_path_item *const *restored;
    tsr_stored_optimizers optimizers;
    uint64_t next = 0;
    size_t count = 0;
    TSR_TRY(tsr_stored_optimizers_find(catalog, host, arena, &optimizers, err));
    tsr_leaf *leaves = tsr_arena_array(arena, (size_t)(chosen->count + mappings) + optimizers.count, sizeof *leaves, err);
    if (!leaves) return TSR_E_NOMEM;
    TSR_TRY(stored_optimizers_restore_ids(&optimizers, catalog, arena, &restored, err));
    for (uint64_t i = 0; i < chosen->count; i++) {
        const tsr_converted *row = &chosen->rows[i];
        TSR_TRY(add_mappings(chosen, i, &next, leaves, &count, err));
        if (!row->written || !values[i]) continue;
        tsr_leaf *leaf = &leaves[count++];
        *leaf = (tsr_leaf){.name = row->name, .value = values[i]};
        TSR_TRY(
            find_path(row, restored && row->entry->path == catalog->entries[i].path ? restored[i] : NULL, arena, leaf, err));
    }
    TSR_TRY(add_mappings(chosen, UINT64_MAX, &next, leaves, &count, err));
    TSR_TRY(add_empty_states(chosen, &optimizers, leaves, &count, err));
    return tsr_nest(leaves, count, host, arena, root, err);
}
