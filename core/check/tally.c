/* Computes a tensor's statistics and histogram in steps.
 *
 * The histogram needs no second pass. Its fine bins have equal widths from some `low` on. A value outside of them doubles
 * the width (merging pairs of bins) until it fits, so that the counts stay exact for the current borders. */
#include "tessera/sys/check.h"

#include <math.h>

#include "stream/numeric.h"
#include "stream/tile_job.h"
#include "tessera/check.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

/* JavaScript's numbers are doubles, so a build for it does not find exact extremes. */
enum { TSR_EXACT_EXTREMES = !TSR_IS_SMALL };

typedef struct tsr_sums {
    tsr_stats stats; /* mean and std unused */
    uint64_t finite;
    double mean;
    double squares; /* Σ (x − mean)² */
    /* The largest element of int64 or uint64, and the largest complement, whose complement is the smallest element. The sign
     * bit of int64 is flipped, so that both compare as unsigned numbers and 0 is neutral. */
    uint64_t most, most_complement;
} tsr_sums;

/* ---- sums ---- */

/* Means and squares of two parts are joined by Chan's formula:
 *
 *   δ = mean_b − mean_a     mean = mean_a + δ·n_b/n     M2 = M2_a + M2_b + δ²·n_a·n_b/n */

#define BLOCK 1024u /* numbers decoded at a time */

/* Into a. */
static void sums_join(tsr_sums *a, const tsr_sums *b)
{
    a->stats.count += b->stats.count;
    a->stats.nan += b->stats.nan;
    a->stats.inf += b->stats.inf;
    a->stats.zero += b->stats.zero;
    if (TSR_EXACT_EXTREMES && b->most > a->most) a->most = b->most;
    if (TSR_EXACT_EXTREMES && b->most_complement > a->most_complement) a->most_complement = b->most_complement;
    if (b->finite == 0) return;
    if (a->finite == 0 || b->stats.min < a->stats.min) a->stats.min = b->stats.min;
    if (a->finite == 0 || b->stats.max > a->stats.max) a->stats.max = b->stats.max;
    const double n_a = (double)a->finite, n_b = (double)b->finite, delta = b->mean - a->mean;
    a->finite += b->finite;
    a->mean += delta * (n_b / (n_a + n_b));
    a->squares += b->squares + delta * delta * (n_a * n_b / (n_a + n_b));
}

static void sum_up(tsr_sums *out, const double *values, size_t count)
{
    tsr_sums block = {.stats = {.count = count, .min = INFINITY, .max = -INFINITY}};
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
    sums_join(out, &block);
}

/* The bits in which an element differs from a number that compares as unsigned. */
static uint64_t sign_of(tsr_dtype dtype)
{
    return dtype == TSR_INT64 ? (uint64_t)1 << 63 : 0;
}

static void add_integers(tsr_sums *sums, tsr_dtype dtype, const uint8_t *data, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        const uint64_t x = tsr_load_le(data + at, sizeof x) ^ sign_of(dtype);
        if (x > sums->most) sums->most = x;
        if (~x > sums->most_complement) sums->most_complement = ~x;
    }
}

/* Adds the numbers in elements of a numeric dtype. `seen` (may be NULL) is called with them as well, block by block. */
static void sums_add(tsr_sums *sums, tsr_dtype dtype, const uint8_t *data, size_t bytes,
                     void (*seen)(void *ctx, const double *values, size_t count), void *ctx)
{
    const tsr_dtype part = tsr_dtype_part(dtype);
    const size_t size = tsr_dtype_size(part), count = bytes / size;
    double values[BLOCK];
    if (TSR_EXACT_EXTREMES && (part == TSR_INT64 || part == TSR_UINT64)) add_integers(sums, part, data, bytes);
    for (size_t i = 0; i < count; i += BLOCK) {
        const size_t n = count - i < BLOCK ? count - i : BLOCK;
        tsr_decode(part, data + i * size, n, values);
        sum_up(sums, values, n);
        if (seen) seen(ctx, values, n);
    }
}

