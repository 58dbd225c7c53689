/* Every item of a DCP checkpoint in the order of the files, for checks that read everything: each item's archive is
 * opened, compared with the metadata, and given out member by member. */
#include <stdlib.h>

#include "formats/dcp/dcp_state.h"
#include "tessera/sys/try.h"

typedef struct item {
    uint32_t file;
    uint64_t byte_offset; /* where its bytes begin: of the blob, or of the elements when they have a view */
    uint64_t byte_length;
    const tsr_entry *entry;
    const tsr_chunk *chunk;
} item;

typedef struct walk {
    tsr_checkpoint *checkpoint;
    tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err);
    void *ctx;
} walk;

static int compare_items(const void *left, const void *right)
{
    const item *a = left, *b = right;
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    if (a->byte_offset != b->byte_offset) return a->byte_offset < b->byte_offset ? -1 : 1;
    return (a->byte_length > b->byte_length) - (a->byte_length < b->byte_length);
}

static int compare_members(const void *left, const void *right)
{
    const tsr_zip_member *a = left, *b = right;
    return (a->byte_offset > b->byte_offset) - (a->byte_offset < b->byte_offset);
}

static tsr_status add_chunks(tsr_vec *items, const tsr_entry *entry, const tsr_chunk *chunks, uint64_t count, tsr_error *err)
{
    for (uint64_t i = 0; i < count; i++) {
        if (chunks[i].file == TSR_NO_FILE) continue;
        item *it = tsr_vec_push(items, err);
        if (!it) return TSR_E_NOMEM;
        *it = (item){chunks[i].file, chunks[i].view ? chunks[i].view->byte_offset : chunks[i].byte_offset,
                     chunks[i].byte_length, entry, &chunks[i]};
    }
    return TSR_OK;
}

static tsr_status collect(const tsr_entry *entries, uint64_t count, tsr_vec *items, tsr_error *err)
{
    for (uint64_t i = 0; i < count; i++) {
        const tsr_entry *entry = &entries[i];
        TSR_TRY(add_chunks(items, entry, entry->chunks, entry->chunk_count, err));
        TSR_TRY(add_chunks(items, entry, entry->replicas, entry->replica_count, err));
    }
    if (items->count) qsort(items->items, items->count, sizeof(item), compare_items);
    return TSR_OK;
}

/* Whether a member holds the elements that a view begins in. */
static bool holds(const tsr_zip_member *member, const tsr_view *view)
{
    uint64_t inside = view->byte_offset - member->byte_offset; /* huge where the view begins before it */
    return inside < member->size || (inside == 0 && member->size == 0);
}

/* The members of an item's archive as they lie. */
static tsr_zip_member *sort_members(const tsr_zip *zip, tsr_arena *scratch, tsr_error *err)
{
    tsr_zip_member *members = tsr_arena_array(scratch, zip->count, sizeof *members, err);
    if (!members) return NULL;
    memcpy(members, zip->members, zip->count * sizeof *members);
    qsort(members, zip->count, sizeof *members, compare_members);
    return members;
}

static tsr_status give_members(const walk *w, const item *it, const tsr_zip *zip, const tsr_zip_member *members,
                               const tsr_view *view, tsr_error *err)
{
    bool given = false;
    for (uint32_t i = 0; i < zip->count; i++) {
        tsr_extent extent = {.file = it->file,
                             .byte_offset = members[i].byte_offset,
                             .byte_length = members[i].size,
                             .has_crc = !zip->crc_absent,
                             .crc32 = members[i].crc32,
                             .member = members[i].name};
        if (view && !given && holds(&members[i], view)) {
            extent.entry = it->entry;
            extent.chunk = it->chunk;
            extent.view = *view;
            given = true;
        }
        TSR_TRY(w->each(w->ctx, &extent, err));
    }
    return TSR_OK;
}

/* One extent for a whole item: raw elements of a safetensors file, or a zstd stream. */
static tsr_status give_whole(const walk *w, const item *it, const tsr_view *view, tsr_error *err)
{
    tsr_extent extent = {.file = it->file, .byte_offset = it->byte_offset, .byte_length = it->byte_length};
    if (view) {
        extent.entry = it->entry;
        extent.chunk = it->chunk;
        extent.view = *view;
    }
    return w->each(w->ctx, &extent, err);
}

/* The CRCs of the archive in the compressed bytes. */
static tsr_status give_zstd(const walk *w, const item *it, const tsr_zip *zip, const tsr_zip_member *members,
                            tsr_arena *scratch, tsr_error *err)
{
    tsr_error why = {0};
    if (zip->crc_absent) return TSR_OK;
    const tsr_dcp_item at = {w->checkpoint, it->entry, it->chunk};
    const tsr_status status = tsr_dcp_check_zstd(at, members, zip->count, scratch, &why);
    return status == TSR_OK ? TSR_OK : tsr_dcp_bad_item(w->checkpoint, it->entry, it->chunk, &why, err);
}

