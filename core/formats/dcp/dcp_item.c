/* One item of a DCP data file: a torch.save archive, either plain or inside a zstd stream.
 *
 *   [ archive/data.pkl | … | archive/data/0 | … | central directory ]   at [byte_offset, + byte_length) of the file
 *
 * And all items in the order of the files, for checks that read everything. */
#include "tessera/sys/dcp_item.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "formats/common/end_sum.h"
#include "formats/common/expansion.h"
#include "formats/common/rank_entries.h"
#include "formats/dcp/dcp_state.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_writer.h"
#include "tessera/box.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

/* ---- zstd ---- */

/* Reads DCP items that are zstd streams. The archive in the stream is read through a window that keeps the first and the
 * last of the decompressed bytes; the elements in between are decompressed and dropped. */

/* A torch.save archive has its pickle at the beginning and its directory at the end, and only these are needed to find the
 * tensor's bytes. The stream can only be read forwards, so both ends are kept and the middle is not. OVERHEAD_BYTES bounds
 * what an archive adds to the bytes of its tensor. */
enum { INPUT_BYTES = 1 << 16, HEAD_BYTES = 1 << 24, TAIL_BYTES = 1 << 18, OVERHEAD_BYTES = 1 << 20 };

/* A store with one decompressed file, of which only both ends are in memory. */
typedef struct window {
    tsr_store store;
    tsr_store_file *files;
    uint64_t bound; /* limit on the number of decompressed bytes */
    size_t head_max;
    tsr_vec head; /* char: the first bytes */
    char *tail;   /* the last TAIL_BYTES; byte i is at i % TAIL_BYTES */
    uint64_t size;
} window;

static tsr_status read_window(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const window *w = (const window *)store;
    uint64_t tail = w->size > TAIL_BYTES ? w->size - TAIL_BYTES : 0;
    if (offset + size <= w->head.count) {
        memcpy(buffer, (const char *)w->head.items + offset, size);
        return TSR_OK;
    }
    TSR_FAIL_AT(offset < tail, err, TSR_E_UNSUPPORTED, offset,
                "dcp: %zu bytes in the middle of a zstd stream of %.*s were not read", size,
                TSR_STR_ARG(store->files[file].name));
    for (size_t i = 0; i < size; i++) ((char *)buffer)[i] = w->tail[(offset + i) % TAIL_BYTES];
    return TSR_OK;
}

static tsr_status keep(void *ctx, const char *bytes, size_t size, tsr_error *err)
{
    window *w = ctx;
    TSR_FAIL_AT(size > w->bound - w->size, err, TSR_E_FORMAT, w->size,
                "dcp: a zstd stream contains more than the %llu bytes that its item can have", (unsigned long long)w->bound);
    size_t left = w->head_max - w->head.count, head = size < left ? size : left;
    TSR_TRY(tsr_vec_reserve(&w->head, head, err));
    if (head) memcpy((char *)w->head.items + w->head.count, bytes, head);
    w->head.count += head;
    for (size_t i = 0; i < size; i++) w->tail[(w->size + i) % TAIL_BYTES] = bytes[i];
    w->size += size;
    return TSR_OK;
}

/* Receives the decompressed bytes. */
typedef struct taker {
    tsr_status (*take)(void *ctx, const char *bytes, size_t size, tsr_error *err);
    void *ctx;
} taker;

/* Decompresses an item and passes its bytes to `to`. `buffer` has room for INPUT_BYTES of input and as many of output. */
static tsr_status decode(tsr_checkpoint *checkpoint, void *stream, const tsr_chunk *chunk, char *buffer, taker to,
                         tsr_error *err)
{
    int state = 0;
    for (uint64_t done = 0; done < chunk->byte_length;) {
        uint64_t left = chunk->byte_length - done;
        tsr_str in = {buffer, left < INPUT_BYTES ? (size_t)left : INPUT_BYTES};
        TSR_TRY(tsr_store_read(checkpoint->store, chunk->file, chunk->byte_offset + done, buffer, in.size, err));
        done += in.size;
        for (size_t written = 1; in.size || written;) {
            state = checkpoint->host->zstd->step(stream, &in, buffer + INPUT_BYTES, INPUT_BYTES, &written);
            TSR_FAIL_AT(state < 0, err, TSR_E_FORMAT, chunk->byte_offset, "dcp: the zstd stream of an item is damaged");
            TSR_TRY(to.take(to.ctx, buffer + INPUT_BYTES, written, err));
            if (state == 1 && !written && in.size) break;
        }
        TSR_FAIL_AT(state == 1 && (in.size || done < chunk->byte_length), err, TSR_E_FORMAT, chunk->byte_offset,
                    "dcp: bytes follow the zstd stream of an item");
    }
    return TSR_OK; /* PyTorch flushes the stream but never ends its frame, so an incomplete item is only noticed by the
                    * archive in it */
}

