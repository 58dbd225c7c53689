/* Lists every item of a DCP checkpoint in file order, for checks that read everything: each item's archive is opened,
 * compared with the metadata, and passed on member by member. Opening one takes a few small reads that depend on each other,
 * so threads open the next few archives in parallel. */
#include "formats/dcp/dcp_state.h"

#include <stdlib.h>

#include "formats/common/end_sum.h"
#include "formats/common/rank_entries.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_writer.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

#define AHEAD_PER_THREAD 4u
/* Limit on the objects opened ahead, because their items are read into memory. */
#define AHEAD_OBJECT_BYTES (UINT64_C(1) << 20)

typedef struct item {
    uint32_t file;
    uint64_t byte_offset; /* where its bytes begin: those of the blob, or of the elements if the chunk has a view */
    uint64_t byte_length;
    const tsr_entry *entry;
    const tsr_chunk *chunk;
    bool skipped; /* overlaps other items, which are passed on instead */
} item;

/* An item's archive that was opened in advance. */
typedef struct opened {
    const item *of;
    tsr_arena *scratch;     /* NULL: not opened */
    tsr_findings *findings; /* for this item only */
    tsr_torch_item archive;
    tsr_view view; /* where the elements are, if the item is a tensor */
    tsr_status status;
    tsr_error why;
} opened;

typedef struct walk {
    tsr_checkpoint *checkpoint;
    tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err);
    void *ctx;
    opened *ahead; /* array of `room` */
    size_t room, used;
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
        *it = (item){chunks[i].file,
                     chunks[i].view ? chunks[i].view->byte_offset : chunks[i].byte_offset,
                     chunks[i].byte_length,
                     entry,
                     &chunks[i],
                     false};
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

/* Whether a member contains the first element of a view. */
static bool holds(const tsr_zip_member *member, const tsr_view *view)
{
    uint64_t inside = view->byte_offset - member->byte_offset; /* huge if the view begins before the member */
    return inside < member->size || (inside == 0 && member->size == 0);
}

/* The members of an item's archive, sorted by position. */
static tsr_zip_member *sort_members(const tsr_zip *zip, tsr_arena *scratch, tsr_error *err)
{
    tsr_zip_member *members = tsr_arena_array(scratch, zip->count, sizeof *members, err);
    if (!members) return NULL;
    memcpy(members, zip->members, zip->count * sizeof *members);
    qsort(members, zip->count, sizeof *members, compare_members);
    return members;
}

/* Passes on what is before member `i`, or with `i` of zip->count the end, if Tessera or torch.save wrote the archive. */
static tsr_status give_gap(const walk *w, tsr_torch_written *written, size_t i, tsr_error *err)
{
    tsr_extent gap;
    if (!written->members) return TSR_OK;
    TSR_TRY(tsr_torch_written_gap(written, w->checkpoint->host, i, &gap, err));
    return w->each(w->ctx, &gap, err);
}

static tsr_status open_written(const walk *w, const item *it, const tsr_zip_member *members, size_t count,
                               tsr_arena *scratch, tsr_torch_written *out, tsr_error *err)
{
    tsr_zip_new_member *copies = tsr_arena_array(scratch, count, sizeof *copies, err);
    if (!copies) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        copies[i] = (tsr_zip_new_member){.name = members[i].name,
                                         .size = members[i].size,
                                         .crc32 = members[i].crc32,
                                         .byte_offset = members[i].byte_offset};
    const tsr_range range = {w->checkpoint->store, it->file, it->byte_offset, it->byte_length};
    return tsr_torch_written_open(range, w->checkpoint->host, copies, count, out, err);
}

static tsr_status give_members(const walk *w, const item *it, const tsr_zip *zip, const tsr_zip_member *members,
                               const tsr_view *view, tsr_torch_written *written, tsr_error *err)
{
    bool given = false;
    for (uint32_t i = 0; i < zip->count; i++) {
        TSR_TRY(give_gap(w, written, i, err));
        tsr_extent extent = {.file = it->file,
                             .byte_offset = members[i].byte_offset,
                             .byte_length = members[i].size,
                             .has_crc = !zip->crc_absent,
                             .crc32 = members[i].crc32,
                             .member = members[i].name,
                             .before = members[i].byte_offset - it->byte_offset};
        if (view && !given && holds(&members[i], view)) {
            extent.entry = it->entry;
            extent.chunk = it->chunk;
            extent.view = *view;
            given = true;
        }
        TSR_TRY(w->each(w->ctx, &extent, err));
    }
    return give_gap(w, written, zip->count, err);
}

