/* One item of a DCP data file: a torch.save archive, as it is or as one zstd stream.
 *
 *   [ archive/data.pkl | … | archive/data/0 | … | central directory ]   at [byte_offset, + byte_length) of the file
 *
 * The archive inside a zstd stream is read through a window: its beginning and its end stay in memory, the elements
 * between them do not. */
#include "base/cursor.h"
#include "base/try.h"
#include "formats/dcp_state.h"
#include "formats/torch_flatten.h"

enum { INPUT_BYTES = 1 << 16, HEAD_BYTES = 1 << 24, TAIL_BYTES = 1 << 18, OVERHEAD_BYTES = 1 << 20 };

/* A store of one decompressed file, of which only the ends are there. */
typedef struct window {
    tsr_store store;
    tsr_store_file *files;
    uint64_t bound; /* more decompressed bytes than this are refused */
    size_t head_max;
    tsr_vec head; /* char: the first bytes */
    char *tail;   /* the last TAIL_BYTES: byte i at i % TAIL_BYTES */
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
    TSR_FAIL_IF(offset < tail, err, TSR_E_UNSUPPORTED, offset,
                "dcp: %zu bytes in the middle of a zstd stream are not at hand, in %.*s", size,
                TSR_STR_ARG(store->files[file].name));
    for (size_t i = 0; i < size; i++) ((char *)buffer)[i] = w->tail[(offset + i) % TAIL_BYTES];
    return TSR_OK;
}

static tsr_status keep(window *w, const char *bytes, size_t size, tsr_error *err)
{
    TSR_FAIL_IF(size > w->bound - w->size, err, TSR_E_FORMAT, w->size,
                "dcp: a zstd stream gives more than the %llu bytes its item can have", (unsigned long long)w->bound);
    size_t left = w->head_max - w->head.count, head = size < left ? size : left;
    TSR_TRY(tsr_vec_reserve(&w->head, head, err));
    if (head) memcpy((char *)w->head.items + w->head.count, bytes, head);
    w->head.count += head;
    for (size_t i = 0; i < size; i++) w->tail[(w->size + i) % TAIL_BYTES] = bytes[i];
    w->size += size;
    return TSR_OK;
}

/* Decompresses [offset, offset + size) of a file. `buffer` is INPUT_BYTES of input and as many of output. */
static tsr_status fill(window *w, tsr_store *store, const tsr_zstd_ops *zstd, void *stream, const tsr_chunk *chunk,
                       char *buffer, tsr_error *err)
{
    int state = 0;
    for (uint64_t done = 0; done < chunk->byte_length;) {
        uint64_t left = chunk->byte_length - done;
        tsr_str in = {buffer, left < INPUT_BYTES ? (size_t)left : INPUT_BYTES};
        TSR_TRY(tsr_store_read(store, chunk->file, chunk->byte_offset + done, buffer, in.size, err));
        done += in.size;
        for (size_t written = 1; in.size || written;) {
            state = zstd->step(stream, &in, buffer + INPUT_BYTES, INPUT_BYTES, &written);
            TSR_FAIL_IF(state < 0, err, TSR_E_FORMAT, chunk->byte_offset, "dcp: the zstd stream of an item is damaged");
            TSR_TRY(keep(w, buffer + INPUT_BYTES, written, err));
            if (state == 1 && !written && in.size) break;
        }
        TSR_FAIL_IF(state == 1 && (in.size || done < chunk->byte_length), err, TSR_E_FORMAT, chunk->byte_offset,
                    "dcp: bytes follow the zstd stream of an item");
    }
    return TSR_OK; /* PyTorch flushes the stream and leaves its frame open; the archive inside tells whether all is there */
}

