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

#endif
