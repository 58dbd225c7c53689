/* Turns runs along every dim into the boxes of a shard. */
#ifndef TSR_LAYOUT_SHARD_H
#define TSR_LAYOUT_SHARD_H

#include "tessera/mesh.h"

/* What a rank holds along one dim. */
typedef struct tsr_run_list {
    const tsr_span *runs;
    const uint64_t *local; /* where each begins in the local tensor */
    uint64_t count;
} tsr_run_list;

/* How a part of a box, with these sizes, is stored in the box's row-major order: as *runs contiguous runs, one for each
 * index of the dims before the one returned. */
uint32_t tsr_flat_split(uint32_t ndim, const uint64_t *box_sizes, const uint64_t *sizes, uint64_t *runs);

#endif
