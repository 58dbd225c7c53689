/* Boxes and whole tensors for callers. */
#include "tessera/read.h"

#include "base/cursor.h"
#include "stream/tile_job.h"
#include "tessera/box.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

/* ---- tile job ---- */

/* Tiles in the ring: [ up to TSR_COPY_SLACK | data ······ | scratch ] */

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

/* Between tsr_ring_begin and tsr_ring_end: adds one job for each tile of `box` (NULL: the tensor). The jobs begin with a
 * tsr_tile. The gather stays open until the ring has drained them. */
static tsr_status tiles_add(const tsr_gather *gather, const tsr_box *box, void *owner, tsr_ring *ring, tsr_error *err)
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
    TSR_TRY(tiles_add(gather, NULL, NULL, ring, err));
    return tsr_ring_end(ring, err);
}

/* ---- read ---- */

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

tsr_status tsr_box_must_fit(const tsr_entry *entry, tsr_box box, size_t buffer_size, tsr_error *err)
{
    tsr_packed packed;
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    TSR_FAIL_IF(box.ndim != packed.ndim, err, TSR_E_USAGE, "'%.*s' has %u dimensions, and the box has %u",
                TSR_STR_ARG(entry->fqn), packed.ndim, box.ndim);
    return check_box(entry, box, packed.shape, tsr_dtype_size(packed.dtype), buffer_size, err);
}

tsr_status tsr_read_box(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_box box, void *buffer, size_t buffer_size,
                        tsr_error *err)
{
    TSR_TRY(tsr_box_must_fit(entry, box, buffer_size, err));
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
        return tiles_add(*out, NULL, streamed->ctx, ring, err);
    }
    TSR_TRY(tsr_gather_pack(streamed->entry, &packed, err));
    box.ndim = packed.ndim;
    if (!box.sizes) box.sizes = packed.shape;
    TSR_FAIL_IF(!tsr_box_contains((tsr_box){box.ndim, NULL, packed.shape}, box), err, TSR_E_USAGE,
                "'%.*s': the box reaches beyond the tensor", TSR_STR_ARG(streamed->entry->fqn));
    TSR_TRY(tsr_gather_open(checkpoint, streamed->entry, &box, out, err));
    return tiles_add(*out, &box, streamed->ctx, ring, err);
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

/* ---- tiles ---- */

/* Iterates over the tiles of a box. */

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

/* Reads sharded optimizer state in batches. The threads of the host perform the reads of a batch. */

#define BATCH 64u

typedef struct task {
    const tsr_optim_read *read;
    void *buffer;
    size_t bytes;
    tsr_status status;
    tsr_error err;
} task;

/* The state of all reads, which are performed one batch after the other. */
typedef struct reading {
    tsr_checkpoint *checkpoint;
    task *tasks; /* of the current batch */
    const tsr_optim_sink *sink;
    const tsr_progress *progress;
    uint64_t done, total; /* in bytes */
} reading;

/* Computes the size of the rank's part; 0 if there is nothing to read. */
static tsr_status part_bytes(const tsr_optim_read *read, size_t *bytes, tsr_error *err)
{
    uint64_t volume = 1, size = tsr_dtype_size(read->dtype);
    *bytes = 0;
    if (read->kind == TSR_READ_OBJECT) return TSR_OK;
    bool fits = true;
    for (uint32_t d = 0; d < read->entry->ndim && read->kind == TSR_READ_BOX; d++)
        fits = fits && tsr_mul_u64(volume, read->sizes[d], &volume);
    TSR_FAIL_IF(!fits || size == 0 || !tsr_mul_u64(volume, size, &volume) || volume > SIZE_MAX, err, TSR_E_UNSUPPORTED,
                "optim: a part of '%.*s' is too large, or its elements are not byte-aligned", TSR_STR_ARG(read->entry->fqn));
    *bytes = (size_t)volume;
    return TSR_OK;
}

static void run_task(void *arg, size_t index)
{
    static const uint64_t zeros[TSR_MAX_NDIM] = {0};
    const reading *r = arg;
    task *t = &r->tasks[index];
    if (!t->bytes) return;
    bool box = t->read->kind == TSR_READ_BOX;
    t->status = tsr_read_box(
        r->checkpoint, t->read->entry,
        (tsr_box){t->read->entry->ndim, box ? t->read->storage_offsets : zeros, box ? t->read->sizes : t->read->shape},
        t->buffer, t->bytes, &t->err);
}

static tsr_status prepare(const reading *r, const tsr_optim_read *reads, size_t count, tsr_error *err)
{
    task *tasks = r->tasks;
    for (size_t i = 0; i < count; i++) {
        tasks[i] = (task){.read = &reads[i]};
        TSR_TRY(part_bytes(&reads[i], &tasks[i].bytes, err));
        if (tasks[i].bytes) tasks[i].buffer = r->sink->buffer(r->sink->ctx, &reads[i], tasks[i].bytes);
        TSR_FAIL_IF(tasks[i].bytes && !tasks[i].buffer, err, TSR_E_NOMEM,
                    "'%.*s': the buffer is missing (%zu bytes are needed)", TSR_STR_ARG(reads[i].entry->fqn),
                    tasks[i].bytes);
    }
    return TSR_OK;
}

static tsr_status run_batch(reading *r, size_t count, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(r->checkpoint);
    if (host->parallel_for) host->parallel_for(host->parallel_ctx, count, run_task, r);
    for (size_t i = 0; i < count; i++) {
        if (!host->parallel_for) run_task(r, i);
        TSR_FAIL_AT(r->tasks[i].status != TSR_OK, err, r->tasks[i].status, r->tasks[i].err.byte_position, "%s",
                    r->tasks[i].err.message);
    }
    return TSR_OK;
}

static tsr_status run(reading *r, const tsr_optim_read *reads, size_t count, tsr_error *err)
{
    const tsr_progress *progress = r->progress;
    for (size_t at = 0; at < count; at += BATCH) {
        size_t now = count - at < BATCH ? count - at : BATCH;
        TSR_TRY(prepare(r, reads + at, now, err));
        TSR_TRY(run_batch(r, now, err));
        for (size_t i = 0; i < now; i++) r->done += r->tasks[i].bytes;
        TSR_FAIL_IF(progress && progress->step && !progress->step(progress->ctx, r->done, r->total), err, TSR_E_CANCELLED,
                    "interrupted");
    }
    return TSR_OK;
}

tsr_status tsr_optim_read_all(tsr_checkpoint *checkpoint, const tsr_optim_read *reads, size_t count,
                              const tsr_optim_sink *sink, const tsr_progress *progress, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    reading r = {.checkpoint = checkpoint, .sink = sink, .progress = progress};
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        TSR_TRY(part_bytes(&reads[i], &bytes, err));
        r.total += bytes;
    }
    r.tasks = tsr_alloc(allocator, BATCH, sizeof(task), err);
    if (!r.tasks) return TSR_E_NOMEM;
    tsr_status status = run(&r, reads, count, err);
    tsr_free(allocator, r.tasks, BATCH, sizeof(task));
    return status;
}
