/* Builds the catalog of a DCP checkpoint from `.metadata`, or from the union of the rank-local `__R.metadata` files.
 *
 *   state_dict_metadata   FQN → tensor (dtype, size, chunks) or bytes      entries, in its order
 *   planner_data          FQN → path from the root                          entry.path
 *   storage_data          (FQN, offsets) → file, offset, length             dcp_place.c
 *
 * If a box occurs several times (replicas, one per rank), the first becomes a chunk and the others become `replicas`. */
#include <stdlib.h>

#include "formats/common/end_sum.h"
#include "formats/common/expansion.h"
#include "formats/common/rank_entries.h"
#include "formats/dcp/dcp_state.h"
#include "formats/torch/torch_writer.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

/* ---- extents ---- */

/* Lists every item of a DCP checkpoint in file order, for checks that read everything: each item's archive is opened,
 * compared with the metadata, and passed on member by member. Opening one takes a few small reads that depend on each other,
 * so threads open the next few archives in parallel. */

#define AHEAD_PER_THREAD 4u
#define AHEAD_OBJECT_BYTES \
    (UINT64_C(1) << 20) /* limit on the objects opened ahead, because their items are read into
                                                * memory */

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
    return status == TSR_OK ? TSR_OK : tsr_dcp_bad_item(w->checkpoint, it->entry, it->chunk, &why, err);
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
    if (o->status != TSR_OK) return said ? TSR_OK : tsr_dcp_bad_item(checkpoint, it->entry, it->chunk, &o->why, err);
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

static tsr_status dcp_extents(tsr_checkpoint *checkpoint,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err)
{
    return tsr_dcp_extents_of(checkpoint, checkpoint->catalog.entries, checkpoint->catalog.entry_count, each, ctx, err);
}

/* ---- dcp ---- */

/* Finds the entry `fqn`, or adds it if no earlier source has it. */
static tsr_status entry_for(tsr_checkpoint *checkpoint, tsr_str fqn, uint32_t *index, bool *inserted, tsr_error *err)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    uint32_t *stored;
    *index = tsr_map_get(state->names, fqn, TSR_DCP_NO_ENTRY);
    *inserted = *index == TSR_DCP_NO_ENTRY;
    if (!*inserted) return TSR_OK;
    TSR_FAIL_IF(state->entries.count >= checkpoint->host->limits.entries || state->entries.count >= UINT32_MAX - 1, err,
                TSR_E_LIMIT, "dcp: more than %llu entries", (unsigned long long)checkpoint->host->limits.entries);
    tsr_str copy = tsr_arena_str(checkpoint->arena, fqn, err);
    if (!copy.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(state->names, copy, (uint32_t)state->entries.count, &stored, NULL, err));
    tsr_entry *entry = tsr_vec_push(&state->entries, err);
    if (!entry) return TSR_E_NOMEM;
    entry->fqn = copy;
    *index = *stored;
    return TSR_OK;
}

/* Sets a tensor's entry from the metadata. If another rank's metadata has the tensor too, it must state the same. */
static tsr_status set_tensor(tsr_entry *entry, const tsr_dcp_metadata_file *source, const uint64_t *record, bool inserted,
                             tsr_error *err)
{
    uint32_t ndim;
    const uint64_t *shape = tsr_dcp_dims(&source->metadata, tsr_dcp_high(record[0]), &ndim);
    tsr_dtype dtype = (tsr_dtype)(record[0] >> 8 & 0xFF);
    bool same =
        entry->kind == TSR_ENTRY_TENSOR && entry->dtype == dtype && tsr_shape_equal(entry->ndim, entry->shape, ndim, shape);
    TSR_FAIL_IF(!inserted && !same, err, TSR_E_FORMAT,
                "dcp: '%.*s' has a different dtype, size or kind in the metadata of another rank", TSR_STR_ARG(entry->fqn));
    entry->kind = TSR_ENTRY_TENSOR;
    entry->dtype = dtype;
    entry->ndim = ndim;
    entry->shape = shape;
    /* PyTorch ignores it when it loads. On other dtypes, it refuses a tensor that has it set. */
    const tsr_dtype_class kind = tsr_dtype_describe(dtype)->kind;
    entry->requires_grad = (kind == TSR_CLASS_FLOAT || kind == TSR_CLASS_COMPLEX) && (record[0] >> 16 & 1);
    return TSR_OK;
}

