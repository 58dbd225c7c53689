/* One item of a DCP data file: a torch.save archive, either plain or inside a zstd stream.
 *
 *   [ archive/data.pkl | … | archive/data/0 | … | central directory ]   at [byte_offset, + byte_length) of the file */
#include "tessera/sys/dcp_item.h"

#include "base/cursor.h"
#include "formats/common/expansion.h"
#include "formats/dcp/dcp_state.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_writer.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
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

tsr_status tsr_dcp_check_zstd(tsr_dcp_item item, const tsr_zip_member *members, uint32_t count, tsr_arena *scratch,
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

tsr_status tsr_dcp_view_of(const tsr_entry *entry, const tsr_chunk *chunk, const tsr_torch_item *item, tsr_arena *arena,
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
    TSR_TRY(tsr_dcp_view_of(entry, chunk, &item, scratch, &out->view, err));
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

tsr_status tsr_dcp_report_item(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                               const tsr_error *why, tsr_error *err)
{
    uint64_t position = why->byte_position == TSR_NO_POSITION ? chunk->byte_offset : why->byte_position;
    tsr_place place = {checkpoint->store->files[chunk->file].name, position, entry->fqn};
    return tsr_finding_add_failure(checkpoint->findings, "dcp/item", place, why, err);
}

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
        status = tsr_dcp_view_of(last->entry, chunk, &item, scratch, &view, &why);
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
    if (TSR_IS_SMALL) return TSR_OK;
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
    if (status != TSR_OK) return tsr_dcp_report_item(checkpoint, entry, chunk, &why, err);
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
