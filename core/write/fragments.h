/* Tensors in the form in which Megatron-Core up to 0.14 stores the state of a distributed optimizer: divided into equal
 * fragments, each of which is flattened. A tensor [4, 6] in fragments [2, 1] is stored as [2, 1, 12]. Only boxes are written
 * whose elements, in row-major order, are those of consecutive whole fragments, so that a box's bytes can be copied
 * unchanged. */
#ifndef TSR_WRITE_FRAGMENTS_H
#define TSR_WRITE_FRAGMENTS_H

#include "tessera/box.h"
#include "tessera/catalog.h"

/* Converts a box to the stored form. `offsets` may be NULL for zeros, `sizes` NULL for the whole tensor. Fills ndim + 1
 * numbers each. */
void tsr_fragments_of_box(const tsr_entry *entry, const uint64_t *fragments, const uint64_t *offsets, const uint64_t *sizes,
                          uint64_t *stored_offsets, uint64_t *stored_sizes);

/* Takes another box into account: reduces `steps`, the size of a fragment on each dim, so that the box's offsets and sizes
 * are multiples of it. */
void tsr_fragment_steps(uint32_t ndim, uint64_t *steps, tsr_box box);

/* Calls `each` for the boxes in which a box of whole fragments is written: one box for all fragments along dim 0, and
 * separate boxes along the other dims. Stops at a status other than TSR_OK. */
tsr_status tsr_fragment_boxes(const tsr_entry *entry, const uint64_t *fragments, tsr_box box,
                              tsr_status (*each)(void *ctx, tsr_box box, tsr_error *err), void *ctx, tsr_error *err);

#endif