static tsr_status set_chunks(const tsr_dcp_metadata_file *source, const tsr_entry *entry, const uint64_t *record,
                             tsr_chunk *chunks, tsr_error *err)
{
    const uint64_t *words = tsr_dcp_chunks(&source->metadata, record);
    for (uint64_t i = 0; i < record[1]; i++) {
        uint32_t ndim;
        chunks[i] = (tsr_chunk){.file = TSR_NO_FILE, .byte_length = UINT64_MAX /* not placed yet */};
        chunks[i].offsets = tsr_dcp_dims(&source->metadata, tsr_dcp_chunk_offsets(words[i]), &ndim);
        chunks[i].sizes = tsr_dcp_dims(&source->metadata, tsr_dcp_chunk_sizes(words[i]), &ndim);
        TSR_FAIL_IF(ndim != entry->ndim, err, TSR_E_FORMAT,
                    "dcp: chunk %llu of '%.*s' has %u dimensions, but the tensor has %u", (unsigned long long)i,
                    TSR_STR_ARG(entry->fqn), ndim, entry->ndim);
    }
    return TSR_OK;
}

/* Adds one key and value of state_dict_metadata. */
static tsr_status add_entry(tsr_checkpoint *checkpoint, tsr_dcp_metadata_file *source, tsr_ref key, tsr_ref value,
                            tsr_error *err)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    const tsr_dcp_metadata *metadata = &source->metadata;
    const uint64_t *tensor = tsr_dcp_record(metadata, value, TSR_DCP_TENSOR);
    tsr_str fqn = tsr_pickle_text(metadata->pickle, key);
    TSR_FAIL_IF(tsr_pickle_kind_of(metadata->pickle, key) != TSR_PICKLE_STR, err, TSR_E_FORMAT,
                "dcp: a key of state_dict_metadata is not a string");
    TSR_FAIL_IF(!tensor && !tsr_dcp_record(metadata, value, TSR_DCP_BYTES), err, TSR_E_FORMAT,
                "dcp: '%.*s' is neither a TensorStorageMetadata nor a BytesStorageMetadata", TSR_STR_ARG(fqn));
    uint32_t index;
    bool inserted;
    TSR_TRY(entry_for(checkpoint, fqn, &index, &inserted, err));
    tsr_entry *entry = (tsr_entry *)state->entries.items + index;
    tsr_dcp_part *part = tsr_vec_push(&source->parts, err);
    if (!part) return TSR_E_NOMEM;
    *part = (tsr_dcp_part){source->chunk_count, tensor ? tensor[1] : 1, index};
    source->chunk_count += part->count;
    if (tensor) {
        TSR_TRY(set_tensor(entry, source, tensor, inserted, err));
        return set_chunks(source, entry, tensor, source->chunks + part->first, err);
    }
    TSR_FAIL_IF(!inserted && entry->kind != TSR_ENTRY_OBJECT, err, TSR_E_FORMAT,
                "dcp: '%.*s' is a tensor in the metadata of one rank and an object in that of another", TSR_STR_ARG(fqn));
    entry->kind = TSR_ENTRY_OBJECT;
    source->chunks[part->first] = (tsr_chunk){.file = TSR_NO_FILE, .byte_length = UINT64_MAX};
    return TSR_OK;
}

/* The number of chunks: those of all tensors, and one per object. */
static uint64_t count_chunks(const tsr_dcp_metadata_file *source, const tsr_ref *pairs, size_t count)
{
    uint64_t total = 0;
    for (size_t i = 1; i < count; i += 2) {
        const uint64_t *tensor = tsr_dcp_record(&source->metadata, pairs[i], TSR_DCP_TENSOR);
        total += tensor ? tensor[1] : 1;
    }
    return total;
}

