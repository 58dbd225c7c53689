/* Statistics with exact extremes (tessera/check.h has the others).
 *
 * Example:
 *
 *     tsr_extremes extremes;
 *     tsr_stats stats;
 *     status = tsr_tensor_extremes(checkpoint, entry, ring, &stats, &extremes, &err);
 *     if (status == TSR_OK && extremes.kind == TSR_EXTREMES_SIGNED) printf("%lld\n", (long long)extremes.min); */
#ifndef TESSERA_SYS_CHECK_H
#define TESSERA_SYS_CHECK_H

#include "tessera/check.h"

TSR_API_BEGIN

/* Statistics of a tensor. The real and imaginary parts of complex numbers count separately, so `count` is twice the number of
 * elements. min, max, mean and std are over the finite values (0 when there are none); std uses the divisor n − 1, as torch.std
 * does (0 for fewer than two values). NaNs and infinities are only counted. int64 and uint64 beyond 2^53 are rounded
 * (tsr_tensor_extremes has exact ones). */
typedef struct tsr_stats {
    uint64_t count;
    uint64_t nan, inf, zero; /* zero: both signs */
    double min, max, mean, std;
} tsr_stats;

/* Computes the statistics of a tensor. Returns TSR_E_UNSUPPORTED when its dtype is not numeric. */
tsr_status tsr_tensor_stats(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_stats *out,
                            tsr_error *err);

typedef enum tsr_extremes_kind {
    TSR_EXTREMES_REAL, /* those of tsr_stats are exact */
    TSR_EXTREMES_SIGNED,
    TSR_EXTREMES_UNSIGNED
} tsr_extremes_kind;

/* The extremes of a tensor of int64 or uint64, which tsr_stats rounds beyond 2^53. */
typedef struct tsr_extremes {
    tsr_extremes_kind kind; /* REAL for all other dtypes, for a tensor without elements, and in the WebAssembly module */
    uint64_t min, max;      /* two's complement if signed */
} tsr_extremes;

/* As tsr_tensor_stats, with the exact extremes. */
tsr_status tsr_tensor_extremes(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_stats *stats,
                               tsr_extremes *extremes, tsr_error *err);

TSR_API_END

#endif
