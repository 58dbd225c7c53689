/* How runs along every dim become the boxes of a shard. */
#ifndef TSR_LAYOUT_SHARD_H
#define TSR_LAYOUT_SHARD_H

#include "tessera/mesh.h"

/* What a rank holds along one dim. */
typedef struct tsr_run_list {
    const tsr_span *runs;
    const uint64_t *local; /* where each begins in the local tensor */
    uint64_t count;
} tsr_run_list;

/* TSR_E_USAGE when a placement names a dim that a tensor of `ndim` dims does not have, or has a bad split factor. */
tsr_status tsr_placements_check(const tsr_mesh *mesh, const tsr_placement *placements, uint32_t ndim, tsr_error *err);

/* How a part of a box (`sizes`) lies in the box's row-major order: as *runs runs without gaps, one for each index of the dims
 * before the one returned. Not of rank 0 alone. */
uint32_t tsr_flat_split(uint32_t ndim, const uint64_t *box_sizes, const uint64_t *sizes, uint64_t *runs);

/* `lists` has one item a dim. */
tsr_status tsr_shard_from_runs(uint32_t ndim, const uint64_t *shape, const tsr_run_list *lists, tsr_arena *arena,
                               tsr_shard *out, tsr_error *err);

#endif
