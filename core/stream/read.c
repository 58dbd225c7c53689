/* Boxes and whole tensors for callers. */
#include "tessera/read.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/read_run.h"

#include "base/cursor.h"
#include "stream/tile_job.h"
#include "tessera/sys/box.h"
#include "tessera/sys/try.h"

tsr_status tsr_tensor_bytes(const tsr_entry *entry, uint64_t *bytes, tsr_error *err)
{
    tsr_packed packed;
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    *bytes = packed.elements * tsr_dtype_size(packed.dtype);
    return TSR_OK;
}

static tsr_status check_box(const tsr_entry *entry, tsr_box box, const uint64_t *shape, uint32_t itemsize,
                            size_t buffer_size, tsr_error *err)
{
    uint64_t volume, bytes;
    TSR_FAIL_IF(!tsr_box_contains((tsr_box){box.ndim, NULL, shape}, box) || !tsr_box_volume(box, &volume), err, TSR_E_USAGE,
                "'%.*s': the box reaches beyond the tensor", TSR_STR_ARG(entry->fqn));
    TSR_FAIL_IF(!tsr_mul_u64(volume, itemsize, &bytes) || bytes != buffer_size, err, TSR_E_USAGE,
                "'%.*s': a box of %llu elements of %u bytes does not fit a buffer of %zu bytes", TSR_STR_ARG(entry->fqn),
                (unsigned long long)volume, (unsigned)itemsize, buffer_size);
    return TSR_OK;
}

tsr_status tsr_read_box(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_box box, void *buffer, size_t buffer_size,
                        tsr_error *err)
{
    tsr_packed packed;
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    TSR_FAIL_IF(box.ndim != packed.ndim, err, TSR_E_USAGE, "'%.*s' has %u dimensions, and the box has %u",
                TSR_STR_ARG(entry->fqn), packed.ndim, box.ndim);
    TSR_TRY(check_box(entry, box, packed.shape, tsr_dtype_size(packed.dtype), buffer_size, err));
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    const size_t scratch_size = tsr_tile_memory(buffer_size) - buffer_size;
    tsr_gather *gather;
    TSR_TRY(tsr_gather_open(checkpoint, entry, &box, &gather, err));
    void *scratch = tsr_alloc(allocator, scratch_size, 1, err);
    tsr_status status = scratch ? tsr_gather_box(gather, box, buffer, scratch, scratch_size, err) : TSR_E_NOMEM;
    tsr_free(allocator, scratch, scratch_size, 1);
    tsr_gather_close(gather);
    return status;
}

/* The largest part of `box` that begins with element `first` of its row-major order and holds the next elements in that
 * order, at most `count` of them, in the tensor's coordinates. Returns how many. */
static uint64_t part_at(tsr_box box, uint64_t first, uint64_t count, uint64_t *offsets, uint64_t *sizes)
{
    uint64_t row = 1, taken = 1;
    for (uint32_t d = box.ndim; d-- > 0;) {
        const uint64_t index = first / row % box.sizes[d], left = box.sizes[d] - index;
        const uint64_t fits = count / row < left ? count / row : left;
        const bool whole = first % row == 0 && fits;
        offsets[d] = tsr_box_offset(box, d) + index;
        sizes[d] = whole ? fits : 1;
        if (whole) taken = fits * row;
        row *= box.sizes[d];
    }
    return taken;
}

static tsr_status check_run(const tsr_entry *entry, tsr_box box, const tsr_run *run, uint32_t itemsize, size_t buffer_size,
                            tsr_error *err)
{
    uint64_t volume, bytes;
    const bool inside = tsr_box_volume(box, &volume) && run->first <= volume && run->count <= volume - run->first;
    TSR_FAIL_IF(!inside || !tsr_mul_u64(run->count, itemsize, &bytes) || bytes != buffer_size, err, TSR_E_USAGE,
                "'%.*s': a run of %llu elements of %u bytes does not fit a buffer of %zu bytes", TSR_STR_ARG(entry->fqn),
                (unsigned long long)run->count, (unsigned)itemsize, buffer_size);
    return TSR_OK;
}