/* Passes on a whole item as one extent: raw elements of a safetensors file, or a zstd stream. */
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

/* Checks the CRCs of an archive that is inside a zstd stream. */
static tsr_status give_zstd(const walk *w, const item *it, const tsr_zip *zip, const tsr_zip_member *members,
                            tsr_arena *scratch, tsr_error *err)
{
    tsr_error why = {0};
    if (zip->crc_absent) return TSR_OK;
    const tsr_dcp_item at = {w->checkpoint, it->entry, it->chunk};
    const tsr_status status = tsr_dcp_check_zstd(at, members, zip->count, scratch, &why);
    return status == TSR_OK ? TSR_OK : tsr_dcp_report_item(w->checkpoint, it->entry, it->chunk, &why, err);
}

/* ---- opening in advance ---- */

/* Whether the item is another rank's copy of one that is read. */
static bool is_replica(const item *it)
{
    const tsr_entry *entry = it->entry;
    return entry->replica_count && it->chunk >= entry->replicas && it->chunk < entry->replicas + entry->replica_count;
}

/* Whether the object was read when the checkpoint was opened, so that its faults are already findings. */
static bool was_read(const tsr_checkpoint *checkpoint, const item *it)
{
    return it->entry->kind != TSR_ENTRY_TENSOR && !checkpoint->options.skip_objects && !is_replica(it);
}