static tsr_status decompress(window *w, tsr_checkpoint *checkpoint, const tsr_chunk *chunk, tsr_arena *arena, tsr_error *err)
{
    const tsr_zstd_ops *zstd = checkpoint->host->zstd;
    TSR_FAIL_IF(!zstd, err, TSR_E_UNSUPPORTED, chunk->byte_offset,
                "dcp: the item is compressed (stream.zstd/1); this build has no zstd");
    char *buffer = tsr_arena_array(arena, 2, INPUT_BYTES, err);
    w->tail = tsr_arena_array(arena, TAIL_BYTES, 1, err);
    w->files = tsr_arena_array(arena, (size_t)chunk->file + 1, sizeof *w->files, err);
    if (!buffer || !w->tail || !w->files) return TSR_E_NOMEM;
    void *stream = zstd->start();
    TSR_FAIL_IF(!stream, err, TSR_E_NOMEM, chunk->byte_offset, "dcp: no memory to decompress an item");
    tsr_status status = fill(w, checkpoint->store, zstd, stream, chunk, buffer, err);
    zstd->end(stream);
    w->files[chunk->file] = (tsr_store_file){checkpoint->store->files[chunk->file].name, w->size};
    w->store = (tsr_store){.file_count = chunk->file + 1, .files = w->files, .primary = TSR_NO_FILE, .read_at = read_window};
    return status;
}

/* The most a decompressed item can have: a tensor's elements and what torch.save puts around them. */
static uint64_t window_bound(const tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk)
{
    uint64_t elements = 1, bytes, bound = checkpoint->host->limits.metadata_bytes;
    if (entry->kind != TSR_ENTRY_TENSOR) return bound;
    for (uint32_t d = 0; d < entry->rank; d++) {
        if (!tsr_mul_u64(elements, chunk->sizes[d], &elements)) return bound;
    }
    return tsr_dtype_bytes(entry->dtype, elements, &bytes) && tsr_add_u64(bytes, OVERHEAD_BYTES, &bytes) ? bytes : bound;
}

static tsr_status open_zstd(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *arena,
                            tsr_findings *findings, tsr_torch_item *out, tsr_error *err)
{
    tsr_arena *scratch = tsr_arena_new(checkpoint->host->allocator, 0, err);
    if (!scratch) return TSR_E_NOMEM;
    uint64_t bound = window_bound(checkpoint, entry, chunk);
    window w = {.bound = bound,
                .head_max = entry->kind == TSR_ENTRY_TENSOR || bound > SIZE_MAX ? HEAD_BYTES : (size_t)bound,
                .head = tsr_vec_of(checkpoint->host->allocator, 1)};
    tsr_status status = decompress(&w, checkpoint, chunk, scratch, err);
    if (status == TSR_OK)
        status = tsr_torch_item_open(&w.store, checkpoint->host, chunk->file, 0, w.size, arena, findings, out, err);
    tsr_vec_free(&w.head);
    tsr_arena_free(scratch);
    return status;
}

tsr_status tsr_dcp_open_item(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *arena,
                             tsr_findings *findings, tsr_torch_item *out, tsr_error *err)
{
    if (tsr_dcp_is_zstd(tsr_dcp_state_of(checkpoint), chunk))
        return open_zstd(checkpoint, entry, chunk, arena, findings, out, err);
    return tsr_torch_item_open(checkpoint->store, checkpoint->host, chunk->file, chunk->byte_offset, chunk->byte_length,
                               arena, findings, out, err);
}

/* "[3, 4] float32" of a tensor, in the arena that is about to be thrown away with the error. */
static tsr_str describe(tsr_arena *arena, tsr_dtype dtype, const uint64_t *sizes, uint32_t rank, tsr_error *err)
{
    tsr_str text = {"", 0};
    for (uint32_t d = 0; d < rank && text.data; d++) {
        text = tsr_arena_format(arena, err, "%.*s%s%llu", TSR_STR_ARG(text), d ? ", " : "", (unsigned long long)sizes[d]);
    }
    return text.data ? tsr_arena_format(arena, err, "[%.*s] %s", TSR_STR_ARG(text), tsr_dtype_describe(dtype)->name) : text;
}

