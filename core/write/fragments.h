/* Tensors as Megatron-Core 0.14 and before store the state of a distributed optimizer: cut into equal fragments, each of them
 * flat. A tensor [4, 6] in fragments [2, 1] is stored as [2, 1, 12]. Written are boxes whose row-major elements are those of
 * whole fragments, one after another, so that the bytes of a box are copied as they are. */
#ifndef TSR_WRITE_FRAGMENTS_H
#define TSR_WRITE_FRAGMENTS_H

#include "tessera/box.h"
#include "tessera/catalog.h"

/* A box as it is stored; `offsets` NULL: zeros, `sizes` NULL: to the end. Fills rank + 1 numbers each. */
void tsr_fragments_of_box(const tsr_entry *entry, const uint64_t *fragments, const uint64_t *offsets, const uint64_t *sizes,
                          uint64_t *stored_offsets, uint64_t *stored_sizes);

/* Takes more cuts into account: `steps`, the size of a fragment on each dim, becomes one of which the box's offsets and
 * sizes are multiples. */
void tsr_fragment_steps(uint32_t ndim, uint64_t *steps, tsr_box box);

/* Calls `each` for the boxes that a box of whole fragments is written as: all fragments along dim 0 in one, each along the
 * others by itself. Stops at a status that is not TSR_OK. */
tsr_status tsr_fragment_boxes(const tsr_entry *entry, const uint64_t *fragments, tsr_box box,
                              tsr_status (*each)(void *ctx, tsr_box box, tsr_error *err), void *ctx, tsr_error *err);

#endif
