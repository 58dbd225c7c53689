/* Running statistics of numbers, which can be joined in any grouping. */
#ifndef TSR_CHECK_SUMS_H
#define TSR_CHECK_SUMS_H

#include "tessera/sys/check.h"

/* JavaScript's numbers are doubles, so a build for it (TSR_SMALL) does not find exact extremes. */
#ifdef TSR_SMALL
enum { TSR_EXACT_EXTREMES = 0 };
#else
enum { TSR_EXACT_EXTREMES = 1 };
#endif

typedef struct tsr_sums {
    tsr_stats stats; /* mean and std unused */
    uint64_t finite;
    double mean;
    double squares; /* Σ (x − mean)² */
    /* The largest element of int64 or uint64, and the largest complement, whose complement is the smallest element. The sign
     * bit of int64 is flipped, so that both compare as unsigned numbers and 0 is neutral. */
    uint64_t most, most_complement;
} tsr_sums;

/* Adds the numbers in elements of a numeric dtype. `seen` (may be NULL) is called with them as well, block by block. */
void tsr_sums_add(tsr_sums *sums, tsr_dtype dtype, const uint8_t *data, size_t bytes,
                  void (*seen)(void *ctx, const double *values, size_t count), void *ctx);
void tsr_sums_join(tsr_sums *a, const tsr_sums *b); /* into a */
tsr_stats tsr_sums_stats(const tsr_sums *sums);
tsr_extremes tsr_sums_extremes(const tsr_sums *sums, tsr_dtype dtype);

#endif