static tsr_status decompress(tsr_checkpoint *checkpoint, const tsr_chunk *chunk, tsr_arena *scratch, taker to,
                             tsr_error *err)
{
    const tsr_zstd_ops *zstd = checkpoint->host->zstd;
    TSR_FAIL_IF(!zstd, err, TSR_E_NOT_BUILT, TSR_ZSTD_NOT_BUILT);
    char *buffer = tsr_arena_array(scratch, 2, INPUT_BYTES, err);
    if (!buffer) return TSR_E_NOMEM;
    void *stream = zstd->start();
    TSR_FAIL_AT(!stream, err, TSR_E_NOMEM, chunk->byte_offset, "dcp: out of memory while decompressing an item");
    tsr_status status = decode(checkpoint, stream, chunk, buffer, to, err);
    zstd->end(stream);
    return status;
}

static tsr_status fill_window(window *w, tsr_checkpoint *checkpoint, const tsr_chunk *chunk, tsr_arena *arena,
                              tsr_error *err)
{
    w->tail = tsr_arena_array(arena, TAIL_BYTES, 1, err);
    w->files = tsr_arena_array(arena, (size_t)chunk->file + 1, sizeof *w->files, err);
    if (!w->tail || !w->files) return TSR_E_NOMEM;
    tsr_status status = decompress(checkpoint, chunk, arena, (taker){keep, w}, err);
    w->files[chunk->file] = (tsr_store_file){checkpoint->store->files[chunk->file].name, w->size};
    w->store = (tsr_store){.file_count = chunk->file + 1, .files = w->files, .primary = TSR_NO_FILE, .read_at = read_window};
    return status;
}

/* The limit on an item's decompressed size: a tensor's elements and what torch.save adds to them, or for an object, what its
 * input may expand to. */
static uint64_t window_bound(tsr_dcp_item item)
{
    const tsr_entry *entry = item.entry;
    const tsr_chunk *chunk = item.chunk;
    const tsr_limits *limits = &item.checkpoint->host->limits;
    uint64_t elements = 1, bytes, bound = limits->metadata_bytes, expanded = limits->expansion;
    tsr_expansion_add(&expanded, chunk->byte_length);
    if (entry->kind != TSR_ENTRY_TENSOR) return expanded < bound ? expanded : bound;
    for (uint32_t d = 0; d < entry->ndim; d++) {
        if (!tsr_mul_u64(elements, chunk->sizes[d], &elements)) return bound;
    }
    return tsr_dtype_bytes(entry->dtype, elements, &bytes) && tsr_add_u64(bytes, OVERHEAD_BYTES, &bytes) ? bytes : bound;
}

/* The same for a zstd item. */
static tsr_status dcp_open_zstd(tsr_dcp_item item, tsr_arena *arena, tsr_findings *findings, tsr_torch_item *out,
                                tsr_error *err)
{
    const tsr_host *host = item.checkpoint->host;
    tsr_arena *scratch = tsr_arena_new(host->allocator, 0, err);
    if (!scratch) return TSR_E_NOMEM;
    uint64_t bound = window_bound(item);
    window w = {.bound = bound,
                .head_max = item.entry->kind == TSR_ENTRY_TENSOR || bound > SIZE_MAX ? HEAD_BYTES : (size_t)bound,
                .head = tsr_vec_of(host->allocator, 1)};
    tsr_status status = fill_window(&w, item.checkpoint, item.chunk, scratch, err);
    const tsr_torch_source from = {.range = {&w.store, item.chunk->file, 0, w.size}, .zstd = item.chunk};
    if (status == TSR_OK) status = tsr_torch_item_open(&from, host, arena, findings, out, err);
    tsr_vec_free(&w.head);
    tsr_arena_free(scratch);
    return status;
}

