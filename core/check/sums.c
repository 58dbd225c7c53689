/* Means and squares of two parts are joined by Chan's formula:
 *
 *   δ = mean_b − mean_a     mean = mean_a + δ·n_b/n     M2 = M2_a + M2_b + δ²·n_a·n_b/n */
#include "check/sums.h"

#include <math.h>

#include "stream/numeric.h"
#include "tessera/sys/little_endian.h"

#define BLOCK 1024u /* numbers decoded at a time */

void tsr_sums_join(tsr_sums *a, const tsr_sums *b)
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
    tsr_sums_join(out, &block);
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

void tsr_sums_add(tsr_sums *sums, tsr_dtype dtype, const uint8_t *data, size_t bytes,
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

tsr_stats tsr_sums_stats(const tsr_sums *sums)
{
    tsr_stats stats = sums->stats;
    stats.mean = sums->mean;
    stats.std = sums->finite > 1 ? sqrt(sums->squares / (double)(sums->finite - 1)) : 0;
    return stats;
}

tsr_extremes tsr_sums_extremes(const tsr_sums *sums, tsr_dtype dtype)
{
    if (!TSR_EXACT_EXTREMES || sums->finite == 0 || (dtype != TSR_INT64 && dtype != TSR_UINT64))
        return (tsr_extremes){TSR_EXTREMES_REAL, 0, 0};
    const tsr_extremes_kind kind = dtype == TSR_INT64 ? TSR_EXTREMES_SIGNED : TSR_EXTREMES_UNSIGNED;
    return (tsr_extremes){kind, ~sums->most_complement ^ sign_of(dtype), sums->most ^ sign_of(dtype)};
}
