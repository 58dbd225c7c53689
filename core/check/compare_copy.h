/* Compares the chunks of a tensor with a replica of them. */
#ifndef TSR_CHECK_COMPARE_COPY_H
#define TSR_CHECK_COMPARE_COPY_H

#include "stream/gather.h"
#include "tessera/compare.h"

/* Compares a replica of the gathered entry with the elements that `chunks` has in the replica's box. TSR_OK and no
 * difference if no element of the replica can be read. `out->first` is relative to the box. Begins and ends its own work on
 * the ring. Fails like tsr_compare_tensors. */
tsr_status tsr_compare_copy(const tsr_gather *chunks, const tsr_chunk *replica, tsr_ring *ring, tsr_difference *out,
                            tsr_error *err);

#endif
