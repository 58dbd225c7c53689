/* The runs of bytes that a box is made of, inside the boxes that it is copied from and to. Pure and thread-safe; nothing
 * allocates.
 *
 * Example:
 *
 *     const uint64_t shape[] = {8, 6}, offsets[] = {2, 1}, sizes[] = {3, 2};
 *     const tsr_box tensor = {2, NULL, shape}, part = {2, offsets, sizes};
 *     tsr_box_walk walk;
 *     for (tsr_box_walk_start(&walk, part, tensor, part); walk.runs_left; tsr_box_walk_next(&walk))
 *         printf("%llu elements at %llu\n", (unsigned long long)walk.run, (unsigned long long)walk.index_a); */
#ifndef TESSERA_SYS_BOX_WALK_H
#define TESSERA_SYS_BOX_WALK_H

#include "tessera/box.h"

TSR_API_BEGIN

/* Whether two boxes have the same offsets and sizes. */
bool tsr_box_equal(tsr_box a, tsr_box b);
/* Enlarges the box {ndim, offsets, sizes} until it also contains `box`. */
void tsr_box_enclose(uint32_t ndim, uint64_t *offsets, uint64_t *sizes, tsr_box box);
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
    uint64_t at[TSR_MAX_NDIM];
    uint64_t counts[TSR_MAX_NDIM];
    uint64_t strides_a[TSR_MAX_NDIM];
    uint64_t strides_b[TSR_MAX_NDIM];
} tsr_box_walk;

/* `walk` borrows nothing of the boxes; no other call may be on it at the same time. */
void tsr_box_walk_start(tsr_box_walk *walk, tsr_box inner, tsr_box a, tsr_box b);
void tsr_box_walk_next(tsr_box_walk *walk);

TSR_API_END

#endif
