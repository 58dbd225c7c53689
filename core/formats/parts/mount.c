/* See mount.h. This file fills the parts. */
#include "formats/parts/mount.h"

#include "formats/common/metadata.h"
#include "formats/torch/torch_flatten.h"
#include "io/store_view.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

static tsr_mounts *mounts_of(const tsr_checkpoint *checkpoint)
{
    return checkpoint->state;
}

static tsr_part *current_part(const tsr_mounts *mounts)
{
    return (tsr_part *)mounts->parts.items + mounts->parts.count - 1;
}

tsr_status tsr_part_begin(tsr_checkpoint *checkpoint, tsr_str name, bool own_names, tsr_error *err)
{
    tsr_mounts *mounts = mounts_of(checkpoint);
    const tsr_str asked = checkpoint->options.part;
    tsr_part *part = tsr_vec_push(&mounts->parts, err);
    if (!part) return TSR_E_NOMEM;
    *part = (tsr_part){.name = name, .first_entry = mounts->entries.count, .own_names = own_names};
    mounts->skipped = asked.data && !tsr_str_equal(asked, name);
    return TSR_OK;
}

/* ---- one mounted checkpoint ---- */

static tsr_status open_mounted(tsr_checkpoint *checkpoint, const tsr_mount_place *place, tsr_checkpoint **out,
                               tsr_error *err)
{
    const tsr_open_options options = {
        .skip_objects = checkpoint->options.skip_objects, .purpose = TSR_FOR_FINDINGS, .stay = true};
    tsr_store_view *view = NULL;
    bool holds_files;
    if (place->directory.size)
        TSR_TRY(tsr_store_view_below(checkpoint->store, place->directory, checkpoint->arena, &view, &holds_files, err));
    else if (place->file != TSR_NO_FILE)
        TSR_TRY(tsr_store_view_of_file(checkpoint->store, place->file, checkpoint->arena, &view, err));
    return tsr_checkpoint_open_as(view ? &view->base : checkpoint->store, checkpoint->host, &options, place->form, out, err);
}

static tsr_str name_of(const tsr_checkpoint *checkpoint, const tsr_mount_place *place)
{
    if (place->directory.size) return place->directory;
    return checkpoint->store->files[place->file != TSR_NO_FILE ? place->file : place->form->files[0]].name;
}

/* Adds a finding for a file that cannot be read; the others are listed without it. */
static tsr_status report_unreadable(tsr_checkpoint *checkpoint, tsr_str name, const tsr_error *why, tsr_error *err)
{
    if (!tsr_may_be_finding(why->status) || why->status == TSR_E_IO)
        return tsr_raise(err, why->status, why->byte_position, "%s", why->message);
    const tsr_str message =
        tsr_arena_format(checkpoint->arena, err, "'%.*s' cannot be read: %s", TSR_STR_ARG(name), why->message);
    return tsr_checkpoint_is_incomplete(checkpoint, name, message, err);
}

static tsr_status take_files(tsr_mounts *mounts, const tsr_checkpoint *mounted, uint64_t *taken, tsr_error *err)
{
    const tsr_allocator *allocator = mounted->host->allocator;
    const uint32_t count = mounted->store->file_count;
    bool *used = tsr_alloc(allocator, count, sizeof *used, err);
    tsr_status status = used ? TSR_OK : TSR_E_NOMEM;
    if (used) tsr_checkpoint_used_files(mounted, used);
    for (uint32_t f = 0; f < count && status == TSR_OK; f++) {
        if (!used[f]) continue;
        uint32_t *file = tsr_vec_push(&mounts->files, err);
        if (file) *file = f, ++*taken;
        else status = TSR_E_NOMEM;
    }
    tsr_free(allocator, used, count, sizeof *used);
    return status;
}

