/* Boxes and whole tensors for callers, and checks of what was read: see tessera/read.h and tessera/sys/read.h. */
#include "tessera/sys/read.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "stream/gather.h"
#include "stream/tile_job.h"
#include "tessera/box.h"
#include "tessera/read.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/store.h"
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

tsr_status tsr_tile_start(tsr_tile *tile, const tsr_gather *gather, const tsr_tiles *at, uint8_t *memory, tsr_error *err)
{
    tsr_tile_set(tile, gather, at);
    tsr_tile_place(tile, memory, TSR_NO_POSITION);
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
        TSR_TRY(tsr_tile_start(job, gather, &tiles, memory, err));
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

/* Whether a box is inside the tensor of an entry, and fits a buffer of exactly this size. Errors: TSR_E_USAGE; those of tsr_gather_pack. */
static tsr_status box_must_fit(const tsr_entry *entry, tsr_box box, size_t buffer_size, tsr_error *err)
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
    TSR_TRY(box_must_fit(entry, box, buffer_size, err));
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

/* Bytes that are read before they are summed up: few enough to be in the cache still. */
enum { TILE_BYTES = 512 << 10 };

/* Bytes of a chunk that were read, in the order in which the chunk is stored. */
typedef struct summed {
    const tsr_chunk *chunk;
    const tsr_entry *entry;
    tsr_stated_crc stated; /* of the whole chunk */
    uint64_t at, size, whole;
    uint32_t crc;
} summed;

/* A run of bytes that the checksum of a file covers: a chunk, or bytes of no entry. */
typedef struct covered {
    const tsr_chunk *chunk;
    uint64_t byte_offset, byte_length;
} covered;

/* A file that states a checksum of all of its bytes. */
typedef struct summed_file {
    tsr_file_sum sum;
    size_t first, count; /* of what it covers */
} summed_file;

struct tsr_read_check {
    tsr_checkpoint *checkpoint;
    const tsr_host *host;
    uint32_t threads;
    tsr_vec *sums;            /* for each thread, of summed */
    tsr_vec files;            /* of summed_file */
    tsr_vec covers;           /* of covered */
    tsr_map *in_files;        /* the chunks in `covers`; NULL: there are none */
    const tsr_file_sum *last; /* while they are collected */
};

static tsr_str key_of(const tsr_chunk *const *chunk)
{
    return (tsr_str){(const char *)chunk, sizeof *chunk};
}

/* ---- files with a checksum ---- */

static tsr_status add_covered(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    tsr_read_check *check = ctx;
    if (extent->skips) *extent->skips = true; /* what is wrong with an item is for validate to say */
    if (!extent->sum || extent->sum->is_misspelt) return TSR_OK;
    if (extent->sum != check->last || !check->files.count) {
        summed_file *file = tsr_vec_push(&check->files, err);
        if (!file) return TSR_E_NOMEM;
        *file = (summed_file){.sum = *extent->sum, .first = check->covers.count};
    }
    summed_file *file = (summed_file *)check->files.items + check->files.count - 1;
    covered *one = tsr_vec_push(&check->covers, err);
    if (!one) return TSR_E_NOMEM;
    *one = (covered){extent->entry ? extent->chunk : NULL, extent->byte_offset, extent->byte_length};
    file->count++;
    check->last = extent->ends ? NULL : extent->sum; /* the next file may have its sum in the same place */
    return TSR_OK;
}

/* Only safetensors files state such checksums; the walk of other containers would open every item. */
static tsr_status find_files(tsr_read_check *check, tsr_error *err)
{
    if (tsr_checkpoint_has_crcs(check->checkpoint)) return TSR_OK;
    TSR_TRY(tsr_checkpoint_extents(check->checkpoint, add_covered, check, err));
    covered *covers = check->covers.items;
    if (!check->covers.count) return TSR_OK;
    check->in_files = tsr_map_new(check->host->allocator, check->covers.count, err);
    if (!check->in_files) return TSR_E_NOMEM;
    for (size_t i = 0; i < check->covers.count; i++)
        if (covers[i].chunk) TSR_TRY(tsr_map_put(check->in_files, key_of(&covers[i].chunk), (uint32_t)i, NULL, NULL, err));
    return TSR_OK;
}

tsr_status tsr_read_check_new(tsr_checkpoint *checkpoint, uint32_t threads, tsr_read_check **out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    tsr_read_check *check = tsr_alloc(host->allocator, 1, sizeof *check, err);
    if (!check) return TSR_E_NOMEM;
    *check = (tsr_read_check){.checkpoint = checkpoint,
                              .host = host,
                              .threads = threads,
                              .files = tsr_vec_of(host->allocator, sizeof(summed_file)),
                              .covers = tsr_vec_of(host->allocator, sizeof(covered))};
    check->sums = tsr_alloc(host->allocator, threads, sizeof *check->sums, err);
    for (uint32_t t = 0; check->sums && t < threads; t++) check->sums[t] = tsr_vec_of(host->allocator, sizeof(summed));
    const tsr_status status = check->sums ? find_files(check, err) : TSR_E_NOMEM;
    *out = status == TSR_OK ? check : NULL;
    if (status != TSR_OK) tsr_read_check_free(check);
    return status;
}

void tsr_read_check_free(tsr_read_check *check)
{
    if (!check) return;
    for (uint32_t t = 0; check->sums && t < check->threads; t++) tsr_vec_free(&check->sums[t]);
    tsr_free(check->host->allocator, check->sums, check->threads, sizeof *check->sums);
    tsr_vec_free(&check->files);
    tsr_vec_free(&check->covers);
    tsr_map_free(check->in_files);
    tsr_free(check->host->allocator, check, 1, sizeof *check);
}

/* ---- reading ---- */

static tsr_status compare(const tsr_entry *entry, uint32_t crc, uint32_t stated, tsr_error *err)
{
    if (crc == stated) return TSR_OK;
    return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION,
                     "'%.*s' is damaged: its bytes have CRC-32 %08x, but had %08x when they were saved",
                     TSR_STR_ARG(entry->fqn), (unsigned)crc, (unsigned)stated);
}