/* ---- CRCs ---- */

typedef struct sums {
    tsr_dcp_item of;
    const tsr_zip_member *members; /* sorted by byte_offset */
    uint32_t count, at;
    uint64_t position;
    uint32_t crc; /* CRC of member `at` up to `position` */
} sums;

static tsr_status end_member(sums *s, tsr_error *err)
{
    const tsr_zip_member *member = &s->members[s->at++];
    tsr_place place = {s->of.checkpoint->store->files[s->of.chunk->file].name, s->of.chunk->byte_offset, s->of.entry->fqn};
    uint32_t crc = s->crc;
    s->crc = 0;
    if (crc == member->crc32) return TSR_OK;
    return tsr_finding_add(s->of.checkpoint->findings, "zip/crc", place, err,
                           "the bytes of member '%.*s' have CRC-32 %08x, but the archive in the zstd stream states %08x",
                           TSR_STR_ARG(member->name), (unsigned)crc, (unsigned)member->crc32);
}

static tsr_status sum(void *ctx, const char *bytes, size_t size, tsr_error *err)
{
    sums *s = ctx;
    for (;;) {
        if (s->at == s->count) return TSR_OK;
        const tsr_zip_member *member = &s->members[s->at];
        uint64_t gap = member->byte_offset > s->position ? member->byte_offset - s->position : 0;
        size_t skip = gap < size ? (size_t)gap : size;
        bytes += skip, size -= skip, s->position += skip;
        if (skip < gap) return TSR_OK;
        uint64_t left = member->byte_offset + member->size - s->position;
        size_t part = left < size ? (size_t)left : size;
        s->crc = tsr_crc32(s->of.checkpoint->host, s->crc, bytes, part);
        bytes += part, size -= part, s->position += part;
        if (part < left) return TSR_OK;
        TSR_TRY(end_member(s, err));
    }
}

/* Reads a zstd item to its end, and adds a finding for each member whose bytes do not match its CRC. `members` are the
 * archive's, sorted by byte_offset. */
static tsr_status check_zstd(tsr_dcp_item item, const tsr_zip_member *members, uint32_t count, tsr_arena *scratch,
                             tsr_error *err)
{
    sums s = {.of = item, .members = members, .count = count};
    TSR_TRY(decompress(item.checkpoint, item.chunk, scratch, (taker){sum, &s}, err));
    TSR_FAIL_AT(s.at < count, err, TSR_E_FORMAT, item.chunk->byte_offset,
                "dcp: the zstd stream of an item ends before member '%.*s' of the archive inside does",
                TSR_STR_ARG(members[s.at].name));
    return TSR_OK;
}

/* ---- item ---- */

tsr_status tsr_dcp_open_item(tsr_dcp_item item, tsr_arena *arena, tsr_findings *findings, tsr_torch_item *out,
                             tsr_error *err)
{
    const tsr_chunk *chunk = item.chunk;
    const tsr_dcp_state *state = tsr_dcp_state_of(item.checkpoint);
    TSR_FAIL_AT(
        tsr_dcp_transform_of(state, chunk) == TSR_DCP_EXTENDED, err, TSR_E_UNSUPPORTED, chunk->byte_offset,
        "dcp: the item of '%.*s' is stored through the extension '%.*s', which only the program that has it can undo",
        TSR_STR_ARG(item.entry->fqn), TSR_STR_ARG(state->extension));
    if (tsr_dcp_is_zstd(tsr_dcp_state_of(item.checkpoint), chunk)) return dcp_open_zstd(item, arena, findings, out, err);
    const tsr_torch_source from = {.range = {item.checkpoint->store, chunk->file, chunk->byte_offset, chunk->byte_length}};
    return tsr_torch_item_open(&from, item.checkpoint->host, arena, findings, out, err);
}

/* A tensor's shape and dtype as "[3, 4] float32". The text is in the arena, which is freed soon after the error is
 * reported. */
