/* Opens a checkpoint and walks its extents: the job with which must_bear_failures tests a reader. */
#ifndef TESTS_SUPPORT_CHECKPOINT_OPENING_H
#define TESTS_SUPPORT_CHECKPOINT_OPENING_H

#include "support/faults.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"

static inline tsr_status pass_extent(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    (void)ctx;
    (void)extent;
    (void)err;
    return TSR_OK;
}

static inline tsr_status open_and_walk(void *ctx, tsr_store *store, const tsr_host *host, tsr_error *err)
{
    tsr_checkpoint *checkpoint;
    (void)ctx;
    tsr_status status = tsr_checkpoint_open(store, host, &(tsr_open_options){.purpose = TSR_FOR_FINDINGS}, &checkpoint, err);
    if (status == TSR_OK) status = tsr_checkpoint_extents(checkpoint, pass_extent, NULL, err);
    tsr_checkpoint_close(checkpoint);
    return status;
}

#endif
