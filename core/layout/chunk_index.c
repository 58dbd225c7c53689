/* Recognizes grids. Sharding usually produces one, in which every chunk is a cell between neighboring cuts.
 *
 *   cuts of dim 1:   0     3   5          a chunk [0, 3) × [3, 5) is cell (0, 1) of 2 × 2;
 *   cuts of dim 0: 0 +-----+---+          the list is a grid if the chunks fill all cells, each once
 *                    |     |   |
 *                  3 +-----+---+ */
#include "layout/chunk_index.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "tessera/sys/try.h"

#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"

static int compare_u64(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static bool has_elements(const tsr_chunk_index *index, uint64_t i)
{
    return !tsr_box_is_empty((tsr_box){index->ndim, index->chunks[i].offsets, index->chunks[i].sizes});
}

/* Sorts the values and removes duplicates. Returns how many remain. */
static uint64_t sort_unique(uint64_t *values, uint64_t count)
{
    uint64_t kept = 0;
    bool sorted = true;
    for (uint64_t i = 1; i < count && sorted; i++) sorted = values[i - 1] <= values[i];
    if (!sorted) qsort(values, count, sizeof *values, compare_u64);
    for (uint64_t i = 0; i < count; i++) {
        if (kept == 0 || values[kept - 1] != values[i]) values[kept++] = values[i];
    }
    return kept;
}

/* The index of the last cut at or below `value`. */
static uint64_t find_cut(const uint64_t *cuts, uint64_t count, uint64_t value)
{
    uint64_t low = 0, high = count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (cuts[middle] <= value) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Collects where chunks begin along each dim, sorted and without duplicates, followed by the tensor's end. */
static tsr_status gather_cuts(tsr_chunk_index *index, uint64_t **cuts, uint64_t *counts, uint64_t *scratch, tsr_arena *arena,
                              tsr_error *err)
{
    for (uint32_t d = 0; d < index->ndim; d++) {
        uint64_t n = 0, end = 0;
        for (uint64_t i = 0; i < index->count; i++) {
            const tsr_chunk *chunk = &index->chunks[i];
            uint64_t chunk_end = chunk->offsets[d] + chunk->sizes[d];
            if (!has_elements(index, i)) continue;
            if (n == 0 || scratch[n - 1] != chunk->offsets[d]) scratch[n++] = chunk->offsets[d];
            if (chunk_end > end) end = chunk_end;
        }
        counts[d] = sort_unique(scratch, n);
        cuts[d] = tsr_arena_array(arena, counts[d] + 1, sizeof **cuts, err);
        if (!cuts[d]) return TSR_E_NOMEM;
        memcpy(cuts[d], scratch, counts[d] * sizeof **cuts);
        cuts[d][counts[d]] = end;
    }
    return TSR_OK;
}

/* Sets the cell of a chunk. Returns false if it spans several. */
static bool cell_of(const tsr_chunk_index *index, const tsr_chunk *chunk, uint64_t *cell)
{
    *cell = 0;
    for (uint32_t d = 0; d < index->ndim; d++) {
        const uint64_t *cuts = index->cuts[d];
        uint64_t at = find_cut(cuts, index->cut_counts[d], chunk->offsets[d]);
        if (cuts[at] != chunk->offsets[d] || cuts[at + 1] != chunk->offsets[d] + chunk->sizes[d]) return false;
        *cell = *cell * index->cut_counts[d] + at;
    }
    return true;
}

static tsr_status recover_grid(tsr_chunk_index *index, tsr_arena *arena, tsr_error *err)
{
    uint64_t total = 1, filled = 0, cell;
    for (uint32_t d = 0; d < index->ndim; d++) {
        if (!tsr_mul_u64(total, index->cut_counts[d], &total) || total > index->count) return TSR_OK;
    }
    uint64_t *cells = tsr_arena_array(arena, total, sizeof *cells, err);
    if (!cells) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < index->count; i++) {
        if (!has_elements(index, i)) continue;
        if (!cell_of(index, &index->chunks[i], &cell)) return TSR_OK;
        cells[cell] = i; /* in a tiling, different chunks are in different cells */
        filled++;
    }
    if (filled == total) index->cells = cells;
    return TSR_OK;
}

typedef struct begin {
    uint64_t at;
    uint64_t chunk;
} begin;

static int compare_begins(const void *left, const void *right)
{
    const begin *a = left, *b = right;
    return a->at != b->at ? (a->at < b->at ? -1 : 1) : (a->chunk > b->chunk) - (a->chunk < b->chunk);
}

static tsr_status sort_on_axis(tsr_chunk_index *index, tsr_arena *arena, tsr_error *err)
{
    begin *begins = tsr_arena_array(arena, index->count, sizeof *begins, err);
    uint64_t *order = begins ? tsr_arena_array(arena, index->count, sizeof *order, err) : NULL;
    uint64_t *reach = order ? tsr_arena_array(arena, index->count, sizeof *reach, err) : NULL, n = 0;
    if (!reach) return TSR_E_NOMEM;
    for (uint32_t d = 1; d < index->ndim; d++) {
        if (index->cut_counts[d] > index->cut_counts[index->axis]) index->axis = d;
    }
    for (uint64_t i = 0; i < index->count; i++) {
        if (has_elements(index, i)) begins[n++] = (begin){index->chunks[i].offsets[index->axis], i};
    }
    if (n) qsort(begins, n, sizeof *begins, compare_begins);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t end = begins[i].at + index->chunks[begins[i].chunk].sizes[index->axis];
        order[i] = begins[i].chunk;
        reach[i] = i && reach[i - 1] > end ? reach[i - 1] : end;
    }
    index->order = order;
    index->reach = reach;
    index->ordered = n;
    return TSR_OK;
}