static tsr_stats sums_stats(const tsr_sums *sums)
{
    tsr_stats stats = sums->stats;
    stats.mean = sums->mean;
    stats.std = sums->finite > 1 ? sqrt(sums->squares / (double)(sums->finite - 1)) : 0;
    return stats;
}

static tsr_extremes sums_extremes(const tsr_sums *sums, tsr_dtype dtype)
{
    if (!TSR_EXACT_EXTREMES || sums->finite == 0 || (dtype != TSR_INT64 && dtype != TSR_UINT64))
        return (tsr_extremes){TSR_EXTREMES_REAL, 0, 0};
    const tsr_extremes_kind kind = dtype == TSR_INT64 ? TSR_EXTREMES_SIGNED : TSR_EXTREMES_UNSIGNED;
    return (tsr_extremes){kind, ~sums->most_complement ^ sign_of(dtype), sums->most ^ sign_of(dtype)};
}

/* ---- stats ---- */

/* Statistics of tensors. Each tile is summed up by the thread that read it; the sums are joined in order, so that the result
 * does not depend on the threads. */

typedef struct stats_job {
    tsr_tile tile; /* first */
    tsr_sums sums;
} stats_job;

static tsr_status fill_stats(void *ctx, void *job, tsr_error *err)
{
    (void)ctx;
    stats_job *s = job;
    TSR_TRY(tsr_tile_fill(&s->tile, err));
    sums_add(&s->sums, s->tile.gather->dtype, s->tile.data, s->tile.bytes, NULL, NULL);
    return TSR_OK;
}

static tsr_status join_stats(void *ctx, void *job, tsr_error *err)
{
    (void)err;
    sums_join(ctx, &((stats_job *)job)->sums);
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
    *out = sums_stats(&all);
    *extremes = sums_extremes(&all, entry->dtype);
    return status;
}

tsr_status tsr_tensor_stats(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_stats *out,
                            tsr_error *err)
{
    tsr_extremes ignored;
    return tsr_tensor_extremes(checkpoint, entry, ring, out, &ignored, err);
}

/* ---- tally ---- */

#define FINE_BINS  4096u
#define SCALE      0x1p-16           /* factor for the counted values, so that no border overflows */
#define TILE_BYTES ((size_t)1 << 20) /* read at a time; a step counts as many tiles as its byte budget allows */

typedef struct fine {
    double low, width; /* a width of 0 means that nothing was counted yet */
    uint64_t bins[FINE_BINS];
} fine;

struct tsr_tally {
    tsr_gather *gather;
    const tsr_allocator *allocator;
    tsr_tiles tiles; /* iterates over the tiles still to be read */
    uint8_t *memory; /* for one tile */
    uint64_t byte_done;
    tsr_sums sums;
    fine fine;
};

/* ---- fine bins ---- */

/* Merges pairs of bins, into the upper half if the range must grow downwards. */
static void widen(fine *f, bool downwards)
{
    const size_t half = FINE_BINS / 2;
    uint64_t merged[FINE_BINS / 2];
    for (size_t i = 0; i < half; i++) merged[i] = f->bins[2 * i] + f->bins[2 * i + 1];
    memset(f->bins, 0, sizeof f->bins);
    memcpy(f->bins + (downwards ? half : 0), merged, sizeof merged);
    if (downwards) f->low -= f->width * FINE_BINS;
    f->width *= 2;
}

/* Chooses a width from the spread of the first values, but large enough that the borders are distinct doubles. */
static void begin(fine *f, const double *values, size_t count)
{
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) continue;
        if (values[i] < low) low = values[i];
        if (values[i] > high) high = values[i];
    }
    if (low > high) return;
    low *= SCALE;
    high *= SCALE;
    const double spread = (high - low) / FINE_BINS, least = fmax(fmax(fabs(low), fabs(high)) * 1e-13, 1e-290);
    f->width = fmax(spread * (1 + 1e-9), least);
    f->low = low;
}

