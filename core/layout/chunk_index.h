/* Which chunks of a tensor does a box meet? Chunks that form a grid are found by their cuts; others by the axis with the
 * most distinct cuts. The chunks must tile the tensor. */
#ifndef TSR_LAYOUT_CHUNK_INDEX_H
#define TSR_LAYOUT_CHUNK_INDEX_H

#include "tessera/box.h"
#include "tessera/catalog.h"

typedef struct tsr_chunk_index {
    uint32_t ndim;
    const tsr_chunk *chunks;
    uint64_t count;
    /* A grid: along dim d cell i is [cuts[d][i], cuts[d][i + 1]); `cells` (row-major) has the number of each chunk. */
    uint64_t *const *cuts;
    const uint64_t *cut_counts; /* cells along each dim, cuts less one */
    const uint64_t *cells;      /* NULL: no grid */
    /* No grid: chunks with elements sorted by where they begin on `axis`, and how far those up to each reach. */
    uint32_t axis;
    const uint64_t *order;
    const uint64_t *reach;
    uint64_t ordered;
} tsr_chunk_index;

/* Lives in `arena`, borrows the chunks. O(count × ndim × log count). */
tsr_status tsr_chunk_index_build(uint32_t ndim, const tsr_chunk *chunks, uint64_t count, tsr_arena *arena,
                                 tsr_chunk_index *out, tsr_error *err);

/* Yields the chunks that share elements with `box` (not empty), each once, in an order that depends on both alone. */
typedef struct tsr_chunk_query {
    const tsr_chunk_index *index;
    tsr_box box;
    uint64_t next; /* ordered: position to look at, counting down; grid: 1 while cells are left */
    uint64_t begin[TSR_MAX_NDIM];
    uint64_t end[TSR_MAX_NDIM];
    uint64_t at[TSR_MAX_NDIM];
} tsr_chunk_query;

void tsr_chunk_query_start(tsr_chunk_query *query, const tsr_chunk_index *index, tsr_box box);
/* The number of the next chunk and the common box; false at the end. */
bool tsr_chunk_query_next(tsr_chunk_query *query, uint64_t *chunk, uint64_t *offsets, uint64_t *sizes);

#endif
