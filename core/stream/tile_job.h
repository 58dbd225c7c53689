/* A tile of a tensor as a job of the ring. */
#ifndef TSR_STREAM_TILE_JOB_H
#define TSR_STREAM_TILE_JOB_H

#include "stream/gather.h"
#include "tessera/box.h"
#include "tessera/read.h"

/* Cuts a box into tiles: sub-boxes of limited size that are contiguous in the box's row-major order.
 *
 *   [3, 1000, 64] at 16,000 elements:   [0:1, 0:250, :]  [0:1, 250:500, :]  …  [2:3, 750:1000, :] */

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

/* Runs streaming jobs: many small jobs, each with a piece of a reused buffer, are filled in parallel and drained in order.
 *
 *   half A:  [job 0 ······][job 1 ···][job 2 ·········]   being filled by the host's threads
 *   half B:  [job 0 ·······][job 1 ·······]               filled before, being drained in order at the same time
 *
 * A round fills one half and drains the other; then they change places. With `settle` it drains what it has just filled.
 *
 * A job that needs memory only while it fills can be lent some. Each thread has its own memory to lend, which stays in the
 * cache from one job to the next, and all threads together need little of it. */

/* How jobs are processed. `fill` runs on several threads at the same time. `drain`, which may be NULL, runs on one thread at
 * a time, in the order of tsr_ring_job, while later jobs fill. The first failure in that order ends the work and becomes its
 * status. */
typedef struct tsr_ring_work {
    size_t job_size;
    tsr_status (*fill)(void *ctx, void *job, tsr_error *err);
    /* Replaces `fill` for jobs of tsr_ring_lent_job. One eighth of the memory is then for what jobs keep. */
    tsr_status (*fill_lent)(void *ctx, void *job, uint8_t *lent, tsr_error *err);
    tsr_status (*drain)(void *ctx, void *job, tsr_error *err);
    /* For a drain that only starts work on the memory; otherwise NULL. Each round then fills a half, drains it, and calls this,
     * which returns when the work started before the previous call is done. The memory of a half is thus used again only when
     * it is free, and the work on one half goes on while the other fills. */
    tsr_status (*settle)(void *ctx, tsr_error *err);
    void *ctx;
    size_t most_jobs; /* of a round; 0: as many as there is memory for */
} tsr_ring_work;

/* Begins a work; a ring runs one at a time. Copies *work, and needs only its ctx until the end. Errors: TSR_E_NOMEM. */
tsr_status tsr_ring_begin(tsr_ring *ring, const tsr_ring_work *work, tsr_error *err);
/* For several threads, directly after tsr_ring_begin: allocates memory for jobs of `bytes` in total, as far as the ring may
 * have that much. Without this call memory grows from round to round, and the first rounds have fewer jobs than there are
 * threads. */
tsr_status tsr_ring_reserve(tsr_ring *ring, size_t bytes, tsr_error *err);
/* Adds a job, which is zeroed, with `bytes` of memory (NULL for 0); both are valid until its drain has returned. The caller must complete
 * the job before the next call. May run a round first, and returns its failure. TSR_E_LIMIT for more than half of the
 * ring. */
tsr_status tsr_ring_job(tsr_ring *ring, size_t bytes, void **job, uint8_t **memory, tsr_error *err);
/* Like tsr_ring_job, for fill_lent: lends `lent` more bytes while the job fills, at most as many as a tile of tsr_tile_most needs. */
tsr_status tsr_ring_lent_job(tsr_ring *ring, size_t bytes, size_t lent, void **job, uint8_t **memory, tsr_error *err);
/* Runs all remaining jobs. Must also be called after a failure, which it returns again. */
tsr_status tsr_ring_end(tsr_ring *ring, tsr_error *err);

/* Returns where in `memory` to put bytes that are read from position `read_at` of a file and written to `write_at` of
 * another (TSR_NO_POSITION: the position does not matter). The result is at most TSR_COPY_SLACK bytes further on. The
 * kernel's copy (rep movs) is five times slower if its destination is 1 to 31 bytes ahead of its source modulo the page size
 * (measured on AMD EPYC). Two cache lines (128 bytes) are enough to avoid that for the read and the write at the same
 * time. */
#define TSR_COPY_SLACK ((size_t)128)
uint8_t *tsr_place_for_copy(uint8_t *memory, uint64_t read_at, uint64_t write_at);

/* Returns how many bytes a job should ask for, so that all threads have work. */
size_t tsr_ring_best(const tsr_ring *ring);
/* Returns the most bytes that every thread's job can ask for. For jobs that become cheaper with their size. */
size_t tsr_ring_largest(const tsr_ring *ring);

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
/* Sets a tile up over `memory` of tsr_tile_memory bytes. A tensor that must be read in order is read here and now. */
tsr_status tsr_tile_start(tsr_tile *tile, const tsr_gather *gather, const tsr_tiles *at, uint8_t *memory, tsr_error *err);
/* The same in two steps, for a tile that is given its memory when it is filled; not for a tensor that must be read in order. `write_at` is
 * where in a file its bytes will go, or TSR_NO_POSITION. */
void tsr_tile_set(tsr_tile *tile, const tsr_gather *gather, const tsr_tiles *at);
void tsr_tile_place(tsr_tile *tile, uint8_t *memory, uint64_t write_at);
/* Reads the elements, unless that is done. For `fill`. */
tsr_status tsr_tile_fill(tsr_tile *tile, tsr_error *err);
/* The same for the whole tensor, then tsr_ring_end. */
tsr_status tsr_tiles_run(const tsr_gather *gather, tsr_ring *ring, tsr_error *err);

#endif
