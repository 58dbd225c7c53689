/* Declarations shared by the files that merge checkpoints. */
#ifndef TSR_MERGE_MERGE_PARTS_H
#define TSR_MERGE_MERGE_PARTS_H

#include "mapping/mapped.h"
#include "merge/merge_read.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/merge.h"

/* Sums over two whole tensors: Σa², Σb² and Σab. They are valid if `known` is not 0. */
typedef struct tsr_angle {
    double aa, bb, ab;
    uint64_t known;
} tsr_angle;

typedef struct tsr_merge {
    tsr_merge_method method;
    const tsr_merge_input *inputs; /* `count` of them, then the base of task arithmetic */
    uint32_t count;                /* does not count the base */
    double divisor;                /* of linear: the sum of the weights; 1 if there is nothing to divide by */
    /* The same for sums in float32: the weights are rounded to float32 before they are added, as their products are. */
    float float_divisor;
    double t;
    tsr_dtype dtype; /* of the results; TSR_DTYPE_NONE: that of the inputs, which must agree */
    tsr_selection selection;
    tsr_angle *angles;                 /* only for slerp; by entry number of the first input */
    const struct tsr_merged **tensors; /* only for slerp, by the same number; NULL for entries that are not merged */
    uint64_t entry_count;
} tsr_merge;

/* One merged tensor: the context of its computed file. */
typedef struct tsr_merged {
    const tsr_merge *merge;
    const tsr_entry *const *entries; /* by input */
    tsr_dtype sums, dtype;           /* of the arithmetic; of the result */
    uint64_t order;
} tsr_merged;

/* The tensor as the input with number `input` stores it. */
static inline tsr_stored_tensor tsr_merge_input_tensor(const tsr_merged *tensor, uint32_t input)
{
    return (tsr_stored_tensor){tensor->merge->inputs[input].checkpoint, tensor->entries[input]};
}

/* merge_sum.c: computes a run of the merged elements (tsr_computed.compute); `ctx` is a tsr_merged. */
tsr_status tsr_merge_sum(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                         tsr_error *err);
/* merge_slerp.c: computes the factors of the two inputs. Reads both tensors completely if their angle was not measured
 * before. Errors of reading. */
tsr_status tsr_merge_factors(const tsr_merged *tensor, double factors[2], tsr_error *err);
/* Whether an entry is a tensor whose elements are added. Other entries must be equal in all inputs. */
static inline bool tsr_merge_sums(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR && tsr_cast_possible(entry->dtype, TSR_FLOAT32);
}
/* merge_check.c: checks that an entry of the first input and the same entry of input `other` can be summed or, if they
 * cannot, that they are equal. Fails with TSR_E_FORMAT and a message that names both inputs otherwise. */
tsr_status tsr_merge_check(const tsr_merge *merge, uint32_t other, const tsr_entry *of_a, const tsr_entry *of_b,
                           tsr_ring *ring, tsr_error *err);

#endif
