/* Comparison of a box between two gathers of one geometry. */
#ifndef TSR_CHECK_COMPARE_GATHERS_H
#define TSR_CHECK_COMPARE_GATHERS_H

#include "stream/gather.h"
#include "tessera/compare.h"

/* `out->first` counts within the box. Starts and ends a work of the ring. */
tsr_status tsr_compare_gathers(const tsr_gather *a, const tsr_gather *b, tsr_box box, const tsr_tolerance *tolerance,
                               tsr_ring *ring, tsr_difference *out, tsr_error *err);

/* A replica of the entry that `chunks` are of, with the elements that these have in its box. TSR_OK and no difference where no
 * element of the copy can be read. Errors and the ring as above. */
tsr_status tsr_compare_copy(const tsr_gather *chunks, const tsr_chunk *replica, tsr_ring *ring, tsr_difference *out,
                            tsr_error *err);

#endif
