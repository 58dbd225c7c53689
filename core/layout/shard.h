/* Turns runs along every dim into the boxes of a shard. */
#ifndef TSR_LAYOUT_SHARD_H
#define TSR_LAYOUT_SHARD_H

#include "tessera/catalog.h"
#include "tessera/mesh.h"

#include <stdint.h>

/* What a rank holds along one dim. */
typedef struct tsr_run_list {
    const tsr_span *runs;
    const uint64_t *local; /* where each begins in the local tensor */
    uint64_t count;
} tsr_run_list;

/* How a part of a box, with these sizes, is stored in the box's row-major order: as *runs contiguous runs, one for each
 * index of the dims before the one returned. */
uint32_t tsr_flat_split(uint32_t ndim, const uint64_t *box_sizes, const uint64_t *sizes, uint64_t *runs);

/* ---- Formats dimensions for messages: "[4096, 16384]". ---- */

typedef struct tsr_dims_buffer {
    char text[160]; /* long lists are cut and end in "…]" */
} tsr_dims_buffer;

/* Returns buffer->text. If `values` is NULL, all values are 0. */
const char *tsr_dims_text(tsr_dims_buffer *buffer, const uint64_t *values, uint32_t ndim);

/* ---- Compares lists of chunks as sets of boxes. ---- */

/* Whether two entries of one shape have the same chunk boxes, in any order. Chunks without elements are ignored, because
 * programs may store or omit the empty chunks of ranks that hold nothing. */
tsr_status tsr_box_sets_equal(const tsr_allocator *allocator, const tsr_entry *a, const tsr_entry *b, bool *equal,
                              tsr_error *err);

#endif
