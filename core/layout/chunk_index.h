/* Finds the chunks of a tensor that intersect a box. If the chunks form a grid, they are found by its cuts, otherwise along
 * the axis with the most distinct cuts. The chunks must tile the tensor. */
#ifndef TSR_LAYOUT_CHUNK_INDEX_H
#define TSR_LAYOUT_CHUNK_INDEX_H

#include "tessera/box.h"
#include "tessera/catalog.h"

typedef struct tsr_chunk_index {
    uint32_t ndim;
    const tsr_chunk *chunks;
    uint64_t count;
    /* A grid: along dim d, cell i is [cuts[d][i], cuts[d][i + 1]); `cells` (row-major) has the number of each chunk. */
    uint64_t *const *cuts;
    const uint64_t *cut_counts; /* number of cells along each dim, one less than the number of cuts */
    const uint64_t *cells;      /* NULL if the chunks do not form a grid */
    /* Otherwise: `order` lists the chunks that have elements, sorted by where they begin along `axis`; `reach` has, for each
     * position, how far the chunks up to it extend. */
    uint32_t axis;
    const uint64_t *order;
    const uint64_t *reach;
    uint64_t ordered;
} tsr_chunk_index;

/* Allocates in `arena`, borrows the chunks. O(count × ndim × log count). */
tsr_status tsr_chunk_index_build(uint32_t ndim, const tsr_chunk *chunks, uint64_t count, tsr_arena *arena,
                                 tsr_chunk_index *out, tsr_error *err);

/* Iterates over the chunks that share elements with `box` (not empty), each once, in an order that depends only on the index
 * and the box. */
typedef struct tsr_chunk_query {
    const tsr_chunk_index *index;
    tsr_box box;
    uint64_t next; /* without a grid: position to look at, counting down; with a grid: 1 while cells are left */
    uint64_t begin[TSR_MAX_NDIM];
    uint64_t end[TSR_MAX_NDIM];
    uint64_t at[TSR_MAX_NDIM];
} tsr_chunk_query;

void tsr_chunk_query_start(tsr_chunk_query *query, const tsr_chunk_index *index, tsr_box box);
/* Returns the number of the next chunk and its intersection with the box; false at the end. */
bool tsr_chunk_query_next(tsr_chunk_query *query, uint64_t *chunk, uint64_t *offsets, uint64_t *sizes);

#endif