static tsr_str describe(tsr_arena *arena, tsr_dtype dtype, const uint64_t *sizes, uint32_t ndim, tsr_error *err)
{
    tsr_str text = {"", 0};
    for (uint32_t d = 0; d < ndim && text.data; d++) {
        text = tsr_arena_format(arena, err, "%.*s%s%llu", TSR_STR_ARG(text), d ? ", " : "", (unsigned long long)sizes[d]);
    }
    return text.data ? tsr_arena_format(arena, err, "[%.*s] %s", TSR_STR_ARG(text), tsr_dtype_describe(dtype)->name) : text;
}

/* Checks that an opened item is the tensor described in the metadata, and sets *out to its view in the file. */
static tsr_status view_of(const tsr_entry *entry, const tsr_chunk *chunk, const tsr_torch_item *item, tsr_arena *arena,
                          tsr_view *out, tsr_error *err)
{
    TSR_FAIL_AT(tsr_torch_is_subclass(item->root), err, TSR_E_FORMAT, chunk->byte_offset,
                "dcp: the item of '%.*s' contains a %.*s of another dtype or shape than the metadata states",
                TSR_STR_ARG(entry->fqn), TSR_STR_ARG(item->root->text));
    TSR_FAIL_AT(item->root->kind != TSR_VALUE_TENSOR, err, TSR_E_FORMAT, chunk->byte_offset,
                "dcp: the item of '%.*s' does not contain a dense tensor", TSR_STR_ARG(entry->fqn));
    const tsr_entry *inner = item->root->as.tensor;
    bool same = inner->dtype == entry->dtype && inner->ndim == entry->ndim && inner->chunk_count == 1;
    for (uint32_t d = 0; same && d < entry->ndim; d++) same = inner->shape[d] == chunk->sizes[d];
    if (!same) {
        tsr_str found = describe(arena, inner->dtype, inner->shape, inner->ndim, err),
                wanted = describe(arena, entry->dtype, chunk->sizes, entry->ndim, err);
        if (!found.data || !wanted.data) return TSR_E_NOMEM;
        return tsr_raise(err, TSR_E_FORMAT, chunk->byte_offset,
                         "dcp: the item of '%.*s' contains a tensor %.*s, but the metadata states %.*s",
                         TSR_STR_ARG(entry->fqn), TSR_STR_ARG(found), TSR_STR_ARG(wanted));
    }
    const tsr_chunk *place = inner->chunks;
    *out = place->view ? *place->view : (tsr_view){.file = place->file, .byte_offset = place->byte_offset};
    return TSR_OK;
}

/* The CRC of the member whose bytes are exactly the tensor's elements. */
static void find_crc(const tsr_torch_item *item, const tsr_view *view, tsr_stated_crc *out)
{
    uint64_t bytes;
    if (!tsr_entry_bytes(item->root->as.tensor, &bytes) || !tsr_view_is_plain(view) || item->zip.crc_absent) return;
    for (uint32_t i = 0; i < item->zip.count && !out->is_stated; i++) {
        const tsr_zip_member *member = &item->zip.members[i];
        out->is_stated = member->byte_offset == view->byte_offset && member->size == bytes;
        out->crc32 = out->is_stated ? member->crc32 : 0;
    }
}

tsr_status tsr_dcp_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                        tsr_found *out, tsr_error *err)
{
    tsr_torch_item item;
    *out = (tsr_found){0};
    TSR_TRY(tsr_dcp_open_item((tsr_dcp_item){checkpoint, entry, chunk}, scratch, NULL, &item, err));
    TSR_TRY(view_of(entry, chunk, &item, scratch, &out->view, err));
    if (!tsr_dcp_is_zstd(tsr_dcp_state_of(checkpoint), chunk)) find_crc(&item, &out->view, &out->crc);
    return TSR_OK;
}

tsr_status tsr_dcp_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          tsr_view *out, tsr_error *err)
{
    tsr_found found;
    const tsr_status status = tsr_dcp_find(checkpoint, entry, chunk, scratch, &found, err);
    *out = found.view;
    if (status != TSR_OK) {
        tsr_error_context(err, "item of '%.*s' at byte %llu of %.*s", TSR_STR_ARG(entry->fqn),
                          (unsigned long long)chunk->byte_offset, TSR_STR_ARG(checkpoint->store->files[chunk->file].name));
    }
    return status;
}