/* Keeps the sum of bytes of a chunk, or compares it if they are the whole chunk. Bytes that follow those of the sum before are added to it, so
 * that reading in order needs no memory. */
static tsr_status keep(tsr_vec *sums, const summed *sum, tsr_error *err)
{
    if (!sum->size) return TSR_OK;
    if (sum->stated.is_stated && sum->size == sum->whole) return compare(sum->entry, sum->crc, sum->stated.crc32, err);
    summed *before = sums->count ? (summed *)sums->items + sums->count - 1 : NULL;
    if (before && before->chunk == sum->chunk && before->at + before->size == sum->at) {
        before->crc = tsr_crc32_join(before->crc, sum->crc, sum->size);
        before->size += sum->size;
        return TSR_OK;
    }
    summed *kept = tsr_vec_push(sums, err);
    if (!kept) return TSR_E_NOMEM;
    *kept = *sum;
    return TSR_OK;
}

/* Adds the bytes of a chunk that are in a box, which was read to `data`. */
static tsr_status add(const tsr_read_check *check, const tsr_gather *gather, const tsr_located *part, tsr_box box,
                      const uint8_t *data, tsr_vec *sums, summed *sum, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM], first, length;
    const tsr_box whole = {gather->ndim, part->offsets, part->sizes}, inner = {gather->ndim, offsets, sizes};
    tsr_box_walk walk;
    if (!tsr_box_intersect(whole, box, offsets, sizes)) return TSR_OK;
    if (!tsr_find_run(gather->dtype, whole, inner, &first, &length)) return TSR_OK;
    if (!sum->size || sum->at + sum->size != first) {
        TSR_TRY(keep(sums, sum, err));
        sum->at = first;
        sum->size = 0;
        sum->crc = 0;
    }
    for (tsr_box_walk_start(&walk, inner, whole, box); walk.runs_left; tsr_box_walk_next(&walk))
        sum->crc =
            tsr_crc32(check->host, sum->crc, data + walk.index_b * gather->itemsize, (size_t)walk.run * gather->itemsize);
    sum->size += length;
    return TSR_OK;
}

