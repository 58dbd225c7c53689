/* Further ways to read tensor bytes: runs of elements, and boxes that are streamed to consumers which work on.
 *
 * Example:
 *
 *     float head[4];
 *     const tsr_run run = {.first = 0, .count = 4};
 *     status = tsr_read_run(checkpoint, entry, &run, head, sizeof head, &err);
 *     if (status == TSR_OK) printf("%g\n", head[0]); */
#ifndef TESSERA_SYS_READ_RUN_H
#define TESSERA_SYS_READ_RUN_H

#include "tessera/read.h"

TSR_API_BEGIN

/* Elements [first, first + count) of a box of a tensor in the box's row-major order, into `buffer` of exactly their bytes;
 * `offsets` and `sizes` NULL: of the whole tensor. As tsr_read_box otherwise. */
typedef struct tsr_run {
    const uint64_t *offsets;
    const uint64_t *sizes;
    uint64_t first, count;
} tsr_run;
tsr_status tsr_read_run(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_run *run, void *buffer,
                        size_t buffer_size, tsr_error *err);

/* Whether the chunks of a tensor hold each of its elements once. Fails with TSR_E_FORMAT; whole tensors are read only then. */
tsr_status tsr_entry_must_tile(const tsr_entry *entry, const tsr_host *host, tsr_error *err);

/* For consumers that are still at work on bytes when `each` has returned (copies under way). Called after every group of
 * tiles: must return when all tiles that were handed over before the previous call need their memory no longer; those handed
 * over since then may. At the end it is called once more, so that nothing is under way. Not called after a failure. */
typedef tsr_status tsr_settle_tiles(void *ctx, tsr_error *err);

typedef struct tsr_tile_sink {
    tsr_each_tile *each;      /* with the `ctx` of the tile's box */
    tsr_settle_tiles *settle; /* or NULL */
    void *ctx;                /* for settle */
} tsr_tile_sink;

/* A box of a tensor, in elements (offsets and sizes NULL: the whole tensor), and what its tiles are handed over with. */
typedef struct tsr_streamed_box {
    const tsr_entry *entry;
    const uint64_t *offsets, *sizes;
    void *ctx;
} tsr_streamed_box;

/* As tsr_stream_tensor, for `count` boxes one after another, each in its row-major order. The threads go on to the next box
 * while tiles of the last one are still handed over. */
tsr_status tsr_stream_boxes(tsr_checkpoint *checkpoint, const tsr_streamed_box *boxes, size_t count, tsr_ring *ring,
                            const tsr_tile_sink *sink, tsr_error *err);

/* Bytes of a tensor entry as these functions deliver it; the shape (`ndim` numbers, in the checkpoint's memory) that they
 * count in is the entry's own except for float4 of a safetensors container. TSR_E_UNSUPPORTED for entries without dense
 * elements. */
tsr_status tsr_tensor_bytes(const tsr_entry *entry, uint64_t *bytes, tsr_error *err);

TSR_API_END

#endif