tsr_status tsr_dcp_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                       tsr_stated_crc *out, tsr_error *err)
{
    tsr_found found;
    if (chunk->view || tsr_dcp_transform_of(tsr_dcp_state_of(checkpoint), chunk) != TSR_DCP_PLAIN)
        return TSR_OK; /* there is no archive, or it is compressed */
    TSR_TRY(tsr_dcp_find(checkpoint, entry, chunk, scratch, &found, err));
    *out = found.crc;
    return TSR_OK;
}

/* ---- byte items ---- */

/* Adds a finding for an error in an item. Errors that are not the item's fault are passed on. */
static tsr_status report_bad(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                             const tsr_error *why, tsr_error *err)
{
    uint64_t position = why->byte_position == TSR_NO_POSITION ? chunk->byte_offset : why->byte_position;
    tsr_place place = {checkpoint->store->files[chunk->file].name, position, entry->fqn};
    return tsr_finding_add_failure(checkpoint->findings, "dcp/item", place, why, err);
}

#ifdef TSR_SMALL /* the browser's module, which has no room for it */
tsr_status tsr_dcp_check_ends(tsr_checkpoint *checkpoint, const tsr_entry *entries, uint64_t count, tsr_error *err)
{
    (void)checkpoint, (void)entries, (void)count, (void)err;
    return TSR_OK;
}
#else
/* Checks the last item of a file that is longer. */
static tsr_status check_last(const tsr_dcp_item *last, tsr_error *err)
{
    tsr_checkpoint *checkpoint = last->checkpoint;
    const tsr_chunk *chunk = last->chunk;
    const tsr_str name = checkpoint->store->files[chunk->file].name, fqn = last->entry->fqn;
    tsr_torch_item item;
    tsr_view view;
    tsr_error why = {0};
    tsr_arena *scratch = tsr_arena_new(checkpoint->host->allocator, 0, err);
    if (!scratch) return TSR_E_NOMEM;
    tsr_status status = tsr_dcp_open_item(*last, scratch, NULL, &item, &why);
    if (status == TSR_OK && last->entry->kind == TSR_ENTRY_TENSOR)
        status = view_of(last->entry, chunk, &item, scratch, &view, &why);
    tsr_arena_free(scratch);
    if (status == TSR_OK || tsr_dcp_transform_of(tsr_dcp_state_of(checkpoint), chunk) == TSR_DCP_EXTENDED) return TSR_OK;
    if (status == TSR_E_NOMEM || status == TSR_E_IO) return tsr_raise_again(err, status, &why);
    return tsr_finding_add(checkpoint->findings, "dcp/item", (tsr_place){name, chunk->byte_offset, fqn}, err,
                           "'%.*s' is longer than its items, and the last of them, of '%.*s', is not what .metadata states, "
                           "which may be left from an earlier save: %s",
                           TSR_STR_ARG(name), TSR_STR_ARG(fqn), why.message);
}

tsr_status tsr_dcp_check_ends(tsr_checkpoint *checkpoint, const tsr_entry *entries, uint64_t count, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    const tsr_allocator *allocator = checkpoint->host->allocator;
    tsr_dcp_item *last = tsr_alloc(allocator, (size_t)store->file_count + 1, sizeof *last, err);
    tsr_status status = last ? TSR_OK : TSR_E_NOMEM;
    if (last) memset(last, 0, store->file_count * sizeof *last);
    for (uint64_t e = 0; e < count && last; e++)
        for (uint64_t c = 0; c < entries[e].chunk_count; c++) {
            const tsr_chunk *chunk = &entries[e].chunks[c];
            if (chunk->view || chunk->file >= store->file_count) continue;
            const tsr_chunk *before = last[chunk->file].chunk;
            if (!before || before->byte_offset < chunk->byte_offset)
                last[chunk->file] = (tsr_dcp_item){checkpoint, &entries[e], chunk};
        }
    for (uint32_t f = 0; f < store->file_count && status == TSR_OK; f++) {
        const tsr_chunk *chunk = last[f].chunk;
        if (!chunk || chunk->byte_offset + chunk->byte_length >= store->files[f].size) continue;
        status = check_last(&last[f], err);
    }
    tsr_free(allocator, last, (size_t)store->file_count + 1, sizeof *last);
    return status;
}
#endif

/* Objects that were already read, by the position of their items: metadata can name one item for any number of entries. */
typedef struct read_items {
    tsr_map *seen;   /* containers already searched for tensors */
    tsr_map *places; /* {file, byte_offset, byte_length} → entry */
    uint64_t left;   /* bytes of items that may still be read: the size of all files together */
} read_items;

