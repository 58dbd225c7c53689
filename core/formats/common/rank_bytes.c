/* Two views with equal strides are first compared as the byte ranges that they span, which is the usual case and is fast. If
 * that does not decide, their elements are visited in the order of the first view's strides, largest first, so that at least
 * one of the two files is read from front to back. */
#include "formats/common/rank_bytes.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "tessera/box.h"
#include "tessera/sys/try.h"

enum { BLOCK = 256 << 10, SMALL = 4 << 10, WHOLE = 64 << 20, MAX_VISITS_PER_BYTE = 8 };

/* The part of a file that is in memory. */
typedef struct window {
    uint32_t file;
    uint64_t from, end; /* range of the file that may be read: what the view spans */
    uint64_t at;        /* where `bytes` begins in the file */
    size_t size, most;
    uint8_t *bytes;
} window;

typedef struct dimension {
    uint64_t size, steps[2]; /* steps: bytes from one element to the next, for each of the two views */
} dimension;

typedef struct matching {
    const tsr_checkpoint *checkpoint;
    window windows[2];
    dimension dims[TSR_MAX_NDIM];
    uint32_t rank;
    uint32_t item, unit; /* bytes of an element, and of the numbers in it whose byte order matters */
    bool swap;           /* one of the two is stored big-endian */
    tsr_error *err;
} matching;

static tsr_view view_of(const tsr_chunk *chunk)
{
    return chunk->view ? *chunk->view : (tsr_view){.file = chunk->file, .byte_offset = chunk->byte_offset};
}

static window window_on(const tsr_chunk *chunk, uint8_t *bytes)
{
    const tsr_view view = view_of(chunk);
    const uint64_t end = view.byte_offset + chunk->byte_length;
    return (window){.file = view.file, .from = view.byte_offset, .end = end, .most = SMALL, .bytes = bytes};
}

/* ---- comparing byte ranges ---- */

static tsr_status match_runs(matching *m, bool *same)
{
    window *a = &m->windows[0], *b = &m->windows[1];
    const uint64_t length = a->end - a->from;
    *same = true;
    for (uint64_t done = 0; done < length && *same;) {
        const size_t part = length - done < BLOCK ? (size_t)(length - done) : BLOCK;
        TSR_TRY(tsr_store_read(m->checkpoint->store, a->file, a->from + done, a->bytes, part, m->err));
        TSR_TRY(tsr_store_read(m->checkpoint->store, b->file, b->from + done, b->bytes, part, m->err));
        *same = memcmp(a->bytes, b->bytes, part) == 0;
        done += part;
    }
    return TSR_OK;
}

/* ---- as elements ---- */

/* Makes the bytes at `offset` available. Windows grow while a file is read from front to back. */
static tsr_status slide(matching *m, window *w, uint64_t offset, const uint8_t **out)
{
    if (offset < w->at || offset + m->item > w->at + w->size) {
        const bool onward = w->size && offset >= w->at && offset - w->at <= 2 * w->most;
        w->most = !onward ? SMALL : w->most < BLOCK ? 2 * w->most : BLOCK;
        w->at = offset;
        w->size = w->end - offset < w->most ? (size_t)(w->end - offset) : w->most;
        TSR_TRY(tsr_store_read(m->checkpoint->store, w->file, offset, w->bytes, w->size, m->err));
    }
    *out = w->bytes + (offset - w->at);
    return TSR_OK;
}

static bool same_element(const matching *m, const uint8_t *a, const uint8_t *b)
{
    if (!m->swap) return memcmp(a, b, m->item) == 0;
    for (uint32_t from = 0; from < m->item; from += m->unit)
        for (uint32_t i = 0; i < m->unit; i++)
            if (a[from + i] != b[from + m->unit - 1 - i]) return false;
    return true;
}

static tsr_status walk_elements(matching *m, bool *same)
{
    uint64_t index[TSR_MAX_NDIM] = {0}, offsets[2] = {m->windows[0].from, m->windows[1].from};
    *same = true;
    for (uint32_t d;;) {
        const uint8_t *a, *b;
        TSR_TRY(slide(m, &m->windows[0], offsets[0], &a));
        TSR_TRY(slide(m, &m->windows[1], offsets[1], &b));
        *same = same_element(m, a, b);
        if (!*same) return TSR_OK;
        for (d = m->rank; d-- > 0;) {
            const dimension *dim = &m->dims[d];
            const bool wraps = ++index[d] == dim->size;
            for (int s = 0; s < 2; s++) offsets[s] += wraps ? 0 - dim->steps[s] * (dim->size - 1) : dim->steps[s];
            if (!wraps) break;
            index[d] = 0;
        }
        if (d == UINT32_MAX) return TSR_OK;
    }
}

