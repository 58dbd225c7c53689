/* The values of two tensors, and of one pair of a diff (tessera/compare.h).
 *
 * Example:
 *
 *     const tsr_tolerance bitwise = {.exact = true};
 *     tsr_difference difference;
 *     tsr_diff_pair pair = {.a = entry, .b = entry};
 *     if (tsr_pair_is_comparable(&pair))
 *         status = tsr_compare_pair(checkpoint, other, &pair, &(tsr_value_comparison){.tolerance = &bitwise, .ring = ring},
 *                                   &difference, &err); */
#ifndef TESSERA_SYS_COMPARE_PAIR_H
#define TESSERA_SYS_COMPARE_PAIR_H

#include "tessera/compare.h"

TSR_API_BEGIN

/* Whether there are values to compare: the two entries are dense tensors of one dtype and shape, or equal objects, which may
 * hold tensors (quantized and sparse ones, tuples of tensors, …). */
bool tsr_pair_is_comparable(const tsr_diff_pair *pair);
/* Whether the values of all comparable pairs may be read: TSR_E_LIMIT where tensors repeat stored elements too often
 * (tessera/sys/repeats.h). tsr_diff_values asks first; whoever compares pair by pair has to. Errors also as tsr_repeats_add. */
tsr_status tsr_diff_check_repeats(tsr_checkpoint *a, tsr_checkpoint *b, const tsr_diff *diff, tsr_error *err);
/* Compares the values of a comparable pair; of objects, those of all tensors in them (`first` then counts within the first
 * one that differs). Sets TSR_DIFF_VALUE where they differ. Errors as tsr_compare_tensors; TSR_E_LIMIT beyond the limits
 * depth and expansion. */
tsr_status tsr_compare_pair(tsr_checkpoint *a, tsr_checkpoint *b, tsr_diff_pair *pair, const tsr_value_comparison *how,
                            tsr_difference *out, tsr_error *err);

/* A tensor and the checkpoint that it is in. */
typedef struct tsr_stored_tensor {
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry;
} tsr_stored_tensor;

/* Compares two entries of one dtype and shape (TSR_E_USAGE otherwise); each is read once, in tiles. The two checkpoints
 * may be the same. Errors as tsr_read_box, with the side ("a", "b") in the context. */
tsr_status tsr_compare_tensors(tsr_stored_tensor a, tsr_stored_tensor b, const tsr_tolerance *tolerance, tsr_ring *ring,
                               tsr_difference *out, tsr_error *err);

TSR_API_END

#endif