tsr_status tsr_chunk_index_build(uint32_t ndim, const tsr_chunk *chunks, uint64_t count, tsr_arena *arena,
                                 tsr_chunk_index *out, tsr_error *err)
{
    uint64_t **cuts = tsr_arena_array(arena, ndim, sizeof *cuts, err);
    uint64_t *counts = tsr_arena_array(arena, ndim, sizeof *counts, err);
    if (!cuts || !counts) return TSR_E_NOMEM;
    *out = (tsr_chunk_index){.ndim = ndim, .chunks = chunks, .count = count, .cuts = cuts, .cut_counts = counts};
    uint64_t *scratch = tsr_alloc(tsr_arena_allocator(arena), count, sizeof *scratch, err);
    if (!scratch) return TSR_E_NOMEM;
    tsr_status status = gather_cuts(out, cuts, counts, scratch, arena, err);
    tsr_free(tsr_arena_allocator(arena), scratch, count, sizeof *scratch);
    if (status == TSR_OK) status = recover_grid(out, arena, err);
    if (status != TSR_OK || out->cells || ndim == 0) return status;
    return sort_on_axis(out, arena, err);
}

void tsr_chunk_query_start(tsr_chunk_query *query, const tsr_chunk_index *index, tsr_box box)
{
    query->index = index;
    query->box = box;
    query->next = index->cells ? 1 : 0;
    if (!index->cells) {
        uint64_t end = box.sizes[index->axis] + tsr_box_offset(box, index->axis), low = 0, high = index->ordered;
        while (low < high) { /* find how many chunks begin before the box ends */
            uint64_t middle = low + (high - low) / 2;
            if (index->chunks[index->order[middle]].offsets[index->axis] < end) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        query->next = low;
        return;
    }
    for (uint32_t d = 0; d < index->ndim; d++) {
        uint64_t offset = tsr_box_offset(box, d);
        query->begin[d] = query->at[d] = find_cut(index->cuts[d], index->cut_counts[d], offset);
        query->end[d] = find_cut(index->cuts[d], index->cut_counts[d], offset + box.sizes[d] - 1) + 1;
    }
}

static bool next_cell(tsr_chunk_query *query, uint64_t *chunk)
{
    const tsr_chunk_index *index = query->index;
    uint64_t cell = 0;
    if (!query->next) return false;
    for (uint32_t d = 0; d < index->ndim; d++) cell = cell * index->cut_counts[d] + query->at[d];
    *chunk = index->cells[cell];
    for (uint32_t d = index->ndim; d-- > 0;) {
        if (++query->at[d] < query->end[d]) return true;
        query->at[d] = query->begin[d];
    }
    query->next = 0;
    return true;
}

bool tsr_chunk_query_next(tsr_chunk_query *query, uint64_t *chunk, uint64_t *offsets, uint64_t *sizes)
{
    const tsr_chunk_index *index = query->index;
    if (index->cells) {
        if (!next_cell(query, chunk)) return false;
        return tsr_box_intersect(
            query->box, (tsr_box){index->ndim, index->chunks[*chunk].offsets, index->chunks[*chunk].sizes}, offsets, sizes);
    }
    uint64_t from = tsr_box_offset(query->box, index->axis);
    while (query->next > 0 && index->reach[query->next - 1] > from) {
        *chunk = index->order[--query->next];
        tsr_box box = {index->ndim, index->chunks[*chunk].offsets, index->chunks[*chunk].sizes};
        if (tsr_box_intersect(query->box, box, offsets, sizes)) return true;
    }
    return false;
}