static tsr_status give_archive(const walk *w, const item *it, tsr_arena *scratch, tsr_error *err)
{
    tsr_checkpoint *checkpoint = w->checkpoint;
    bool tensor = it->entry->kind == TSR_ENTRY_TENSOR, seen = !tensor && !checkpoint->options.skip_objects;
    tsr_torch_item opened;
    tsr_view view;
    tsr_error why = {0};
    const tsr_dcp_item at = {checkpoint, it->entry, it->chunk};
    tsr_status status = tsr_dcp_open_item(at, scratch, seen ? NULL : checkpoint->findings, &opened, &why);
    if (status == TSR_OK && tensor) status = tsr_dcp_view_of(it->entry, it->chunk, &opened, scratch, &view, &why);
    bool said = seen && status != TSR_E_NOMEM && status != TSR_E_IO; /* what is wrong with it was found when it was opened */
    if (status != TSR_OK) return said ? TSR_OK : tsr_dcp_bad_item(checkpoint, it->entry, it->chunk, &why, err);
    const tsr_zip_member *members = sort_members(&opened.zip, scratch, err);
    if (!members) return TSR_E_NOMEM;
    if (tsr_dcp_is_zstd(tsr_dcp_state_of(checkpoint), it->chunk)) {
        TSR_TRY(give_whole(w, it, tensor ? &view : NULL, err));
        return give_zstd(w, it, &opened.zip, members, scratch, err);
    }
    return give_members(w, it, &opened.zip, members, tensor ? &view : NULL, err);
}

static tsr_status give(const walk *w, const item *it, tsr_error *err)
{
    if (it->chunk->view) return give_whole(w, it, it->chunk->view, err);
    tsr_arena *scratch = tsr_arena_new(w->checkpoint->host->allocator, 0, err);
    if (!scratch) return TSR_E_NOMEM;
    tsr_status status = give_archive(w, it, scratch, err);
    tsr_arena_free(scratch);
    return status;
}

static tsr_status report_gap(const walk *w, uint32_t file, uint64_t from, uint64_t to, tsr_error *err)
{
    tsr_str name = w->checkpoint->store->files[file].name;
    if (from >= to || tsr_dcp_state_of(w->checkpoint)->file_uses[file] == TSR_DCP_SAFETENSORS) return TSR_OK;
    return tsr_finding_add(w->checkpoint->findings, "dcp/dead-bytes", (tsr_place){name, from, {NULL, 0}}, err,
                           "bytes %llu to %llu of '%.*s' belong to no item", (unsigned long long)from, (unsigned long long)to,
                           TSR_STR_ARG(name));
}

/* Items that overlap are an error already (layout/bytes-shared). A few are still read, to say what else is wrong; but
 * metadata can name one item any number of times, and the file is not read once for each. */
static tsr_status give_all(const walk *w, const item *items, size_t count, tsr_error *err)
{
    uint64_t end = 0, again = 0;
    for (size_t i = 0; i < count; i++) {
        if (i && items[i].file != items[i - 1].file) end = again = 0;
        TSR_TRY(report_gap(w, items[i].file, end, items[i].byte_offset, err));
        if (items[i].byte_offset < end) again += items[i].byte_length;
        if (items[i].byte_offset >= end || again <= w->checkpoint->store->files[items[i].file].size)
            TSR_TRY(give(w, &items[i], err));
        uint64_t item_end = items[i].byte_offset + items[i].byte_length;
        if (item_end > end) end = item_end;
        bool last = i + 1 == count || items[i + 1].file != items[i].file;
        if (last) TSR_TRY(report_gap(w, items[i].file, end, w->checkpoint->store->files[items[i].file].size, err));
    }
    return TSR_OK;
}

tsr_status tsr_dcp_extents_of(tsr_checkpoint *checkpoint, const tsr_entry *entries, uint64_t count,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err)
{
    walk w = {checkpoint, each, ctx};
    tsr_vec items = tsr_vec_of(checkpoint->host->allocator, sizeof(item));
    tsr_status status = collect(entries, count, &items, err);
    if (status == TSR_OK) status = give_all(&w, items.items, items.count, err);
    tsr_vec_free(&items);
    return status;
}

tsr_status tsr_dcp_extents(tsr_checkpoint *checkpoint,
                           tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                           tsr_error *err)
{
    return tsr_dcp_extents_of(checkpoint, checkpoint->catalog.entries, checkpoint->catalog.entry_count, each, ctx, err);
}
