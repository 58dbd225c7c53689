/* Copies strided blocks of elements, and applies the changes that turn stored elements into their values. */
#ifndef TSR_STREAM_STRIDED_H
#define TSR_STREAM_STRIDED_H

#include "tessera/box.h"
#include "tessera/catalog.h"

/* One dim of a block: `size` steps, which are `from` bytes apart in storage and `to` bytes apart at the destination. */
typedef struct tsr_axis {
    uint64_t size;
    uint64_t from;
    uint64_t to;
} tsr_axis;

/* Removes axes of size 1, sorts by falling `from`, and merges axes that form one run on both sides. Returns the new count.
 * No axis may have size 0. */
uint32_t tsr_axes_simplify(tsr_axis *axes, uint32_t count);

/* Copies every element of the block. The axes must come from tsr_axes_simplify; itemsize is 1, 2, 4, 8 or 16. */
void tsr_copy_block(uint8_t *to, const uint8_t *from, const tsr_axis *axes, uint32_t count, uint32_t itemsize);

/* Advances the indices `at` of the first `count` axes by one step. Returns false after the last combination. `at` must be
 * zero at first. */
bool tsr_axes_advance(const tsr_axis *axes, uint32_t count, uint64_t *at);

/* Applies the byte swap, conjugation and negation of a view, in this order, to `bytes` bytes of whole elements. */
void tsr_resolve(void *elements, size_t bytes, tsr_dtype dtype, bool swap, bool conj, bool neg);

#endif
