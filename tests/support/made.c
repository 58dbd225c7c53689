/* Makes one file of random bytes, and writes chunks into it element by element. */
#include "support/made.h"

#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

#include <stdlib.h>
#include <string.h>

#define MOST_CHUNKS 64u

uint64_t tsr_made_random(tsr_made *made, uint64_t below)
{
    made->random = made->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return below ? (made->random >> 33) % below : 0;
}

/* ---- the checkpoint's reader ---- */

static tsr_status made_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                              tsr_view *out, tsr_error *err)
{
    (void)checkpoint, (void)entry, (void)scratch, (void)err;
    *out = *chunk->view;
    return TSR_OK;
}

static tsr_status made_extents(tsr_checkpoint *checkpoint,
                               tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                               tsr_error *err)
{
    const tsr_made *made = checkpoint->state;
    for (uint64_t i = 0; i < made->extent_count; i++) {
        tsr_status status = each(ctx, &made->extents[i], err);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

/* Finds the extent by its position, since `chunk` may be a copy. */
static tsr_status made_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                           tsr_stated_crc *out, tsr_error *err)
{
    const tsr_made *made = checkpoint->state;
    (void)entry, (void)scratch, (void)err;
    for (uint64_t i = 0; i < made->extent_count && !out->is_stated; i++) {
        const tsr_extent *extent = &made->extents[i];
        out->is_stated = extent->byte_offset == chunk->byte_offset && extent->byte_length == chunk->byte_length;
        out->crc32 = extent->crc32;
    }
    return TSR_OK;
}

static const tsr_reader made_reader = {.locate = made_locate, .extents = made_extents, .crc = made_crc};

/* ---- a substitute for zstd: any number of frames [u32 length][bytes ^ 0x5a] ---- */

typedef struct frames {
    uint32_t left;
    unsigned header;
} frames;

static void *frames_start(void)
{
    return calloc(1, sizeof(frames));
}
static void frames_end(void *state)
{
    free(state);
}

static int frames_step(void *state, tsr_str *in, void *out, size_t out_size, size_t *written)
{
    frames *f = state;
    *written = 0;
    while (f->header < 4 && in->size) {
        f->left |= (uint32_t)(uint8_t)*in->data << (8 * f->header++);
        in->data++, in->size--;
    }
    while (f->left && in->size && *written < out_size) {
        ((uint8_t *)out)[(*written)++] = (uint8_t)*in->data ^ 0x5a;
        in->data++, in->size--, f->left--;
    }
    if (f->header < 4 || f->left) return 0;
    *f = (frames){0};
    return 1;
}

static const tsr_zstd_ops frames_ops = {frames_start, frames_step, frames_end};

/* ---- making ---- */

void tsr_made_start(tsr_made *made, uint64_t seed, uint64_t most)
{
    *made = (tsr_made){.random = seed * 2 + 1};
    made->host = (tsr_host){.allocator = &tsr_allocator_libc, .limits = tsr_limits_default(), .zstd = &frames_ops};
    made->arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    made->file = tsr_vec_of(&tsr_allocator_libc, 1);
    made->entries = tsr_arena_array(made->arena, most, sizeof *made->entries, NULL);
    made->truth = tsr_arena_array(made->arena, most, sizeof *made->truth, NULL);
    made->extents = tsr_arena_array(made->arena, most * MOST_CHUNKS, sizeof *made->extents, NULL);
}

uint32_t tsr_made_shape(tsr_made *made, uint64_t *shape, uint64_t most)
{
    const uint32_t ndim = (uint32_t)tsr_made_random(made, 5);
    for (uint32_t d = 0; d < ndim; d++) shape[d] = tsr_made_random(made, 12) ? 1 + tsr_made_random(made, most) : 0;
    return ndim;
}

static uint64_t append(tsr_made *made, uint64_t bytes)
{
    const uint64_t at = made->file.count;
    tsr_vec_reserve(&made->file, bytes, NULL);
    for (uint64_t i = 0; i < bytes; i++) ((uint8_t *)made->file.items)[at + i] = (uint8_t)tsr_made_random(made, 256);
    made->file.count += bytes;
    return at;
}

static void reverse(uint8_t *bytes, uint32_t size)
{
    for (uint32_t i = 0; i < size / 2; i++) {
        uint8_t kept = bytes[i];
        bytes[i] = bytes[size - 1 - i];
        bytes[size - 1 - i] = kept;
    }
}

/* Stores one element in the form described by the view: the inverse of resolving it. */
static void store_element(uint8_t *to, const uint8_t *value, tsr_dtype dtype, const tsr_view *view)
{
    const tsr_dtype_info *info = tsr_dtype_describe(dtype);
    const uint32_t size = tsr_dtype_size(dtype), parts = info->kind == TSR_CLASS_COMPLEX ? 2 : 1, width = size / parts;
    memcpy(to, value, size);
    for (uint32_t p = 0; p < parts; p++) {
        uint8_t *part = to + p * width;
        if (view->neg && (info->kind == TSR_CLASS_FLOAT || info->kind == TSR_CLASS_COMPLEX)) part[width - 1] ^= 0x80;
        if (view->neg && (info->kind == TSR_CLASS_INT || info->kind == TSR_CLASS_UINT)) {
            uint64_t number = 0;
            memcpy(&number, part, width);
            number = 0 - number;
            memcpy(part, &number, width);
        }
        if (view->conj && p == 1) part[width - 1] ^= 0x80;
        if (view->swap) reverse(part, width);
    }
}

static void choose_strides(tsr_made *made, uint32_t ndim, const uint64_t *sizes, uint64_t *strides)
{
    uint32_t order[8];
    uint64_t step = 1 + tsr_made_random(made, 3) / 2;
    for (uint32_t d = 0; d < ndim; d++) order[d] = d;
    for (uint32_t d = ndim; d-- > 1 && tsr_made_random(made, 2);) {
        const uint32_t other = (uint32_t)tsr_made_random(made, d + 1), kept = order[d];
        order[d] = order[other];
        order[other] = kept;
    }
    for (uint32_t d = ndim; d-- > 0;) {
        strides[order[d]] = step;
        step *= sizes[order[d]] + (tsr_made_random(made, 4) ? 0 : tsr_made_random(made, 50));
    }
}

static void store_chunk(tsr_made *made, const tsr_entry *entry, const tsr_chunk *chunk, const uint8_t *truth, tsr_view *view,
                        uint8_t *at, const uint64_t *strides)
{
    const uint32_t size = tsr_dtype_size(entry->dtype);
    uint64_t index[8] = {0}, count = 1;
    for (uint32_t d = 0; d < entry->ndim; d++) count *= chunk->sizes[d];
    for (uint64_t n = 0; n < count; n++) {
        uint64_t in_tensor = 0, in_file = 0;
        for (uint32_t d = 0; d < entry->ndim; d++) {
            in_tensor = in_tensor * entry->shape[d] + chunk->offsets[d] + index[d];
            in_file += index[d] * strides[d];
        }
        store_element(at + in_file * size, truth + in_tensor * size, entry->dtype, view);
        for (uint32_t d = entry->ndim; d-- > 0 && ++index[d] == chunk->sizes[d];) index[d] = 0;
    }
    (void)made;
}

static void add_chunk(tsr_made *made, const tsr_entry *entry, tsr_chunk *chunk, const uint8_t *truth, tsr_made_how how)
{
    const uint32_t ndim = entry->ndim, size = tsr_dtype_size(entry->dtype);
    tsr_view *view = TSR_ARENA_NEW(made->arena, tsr_view, NULL);
    uint64_t *strides = tsr_arena_array(made->arena, ndim, sizeof *strides, NULL), reach = 1, step = 1;
    bool empty = false;
    for (uint32_t d = ndim; d-- > 0; step *= chunk->sizes[d]) strides[d] = step;
    if (how == TSR_MADE_STRIDED) {
        choose_strides(made, ndim, chunk->sizes, strides);
        view->strides = strides;
        view->swap = tsr_made_random(made, 3) == 0;
        view->conj = tsr_made_random(made, 3) == 0;
        view->neg = tsr_made_random(made, 3) == 0;
    }
    for (uint32_t d = 0; d < ndim; d++) {
        empty = empty || chunk->sizes[d] == 0;
        reach += empty ? 0 : (chunk->sizes[d] - 1) * strides[d];
    }
    append(made, tsr_made_random(made, 40));
    const uint64_t bytes = empty ? 0 : reach * size, lead = how == TSR_MADE_ZSTD ? tsr_made_random(made, 100) : 0;
    const uint64_t header = how == TSR_MADE_ZSTD ? 4 : 0, at = append(made, header + lead + bytes);
    uint8_t *stored = (uint8_t *)made->file.items + at + header + lead;
    if (!empty) store_chunk(made, entry, chunk, truth, view, stored, strides);
    chunk->byte_offset = view->byte_offset = at;
    chunk->byte_length = bytes;
    if (how == TSR_MADE_ZSTD) {
        const uint32_t length = (uint32_t)(lead + bytes);
        memcpy((uint8_t *)made->file.items + at, &length, 4);
        for (uint64_t i = 0; i < length; i++) ((uint8_t *)made->file.items)[at + 4 + i] ^= 0x5a;
        *view = (tsr_view){.zstd = true, .byte_offset = lead, .stream_offset = at, .stream_length = 4 + lead + bytes};
    }
    chunk->view = view;
    made->extents[made->extent_count++] =
        (tsr_extent){.byte_offset = at,
                     .byte_length = header + lead + bytes,
                     .entry = entry,
                     .chunk = chunk,
                     .view = *view,
                     .has_crc = true,
                     .crc32 = tsr_crc32(NULL, 0, (uint8_t *)made->file.items + at, header + lead + bytes),
                     .member = TSR_STR("data/0")};
}

/* Splits a random chunk in two along a random dim. */
static void cut_once(tsr_made *made, tsr_chunk *chunks, uint64_t *count, uint32_t ndim)
{
    tsr_chunk *from = &chunks[tsr_made_random(made, *count)];
    const uint32_t dim = (uint32_t)tsr_made_random(made, ndim);
    const uint64_t keep = tsr_made_random(made, from->sizes[dim] + 1);
    if (keep == from->sizes[dim]) return;
    tsr_chunk *to = &chunks[(*count)++];
    uint64_t *box = tsr_arena_array(made->arena, 2 * (size_t)ndim, sizeof *box, NULL);
    memcpy(box, from->offsets, ndim * sizeof *box);
    memcpy(box + ndim, from->sizes, ndim * sizeof *box);
    box[dim] += keep;
    box[ndim + dim] -= keep;
    *to = (tsr_chunk){.offsets = box, .sizes = box + ndim};
    ((uint64_t *)from->sizes)[dim] = keep;
}

uint64_t tsr_made_tensor(tsr_made *made, const char *fqn, tsr_dtype dtype, uint32_t ndim, const uint64_t *shape,
                         unsigned cuts, tsr_made_how how)
{
    const uint64_t number = made->count++;
    tsr_entry *entry = &made->entries[number];
    uint64_t *own = tsr_arena_array(made->arena, 3 * (size_t)ndim, sizeof *own, NULL), count = 1, bytes;
    tsr_chunk *chunks = tsr_arena_array(made->arena, MOST_CHUNKS, sizeof *chunks, NULL);
    if (ndim) memcpy(own, shape, ndim * sizeof *own);
    if (ndim) memcpy(own + 2 * ndim, shape, ndim * sizeof *own);
    chunks[0] = (tsr_chunk){.offsets = own + ndim, .sizes = own + 2 * ndim};
    for (unsigned i = 0; ndim && i < cuts && count < MOST_CHUNKS; i++) cut_once(made, chunks, &count, ndim);
    *entry = (tsr_entry){.fqn = tsr_str_from(fqn),
                         .kind = TSR_ENTRY_TENSOR,
                         .dtype = dtype,
                         .ndim = ndim,
                         .shape = own,
                         .chunks = chunks,
                         .chunk_count = count};
    tsr_entry_bytes(entry, &bytes);
    made->truth[number] = tsr_arena_array(made->arena, bytes, 1, NULL);
    for (uint64_t i = 0; i < bytes; i++) made->truth[number][i] = (uint8_t)tsr_made_random(made, 256);
    for (uint64_t i = 0; i < count; i++) add_chunk(made, entry, &chunks[i], made->truth[number], how);
    return number;
}

void tsr_made_open(tsr_made *made)
{
    made->listed = (tsr_memory_file){TSR_STR("data"), {made->file.items ? made->file.items : "", made->file.count}};
    tsr_checkpoint *checkpoint = &made->checkpoint;
    *checkpoint = (tsr_checkpoint){
        .host = &made->host, .given_host = &made->host, .arena = made->arena, .reader = &made_reader, .state = made};
    tsr_store_from_memory(&tsr_allocator_libc, &made->listed, 1, &checkpoint->store, NULL);
    checkpoint->findings = tsr_findings_new(&tsr_allocator_libc, 0, NULL);
    checkpoint->catalog = (tsr_catalog){
        .format = TSR_FORMAT_DCP, .entries = made->entries, .entry_count = made->count, .store = checkpoint->store};
}

void tsr_made_end(tsr_made *made)
{
    if (made->checkpoint.store) made->checkpoint.store->close(made->checkpoint.store);
    tsr_findings_free(made->checkpoint.findings);
    tsr_vec_free(&made->file);
    tsr_arena_free(made->arena);
}

void tsr_made_box(const tsr_made *made, uint64_t number, const uint64_t *offsets, const uint64_t *sizes, uint8_t *out)
{
    const tsr_entry *entry = &made->entries[number];
    const uint32_t size = tsr_dtype_size(entry->dtype);
    uint64_t index[8] = {0}, count = 1;
    for (uint32_t d = 0; d < entry->ndim; d++) count *= sizes[d];
    for (uint64_t n = 0; n < count; n++) {
        uint64_t at = 0;
        for (uint32_t d = 0; d < entry->ndim; d++) at = at * entry->shape[d] + offsets[d] + index[d];
        memcpy(out + n * size, made->truth[number] + at * size, size);
        for (uint32_t d = entry->ndim; d-- > 0 && ++index[d] == sizes[d];) index[d] = 0;
    }
}