/* Records the files that the mounted checkpoint lacks as missing from the whole checkpoint. */
static tsr_status take_missing(tsr_checkpoint *checkpoint, const tsr_mount *mount, tsr_error *err)
{
    const tsr_checkpoint *mounted = mount->mounted;
    const tsr_str *missing = mounted->missing.items;
    for (size_t i = 0; i < mounted->missing.count; i++) {
        const tsr_str name = mount->directory.size ? tsr_arena_format(checkpoint->arena, err, "%.*s/%.*s",
                                                                      TSR_STR_ARG(mount->directory), TSR_STR_ARG(missing[i]))
                                                   : missing[i];
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_checkpoint_lacks(checkpoint, name, err));
    }
    if (!mounted->incomplete.size) return TSR_OK;
    checkpoint->names_unknown = checkpoint->names_unknown || mounted->names_unknown;
    if (checkpoint->incomplete.size) return TSR_OK;
    checkpoint->incomplete = tsr_arena_format(checkpoint->arena, err, "%.*s%s%.*s", TSR_STR_ARG(mount->directory),
                                              mount->directory.size ? ": " : "", TSR_STR_ARG(mounted->incomplete));
    return checkpoint->incomplete.data ? TSR_OK : TSR_E_NOMEM;
}

/* Takes over the pairs of a safetensors checkpoint. A part with several of them has pairs of its own only if theirs are the
 * same. */
static tsr_status take_metadata(tsr_mounts *mounts, const tsr_catalog *catalog, tsr_error *err)
{
    const bool has = catalog->format == TSR_FORMAT_SAFETENSORS || catalog->format == TSR_FORMAT_SAFETENSORS_INDEX ||
                     catalog->format == TSR_FORMAT_DCP_SAFETENSORS || catalog->metadata_count;
    tsr_part *part = current_part(mounts);
    if (!has) return TSR_OK;
    tsr_text_pairs *pairs = tsr_vec_push(&mounts->metadata, err);
    if (!pairs) return TSR_E_NOMEM;
    *pairs = (tsr_text_pairs){catalog->metadata, catalog->metadata_count};
    if (part->first_entry == mounts->entries.count) {
        part->metadata = pairs->pairs;
        part->metadata_count = pairs->count;
    } else if (!tsr_text_pairs_equal(*pairs, (tsr_text_pairs){part->metadata, part->metadata_count})) {
        part->metadata_count = 0;
    }
    return TSR_OK;
}

static tsr_status take_mounted(tsr_checkpoint *checkpoint, const tsr_mount_place *place, tsr_mount *mount, tsr_error *err)
{
    tsr_mounts *mounts = mounts_of(checkpoint);
    tsr_part *part = current_part(mounts);
    const tsr_catalog *catalog = &mount->mounted->catalog;
    const tsr_mount_entries added = {catalog->entries, catalog->entry_count, catalog->mappings, catalog->mapping_count};
    if (part->format == TSR_FORMAT_NONE) part->format = catalog->format;
    checkpoint->catalog.compressed = checkpoint->catalog.compressed || catalog->compressed;
    TSR_TRY(take_files(mounts, mount->mounted, &part->files, err));
    TSR_TRY(take_missing(checkpoint, mount, err));
    TSR_TRY(take_metadata(mounts, catalog, err));
    TSR_TRY(tsr_mounts_take_findings(checkpoint, mount, err));
    return tsr_mounts_add(checkpoint, place->below, &added, err);
}

tsr_status tsr_part_mount(tsr_checkpoint *checkpoint, const tsr_mount_place *place, tsr_error *err)
{
    tsr_mounts *mounts = mounts_of(checkpoint);
    tsr_error why = {0};
    tsr_mount mount = {.first_entry = mounts->entries.count, .directory = place->directory};
    if (mounts->skipped) return TSR_OK;
    if (open_mounted(checkpoint, place, &mount.mounted, &why) != TSR_OK)
        return report_unreadable(checkpoint, name_of(checkpoint, place), &why, err);
    mount.entry_count = mount.mounted->catalog.entry_count;
    tsr_mount *kept = tsr_vec_push(&mounts->list, err);
    if (!kept) {
        tsr_checkpoint_close(mount.mounted);
        return TSR_E_NOMEM;
    }
    *kept = mount;
    return take_mounted(checkpoint, place, &mount, err);
}

