/* Tiles in the ring: [ up to TSR_COPY_SLACK | data ······ | scratch ] */
#include "stream/tile_job.h"

#include "tessera/sys/try.h"

static size_t scratch_of(size_t bytes)
{
    return TSR_COPY_SLACK + (bytes < TSR_SCRATCH_LEAST  ? TSR_SCRATCH_LEAST
                             : bytes > TSR_SCRATCH_BEST ? TSR_SCRATCH_BEST
                                                        : bytes);
}

size_t tsr_tile_memory(size_t bytes)
{
    return bytes + TSR_COPY_SLACK + scratch_of(bytes);
}

/* Whether elements that are neighbors in the tensor are far apart in storage, as those of a transposed matrix are. */
static bool is_transposed(const tsr_gather *gather)
{
    const tsr_located *part = gather->parts;
    uint32_t last = gather->ndim;
    while (gather->part_count && last && part->sizes[last - 1] == 1) last--;
    return gather->part_count && last > 1 && part->strides[last - 1] > 1;
}

static uint64_t elements_in(size_t job, uint32_t itemsize)
{
    const size_t data = job / 2 > TSR_SCRATCH_BEST ? job - TSR_SCRATCH_BEST : job / 2;
    return (data - 2 * TSR_COPY_SLACK) / itemsize;
}

uint64_t tsr_tile_most(const tsr_ring *ring, const tsr_gather *gather, uint32_t itemsize, uint32_t tiles)
{
    if (gather->serial) return elements_in(tsr_ring_best_kept(ring) / tiles, itemsize);
    const uint64_t best = elements_in(tsr_ring_best(ring) / tiles, itemsize);
    if (!is_transposed(gather)) return best;
    /* A tile of a transposed matrix is a strip of storage's columns: the wider it is, the fewer reads. Of a whole part they are fewest. */
    const uint64_t largest = elements_in(tsr_ring_largest(ring) / tiles, itemsize);
    uint64_t part = 1;
    for (uint32_t d = 0; d < gather->ndim; d++) part *= gather->parts[0].sizes[d];
    return part < best ? best : part < largest ? part : largest;
}

void tsr_tile_set(tsr_tile *tile, const tsr_gather *gather, const tsr_tiles *at)
{
    tile->gather = gather;
    memcpy(tile->offsets, at->offsets, at->ndim * sizeof *tile->offsets);
    memcpy(tile->sizes, at->sizes, at->ndim * sizeof *tile->sizes);
    tile->byte_at = at->first * gather->itemsize;
    tile->bytes = (size_t)at->elements * gather->itemsize;
    tile->scratch_size = scratch_of(tile->bytes);
    tile->filled = false;
}

void tsr_tile_place(tsr_tile *tile, uint8_t *memory, uint64_t write_at)
{
    tile->data = tsr_place_for_copy(memory, tsr_gather_position(tile->gather, tile->offsets), write_at);
}

tsr_status tsr_tile_start(tsr_tile *tile, const tsr_gather *gather, const tsr_tiles *at, uint8_t *memory, uint64_t write_at,
                          tsr_error *err)
{
    tsr_tile_set(tile, gather, at);
    tsr_tile_place(tile, memory, write_at);
    return gather->serial ? tsr_tile_fill(tile, err) : TSR_OK;
}

tsr_status tsr_tile_fill(tsr_tile *tile, tsr_error *err)
{
    if (tile->filled) return TSR_OK;
    const tsr_box box = {tile->gather->ndim, tile->offsets, tile->sizes};
    TSR_TRY(tsr_gather_box(tile->gather, box, tile->data, tile->data + tile->bytes, tile->scratch_size, err));
    tile->filled = true;
    return TSR_OK;
}

tsr_status tsr_tiles_add(const tsr_gather *gather, const tsr_box *box, void *owner, tsr_ring *ring, tsr_error *err)
{
    const tsr_box all = box ? *box : (tsr_box){gather->ndim, NULL, gather->shape};
    tsr_tiles tiles;
    for (tsr_tiles_start(&tiles, all, tsr_tile_most(ring, gather, gather->itemsize, 1)); !tiles.done;
         tsr_tiles_next(&tiles)) {
        void *job;
        uint8_t *memory;
        TSR_TRY(tsr_ring_job(ring, tsr_tile_memory((size_t)tiles.elements * gather->itemsize), &job, &memory, err));
        TSR_TRY(tsr_tile_start(job, gather, &tiles, memory, TSR_NO_POSITION, err));
        ((tsr_tile *)job)->owner = owner;
    }
    return TSR_OK;
}

tsr_status tsr_tiles_run(const tsr_gather *gather, tsr_ring *ring, tsr_error *err)
{
    TSR_TRY(tsr_tiles_add(gather, NULL, NULL, ring, err));
    return tsr_ring_end(ring, err);
}
