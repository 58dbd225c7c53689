/* Boxes: half-open rectangles {offsets, sizes} in elements, of any rank up to TSR_MAX_RANK, and the contiguous runs they
 * are made of. Everything here is pure and thread-safe; nothing allocates. Rank 0 is a single element.
 *
 * Example:
 *
 *     const uint64_t shape[] = {8, 6}, offsets[] = {6, 0}, sizes[] = {4, 6};
 *     const tsr_box tensor = {2, NULL, shape}, chunk = {2, offsets, sizes};
 *     uint64_t common_offsets[2], common_sizes[2];
 *     if (tsr_box_intersect(tensor, chunk, common_offsets, common_sizes))
 *         printf("%llu rows of the chunk are in the tensor\n", (unsigned long long)common_sizes[0]); */
#ifndef TESSERA_BOX_H
#define TESSERA_BOX_H

#include <stdbool.h>
#include <stdint.h>

#include "tessera/status.h"

TSR_API_BEGIN

#define TSR_MAX_RANK 64u /* torch's own bound */

/* Borrows its arrays, each of `rank` numbers. `offsets` NULL stands for zeros, so {rank, NULL, shape} is a whole tensor. */
typedef struct tsr_box {
    uint32_t rank;
    const uint64_t *offsets;
    const uint64_t *sizes;
} tsr_box;

/* In elements along `dim` < rank; boxes without offsets begin at 0. */
static inline uint64_t tsr_box_offset(tsr_box box, uint32_t dim)
{
    return box.offsets ? box.offsets[dim] : 0;
}

/* Elements; false on overflow. A box with a zero size has none, whatever its other sizes. */
bool tsr_box_volume(tsr_box box, uint64_t *elements);
bool tsr_box_is_empty(tsr_box box);
bool tsr_box_equal(tsr_box a, tsr_box b);
/* Whether every offset + size of `inner` lies within `outer`; empty boxes at the far edge are within. */
bool tsr_box_contains(tsr_box outer, tsr_box inner);
/* The common part, in the coordinates of both; `offsets` and `sizes` have room for the rank. False when it is empty. */
bool tsr_box_intersect(tsr_box a, tsr_box b, uint64_t *offsets, uint64_t *sizes);
/* Makes the box {rank, offsets, sizes} reach over another one, too. */
void tsr_box_enclose(uint32_t rank, uint64_t *offsets, uint64_t *sizes, tsr_box box);
/* Row-major index inside `parent` of the element at `at` (coordinates of the tensor). `parent`'s volume must not
 * overflow and `at` must be inside. */
uint64_t tsr_box_index(tsr_box parent, const uint64_t *at);

/* Whether `inner` is one contiguous run of its parent's row-major elements. */
bool tsr_box_is_contiguous(tsr_box parent, tsr_box inner);

/* Walks the runs of `inner` that are contiguous in both `a` and `b` (two boxes that contain it: where its elements come
 * from and where they go), in row-major order of `inner`:
 *
 *   for (tsr_box_walk_start(&walk, inner, a, b); walk.runs_left; tsr_box_walk_next(&walk))
 *       copy(walk.run elements from index walk.index_a of a to index walk.index_b of b);
 *
 * Pass the same box twice to walk one parent. Volumes of a and b must not overflow. An empty box has no runs. */
typedef struct tsr_box_walk {
    uint64_t run;       /* elements of every run */
    uint64_t runs_left; /* this one included */
    uint64_t index_a;
    uint64_t index_b;
    uint32_t outer; /* leading dims that vary from run to run */
    uint64_t at[TSR_MAX_RANK];
    uint64_t counts[TSR_MAX_RANK];
    uint64_t strides_a[TSR_MAX_RANK];
    uint64_t strides_b[TSR_MAX_RANK];
} tsr_box_walk;

/* `walk` borrows nothing of the boxes; no other call may be on it at the same time. */
void tsr_box_walk_start(tsr_box_walk *walk, tsr_box inner, tsr_box a, tsr_box b);
void tsr_box_walk_next(tsr_box_walk *walk);

/* A part of a tensor as text gives it, "w[0:2,:,3]". */
typedef struct tsr_slice {
    uint64_t offsets[TSR_MAX_RANK];
    uint64_t sizes[TSR_MAX_RANK];
    uint64_t shape[TSR_MAX_RANK]; /* of the result: dims taken by a number are gone */
    uint32_t rank;                /* of the result */
} tsr_slice;

/* The part of `text` before a trailing "[…]", which goes to *inside ({NULL, 0} when there is none). */
tsr_str tsr_slice_split(tsr_str text, tsr_str *inside);
/* `inside` as Python's basic indexing without steps: numbers, a:b with either side open, negative from the end, "..." once.
 * Errors: TSR_E_USAGE that says which part and what is allowed. An absent slice (data NULL) is the whole tensor. */
tsr_status tsr_slice_parse(tsr_str inside, uint32_t rank, const uint64_t *shape, tsr_slice *out, tsr_error *err);

TSR_API_END

#endif
