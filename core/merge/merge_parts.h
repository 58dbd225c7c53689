/* What the files of core/merge share. */
#ifndef TSR_MERGE_MERGE_PARTS_H
#define TSR_MERGE_MERGE_PARTS_H

#include "mapping/mapped.h"
#include "merge/merge_read.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/merge.h"

/* Of two whole tensors: Σa², Σb², Σab, once `known` is not 0. */
typedef struct tsr_angle {
    double aa, bb, ab;
    uint64_t known;
} tsr_angle;

typedef struct tsr_merge {
    tsr_merge_method method;
    const tsr_merge_input *inputs; /* of task arithmetic the last one is the base */
    uint32_t count;                /* without it */
    double divisor;                /* of linear; 1: none */
    float float_divisor;           /* the same for sums in float32: the sum of the weights as they are rounded there */
    double t;
    tsr_dtype dtype;               /* of the results; TSR_DTYPE_NONE: the inputs' own, which must be the same */
    tsr_selection selection;
    tsr_angle *angles; /* of slerp: by the first input's entries */
    const struct tsr_merged **tensors; /* of slerp, the same; NULL: not merged */
    uint64_t entry_count;
} tsr_merge;

/* One merged tensor: what its computed file needs. */
typedef struct tsr_merged {
    const tsr_merge *merge;
    const tsr_entry *const *entries; /* by input */
    tsr_dtype sums, dtype;           /* of the arithmetic; of the result */
    uint64_t order;
} tsr_merged;

/* What an input has of the tensor. */
static inline tsr_stored_tensor tsr_merge_input_tensor(const tsr_merged *tensor, uint32_t input)
{
    return (tsr_stored_tensor){tensor->merge->inputs[input].checkpoint, tensor->entries[input]};
}

/* merge_sum.c: a tsr_computed.compute; `ctx` is a tsr_merged. */
tsr_status tsr_merge_sum(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_error *err);
/* merge_slerp.c: the factors of the two inputs. Reads both tensors where they were not measured. */
tsr_status tsr_merge_factors(const tsr_merged *tensor, double factors[2], tsr_error *err);
/* Whether it is a tensor whose elements are added. */
static inline bool tsr_merge_sums(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR && tsr_cast_possible(entry->dtype, TSR_FLOAT32);
}
/* merge_check.c: whether what the first input and another one have of an entry can be summed, or is the same; an error names both
 * where it is not. */
tsr_status tsr_merge_check(const tsr_merge *merge, uint32_t other, const tsr_entry *of_a, const tsr_entry *of_b, tsr_ring *ring, tsr_error *err);

#endif
