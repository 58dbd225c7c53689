/* Reads DCP items that are zstd streams. The archive in the stream is read through a window that keeps the first and the
 * last of the decompressed bytes; the elements in between are decompressed and dropped. */
#include "base/cursor.h"
#include "formats/common/expansion.h"
#include "formats/dcp/dcp_state.h"
#include "tessera/sys/try.h"

#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/host_calls.h"

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

tsr_status tsr_dcp_open_zstd(tsr_dcp_item item, tsr_arena *arena, tsr_findings *findings, tsr_torch_item *out,
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
