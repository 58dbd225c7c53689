/* Tensors whose elements are their own numbers, with random distributions. */
#ifndef TSR_TESTS_STATEDICT_RAMP_H
#define TSR_TESTS_STATEDICT_RAMP_H

#include "live.h"

uint64_t ramp_random(uint64_t *seed);
/* Returns a random distribution of a tensor over the ranks, without memory. It is the same on all ranks for the same
 * seed. */
tsr_tensor ramp_tensor(uint64_t *seed, tsr_arena *arena, const tsr_comm *comm, tsr_dtype dtype, uint32_t ndim,
                       const uint64_t *shape);
/* With `fill`, writes every element that this rank holds. Otherwise sets *right to false when an element differs from what
 * was written. */
tsr_status ramp_over(const tsr_tensor *tensor, tsr_arena *arena, bool fill, bool *right, tsr_error *err);

#endif
