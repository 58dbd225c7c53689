/* Iterates over the tiles of a box. */
#include "stream/tiles.h"
#include "tessera/sys/box.h"

static uint64_t from_of(const tsr_tiles *tiles, uint32_t dim)
{
    return tiles->box_offsets ? tiles->box_offsets[dim] : 0;
}

static uint64_t end_of(const tsr_tiles *tiles, uint32_t dim)
{
    return from_of(tiles, dim) + tiles->box_sizes[dim];
}

/* Sets the size of the tile in the split dim, and the number of its elements. */
static void measure(tsr_tiles *tiles)
{
    if (tiles->ndim) {
        const uint64_t left = end_of(tiles, tiles->split) - tiles->offsets[tiles->split];
        tiles->sizes[tiles->split] = left < tiles->step ? left : tiles->step;
    }
    tiles->elements = 1;
    for (uint32_t d = 0; d < tiles->ndim; d++) tiles->elements *= tiles->sizes[d];
}

void tsr_tiles_start(tsr_tiles *tiles, tsr_box box, uint64_t most)
{
    tiles->ndim = box.ndim;
    tiles->box_offsets = box.offsets;
    tiles->box_sizes = box.sizes;
    tiles->first = 0;
    tiles->done = tsr_box_is_empty(box);
    if (tiles->done) return;
    uint64_t inside = 1; /* elements of one step of the split dim */
    tiles->split = box.ndim ? box.ndim - 1 : 0;
    while (tiles->split > 0 && inside * box.sizes[tiles->split] <= most) inside *= box.sizes[tiles->split--];
    tiles->step = most / inside ? most / inside : 1;
    for (uint32_t d = 0; d < box.ndim; d++) {
        tiles->offsets[d] = from_of(tiles, d);
        tiles->sizes[d] = d < tiles->split ? 1 : box.sizes[d];
    }
    measure(tiles);
}

void tsr_tiles_next(tsr_tiles *tiles)
{
    tiles->first += tiles->elements;
    tiles->done = true;
    for (uint32_t d = tiles->ndim ? tiles->split + 1 : 0; d-- > 0 && tiles->done;) {
        tiles->offsets[d] += d == tiles->split ? tiles->step : 1;
        tiles->done = tiles->offsets[d] >= end_of(tiles, d);
        if (tiles->done) tiles->offsets[d] = from_of(tiles, d);
    }
    if (!tiles->done) measure(tiles);
}
