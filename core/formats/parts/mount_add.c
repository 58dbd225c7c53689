/* Adds entries under the name of their part. */
#include "formats/parts/mount.h"
#include "tessera/sys/try.h"

/* The text and the path items put in front of the names that are added. */
typedef struct prefix {
    tsr_checkpoint *checkpoint;
    tsr_str text; /* "rng_state.rank_0", or empty */
    tsr_path_item items[2];
    uint32_t count;
    tsr_error *err;
} prefix;

static tsr_status open_prefix(prefix *p, const tsr_part *part, tsr_str below)
{
    if (part->own_names) return TSR_OK;
    if (part->name.size) p->items[p->count++] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = part->name};
    if (below.size) p->items[p->count++] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = below};
    p->text = tsr_arena_format(p->checkpoint->arena, p->err, "%.*s%s%.*s", TSR_STR_ARG(part->name),
                               part->name.size && below.size ? "." : "", TSR_STR_ARG(below));
    return p->text.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status add_name(const prefix *p, tsr_str *fqn)
{
    if (!p->text.size) return TSR_OK;
    if (fqn->size == 0) *fqn = p->text;
    else *fqn = tsr_arena_format(p->checkpoint->arena, p->err, "%.*s.%.*s", TSR_STR_ARG(p->text), TSR_STR_ARG(*fqn));
    return fqn->data ? TSR_OK : TSR_E_NOMEM;
}

/* Puts the prefix in front of the path of `fqn`. If there is no path, `fqn` is a flat key. */
static tsr_status add_path(const prefix *p, tsr_str fqn, const tsr_path_item **path, uint32_t *length)
{
    const bool flat = !*path && fqn.size > 0;
    const uint32_t own = flat ? 1 : *length;
    if (!p->count) return TSR_OK;
    tsr_path_item *items = tsr_arena_array(p->checkpoint->arena, (size_t)p->count + own, sizeof *items, p->err);
    if (!items) return TSR_E_NOMEM;
    memcpy(items, p->items, p->count * sizeof *items);
    if (flat) items[p->count] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = fqn};
    else if (own) memcpy(items + p->count, *path, own * sizeof *items);
    *path = items;
    *length = p->count + own;
    return TSR_OK;
}

static tsr_status add_entry(const prefix *p, tsr_mounts *mounts, const tsr_entry *entry, uint32_t *storages)
{
    tsr_entry *added = tsr_vec_push(&mounts->entries, p->err);
    if (!added) return TSR_E_NOMEM;
    *added = *entry;
    if (entry->storage_id) added->storage_id += mounts->storages;
    if (added->storage_id > *storages) *storages = added->storage_id;
    TSR_TRY(add_path(p, entry->fqn, &added->path, &added->path_length));
    return add_name(p, &added->fqn);
}

tsr_status tsr_mounts_add(tsr_checkpoint *checkpoint, tsr_str below, const tsr_mount_entries *added, tsr_error *err)
{
    tsr_mounts *mounts = checkpoint->state;
    tsr_part *part = (tsr_part *)mounts->parts.items + mounts->parts.count - 1;
    const uint64_t before = mounts->entries.count;
    uint32_t storages = mounts->storages;
    prefix p = {.checkpoint = checkpoint, .err = err};
    TSR_TRY(open_prefix(&p, part, below));
    for (uint64_t i = 0; i < added->entry_count; i++) TSR_TRY(add_entry(&p, mounts, &added->entries[i], &storages));
    for (uint64_t i = 0; i < added->mapping_count; i++) {
        tsr_mapping *mapping = tsr_vec_push(&mounts->mappings, err);
        if (!mapping) return TSR_E_NOMEM;
        *mapping = added->mappings[i];
        mapping->entries_before += before;
        TSR_TRY(add_path(&p, mapping->fqn, &mapping->path, &mapping->path_length));
        TSR_TRY(add_name(&p, &mapping->fqn));
    }
    mounts->storages = storages;
    part->entry_count += added->entry_count;
    return TSR_OK;
}