static tsr_status add_entries(tsr_checkpoint *checkpoint, tsr_dcp_metadata_file *source, tsr_error *err)
{
    size_t count;
    const tsr_ref *pairs = tsr_pickle_items(source->metadata.pickle, source->metadata.state_dict, &count);
    uint64_t before = tsr_dcp_state_of(checkpoint)->entries.count, total = count_chunks(source, pairs, count);
    TSR_FAIL_IF(total > SIZE_MAX / sizeof(tsr_chunk), err, TSR_E_LIMIT, "dcp: %llu chunks are too many",
                (unsigned long long)total);
    /* Lists may be shared. */
    TSR_TRY(tsr_expansion_take(&checkpoint->expansion, total * sizeof(tsr_chunk), checkpoint->host, err));
    source->chunks = tsr_alloc(checkpoint->host->allocator, (size_t)total, sizeof(tsr_chunk), err);
    if (!source->chunks) return TSR_E_NOMEM;
    source->chunk_room = total;
    for (size_t i = 0; i + 1 < count; i += 2) TSR_TRY(add_entry(checkpoint, source, pairs[i], pairs[i + 1], err));
    uint64_t added = tsr_dcp_state_of(checkpoint)->entries.count - before;
    TSR_FAIL_IF(tsr_dcp_state_of(checkpoint)->source_count == 1 && added < count / 2, err, TSR_E_FORMAT,
                "dcp: state_dict_metadata has the same key twice");
    return TSR_OK;
}

/* Whether the items, joined with dots, are the name, as flatten_state_dict of PyTorch joins them. */
static bool is_path_of(tsr_str name, const tsr_path_item *items, size_t count)
{
    char digits[TSR_PATH_DIGITS];
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const tsr_str text = tsr_path_item_text(&items[i], digits);
        if (items[i].kind == TSR_PATH_INDEX && items[i].integer < 0) return false;
        if (i && (at >= name.size || name.data[at++] != '.')) return false;
        if (!tsr_str_starts((tsr_str){name.data + at, name.size - at}, text)) return false;
        at += text.size;
    }
    return at == name.size;
}

/* Copies a path: a tuple of str (dict keys) and int (list positions). *count is 0 if another kind of item is in it. */
static tsr_status copy_path(tsr_checkpoint *checkpoint, const tsr_pickle *pickle, tsr_ref path, const tsr_path_item **out,
                            size_t *count, tsr_error *err)
{
    const tsr_ref *items = tsr_pickle_items(pickle, path, count);
    const size_t wanted = *count;
    uint64_t bytes = (uint64_t)wanted * sizeof(tsr_path_item); /* entries may share paths and keys */
    for (size_t i = 0; i < wanted && bytes <= checkpoint->expansion; i++) bytes += tsr_pickle_text(pickle, items[i]).size;
    TSR_TRY(tsr_expansion_take(&checkpoint->expansion, bytes, checkpoint->host, err));
    tsr_path_item *copy = tsr_arena_array(checkpoint->arena, wanted, sizeof *copy, err);
    if (!copy) return TSR_E_NOMEM;
    *out = copy;
    *count = 0;
    for (size_t i = 0; i < wanted; i++) {
        tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, items[i]);
        if (kind != TSR_PICKLE_STR && kind != TSR_PICKLE_INT) return TSR_OK;
        copy[i].kind = kind == TSR_PICKLE_STR ? TSR_PATH_KEY : TSR_PATH_INDEX;
        copy[i].integer = tsr_pickle_int(pickle, items[i]);
        if (kind == TSR_PICKLE_STR) copy[i].key = tsr_arena_str(checkpoint->arena, tsr_pickle_text(pickle, items[i]), err);
        if (kind == TSR_PICKLE_STR && !copy[i].key.data) return TSR_E_NOMEM;
    }
    *count = wanted;
    return TSR_OK;
}

/* Sets an entry's path from planner_data. An entry keeps its flat key if planner_data has no tuple for it, or one that does
 * not lead to its name. PyTorch does not find such an entry when it rebuilds the nested state dict. */
