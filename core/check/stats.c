/* Statistics of tensors. Each tile is summed up by the thread that read it; the sums are joined in order, so that the result
 * does not depend on the threads. */
#include "check/sums.h"
#include "stream/tile_job.h"
#include "tessera/check.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/try.h"

typedef struct stats_job {
    tsr_tile tile; /* first */
    tsr_sums sums;
} stats_job;

static tsr_status fill_stats(void *ctx, void *job, tsr_error *err)
{
    (void)ctx;
    stats_job *s = job;
    TSR_TRY(tsr_tile_fill(&s->tile, err));
    tsr_sums_add(&s->sums, s->tile.gather->dtype, s->tile.data, s->tile.bytes, NULL, NULL);
    return TSR_OK;
}

static tsr_status join_stats(void *ctx, void *job, tsr_error *err)
{
    (void)err;
    tsr_sums_join(ctx, &((stats_job *)job)->sums);
    return TSR_OK;
}

tsr_status tsr_tensor_extremes(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_stats *out,
                               tsr_extremes *extremes, tsr_error *err)
{
    tsr_sums all = {0};
    TSR_FAIL_IF(entry->kind == TSR_ENTRY_TENSOR && !tsr_dtype_is_numeric(entry->dtype), err, TSR_E_UNSUPPORTED,
                "'%.*s': no statistics can be computed for %s", TSR_STR_ARG(entry->fqn),
                tsr_dtype_describe(entry->dtype)->name);
    tsr_gather *gather;
    TSR_TRY(tsr_gather_open(checkpoint, entry, NULL, &gather, err));
    const tsr_ring_work work = {.job_size = sizeof(stats_job), .fill = fill_stats, .drain = join_stats, .ctx = &all};
    tsr_status status = tsr_ring_begin(ring, &work, err);
    if (status == TSR_OK) status = tsr_tiles_run(gather, ring, err);
    tsr_gather_close(gather);
    *out = tsr_sums_stats(&all);
    *extremes = tsr_sums_extremes(&all, entry->dtype);
    return status;
}

tsr_status tsr_tensor_stats(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_stats *out,
                            tsr_error *err)
{
    tsr_extremes ignored;
    return tsr_tensor_extremes(checkpoint, entry, ring, out, &ignored, err);
}
