/* A tile of a tensor as a job of the ring. */
#ifndef TSR_STREAM_TILE_JOB_H
#define TSR_STREAM_TILE_JOB_H

#include "stream/gather.h"
#include "stream/ring.h"
#include "stream/tiles.h"

typedef struct tsr_tile {
    const tsr_gather *gather;
    uint64_t offsets[TSR_MAX_NDIM];
    uint64_t sizes[TSR_MAX_NDIM];
    uint64_t byte_at; /* of its first byte in the row-major order of the box it was cut from */
    uint8_t *data;
    size_t bytes;
    size_t scratch_size; /* behind the data */
    bool filled;
    void *owner; /* of whoever added it */
} tsr_tile;

/* Memory of a tile of `bytes` bytes, scratch included, and the most elements of `itemsize` a tile of this ring may have
 * when `tiles` of them, of tensors as `gather`'s, make one job. */
size_t tsr_tile_memory(size_t bytes);
uint64_t tsr_tile_most(const tsr_ring *ring, const tsr_gather *gather, uint32_t itemsize, uint32_t tiles);
/* Sets a tile up over `memory` of tsr_tile_memory bytes. `write_at` is where in a file its bytes will go, or
 * TSR_NO_POSITION. A tensor that must be read in order is read here and now. */
tsr_status tsr_tile_start(tsr_tile *tile, const tsr_gather *gather, const tsr_tiles *at, uint8_t *memory, uint64_t write_at,
                          tsr_error *err);
/* The same in two steps, for a tile that is given its memory when it is filled; not for a tensor that must be read in order. */
void tsr_tile_set(tsr_tile *tile, const tsr_gather *gather, const tsr_tiles *at);
void tsr_tile_place(tsr_tile *tile, uint8_t *memory, uint64_t write_at);
/* Reads the elements, unless that is done. For `fill`. */
tsr_status tsr_tile_fill(tsr_tile *tile, tsr_error *err);
/* The same for the whole tensor, then tsr_ring_end. */
tsr_status tsr_tiles_run(const tsr_gather *gather, tsr_ring *ring, tsr_error *err);

#endif
