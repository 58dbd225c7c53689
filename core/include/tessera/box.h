/* Boxes: half-open rectangles {offsets, sizes} in elements, of up to TSR_MAX_NDIM dimensions.
 * Everything here is pure and thread-safe; nothing allocates. A box of 0 dimensions is a single element.
 *
 * Example:
 *
 *     const uint64_t shape[] = {8, 6}, offsets[] = {6, 0}, sizes[] = {4, 6};
 *     const tsr_box tensor = {2, NULL, shape}, chunk = {2, offsets, sizes};
 *     printf("from row %llu of %llu on\n", (unsigned long long)chunk.offsets[0], (unsigned long long)tensor.sizes[0]); */
#ifndef TESSERA_BOX_H
#define TESSERA_BOX_H

#include <stdbool.h>
#include <stdint.h>

#include "tessera/status.h"

TSR_API_BEGIN

#define TSR_MAX_NDIM 64u /* the same limit as in torch */

/* The extents of a tensor. */
typedef struct tsr_shape {
    uint32_t ndim;
    const uint64_t *sizes;
} tsr_shape;

/* Borrows its arrays, each of `ndim` numbers. `offsets` NULL means all zeros, so {ndim, NULL, shape} is a whole tensor. */
typedef struct tsr_box {
    uint32_t ndim;
    const uint64_t *offsets;
    const uint64_t *sizes;
} tsr_box;

TSR_API_END

#endif
