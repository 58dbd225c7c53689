/* Runs of a tensor's elements in the type that sums are made in. */
#ifndef TSR_MERGE_MERGE_READ_H
#define TSR_MERGE_MERGE_READ_H

#include "tessera/compare.h"
#include "tessera/sys/read_run.h"

/* A run in `dtype`, into `out`; `bytes` has room for it as it is stored. Errors: those of tsr_read_run. */
tsr_status tsr_merge_read(tsr_stored_tensor tensor, const tsr_run *run, tsr_dtype dtype, uint8_t *bytes, void *out,
                          tsr_error *err);

#endif