/* Reads the whole range of a window into memory, if it is small. Otherwise one of the two views might be read in many small
 * pieces that are far apart. */
static tsr_status load_whole(matching *m, window *w, uint8_t **memory)
{
    const size_t size = (size_t)(w->end - w->from);
    *memory = NULL;
    if (w->end - w->from > WHOLE) return TSR_OK;
    *memory = tsr_alloc(m->checkpoint->host->allocator, size, 1, m->err);
    if (!*memory) return TSR_E_NOMEM;
    w->bytes = *memory;
    w->at = w->from;
    w->size = size;
    return tsr_store_read(m->checkpoint->store, w->file, w->from, w->bytes, size, m->err);
}

static tsr_status match_elements(matching *m, bool *same)
{
    const tsr_allocator *allocator = m->checkpoint->host->allocator;
    uint8_t *first, *second = NULL;
    tsr_status status = load_whole(m, &m->windows[0], &first);
    if (status == TSR_OK) status = load_whole(m, &m->windows[1], &second);
    if (status == TSR_OK) status = walk_elements(m, same);
    tsr_free(allocator, first, (size_t)(m->windows[0].end - m->windows[0].from), 1);
    tsr_free(allocator, second, (size_t)(m->windows[1].end - m->windows[1].from), 1);
    return status;
}

static int by_first_step(const void *left, const void *right)
{
    const dimension *a = left, *b = right;
    return (a->steps[0] < b->steps[0]) - (a->steps[0] > b->steps[0]);
}

/* Collects the dimensions that have to be walked: those with several elements, unless all of them are the same stored
 * element in both views. Returns false if there would be too many visits compared with the number of stored bytes. */
static bool take_dimensions(matching *m, const tsr_entry *entry, const uint64_t *strides_a, const uint64_t *strides_b)
{
    uint64_t row_major = 1, visits = 1, stored = 0;
    for (uint32_t d = entry->ndim; d-- > 0;) {
        const uint64_t size = entry->shape[d];
        const dimension dim = {
            size, {(strides_a ? strides_a[d] : row_major) * m->item, (strides_b ? strides_b[d] : row_major) * m->item}};
        row_major *= size;
        if (size == 1 || (!dim.steps[0] && !dim.steps[1])) continue;
        m->dims[m->rank++] = dim;
        if (!tsr_mul_u64(visits, size, &visits)) return false;
    }
    for (int s = 0; s < 2; s++) stored += m->windows[s].end - m->windows[s].from;
    if (m->rank) qsort(m->dims, m->rank, sizeof *m->dims, by_first_step);
    return visits / MAX_VISITS_PER_BYTE <= stored;
}

static bool same_strides(const tsr_entry *entry, const tsr_view *a, const tsr_view *b)
{
    if (!a->strides || !b->strides) return a->strides == b->strides;
    return memcmp(a->strides, b->strides, entry->ndim * sizeof *a->strides) == 0;
}

static tsr_status match(matching *m, const tsr_entry *entry, const tsr_view *a, const tsr_view *b, bool *same)
{
    const bool alike = same_strides(entry, a, b) && a->swap == b->swap;
    *same = false;
    if (a->conj != b->conj || a->neg != b->neg) return TSR_OK;
    if (alike && m->windows[0].end - m->windows[0].from == m->windows[1].end - m->windows[1].from) {
        TSR_TRY(match_runs(m, same));
        if (*same || !a->strides) return TSR_OK; /* they may differ only in bytes between the elements */
        *same = false;
    }
    if (!m->item || entry->ndim > TSR_MAX_NDIM || !take_dimensions(m, entry, a->strides, b->strides)) return TSR_OK;
    return match_elements(m, same);
}

tsr_status tsr_rank_bytes_match(const tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *same,
                                tsr_error *err)
{
    uint64_t elements = 0;
    const tsr_allocator *allocator = checkpoint->host->allocator;
    *same = tsr_entry_elements(a, &elements) && elements == 0;
    if (*same || a->chunks[0].file == TSR_NO_FILE || b->chunks[0].file == TSR_NO_FILE) return TSR_OK;
    uint8_t *memory = tsr_alloc(allocator, 2, BLOCK, err);
    if (!memory) return TSR_E_NOMEM;
    const tsr_view first = view_of(a->chunks), second = view_of(b->chunks);
    matching m = {.checkpoint = checkpoint,
                  .windows = {window_on(a->chunks, memory), window_on(b->chunks, memory + BLOCK)},
                  .item = tsr_dtype_size(a->dtype),
                  .unit = tsr_dtype_describe(a->dtype)->swap_bytes,
                  .swap = first.swap != second.swap,
                  .err = err};
    if (!m.unit) m.unit = 1;
    tsr_status status = match(&m, a, &first, &second, same);
    tsr_free(allocator, memory, 2, BLOCK);
    return status;
}
