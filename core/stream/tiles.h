/* Cuts a box into tiles: sub-boxes of limited size that are contiguous in the box's row-major order.
 *
 *   [3, 1000, 64] at 16,000 elements:   [0:1, 0:250, :]  [0:1, 250:500, :]  …  [2:3, 750:1000, :] */
#ifndef TSR_STREAM_TILES_H
#define TSR_STREAM_TILES_H

#include "tessera/box.h"

typedef struct tsr_tiles {
    uint32_t ndim;
    uint32_t split; /* tiles have size 1 in the dims before it, and the whole size in the dims after it */
    uint64_t step;  /* of the split dim */
    uint64_t first; /* the number of this tile's first element in the box's row-major order */
    bool done;
    const uint64_t *box_offsets; /* NULL: all 0 */
    const uint64_t *box_sizes;
    uint64_t offsets[TSR_MAX_NDIM]; /* of this tile, in the coordinates of the box's tensor */
    uint64_t sizes[TSR_MAX_NDIM];
    uint64_t elements; /* of this tile */
} tsr_tiles;

/* for (tsr_tiles_start(&t, box, most); !t.done; tsr_tiles_next(&t)) … A tile has at most `most` elements, which must be at
 * least 1. Borrows the box's arrays. The volume of the box must not overflow. */
void tsr_tiles_start(tsr_tiles *tiles, tsr_box box, uint64_t most);
void tsr_tiles_next(tsr_tiles *tiles);

#endif