static void count_values(void *ctx, const double *values, size_t count)
{
    fine *f = ctx;
    if (f->width == 0) begin(f, values, count);
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) continue;
        const double x = values[i] * SCALE;
        while (x < f->low) widen(f, true);
        while ((x - f->low) / f->width >= FINE_BINS) widen(f, false);
        f->bins[(size_t)((x - f->low) / f->width)]++;
    }
}

/* ---- the job ---- */

tsr_status tsr_tally_new(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_tally **out, tsr_error *err)
{
    TSR_FAIL_IF(entry->kind == TSR_ENTRY_TENSOR && !tsr_dtype_is_numeric(entry->dtype), err, TSR_E_UNSUPPORTED,
                "'%.*s': no statistics can be computed for %s", TSR_STR_ARG(entry->fqn),
                tsr_dtype_describe(entry->dtype)->name);
    tsr_gather *gather;
    TSR_TRY(tsr_gather_open(checkpoint, entry, NULL, &gather, err));
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    tsr_tally *tally = tsr_alloc(allocator, 1, sizeof *tally, err);
    if (!tally) {
        tsr_gather_close(gather);
        return TSR_E_NOMEM;
    }
    *tally = (tsr_tally){.gather = gather, .allocator = allocator};
    tsr_tiles_start(&tally->tiles, (tsr_box){gather->ndim, NULL, gather->shape}, TILE_BYTES / gather->itemsize);
    tally->memory = tsr_alloc(allocator, tsr_tile_memory(TILE_BYTES), 1, err);
    if (!tally->memory) {
        tsr_tally_free(tally);
        return TSR_E_NOMEM;
    }
    *out = tally;
    return TSR_OK;
}

void tsr_tally_free(tsr_tally *tally)
{
    if (!tally) return;
    tsr_gather_close(tally->gather);
    tsr_free(tally->allocator, tally->memory, tsr_tile_memory(TILE_BYTES), 1);
    tsr_free(tally->allocator, tally, 1, sizeof *tally);
}

static tsr_status add_tile(tsr_tally *tally, tsr_error *err)
{
    tsr_tile tile;
    TSR_TRY(tsr_tile_start(&tile, tally->gather, &tally->tiles, tally->memory, err));
    TSR_TRY(tsr_tile_fill(&tile, err));
    sums_add(&tally->sums, tally->gather->dtype, tile.data, tile.bytes, count_values, &tally->fine);
    tally->byte_done += tile.bytes;
    tsr_tiles_next(&tally->tiles);
    return TSR_OK;
}

tsr_status tsr_tally_step(tsr_tally *tally, size_t byte_budget, bool *done, tsr_error *err)
{
    const uint64_t end = tally->byte_done + byte_budget;
    do {
        if (!tally->tiles.done) TSR_TRY(add_tile(tally, err));
    } while (!tally->tiles.done && tally->byte_done < end);
    *done = tally->tiles.done;
    return TSR_OK;
}

void tsr_tally_progress(const tsr_tally *tally, uint64_t *byte_done, uint64_t *byte_total)
{
    *byte_done = tally->byte_done;
    *byte_total = tally->gather->bytes;
}

void tsr_tally_stats(const tsr_tally *tally, tsr_stats *out)
{
    *out = sums_stats(&tally->sums);
}

void tsr_tally_histogram(const tsr_tally *tally, uint64_t *counts, size_t count)
{
    const fine *f = &tally->fine;
    const double low = tally->sums.stats.min * SCALE, span = tally->sums.stats.max * SCALE - low;
    memset(counts, 0, count * sizeof *counts);
    for (size_t i = 0; i < FINE_BINS; i++) {
        const double middle = f->low + ((double)i + 0.5) * f->width;
        const double at = span > 0 ? (middle - low) / span * (double)count : 0;
        const size_t bin = at <= 0 ? 0 : at >= (double)count ? count - 1 : (size_t)at;
        counts[bin] += f->bins[i];
    }
}