static tsr_status read_new_object(tsr_checkpoint *checkpoint, tsr_entry *entry, read_items *items, tsr_error *err)
{
    const tsr_chunk *chunk = &entry->chunks[0];
    tsr_torch_item item;
    tsr_error why = {0};
    TSR_FAIL_AT(chunk->byte_length > items->left, err, TSR_E_LIMIT, chunk->byte_offset,
                "dcp: the item of '%.*s' overlaps others: the items of objects have more bytes in total than the files",
                TSR_STR_ARG(entry->fqn));
    items->left -= chunk->byte_length;
    const tsr_dcp_item at = {checkpoint, entry, chunk};
    tsr_status status = tsr_dcp_open_item(at, checkpoint->arena, checkpoint->findings, &item, &why);
    if (status != TSR_OK) return report_bad(checkpoint, entry, chunk, &why, err);
    tsr_expansion_add(&checkpoint->expansion,
                      item.pickle_bytes < chunk->byte_length ? item.pickle_bytes : chunk->byte_length);
    return tsr_torch_leaf(item.root, checkpoint->host, items->seen, checkpoint->arena, entry, err);
}

static void copy_object(const tsr_entry *from, tsr_entry *to)
{
    to->kind = from->kind;
    to->value = from->value;
    to->type = from->type;
    to->dtype = from->dtype;
    to->shape = from->shape;
    to->ndim = from->ndim;
}

/* Megatron-Core keeps values of many names in this object (megatron.c), so names depend on it, too. */
static bool holds_names(const tsr_entry *entry)
{
    return tsr_str_equal(entry->fqn, TSR_STR("common_state")) || tsr_str_starts(entry->fqn, TSR_STR("common_state/"));
}

static tsr_status read_object(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t number, read_items *items,
                              tsr_error *err)
{
    tsr_entry *entry = &entries[number];
    const tsr_chunk *chunk = &entry->chunks[0];
    entry->type = TSR_STR("object");
    if (chunk->file == TSR_NO_FILE || (checkpoint->options.skip_objects && !holds_names(entry))) return TSR_OK;
    if (tsr_dcp_transform_of(tsr_dcp_state_of(checkpoint), chunk) == TSR_DCP_EXTENDED) return TSR_OK;
    uint64_t *place = tsr_arena_array(checkpoint->arena, 3, sizeof *place, err);
    if (!place) return TSR_E_NOMEM;
    place[0] = chunk->file;
    place[1] = chunk->byte_offset;
    place[2] = chunk->byte_length;
    uint32_t *first;
    bool fresh;
    const tsr_str key = {(const char *)place, 3 * sizeof *place};
    TSR_TRY(tsr_map_put(items->places, key, (uint32_t)number, &first, &fresh, err));
    if (fresh) TSR_TRY(read_new_object(checkpoint, entry, items, err));
    else copy_object(&entries[*first], entry);
    return tsr_expansion_take_value(&checkpoint->expansion, &entry->value, checkpoint->arena, err);
}

tsr_status tsr_dcp_read_objects(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err)
{
    tsr_status status = TSR_OK;
    read_items items = {.seen = tsr_map_new(checkpoint->host->allocator, 0, err)};
    items.places = items.seen ? tsr_map_new(checkpoint->host->allocator, 0, err) : NULL;
    if (!items.places) status = TSR_E_NOMEM;
    for (uint32_t i = 0; i < checkpoint->store->file_count; i++)
        if (!tsr_add_u64(items.left, checkpoint->store->files[i].size, &items.left)) items.left = UINT64_MAX;
    for (uint64_t i = 0; i < count && status == TSR_OK; i++) {
        if (entries[i].kind == TSR_ENTRY_OBJECT) status = read_object(checkpoint, entries, i, &items, err);
    }
    tsr_map_free(items.seen);
    tsr_map_free(items.places);
    return status;
}

/* ---- around ---- */

/* Writes what surrounds a tensor's bytes in a DCP item, and whole items of objects. */

