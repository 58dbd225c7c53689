/* Statistics of tensors. Each tile is summed up where it was read; the sums are joined in order, so that the result does
 * not depend on threads. Mean and squares join by Chan's formula for two parts:
 *
 *   δ = mean_b − mean_a     mean = mean_a + δ·n_b/n     M2 = M2_a + M2_b + δ²·n_a·n_b/n */
#include <math.h>

#include "base/try.h"
#include "exec/numeric.h"
#include "exec/tile_job.h"
#include "tessera/check.h"

#define BLOCK 1024u /* numbers decoded at a time */

typedef struct sums {
    tsr_stats stats; /* mean and std unused */
    uint64_t finite;
    double mean;
    double squares; /* Σ (x − mean)² */
} sums;

typedef struct stats_job {
    tsr_tile tile; /* first */
    sums sums;
} stats_job;

static void join(sums *a, const sums *b)
{
    a->stats.count += b->stats.count;
    a->stats.nan += b->stats.nan;
    a->stats.inf += b->stats.inf;
    a->stats.zero += b->stats.zero;
    if (b->finite == 0) return;
    if (a->finite == 0 || b->stats.min < a->stats.min) a->stats.min = b->stats.min;
    if (a->finite == 0 || b->stats.max > a->stats.max) a->stats.max = b->stats.max;
    const double n_a = (double)a->finite, n_b = (double)b->finite, delta = b->mean - a->mean;
    a->finite += b->finite;
    a->mean += delta * (n_b / (n_a + n_b));
    a->squares += b->squares + delta * delta * (n_a * n_b / (n_a + n_b));
}

static void sum_up(sums *out, const double *values, size_t count)
{
    sums block = {.stats = {.count = count, .min = INFINITY, .max = -INFINITY}};
    double total = 0;
    for (size_t i = 0; i < count; i++) {
        const double x = values[i];
        block.stats.nan += x != x;
        block.stats.inf += x == INFINITY || x == -INFINITY;
        block.stats.zero += x == 0;
        if (!isfinite(x)) continue;
        block.finite++;
        total += x;
        if (x < block.stats.min) block.stats.min = x;
        if (x > block.stats.max) block.stats.max = x;
    }
    if (block.finite) block.mean = total / (double)block.finite;
    for (size_t i = 0; i < count; i++) {
        if (isfinite(values[i])) block.squares += (values[i] - block.mean) * (values[i] - block.mean);
    }
    join(out, &block);
}

static tsr_status fill_stats(void *ctx, void *job, tsr_error *err)
{
    (void)ctx;
    stats_job *s = job;
    TSR_TRY(tsr_tile_fill(&s->tile, err));
    const tsr_dtype part = tsr_dtype_part(s->tile.gather->dtype);
    const size_t size = tsr_dtype_size(part), count = s->tile.bytes / size;
    double values[BLOCK];
    for (size_t i = 0; i < count; i += BLOCK) {
        const size_t n = count - i < BLOCK ? count - i : BLOCK;
        tsr_decode(part, s->tile.data + i * size, n, values);
        sum_up(&s->sums, values, n);
    }
    return TSR_OK;
}

static tsr_status join_stats(void *ctx, void *job, tsr_error *err)
{
    (void)err;
    join(ctx, &((stats_job *)job)->sums);
    return TSR_OK;
}

tsr_status tsr_tensor_stats(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_stats *out,
                            tsr_error *err)
{
    sums all = {0};
    TSR_FAIL_IF(entry->kind == TSR_ENTRY_TENSOR && !tsr_dtype_is_numeric(entry->dtype), err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                "'%.*s': no statistics of %s", TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name);
    tsr_gather *gather;
    TSR_TRY(tsr_gather_open(checkpoint, entry, NULL, &gather, err));
    tsr_status status = tsr_ring_begin(ring, &(tsr_ring_work){sizeof(stats_job), fill_stats, join_stats, &all}, err);
    if (status == TSR_OK) status = tsr_tiles_run(gather, ring, err);
    tsr_gather_close(gather);
    *out = all.stats;
    out->mean = all.mean;
    out->std = all.finite > 1 ? sqrt(all.squares / (double)(all.finite - 1)) : 0;
    return status;
}
