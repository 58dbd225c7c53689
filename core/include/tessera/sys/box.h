/* Volumes, indices and intersections of boxes (tessera/box.h). Everything here is pure and thread-safe; nothing allocates.
 *
 * Example:
 *
 *     const uint64_t shape[] = {8, 6}, offsets[] = {6, 0}, sizes[] = {4, 6};
 *     const tsr_box tensor = {2, NULL, shape}, chunk = {2, offsets, sizes};
 *     uint64_t common_offsets[2], common_sizes[2];
 *     if (tsr_box_intersect(tensor, chunk, common_offsets, common_sizes))
 *         printf("%llu rows of the chunk are in the tensor\n", (unsigned long long)common_sizes[0]); */
#ifndef TESSERA_SYS_BOX_H
#define TESSERA_SYS_BOX_H

#include "tessera/box.h"

TSR_API_BEGIN

/* The offset of a box along `dim` (< ndim), in elements. Boxes without offsets begin at 0. */
static inline uint64_t tsr_box_offset(tsr_box box, uint32_t dim)
{
    return box.offsets ? box.offsets[dim] : 0;
}

/* Elements; false on overflow. A box with a zero size has none, whatever its other sizes. */
bool tsr_box_volume(tsr_box box, uint64_t *elements);
bool tsr_box_is_empty(tsr_box box);
/* Whether every offset + size of `inner` is within `outer`; empty boxes at the far edge are within. */
bool tsr_box_contains(tsr_box outer, tsr_box inner);
/* The common part, in the coordinates of both; `offsets` and `sizes` have room for `ndim` numbers. False when it is empty. */
bool tsr_box_intersect(tsr_box a, tsr_box b, uint64_t *offsets, uint64_t *sizes);

TSR_API_END

#endif