static tsr_status set_path(tsr_checkpoint *checkpoint, const tsr_dcp_metadata_file *source, tsr_entry *entry, tsr_ref path,
                           tsr_error *err)
{
    size_t count;
    const tsr_path_item *items;
    const tsr_pickle *pickle = source->metadata.pickle;
    tsr_pickle_items(pickle, path, &count);
    if (tsr_pickle_kind_of(pickle, path) != TSR_PICKLE_TUPLE || count == 0 || count > UINT32_MAX) return TSR_OK;
    TSR_TRY(copy_path(checkpoint, pickle, path, &items, &count, err));
    if (!count || !is_path_of(entry->fqn, items, count)) {
        const tsr_place place = {checkpoint->store->files[source->file].name, TSR_NO_POSITION, entry->fqn};
        return tsr_finding_add(checkpoint->findings, "file/unreadable", place, err,
                               "the path that planner_data gives for '%.*s' does not lead to that name",
                               TSR_STR_ARG(entry->fqn));
    }
    entry->path = items;
    entry->path_length = (uint32_t)count;
    return TSR_OK;
}

static tsr_status add_paths(tsr_checkpoint *checkpoint, const tsr_dcp_metadata_file *source, tsr_error *err)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    const tsr_pickle *pickle = source->metadata.pickle;
    size_t count;
    const tsr_ref *pairs = tsr_pickle_items(pickle, source->metadata.planner_data, &count);
    for (size_t i = 0; i + 1 < count; i += 2) {
        uint32_t index = tsr_map_get(state->names, tsr_pickle_text(pickle, pairs[i]), TSR_DCP_NO_ENTRY);
        tsr_entry *entry = index == TSR_DCP_NO_ENTRY ? NULL : (tsr_entry *)state->entries.items + index;
        if (entry && !entry->path) TSR_TRY(set_path(checkpoint, source, entry, pairs[i + 1], err));
    }
    return TSR_OK;
}

static tsr_status read_parsed(tsr_checkpoint *checkpoint, tsr_dcp_metadata_file *source, tsr_error *err)
{
    TSR_TRY(tsr_dcp_judge_pickle(checkpoint, source, err));
    TSR_TRY(add_entries(checkpoint, source, err));
    TSR_TRY(add_paths(checkpoint, source, err));
    TSR_TRY(tsr_dcp_keep_originals(checkpoint, source, err));
    return tsr_dcp_place(checkpoint, source, err);
}

static tsr_status read_source(tsr_checkpoint *checkpoint, tsr_dcp_metadata_file *source, tsr_error *err)
{
    tsr_bytes bytes;
    const tsr_store_file *file = &checkpoint->store->files[source->file];
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, source->file), checkpoint->host, &bytes, err));
    tsr_expansion_add(&checkpoint->expansion, file->size);
    tsr_status status = tsr_dcp_metadata_open(bytes.data, checkpoint->host, &source->metadata, err);
    if (status == TSR_OK) status = read_parsed(checkpoint, source, err);
    tsr_dcp_metadata_forget(&source->metadata);
    tsr_bytes_free(&bytes);
    if (status != TSR_OK) tsr_error_context(err, "%.*s", TSR_STR_ARG(file->name));
    return status;
}

/* Collects each entry's chunks from all sources. With a single source, they are already contiguous. */
static tsr_status join_parts(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err)
{
    const tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    for (uint32_t s = 0; s < state->source_count; s++) {
        const tsr_dcp_part *parts = state->sources[s].parts.items;
        for (size_t i = 0; i < state->sources[s].parts.count; i++) {
            tsr_entry *entry = &entries[parts[i].entry];
            if (state->source_count == 1) entry->chunks = state->sources[0].chunks + parts[i].first;
            entry->chunk_count += parts[i].count;
        }
    }
    if (state->source_count == 1) return TSR_OK;
    for (uint64_t i = 0; i < count; i++) {
        entries[i].chunks = tsr_arena_array(checkpoint->arena, (size_t)entries[i].chunk_count, sizeof(tsr_chunk), err);
        if (!entries[i].chunks) return TSR_E_NOMEM;
        entries[i].chunk_count = 0;
    }
    for (uint32_t s = 0; s < state->source_count; s++) {
        const tsr_dcp_part *parts = state->sources[s].parts.items;
        for (size_t i = 0; i < state->sources[s].parts.count; i++) {
            tsr_entry *entry = &entries[parts[i].entry];
            tsr_chunk *to = (tsr_chunk *)entry->chunks + entry->chunk_count;
            if (parts[i].count) memcpy(to, state->sources[s].chunks + parts[i].first, (size_t)parts[i].count * sizeof *to);
            entry->chunk_count += parts[i].count;
        }
    }
    return TSR_OK;
}

