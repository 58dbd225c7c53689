/* Bytes, checksums and findings of mounted checkpoints: passes each call on to the mounted checkpoint, with its own
 * entry. */
#include "formats/parts/mount.h"
#include "tessera/sys/checkpoint_bytes.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

/* The mount that an entry came from. NULL for an entry that is not in the catalog, or that came from a document (JSON). */
static const tsr_mount *mount_of(const tsr_checkpoint *checkpoint, const tsr_entry *entry)
{
    const tsr_mounts *mounts = checkpoint->state;
    const tsr_mount *list = mounts->list.items;
    const uint64_t at = ((uintptr_t)entry - (uintptr_t)mounts->first) / sizeof *entry;
    size_t low = 0, high = mounts->list.count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (at >= list[middle].first_entry + list[middle].entry_count) low = middle + 1;
        else high = middle;
    }
    return low < mounts->list.count && at >= list[low].first_entry ? &list[low] : NULL;
}

static const tsr_entry *mounted_entry(const tsr_checkpoint *checkpoint, const tsr_mount *mount, const tsr_entry *entry)
{
    const tsr_mounts *mounts = checkpoint->state;
    return &mount->mounted->catalog.entries[(uint64_t)(entry - mounts->first) - mount->first_entry];
}

tsr_status tsr_mounts_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                             tsr_view *out, tsr_error *err)
{
    const tsr_mount *mount = mount_of(checkpoint, entry);
    *out = (tsr_view){.file = chunk->file, .byte_offset = chunk->byte_offset};
    return mount ? tsr_checkpoint_locate(mount->mounted, mounted_entry(checkpoint, mount, entry), chunk, scratch, out, err)
                 : TSR_OK;
}

tsr_status tsr_mounts_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          tsr_stated_crc *out, tsr_error *err)
{
    const tsr_mount *mount = mount_of(checkpoint, entry);
    if (!mount) return TSR_OK;
    return tsr_checkpoint_crc(mount->mounted, mounted_entry(checkpoint, mount, entry), chunk, scratch, out, err);
}

tsr_status tsr_mounts_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                           tsr_found *out, tsr_error *err)
{
    const tsr_mount *mount = mount_of(checkpoint, entry);
    *out = (tsr_found){.view = {.file = chunk->file, .byte_offset = chunk->byte_offset}};
    return mount ? tsr_checkpoint_find(mount->mounted, mounted_entry(checkpoint, mount, entry), chunk, scratch, out, err)
                 : TSR_OK;
}

/* ---- extents ---- */

typedef struct visit {
    const tsr_checkpoint *checkpoint;
    const tsr_mount *mount;
    tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err);
    void *ctx;
} visit;

static tsr_status pass_on(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    const visit *v = ctx;
    tsr_extent own = *extent;
    if (extent->entry) {
        const uint64_t at = (uint64_t)(extent->entry - v->mount->mounted->catalog.entries);
        own.entry = ((const tsr_mounts *)v->checkpoint->state)->first + v->mount->first_entry + at;
    }
    return v->each(v->ctx, &own, err);
}

tsr_status tsr_mounts_extents(tsr_checkpoint *checkpoint,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err)
{
    const tsr_mounts *mounts = checkpoint->state;
    const tsr_mount *list = mounts->list.items;
    for (size_t i = 0; i < mounts->list.count; i++) {
        visit v = {checkpoint, &list[i], each, ctx};
        const tsr_status status = tsr_checkpoint_extents(list[i].mounted, pass_on, &v, err);
        TSR_TRY(tsr_mounts_take_findings(checkpoint, &list[i], status == TSR_OK ? err : NULL));
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

/* ---- findings ---- */

static tsr_status take_finding(tsr_checkpoint *checkpoint, const tsr_mount *mount, const tsr_finding *finding,
                               tsr_error *err)
{
    char name[4096];
    tsr_place place = {finding->file, finding->byte_offset, finding->fqn};
    const size_t size = mount->directory.size + 1 + finding->file.size;
    if (mount->directory.size && finding->file.size && size <= sizeof name) {
        memcpy(name, mount->directory.data, mount->directory.size);
        name[mount->directory.size] = '/';
        memcpy(name + mount->directory.size + 1, finding->file.data, finding->file.size);
        place.file = (tsr_str){name, size};
    } else if (mount->directory.size) {
        place.file = mount->directory;
    }
    return tsr_finding_add_at(checkpoint->findings, (tsr_rated_rule){finding->rule->id, finding->level}, place, err, "%.*s",
                              TSR_STR_ARG(finding->message));
}

tsr_status tsr_mounts_take_findings(tsr_checkpoint *checkpoint, const tsr_mount *mount, tsr_error *err)
{
    tsr_findings *found = mount->mounted->findings;
    size_t rules;
    const tsr_rule *table = tsr_rules(&rules);
    for (size_t i = 0; i < tsr_findings_count(found); i++)
        TSR_TRY(take_finding(checkpoint, mount, tsr_findings_at(found, i), err));
    for (size_t i = 0; i < rules; i++)
        for (int level = TSR_NOTE; level <= TSR_ERROR; level++)
            tsr_findings_count_more(checkpoint->findings, &table[i], (tsr_level)level,
                                    tsr_findings_unlisted(found, &table[i], (tsr_level)level));
    mount->mounted->findings = tsr_findings_new(checkpoint->host->allocator, 0, err);
    if (!mount->mounted->findings) {
        mount->mounted->findings = found;
        return TSR_E_NOMEM;
    }
    tsr_findings_free(found);
    return TSR_OK;
}

void tsr_mounts_close(tsr_checkpoint *checkpoint)
{
    tsr_mounts *mounts = checkpoint->state;
    tsr_mount *list = mounts->list.items;
    for (size_t i = 0; i < mounts->list.count; i++) tsr_checkpoint_close(list[i].mounted);
    tsr_vec_free(&mounts->list);
}
