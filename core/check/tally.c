/* Computes a tensor's statistics and histogram in steps.
 *
 * The histogram needs no second pass. Its fine bins have equal widths from some `low` on. A value outside of them doubles
 * the width (merging pairs of bins) until it fits, so that the counts stay exact for the current borders. */
#include "tessera/sys/tally.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/cast.h"

#include <math.h>

#include "check/sums.h"
#include "stream/numeric.h"
#include "stream/tile_job.h"
#include "tessera/sys/try.h"

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
    TSR_TRY(tsr_tile_start(&tile, tally->gather, &tally->tiles, tally->memory, TSR_NO_POSITION, err));
    TSR_TRY(tsr_tile_fill(&tile, err));
    tsr_sums_add(&tally->sums, tally->gather->dtype, tile.data, tile.bytes, count_values, &tally->fine);
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
    *out = tsr_sums_stats(&tally->sums);
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