static int compare_dims(const uint64_t *a, const uint64_t *b, uint32_t ndim)
{
    for (uint32_t d = 0; d < ndim; d++) {
        if (a[d] != b[d]) return a[d] < b[d] ? -1 : 1;
    }
    return 0;
}

/* Whether the offsets are strictly ascending, so that no box can occur twice. */
static bool offsets_grow(const tsr_entry *entry)
{
    for (uint64_t i = 1; i < entry->chunk_count; i++) {
        if (entry->ndim == 0 || compare_dims(entry->chunks[i - 1].offsets, entry->chunks[i].offsets, entry->ndim) >= 0)
            return false;
    }
    return true;
}

/* Moves repeated boxes after the first occurrences. `keys` has room for one key per chunk. */
static tsr_status split_with(tsr_entry *entry, tsr_map *boxes, char *keys, tsr_arena *scratch, tsr_error *err)
{
    size_t half = entry->ndim * sizeof(uint64_t);
    tsr_chunk *chunks = (tsr_chunk *)entry->chunks;
    tsr_chunk *copies = tsr_arena_array(scratch, (size_t)entry->chunk_count, sizeof *copies, err);
    if (!copies) return TSR_E_NOMEM;
    uint64_t kept = 0, copied = 0;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        char *key = keys + 2 * half * i;
        bool first;
        if (half) memcpy(key, chunks[i].offsets, half);
        if (half) memcpy(key + half, chunks[i].sizes, half);
        TSR_TRY(tsr_map_put(boxes, (tsr_str){key, 2 * half}, 0, NULL, &first, err));
        if (first) chunks[kept++] = chunks[i];
        else copies[copied++] = chunks[i];
    }
    if (copied) memcpy(chunks + kept, copies, (size_t)copied * sizeof *copies);
    entry->chunk_count = kept;
    entry->replica_count = copied;
    entry->replicas = copied ? chunks + kept : NULL;
    return TSR_OK;
}

static tsr_status split_replicas(tsr_checkpoint *checkpoint, tsr_entry *entry, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    if (offsets_grow(entry)) return TSR_OK;
    tsr_arena *scratch = tsr_arena_new(allocator, 0, err);
    char *keys =
        scratch ? tsr_arena_array(scratch, (size_t)entry->chunk_count, 2 * entry->ndim * sizeof(uint64_t), err) : NULL;
    tsr_map *boxes = keys ? tsr_map_new(allocator, (size_t)entry->chunk_count, err) : NULL;
    tsr_status status = boxes ? split_with(entry, boxes, keys, scratch, err) : TSR_E_NOMEM;
    tsr_map_free(boxes);
    tsr_arena_free(scratch);
    return status;
}

/* Files that some formats based on DCP store next to the data files: meta.pt is Lightning's, common.pt Megatron's. */
static bool belongs_to_form(const tsr_dcp_state *state, tsr_str name)
{
    return tsr_str_equal(name, TSR_STR("meta.pt")) || (state->is_megatron && tsr_str_equal(name, TSR_STR("common.pt")));
}

static tsr_status report_unreferenced(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    const tsr_str first = checkpoint->store->files[checkpoint->files[0]].name;
    if (checkpoint->options.metadata_rank && !tsr_str_equal(first, TSR_STR(".metadata")))
        return TSR_OK; /* the files of the other ranks are there, too */
    for (uint32_t f = 0; f < checkpoint->store->file_count; f++) {
        tsr_str name = checkpoint->store->files[f].name;
        /* A store view hides files by empty names (io/store_view.h). */
        if (!name.size || state->file_uses[f] != TSR_DCP_UNUSED || belongs_to_form(state, name)) continue;
        bool data =
            /* Those below may be other saves. */
            tsr_str_ends(name, TSR_STR(".distcp")) && !memchr(name.data, '/', name.size);
        if (data && checkpoint->store->files[f].size == 0) continue; /* the rank had nothing to write */
        tsr_level level = data ? TSR_WARNING : TSR_NOTE;
        tsr_place place = {name, TSR_NO_POSITION, {NULL, 0}};
        TSR_TRY(tsr_finding_add_at(checkpoint->findings, (tsr_rated_rule){"dcp/unreferenced-file", level}, place, err,
                                   "no item of the metadata is stored in '%.*s'", TSR_STR_ARG(name)));
    }
    return TSR_OK;
}