tsr_status tsr_read_run(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_run *run, void *buffer,
                        size_t buffer_size, tsr_error *err)
{
    tsr_packed packed;
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    const tsr_box box = {packed.ndim, run->offsets, run->sizes ? run->sizes : packed.shape};
    const uint32_t itemsize = tsr_dtype_size(packed.dtype);
    TSR_TRY(check_run(entry, box, run, itemsize, buffer_size, err));
    char *out = buffer;
    for (uint64_t done = 0; done < run->count;) {
        const uint64_t taken = part_at(box, run->first + done, run->count - done, offsets, sizes);
        TSR_TRY(tsr_read_box(checkpoint, entry, (tsr_box){packed.ndim, offsets, sizes}, out + done * itemsize,
                             (size_t)taken * itemsize, err));
        done += taken;
    }
    return TSR_OK;
}

/* ---- streams ---- */

#define OPEN_GATHERS 64u
#define OPEN_CHUNKS  65536u /* of all open gathers, unless a single one has more */

static tsr_status fill_tile(void *ctx, void *job, tsr_error *err)
{
    (void)ctx;
    return tsr_tile_fill(job, err);
}

static tsr_status hand_over(void *ctx, void *job, tsr_error *err)
{
    const tsr_tile_sink *s = ctx;
    const tsr_tile *tile = job;
    return s->each(tile->owner, tile->data, tile->bytes, tile->byte_at, err);
}

static tsr_status settle_tiles(void *ctx, tsr_error *err)
{
    const tsr_tile_sink *s = ctx;
    return s->settle(s->ctx, err);
}

/* Opens the tensor of a box and adds its tiles. */
static tsr_status add_box(tsr_checkpoint *checkpoint, const tsr_streamed_box *streamed, tsr_ring *ring, tsr_gather **out,
                          tsr_error *err)
{
    tsr_packed packed;
    tsr_box box = {0, streamed->offsets, streamed->sizes};
    if (!box.offsets && !box.sizes) {
        TSR_TRY(tsr_gather_open(checkpoint, streamed->entry, NULL, out, err));
        return tsr_tiles_add(*out, NULL, streamed->ctx, ring, err);
    }
    TSR_TRY(tsr_gather_pack(streamed->entry, &packed, err));
    box.ndim = packed.ndim;
    if (!box.sizes) box.sizes = packed.shape;
    TSR_FAIL_IF(!tsr_box_contains((tsr_box){box.ndim, NULL, packed.shape}, box), err, TSR_E_USAGE,
                "'%.*s': the box reaches beyond the tensor", TSR_STR_ARG(streamed->entry->fqn));
    TSR_TRY(tsr_gather_open(checkpoint, streamed->entry, &box, out, err));
    return tsr_tiles_add(*out, &box, streamed->ctx, ring, err);
}

/* How many of the boxes are streamed before the ring is drained and their gathers are closed. */
static size_t count_together(const tsr_streamed_box *boxes, size_t count)
{
    size_t together = 1;
    uint64_t chunks = boxes[0].entry->chunk_count;
    while (together < count && together < OPEN_GATHERS && chunks + boxes[together].entry->chunk_count <= OPEN_CHUNKS)
        chunks += boxes[together++].entry->chunk_count;
    return together;
}

tsr_status tsr_stream_boxes(tsr_checkpoint *checkpoint, const tsr_streamed_box *boxes, size_t count, tsr_ring *ring,
                            const tsr_tile_sink *sink, tsr_error *err)
{
    const tsr_ring_work work = {.job_size = sizeof(tsr_tile),
                                .fill = fill_tile,
                                .drain = hand_over,
                                .settle = sink->settle ? settle_tiles : NULL,
                                .ctx = (void *)(uintptr_t)sink};
    tsr_status status = TSR_OK;
    for (size_t i = 0, together; i < count && status == TSR_OK; i += together) {
        tsr_gather *open[OPEN_GATHERS] = {NULL};
        together = count_together(&boxes[i], count - i);
        status = tsr_ring_begin(ring, &work, err);
        for (size_t k = 0; k < together && status == TSR_OK; k++)
            status = add_box(checkpoint, &boxes[i + k], ring, &open[k], err);
        if (status == TSR_OK) status = tsr_ring_end(ring, err);
        for (size_t k = 0; k < together; k++) tsr_gather_close(open[k]);
    }
    return status;
}

tsr_status tsr_stream_tensor(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_each_tile *each,
                             void *ctx, tsr_error *err)
{
    const tsr_tile_sink sink = {each, NULL, NULL};
    return tsr_stream_boxes(checkpoint, &(tsr_streamed_box){.entry = entry, .ctx = ctx}, 1, ring, &sink, err);
}
