/* Reads runs of elements in the dtype in which sums are computed. */
#ifndef TSR_MERGE_MERGE_READ_H
#define TSR_MERGE_MERGE_READ_H

#include "tessera/compare.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/compare_pair.h"
#include "tessera/sys/read_run.h"

/* Reads a run of elements as `dtype` into `out`. `bytes` must have room for the run in its stored dtype. Adds what the cast
 * loses to *losses. Errors: those of tsr_read_run. */
tsr_status tsr_merge_read(tsr_stored_tensor tensor, const tsr_run *run, tsr_dtype dtype, uint8_t *bytes, void *out,
                          tsr_cast_losses *losses, tsr_error *err);

#endif
