/* Equality of the values of two checkpoints, wherever and however sharded each tensor is stored.
 *
 * Example:
 *
 *     const tsr_tolerance close_enough = {.atol = 1e-6, .rtol = 1e-5};
 *     tsr_value_comparison how = TSR_OPTIONS(tsr_value_comparison);
 *     how.tolerance = &close_enough;
 *     how.ring = ring;
 *     tsr_diff diff;
 *     const tsr_catalog_pair catalogs = {tsr_checkpoint_catalog(checkpoint), tsr_checkpoint_catalog(other)};
 *     status = tsr_diff_catalogs(catalogs, NULL, host, arena, &diff, &err);
 *     if (status == TSR_OK) {
 *         tsr_difference *differences = tsr_arena_array(arena, (size_t)diff.pair_count, sizeof *differences, &err);
 *         if (differences) status = tsr_diff_values(checkpoint, other, &diff, &how, differences, &err);
 *     } */
#ifndef TESSERA_COMPARE_H
#define TESSERA_COMPARE_H

#include "tessera/diff.h"
#include "tessera/read.h"

TSR_API_BEGIN

/* `exact`: values are equal when their bytes are equal. Otherwise |a − b| ≤ atol + rtol × |b|, equal infinities are equal, NaN
 * equals NaN, and complex numbers compare by modulus, as torch.isclose(equal_nan=True); other types stay exact. */
typedef struct tsr_tolerance {
    bool exact;
    double atol, rtol;
} tsr_tolerance;

typedef struct tsr_difference {
    uint64_t elements;
    uint64_t differing; /* elements; bytes for float6 and packed types */
    uint64_t first;     /* row-major number of the first differing element */
    double max_abs;     /* largest |a − b| of the differing elements; NaN against a number does not count */
    uint64_t max_ulp;   /* largest distance in units in the last place, floating types; 0 for others */
    bool numeric;       /* max_abs was measured */
} tsr_difference;

/* How values are compared. */
typedef struct tsr_value_comparison {
    size_t size; /* TSR_OPTIONS sets it */
    const tsr_tolerance *tolerance;
    tsr_ring *ring;
    const tsr_progress *progress; /* of tsr_diff_values; may be NULL */
} tsr_value_comparison;

/* Compares the values of every comparable pair of `diff` and sets TSR_DIFF_VALUE where they differ. `differences` has one
 * element per pair, zeroed. `progress` counts the bytes of A's tensors; it stops the job with TSR_E_CANCELLED. Errors as
 * tsr_read_box, with the side ("a", "b") in the context. */
tsr_status tsr_diff_values(tsr_checkpoint *a, tsr_checkpoint *b, tsr_diff *diff, const tsr_value_comparison *how,
                           tsr_difference *differences, tsr_error *err);

TSR_API_END

#endif
