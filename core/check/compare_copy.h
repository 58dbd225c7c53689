/* Comparison of the chunks of a tensor with a copy of them. */
#ifndef TSR_CHECK_COMPARE_COPY_H
#define TSR_CHECK_COMPARE_COPY_H

#include "stream/gather.h"
#include "tessera/compare.h"

/* A replica of the entry that `chunks` are of, with the elements that these have in its box. TSR_OK and no difference where no
 * element of the copy can be read. `out->first` counts within the box. Starts and ends a work of the ring. Errors as
 * tsr_compare_tensors. */
tsr_status tsr_compare_copy(const tsr_gather *chunks, const tsr_chunk *replica, tsr_ring *ring, tsr_difference *out,
                            tsr_error *err);

#endif