static tsr_status plan_tensor(const tsr_dcp_box *box, const tsr_host *host, tsr_arena *arena, tsr_torch_archive *out,
                              tsr_error *err)
{
    uint64_t elements;
    const tsr_entry entry = {.kind = TSR_ENTRY_TENSOR, .dtype = box->dtype, .ndim = box->ndim, .shape = box->sizes};
    const tsr_value root = {.kind = TSR_VALUE_TENSOR, .as.tensor = &entry};
    const tsr_torch_new_tensor tensor = {.entry = &entry, .ndim = box->ndim, .sizes = box->sizes};
    tsr_torch_new_storage storage = {.dtype = box->dtype};
    TSR_FAIL_IF(!tsr_box_volume((tsr_box){box->ndim, NULL, box->sizes}, &elements) ||
                    !tsr_dtype_bytes(box->dtype, elements, &storage.byte_length),
                err, TSR_E_LIMIT, "dcp: a box of %s is too large", tsr_dtype_describe(box->dtype)->name);
    const tsr_torch_tree tree = {&root, &tensor, 1, &storage, 1, NULL, false};
    return tsr_torch_archive_plan(&tree, host, arena, out, err);
}

tsr_status tsr_dcp_item_around(const tsr_dcp_box *box, const tsr_host *host, tsr_vec *head, tsr_vec *tail, tsr_error *err)
{
    uint64_t at;
    tsr_torch_archive archive;
    tsr_arena *passing = tsr_arena_new(host->allocator, 0, err);
    if (!passing) return TSR_E_NOMEM;
    tsr_status status = plan_tensor(box, host, passing, &archive, err);
    if (status == TSR_OK) archive.members[archive.first_storage].crc32 = box->crc32;
    if (status == TSR_OK) status = tsr_torch_archive_piece(&archive, 0, head, &at, err);
    if (status == TSR_OK) status = tsr_torch_archive_piece(&archive, 1, tail, &at, err);
    tsr_arena_free(passing);
    return status;
}

tsr_status tsr_dcp_item_object(const tsr_value *value, const tsr_host *host, tsr_vec *out, tsr_error *err)
{
    uint64_t at;
    tsr_torch_archive archive;
    const tsr_torch_tree tree = {.root = value};
    tsr_arena *passing = tsr_arena_new(host->allocator, 0, err);
    if (!passing) return TSR_E_NOMEM;
    tsr_status status = tsr_torch_archive_plan(&tree, host, passing, &archive, err);
    if (status == TSR_OK) status = tsr_torch_archive_piece(&archive, 0, out, &at, err);
    tsr_arena_free(passing);
    return status;
}

static tsr_status append_piece(const tsr_dcp_pickled *item, uint32_t at, const tsr_host *host, tsr_arena *passing,
                               tsr_vec *out, tsr_error *err)
{
    uint64_t byte_at;
    tsr_torch_archive archive;
    tsr_torch_new_storage *storages = tsr_arena_array(passing, (size_t)item->storage_count + 1, sizeof *storages, err);
    if (!storages) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < item->storage_count; i++) storages[i].byte_length = item->byte_lengths[i];
    const tsr_torch_tree tree = {.storages = storages, .storage_count = item->storage_count, .unsummed = item->unsummed};
    TSR_TRY(tsr_torch_archive_around(item->pickle, &tree, host, passing, &archive, err));
    for (uint32_t i = 0; i < at; i++) archive.members[archive.first_storage + i].crc32 = item->crcs[i];
    return tsr_torch_archive_piece(&archive, at, out, &byte_at, err);
}

tsr_status tsr_dcp_item_piece(const tsr_dcp_pickled *item, uint32_t at, const tsr_host *host, tsr_vec *out, tsr_error *err)
{
    tsr_arena *passing = tsr_arena_new(host->allocator, 0, err);
    const tsr_status status = passing ? append_piece(item, at, host, passing, out, err) : TSR_E_NOMEM;
    tsr_arena_free(passing);
    return status;
}

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
    const tsr_status status = check_zstd(at, members, zip->count, scratch, &why);
    return status == TSR_OK ? TSR_OK : report_bad(w->checkpoint, it->entry, it->chunk, &why, err);
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
    return view_of(it->entry, it->chunk, &o->archive, o->scratch, &o->view, why);
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
    if (o->status != TSR_OK) return said ? TSR_OK : report_bad(checkpoint, it->entry, it->chunk, &o->why, err);
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