/* Prepares the sums of the chunks of a gather. *count is how many of them there is something to compare with. */
static tsr_status begin(const tsr_read_check *check, const tsr_gather *gather, summed **out, size_t *count, tsr_error *err)
{
    *count = 0;
    *out = tsr_arena_array(gather->arena, gather->part_count ? gather->part_count : 1, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (size_t i = 0; i < gather->part_count; i++) {
        const tsr_located *part = &gather->parts[i];
        uint64_t elements;
        if (!tsr_box_volume((tsr_box){gather->ndim, part->offsets, part->sizes}, &elements)) continue;
        const bool in_file = check->in_files && tsr_map_get(check->in_files, key_of(&part->chunk), UINT32_MAX) != UINT32_MAX;
        if (!part->crc.is_stated && !in_file) continue;
        (*out)[i] = (summed){part->chunk, gather->entry, part->crc, 0, 0, elements * gather->itemsize, 0};
        ++*count;
    }
    return TSR_OK;
}

/* Reads the box in tiles, and adds up each while it is in the cache. */
static tsr_status read_tiles(const tsr_read_check *check, const tsr_gather *gather, tsr_box box, uint8_t *buffer,
                             uint8_t *scratch, size_t scratch_size, tsr_vec *sums, tsr_error *err)
{
    summed *parts;
    size_t count;
    tsr_tiles tiles;
    TSR_TRY(begin(check, gather, &parts, &count, err));
    if (!count) return tsr_gather_box(gather, box, buffer, scratch, scratch_size, err);
    for (tsr_tiles_start(&tiles, box, TILE_BYTES / gather->itemsize); !tiles.done; tsr_tiles_next(&tiles)) {
        const tsr_box tile = {gather->ndim, tiles.offsets, tiles.sizes};
        uint8_t *to = buffer + tiles.first * gather->itemsize;
        TSR_TRY(tsr_gather_box(gather, tile, to, scratch, scratch_size, err));
        for (size_t i = 0; i < gather->part_count; i++)
            if (parts[i].chunk) TSR_TRY(add(check, gather, &gather->parts[i], tile, to, sums, &parts[i], err));
    }
    for (size_t i = 0; i < gather->part_count; i++)
        if (parts[i].chunk) TSR_TRY(keep(sums, &parts[i], err));
    return TSR_OK;
}

tsr_status tsr_read_box_checked(tsr_read_check *check, uint32_t thread, const tsr_entry *entry, tsr_box box, void *buffer,
                                size_t buffer_size, tsr_error *err)
{
    const tsr_allocator *allocator = check->host->allocator;
    tsr_gather *gather;
    TSR_TRY(box_must_fit(entry, box, buffer_size, err));
    const bool has_crcs = tsr_checkpoint_has_crcs(check->checkpoint) || check->in_files;
    /* The CRC of a compressed item is at its end, so finding it takes as long as reading the item. */
    if (!has_crcs || tsr_checkpoint_catalog(check->checkpoint)->compressed)
        return tsr_read_box(check->checkpoint, entry, box, buffer, buffer_size, err);
    TSR_TRY(tsr_gather_open_crcs(check->checkpoint, entry, &box, &gather, err));
    const size_t scratch_size = tsr_tile_memory(buffer_size) - buffer_size;
    uint8_t *scratch = tsr_alloc(allocator, scratch_size, 1, err);
    const tsr_status status =
        scratch ? read_tiles(check, gather, box, buffer, scratch, scratch_size, &check->sums[thread], err) : TSR_E_NOMEM;
    tsr_free(allocator, scratch, scratch_size, 1);
    tsr_gather_close(gather);
    return status;
}

/* ---- the end ---- */

static int by_place(const void *a, const void *b)
{
    const summed *x = a, *y = b;
    const uintptr_t p = (uintptr_t)x->chunk, q = (uintptr_t)y->chunk;
    return p != q ? (p > q) - (p < q) : (x->at > y->at) - (x->at < y->at);
}

/* Joins the sums of each chunk, which are sorted. Keeps those of whole chunks, which are compared if the chunk has a CRC. Bytes that were
 * read twice count once. */
static tsr_status join(tsr_vec *all, tsr_error *err)
{
    summed *sums = all->items;
    size_t kept = 0;
    for (size_t i = 0, next; i < all->count; i = next) {
        summed joined = sums[i];
        for (next = i + 1; next < all->count && sums[next].chunk == joined.chunk; next++) {
            if (sums[next].at != joined.at + joined.size) continue;
            joined.crc = tsr_crc32_join(joined.crc, sums[next].crc, sums[next].size);
            joined.size += sums[next].size;
        }
        if (joined.at != 0 || joined.size != joined.whole) continue;
        if (joined.stated.is_stated) TSR_TRY(compare(joined.entry, joined.crc, joined.stated.crc32, err));
        sums[kept++] = joined;
    }
    all->count = kept;
    return TSR_OK;
}

static tsr_status add_gap(const tsr_read_check *check, uint32_t file, covered gap, uint32_t *crc, tsr_error *err)
{
    uint8_t bytes[4096];
    while (gap.byte_length) {
        const size_t size = gap.byte_length < sizeof bytes ? (size_t)gap.byte_length : sizeof bytes;
        TSR_TRY(tsr_store_read(tsr_checkpoint_store(check->checkpoint), file, gap.byte_offset, bytes, size, err));
        *crc = tsr_crc32(check->host, *crc, bytes, size);
        gap.byte_offset += size;
        gap.byte_length -= size;
    }
    return TSR_OK;
}

/* The sum of the bytes of a covered chunk; NULL if they were not all read. */
static const summed *sum_of(const covered *one, const tsr_vec *whole)
{
    const summed key = {.chunk = one->chunk};
    const summed *found = whole->count ? bsearch(&key, whole->items, whole->count, sizeof key, by_place) : NULL;
    return found && found->size == one->byte_length ? found : NULL;
}

static tsr_status check_file(const tsr_read_check *check, const summed_file *file, const tsr_vec *whole, tsr_error *err)
{
    const covered *covers = (const covered *)check->covers.items + file->first;
    uint32_t crc = file->sum.before;
    for (size_t i = 0; i < file->count; i++)
        if (covers[i].chunk && covers[i].byte_length && !sum_of(&covers[i], whole)) return TSR_OK; /* not all was read */
    for (size_t i = 0; i < file->count; i++) {
        const summed *sum = covers[i].chunk && covers[i].byte_length ? sum_of(&covers[i], whole) : NULL;
        if (sum) crc = tsr_crc32_join(crc, sum->crc, sum->size);
        else TSR_TRY(add_gap(check, file->sum.file, covers[i], &crc, err));
    }
    const tsr_str name = tsr_checkpoint_store(check->checkpoint)->files[file->sum.file].name;
    if (crc == file->sum.crc32) return TSR_OK;
    return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION,
                     "'%.*s' is damaged: the bytes of the file have CRC-32 %08x, but its header states %08x",
                     TSR_STR_ARG(name), (unsigned)crc, (unsigned)file->sum.crc32);
}

tsr_status tsr_read_check_end(tsr_read_check *check, tsr_error *err)
{
    tsr_vec all = tsr_vec_of(check->host->allocator, sizeof(summed));
    tsr_status status = TSR_OK;
    for (uint32_t t = 0; t < check->threads; t++) {
        if (status == TSR_OK) status = tsr_vec_append(&all, check->sums[t].items, check->sums[t].count, err);
        check->sums[t].count = 0;
    }
    if (all.count) qsort(all.items, all.count, sizeof(summed), by_place);
    if (status == TSR_OK) status = join(&all, err);
    const summed_file *files = check->files.items;
    for (size_t i = 0; i < check->files.count && status == TSR_OK; i++) status = check_file(check, &files[i], &all, err);
    tsr_vec_free(&all);
    return status;
}