tsr_status tsr_dcp_view_of(const tsr_dcp_state *state, const tsr_entry *entry, const tsr_chunk *chunk,
                           const tsr_torch_item *item, tsr_arena *arena, tsr_view *out, tsr_error *err)
{
    TSR_FAIL_IF(item->root->kind != TSR_VALUE_TENSOR, err, TSR_E_FORMAT, chunk->byte_offset,
                "dcp: the item of '%.*s' holds no dense tensor", TSR_STR_ARG(entry->fqn));
    const tsr_entry *inner = item->root->as.tensor;
    bool same = inner->dtype == entry->dtype && inner->rank == entry->rank && inner->chunk_count == 1;
    for (uint32_t d = 0; same && d < entry->rank; d++) same = inner->shape[d] == chunk->sizes[d];
    if (!same) {
        tsr_str found = describe(arena, inner->dtype, inner->shape, inner->rank, err),
                wanted = describe(arena, entry->dtype, chunk->sizes, entry->rank, err);
        if (!found.data || !wanted.data) return TSR_E_NOMEM;
        return tsr_raise(err, TSR_E_FORMAT, chunk->byte_offset,
                         "dcp: the item of '%.*s' holds a tensor %.*s; the metadata says %.*s", TSR_STR_ARG(entry->fqn),
                         TSR_STR_ARG(found), TSR_STR_ARG(wanted));
    }
    const tsr_chunk *place = inner->chunks;
    *out = place->view ? *place->view : (tsr_view){.file = place->file, .byte_offset = place->byte_offset};
    if (!tsr_dcp_is_zstd(state, chunk)) return TSR_OK;
    out->zstd = true;
    out->stream_offset = chunk->byte_offset;
    out->stream_length = chunk->byte_length;
    return TSR_OK;
}

tsr_status tsr_dcp_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          tsr_view *out, tsr_error *err)
{
    tsr_torch_item item;
    tsr_status status = tsr_dcp_open_item(checkpoint, entry, chunk, scratch, NULL, &item, err);
    if (status == TSR_OK) status = tsr_dcp_view_of(tsr_dcp_state_of(checkpoint), entry, chunk, &item, scratch, out, err);
    if (status != TSR_OK) {
        tsr_error_context(err, "item of '%.*s' at byte %llu of %.*s", TSR_STR_ARG(entry->fqn),
                          (unsigned long long)chunk->byte_offset, TSR_STR_ARG(checkpoint->store->files[chunk->file].name));
    }
    return status;
}

/* ---- byte items ---- */

tsr_status tsr_dcp_bad_item(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, const tsr_error *why,
                            tsr_error *err)
{
    if (why->status == TSR_E_NOMEM || why->status == TSR_E_CANCELLED)
        return tsr_raise(err, why->status, why->byte_position, "%s", why->message);
    uint64_t position = why->byte_position == TSR_NO_POSITION ? chunk->byte_offset : why->byte_position;
    tsr_place place = {checkpoint->store->files[chunk->file].name, position, entry->fqn};
    return tsr_find(checkpoint->findings, "dcp/item", place, err, "%s", why->message);
}

static tsr_status read_object(tsr_checkpoint *checkpoint, tsr_entry *entry, tsr_map *seen, tsr_error *err)
{
    const tsr_chunk *chunk = &entry->chunks[0];
    tsr_torch_item item;
    tsr_error why = {0};
    entry->type = TSR_STR("object");
    if (chunk->file == TSR_NO_FILE || checkpoint->options.skip_objects) return TSR_OK;
    tsr_status status = tsr_dcp_open_item(checkpoint, entry, chunk, checkpoint->arena, checkpoint->findings, &item, &why);
    if (status == TSR_OK && item.storage_count && tsr_dcp_is_zstd(tsr_dcp_state_of(checkpoint), chunk)) {
        status = tsr_raise(&why, TSR_E_UNSUPPORTED, chunk->byte_offset,
                           "dcp: the object '%.*s' holds tensors inside a zstd stream", TSR_STR_ARG(entry->fqn));
    }
    if (status != TSR_OK) return tsr_dcp_bad_item(checkpoint, entry, chunk, &why, err);
    return tsr_torch_leaf(item.root, checkpoint->host, seen, checkpoint->arena, entry, err);
}

tsr_status tsr_dcp_read_objects(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err)
{
    tsr_status status = TSR_OK;
    tsr_map *seen = tsr_map_new(checkpoint->host->allocator, 0, err);
    if (!seen) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < count && status == TSR_OK; i++) {
        if (entries[i].kind == TSR_ENTRY_OBJECT) status = read_object(checkpoint, &entries[i], seen, err);
    }
    tsr_map_free(seen);
    return status;
}