tsr_status tsr_part_mount_value(tsr_checkpoint *checkpoint, uint32_t file, tsr_format format, tsr_error *err)
{
    tsr_mounts *mounts = mounts_of(checkpoint);
    const tsr_value *root;
    tsr_torch_flat flat;
    tsr_error why = {0};
    if (mounts->skipped) return TSR_OK;
    tsr_status status =
        (format == TSR_FORMAT_JSON ? tsr_json_file_value : tsr_pickle_file_value)(checkpoint, file, &root, &why);
    if (status == TSR_OK)
        status = tsr_torch_flatten(root, checkpoint->host, &checkpoint->expansion, checkpoint->arena, &flat, &why);
    if (status != TSR_OK) return report_unreadable(checkpoint, checkpoint->store->files[file].name, &why, err);
    const tsr_mount_entries added = {flat.entries, flat.entry_count, flat.mappings, flat.mapping_count};
    uint32_t *used = tsr_vec_push(&mounts->files, err);
    if (!used) return TSR_E_NOMEM;
    *used = file;
    tsr_part *part = current_part(mounts);
    if (part->format == TSR_FORMAT_NONE) part->format = format;
    part->files++;
    return tsr_mounts_add(checkpoint, (tsr_str){NULL, 0}, &added, err);
}

/* ---- the whole checkpoint ---- */

static const void *keep(tsr_checkpoint *checkpoint, const tsr_vec *items, size_t size, tsr_error *err)
{
    void *kept = tsr_arena_array(checkpoint->arena, items->count, size, err);
    if (kept && items->count) memcpy(kept, items->items, items->count * size);
    return kept;
}

static tsr_status keep_all(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_mounts *mounts = mounts_of(checkpoint);
    tsr_catalog *catalog = &checkpoint->catalog;
    catalog->entries = mounts->first = keep(checkpoint, &mounts->entries, sizeof(tsr_entry), err);
    catalog->mappings = keep(checkpoint, &mounts->mappings, sizeof(tsr_mapping), err);
    catalog->parts = keep(checkpoint, &mounts->parts, sizeof(tsr_part), err);
    checkpoint->files = keep(checkpoint, &mounts->files, sizeof(uint32_t), err);
    if (!catalog->entries || !catalog->mappings || !catalog->parts || !checkpoint->files) return TSR_E_NOMEM;
    catalog->entry_count = mounts->entries.count;
    catalog->mapping_count = mounts->mappings.count;
    catalog->part_count = (uint32_t)mounts->parts.count;
    checkpoint->file_count = (uint32_t)mounts->files.count;
    return tsr_metadata_join(checkpoint, mounts->metadata.items, (uint32_t)mounts->metadata.count, "parts", err);
}

static void free_lists(tsr_mounts *mounts)
{
    tsr_vec_free(&mounts->entries);
    tsr_vec_free(&mounts->mappings);
    tsr_vec_free(&mounts->parts);
    tsr_vec_free(&mounts->files);
    tsr_vec_free(&mounts->metadata);
}

tsr_status tsr_mounts_fill(tsr_checkpoint *checkpoint, tsr_status (*mount)(tsr_checkpoint *checkpoint, tsr_error *err),
                           tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    tsr_mounts *mounts = TSR_ARENA_NEW(checkpoint->arena, tsr_mounts, err);
    if (!mounts) return TSR_E_NOMEM;
    *mounts = (tsr_mounts){.list = tsr_vec_of(allocator, sizeof(tsr_mount)),
                           .entries = tsr_vec_of(allocator, sizeof(tsr_entry)),
                           .mappings = tsr_vec_of(allocator, sizeof(tsr_mapping)),
                           .parts = tsr_vec_of(allocator, sizeof(tsr_part)),
                           .files = tsr_vec_of(allocator, sizeof(uint32_t)),
                           .metadata = tsr_vec_of(allocator, sizeof(tsr_text_pairs))};
    checkpoint->state = mounts;
    tsr_status status = mount(checkpoint, err);
    if (status == TSR_OK) status = keep_all(checkpoint, err);
    free_lists(mounts);
    if (status != TSR_OK) tsr_mounts_close(checkpoint);
    return status;
}
