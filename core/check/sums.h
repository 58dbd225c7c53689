/* Running statistics of numbers, which can be joined in any grouping. */
#ifndef TSR_CHECK_SUMS_H
#define TSR_CHECK_SUMS_H

#include "tessera/check.h"

typedef struct tsr_sums {
    tsr_stats stats; /* mean and std unused */
    uint64_t finite;
    double mean;
    double squares; /* Σ (x − mean)² */
} tsr_sums;

/* Adds the numbers in elements of a numeric dtype. `seen` (may be NULL) is called with them as well, block by block. */
void tsr_sums_add(tsr_sums *sums, tsr_dtype dtype, const uint8_t *data, size_t bytes,
                  void (*seen)(void *ctx, const double *values, size_t count), void *ctx);
void tsr_sums_join(tsr_sums *a, const tsr_sums *b); /* into a */
tsr_stats tsr_sums_stats(const tsr_sums *sums);

#endif