static tsr_status read_all(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    for (uint32_t i = 0; i < state->source_count; i++) TSR_TRY(read_source(checkpoint, &state->sources[i], err));
    uint64_t count = state->entries.count;
    tsr_entry *entries = tsr_arena_array(checkpoint->arena, (size_t)count, sizeof *entries, err);
    if (!entries) return TSR_E_NOMEM;
    if (count) memcpy(entries, state->entries.items, (size_t)count * sizeof *entries);
    TSR_TRY(join_parts(checkpoint, entries, count, err));
    for (uint64_t i = 0; i < count; i++) TSR_TRY(split_replicas(checkpoint, &entries[i], err));
    checkpoint->catalog.entries = entries;
    checkpoint->catalog.entry_count = count;
    checkpoint->catalog.compressed = state->transforms != NULL;
    TSR_TRY(tsr_dcp_place_safetensors(checkpoint, err));
    TSR_TRY(report_unreferenced(checkpoint, err));
    if (state->extension.size)
        TSR_TRY(tsr_finding_add(checkpoint->findings, "dcp/extension", TSR_NOWHERE, err,
                                "%llu items are stored through the extension '%.*s', which only the program that has it can "
                                "undo: their values cannot be read or checked here",
                                (unsigned long long)state->extended_count, TSR_STR_ARG(state->extension)));
    TSR_TRY(tsr_dcp_find_subclasses(checkpoint, entries, count, err));
    return tsr_dcp_read_objects(checkpoint, entries, count, err);
}

/* Frees what only opening needs. */
static void free_work(tsr_dcp_state *state)
{
    tsr_map_free(state->names);
    state->names = NULL;
    tsr_vec_free(&state->entries);
    for (uint32_t i = 0; i < state->source_count; i++) tsr_vec_free(&state->sources[i].parts);
}

static void close_dcp(tsr_checkpoint *checkpoint)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    for (uint32_t i = 0; i < state->source_count; i++) {
        tsr_dcp_metadata_close(&state->sources[i].metadata);
        tsr_free(checkpoint->host->allocator, state->sources[i].chunks, (size_t)state->sources[i].chunk_room,
                 sizeof(tsr_chunk));
    }
    tsr_map_free(state->transforms);
}

static tsr_status open_dcp(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    tsr_dcp_state *state = TSR_ARENA_NEW(checkpoint->arena, tsr_dcp_state, err);
    if (!state) return TSR_E_NOMEM;
    checkpoint->state = state;
    state->entries = tsr_vec_of(allocator, sizeof(tsr_entry));
    state->file_uses = tsr_arena_array(checkpoint->arena, checkpoint->store->file_count, 1, err);
    state->sources = tsr_arena_array(checkpoint->arena, checkpoint->file_count, sizeof *state->sources, err);
    if (!state->file_uses || !state->sources) return TSR_E_NOMEM;
    state->source_count = checkpoint->file_count;
    for (uint32_t i = 0; i < state->source_count; i++) {
        state->sources[i].file = checkpoint->files[i];
        state->file_uses[checkpoint->files[i]] = TSR_DCP_OBJECTS;
        state->sources[i].parts = tsr_vec_of(allocator, sizeof(tsr_dcp_part));
    }
    for (uint32_t i = 0; i < checkpoint->listed_count; i++) state->file_uses[checkpoint->listed[i]] = TSR_DCP_OBJECTS;
    state->names = tsr_map_new(allocator, 0, err);
    tsr_status status = state->names ? read_all(checkpoint, err) : TSR_E_NOMEM;
    free_work(state);
    if (status != TSR_OK) close_dcp(checkpoint);
    return status;
}

const tsr_reader tsr_reader_dcp = {
    .format = TSR_FORMAT_DCP,
    .open = open_dcp,
    .locate = tsr_dcp_locate,
    .extents = dcp_extents,
    .close = close_dcp,
    .crc = tsr_dcp_crc,
    .find = tsr_dcp_find,
};