static tsr_status open_archive(const walk *w, opened *o)
{
    tsr_checkpoint *checkpoint = w->checkpoint;
    const item *it = o->of;
    const tsr_dcp_item at = {checkpoint, it->entry, it->chunk};
    tsr_error *why = &o->why;
    o->scratch = tsr_arena_new(checkpoint->host->allocator, 0, why);
    o->findings = o->scratch ? tsr_findings_new(checkpoint->host->allocator, 0, why) : NULL;
    if (!o->findings) return TSR_E_NOMEM;
    TSR_TRY(tsr_dcp_open_item(at, o->scratch, was_read(checkpoint, it) ? NULL : o->findings, &o->archive, why));
    if (it->entry->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    return tsr_dcp_view_of(it->entry, it->chunk, &o->archive, o->scratch, &o->view, why);
}

/* Called by tsr_parallel. */
static void open_one(void *arg, size_t index)
{
    const walk *w = arg;
    w->ahead[index].status = open_archive(w, &w->ahead[index]);
}

static void close_ahead(walk *w)
{
    for (size_t i = 0; i < w->used; i++) {
        tsr_findings_free(w->ahead[i].findings);
        tsr_arena_free(w->ahead[i].scratch);
    }
    w->used = 0;
}

/* Whether the item went through a user's own extension: a finding already says that it cannot be checked. */
static bool is_extended(const walk *w, const item *it)
{
    return tsr_dcp_transform_of(tsr_dcp_state_of(w->checkpoint), it->chunk) == TSR_DCP_EXTENDED;
}

/* Opens the archives of the first few items, skipping those that have none. */
static void open_ahead(walk *w, const item *items, size_t count)
{
    uint64_t object_bytes = 0;
    close_ahead(w);
    for (size_t i = 0; i < count && w->used < w->room; i++) {
        if (items[i].skipped || items[i].chunk->view || is_extended(w, &items[i])) continue;
        if (items[i].entry->kind != TSR_ENTRY_TENSOR) object_bytes += items[i].byte_length;
        if (w->used && object_bytes > AHEAD_OBJECT_BYTES) break;
        w->ahead[w->used++] = (opened){.of = &items[i]};
    }
    tsr_parallel(w->checkpoint->host, w->used, open_one, w);
}

static opened *find_opened(const walk *w, const item *it)
{
    for (size_t i = 0; i < w->used; i++)
        if (w->ahead[i].of == it) return &w->ahead[i];
    return NULL;
}

/* ---- passing on ---- */

typedef struct inner_match {
    const tsr_checkpoint *checkpoint;
    tsr_status status;
    tsr_error *err;
} inner_match;

static bool match_inner(void *ctx, const tsr_entry *a, const tsr_entry *b)
{
    inner_match *m = ctx;
    bool same = a->kind == b->kind && a->dtype == b->dtype && tsr_entry_same_shape(a, b);
    const bool stored = a->kind == TSR_ENTRY_TENSOR && a->chunk_count == 1 && b->chunk_count == 1;
    if (same && stored) m->status = tsr_rank_bytes_match(m->checkpoint, a, b, &same, m->err);
    return same && m->status == TSR_OK;
}

/* Compares another rank's copy of an object with the first one, which is the one that is read. */
static tsr_status check_copy(const walk *w, const item *it, const opened *o, tsr_error *err)
{
    const tsr_checkpoint *checkpoint = w->checkpoint;
    const tsr_entry *first = it->entry;
    inner_match m = {checkpoint, TSR_OK, err};
    /* The tensors of a compressed item have no bytes in the file that could be compared. */
    const bool compressed = tsr_dcp_is_zstd(tsr_dcp_state_of(checkpoint), it->chunk);
    if (!first->value || !is_replica(it)) return TSR_OK;
    const tsr_match match = tsr_value_match_tensors(first->value, o->archive.root, checkpoint->host->limits.depth,
                                                    checkpoint->host->limits.expansion, compressed ? NULL : match_inner, &m);
    if (match == TSR_SAME || m.status != TSR_OK) return m.status;
    const tsr_place place = {checkpoint->store->files[it->file].name, it->byte_offset, first->fqn};
    return tsr_finding_add(checkpoint->findings, "torch/rank-object", place, err,
                           "'%.*s' differs from the object in '%.*s', which is the one that is shown",
                           TSR_STR_ARG(first->fqn), TSR_STR_ARG(checkpoint->store->files[first->chunks[0].file].name));
}

static tsr_status give_archive(const walk *w, const item *it, opened *o, tsr_error *err)
{
    tsr_checkpoint *checkpoint = w->checkpoint;
    const tsr_view *view = it->entry->kind == TSR_ENTRY_TENSOR ? &o->view : NULL;
    const bool said = was_read(checkpoint, it) && o->status != TSR_E_NOMEM && o->status != TSR_E_IO;
    if (o->findings) TSR_TRY(tsr_findings_take(checkpoint->findings, o->findings, err));
    if (o->status != TSR_OK) return said ? TSR_OK : tsr_dcp_report_item(checkpoint, it->entry, it->chunk, &o->why, err);
    if (it->entry->kind != TSR_ENTRY_TENSOR) TSR_TRY(check_copy(w, it, o, err));
    const tsr_zip_member *members = sort_members(&o->archive.zip, o->scratch, err);
    if (!members) return TSR_E_NOMEM;
    if (tsr_dcp_is_zstd(tsr_dcp_state_of(checkpoint), it->chunk)) {
        TSR_TRY(give_whole(w, it, view, err));
        return give_zstd(w, it, &o->archive.zip, members, o->scratch, err);
    }
    tsr_torch_written written = {.members = NULL};
    tsr_status status = open_written(w, it, members, o->archive.zip.count, o->scratch, &written, err);
    if (status == TSR_OK) status = give_members(w, it, &o->archive.zip, members, view, &written, err);
    tsr_torch_written_close(&written);
    return status;
}

/* Passes on `it`, the first of the `count` remaining items. */
static tsr_status give(walk *w, const item *it, size_t count, tsr_error *err)
{
    if (it->chunk->view) return give_whole(w, it, it->chunk->view, err);
    if (is_extended(w, it)) return TSR_OK;
    opened *o = find_opened(w, it);
    if (!o) {
        open_ahead(w, it, count);
        o = &w->ahead[0];
    }
    tsr_status status = give_archive(w, it, o, err);
    tsr_findings_free(o->findings);
    tsr_arena_free(o->scratch);
    o->findings = NULL;
    o->scratch = NULL;
    return status;
}

static tsr_status report_gap(const walk *w, uint32_t file, uint64_t from, uint64_t to, tsr_error *err)
{
    tsr_str name = w->checkpoint->store->files[file].name;
    if (from >= to || tsr_dcp_state_of(w->checkpoint)->file_uses[file] == TSR_DCP_SAFETENSORS) return TSR_OK;
    return tsr_finding_add(w->checkpoint->findings, "dcp/dead-bytes", (tsr_place){name, from, {NULL, 0}}, err,
                           "bytes %llu to %llu of '%.*s' belong to no item", (unsigned long long)from,
                           (unsigned long long)to, TSR_STR_ARG(name));
}

/* Overlapping items are already an error (layout/bytes-shared). Some are read nevertheless, to report what else is wrong,
 * but no more than about the file's size in total: metadata can name one item any number of times. */
static void skip_overlapping(const walk *w, item *items, size_t count)
{
    uint64_t end = 0, again = 0;
    for (size_t i = 0; i < count; i++) {
        if (i && items[i].file != items[i - 1].file) end = again = 0;
        const bool overlaps = items[i].byte_offset < end;
        if (overlaps) again += items[i].byte_length;
        items[i].skipped = overlaps && again > w->checkpoint->store->files[items[i].file].size;
        const uint64_t item_end = items[i].byte_offset + items[i].byte_length;
        if (item_end > end) end = item_end;
    }
}

static tsr_status ask_skips(const walk *w, const item *it, bool *skips, tsr_error *err)
{
    const tsr_extent question = {.file = it->file, .byte_offset = it->byte_offset, .skips = skips};
    *skips = false;
    return w->each(w->ctx, &question, err);
}

/* Gaps before an item, and behind the last one of its file, are left out with the item. */
static tsr_status give_all(walk *w, const item *items, size_t count, tsr_error *err)
{
    uint64_t end = 0;
    bool skips;
    for (size_t i = 0; i < count; i++) {
        if (i && items[i].file != items[i - 1].file) end = 0;
        TSR_TRY(ask_skips(w, &items[i], &skips, err));
        if (!skips) TSR_TRY(report_gap(w, items[i].file, end, items[i].byte_offset, err));
        if (!skips && !items[i].skipped) TSR_TRY(give(w, &items[i], count - i, err));
        uint64_t item_end = items[i].byte_offset + items[i].byte_length;
        if (item_end > end) end = item_end;
        bool last = i + 1 == count || items[i + 1].file != items[i].file;
        if (last && !skips) TSR_TRY(report_gap(w, items[i].file, end, w->checkpoint->store->files[items[i].file].size, err));
    }
    return count ? ask_skips(w, &items[count - 1], &skips, err) : TSR_OK; /* what follows is not of the last item */
}

tsr_status tsr_dcp_extents_of(tsr_checkpoint *checkpoint, const tsr_entry *entries, uint64_t count,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err)
{
    const tsr_host *host = checkpoint->host;
    walk w = {.checkpoint = checkpoint, .each = each, .ctx = ctx};
    tsr_vec items = tsr_vec_of(host->allocator, sizeof(item));
    for (uint32_t s = 0; s < tsr_dcp_state_of(checkpoint)->source_count; s++)
        TSR_TRY(tsr_end_sum_extent(checkpoint->store, tsr_dcp_state_of(checkpoint)->sources[s].file, each, ctx, err));
    w.room = tsr_threads(host) > 1 ? (size_t)AHEAD_PER_THREAD * tsr_threads(host) : 1;
    w.ahead = tsr_alloc(host->allocator, w.room, sizeof *w.ahead, err);
    tsr_status status = w.ahead ? collect(entries, count, &items, err) : TSR_E_NOMEM;
    if (status == TSR_OK) skip_overlapping(&w, items.items, items.count);
    if (status == TSR_OK) status = give_all(&w, items.items, items.count, err);
    close_ahead(&w);
    tsr_free(host->allocator, w.ahead, w.room, sizeof *w.ahead);
    tsr_vec_free(&items);
    return status;
}
