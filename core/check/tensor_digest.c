/* Digests of tensors. A digest runs over a tensor's bytes in order, so that threads cannot share that; of a list of tensors each
 * thread takes one, reads it by tiles, and sums every tile up while it is in the cache.
 *
 *   thread 0:  [layer 0 ··············][layer 2 ·····][layer 5 ···
 *   thread 1:  [layer 1 ·····][layer 3 ·······][layer 4 ·······
 *
 * Of a tensor that is alone, or so large that the others would wait for it, all threads read tiles ahead, over which the digest
 * runs in order. */
#include "base/cursor.h"
#include "check/digest.h"
#include "stream/tile_job.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/box.h"
#include "tessera/sys/try.h"

#define TILE_BYTES   ((size_t)128 << 10) /* stays in the cache of a core */
#define ALWAYS_SMALL (UINT64_C(64) << 20)
#define BATCH_BYTES  (UINT64_C(256) << 20) /* per thread, between two reports of progress */
#define BATCH_COUNT  16u                   /* per thread */
#define BATCH_CHUNKS (UINT64_C(1) << 14)   /* located at a time: memory that --max-mem does not bound */

/* A tensor that one thread digests. */
typedef struct whole_tensor {
    tsr_gather *gather;
    tsr_running_digest digest; /* state NULL: not started */
    uint64_t tile_elements;
    uint8_t *memory; /* of one tile */
    tsr_digest *out;
} whole_tensor;

/* Whether a part's elements are a run of the tensor's, and of its file's. */
static bool is_run(const tsr_gather *gather, const tsr_located *part)
{
    uint64_t elements;
    const tsr_box box = {gather->ndim, NULL, part->sizes};
    return tsr_box_volume(box, &elements) && part->last - part->first + 1 == elements &&
           part->span == elements * gather->itemsize;
}

/* Tiles that fit into the cache, unless that would cut what is read in one go. */
static uint64_t elements_of_tile(const tsr_ring *ring, const tsr_gather *gather)
{
    const uint64_t most = tsr_tile_most(ring, gather, gather->itemsize, 1), least = TILE_BYTES / gather->itemsize;
    for (size_t i = 0; i < gather->part_count; i++)
        if (!is_run(gather, &gather->parts[i])) return most;
    return least < most ? least : most;
}

static tsr_status fill_tensor(void *ctx, void *job, tsr_error *err)
{
    const whole_tensor *t = *(whole_tensor **)job;
    tsr_tiles tiles;
    (void)ctx;
    for (tsr_tiles_start(&tiles, (tsr_box){t->gather->ndim, NULL, t->gather->shape}, t->tile_elements); !tiles.done;
         tsr_tiles_next(&tiles)) {
        tsr_tile tile;
        TSR_TRY(tsr_tile_start(&tile, t->gather, &tiles, t->memory, TSR_NO_POSITION, err));
        TSR_TRY(tsr_tile_fill(&tile, err));
        t->digest.ops->update(t->digest.state, tile.data, tile.bytes);
    }
    return TSR_OK;
}

/* Whose digests, by which algorithm, and what they are read with. */
typedef struct digesting {
    tsr_checkpoint *checkpoint;
    tsr_ring *ring;
    tsr_digest_algorithm algorithm;
} digesting;

static tsr_status add_tensor(const digesting *d, const tsr_entry *entry, whole_tensor *t, tsr_error *err)
{
    void *job;
    TSR_TRY(tsr_gather_open(d->checkpoint, entry, NULL, &t->gather, err));
    TSR_TRY(tsr_digest_start(tsr_checkpoint_host(d->checkpoint), d->algorithm, &t->digest, err));
    t->tile_elements = elements_of_tile(d->ring, t->gather);
    const size_t bytes = tsr_tile_memory((size_t)t->tile_elements * t->gather->itemsize);
    TSR_TRY(tsr_ring_job(d->ring, bytes, &job, &t->memory, err));
    *(whole_tensor **)job = t;
    return TSR_OK;
}

static tsr_status close_tensors(whole_tensor *tensors, size_t count, tsr_status status)
{
    for (size_t i = 0; i < count; i++) {
        if (tensors[i].digest.state) tsr_digest_finish(&tensors[i].digest, status, tensors[i].out);
        tsr_gather_close(tensors[i].gather);
    }
    return status;
}

/* The digests of `count` tensors, all of them in the ring. `tensors` is zeroed but for `out`. */
static tsr_status run_batch(const digesting *d, const tsr_entry *const *entries, whole_tensor *tensors, size_t count,
                            tsr_error *err)
{
    const tsr_ring_work work = {.job_size = sizeof(whole_tensor *), .fill = fill_tensor};
    size_t added = 0;
    tsr_error later = {0}; /* of a tensor behind those in the ring, whose own failures come first */
    TSR_TRY(tsr_ring_begin(d->ring, &work, err));
    tsr_status added_all = TSR_OK;
    while (added < count && added_all == TSR_OK) {
        added_all = add_tensor(d, entries[added], &tensors[added], &later);
        added++;
    }
    tsr_status status = tsr_ring_end(d->ring, err);
    if (status == TSR_OK && added_all != TSR_OK) {
        if (err) *err = later;
        status = added_all;
    }
    return close_tensors(tensors, added, status);
}

static tsr_status update(void *ctx, const void *data, size_t size, uint64_t byte_at, tsr_error *err)
{
    const tsr_running_digest *digest = ctx;
    (void)byte_at;
    (void)err;
    digest->ops->update(digest->state, data, size);
    return TSR_OK;
}

tsr_status tsr_tensor_digest(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_digest_algorithm algorithm,
                             tsr_ring *ring, tsr_digest *out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    whole_tensor tensor = {.out = out};
    tsr_running_digest digest;
    if (host->threads < 2) return run_batch(&(digesting){checkpoint, ring, algorithm}, &entry, &tensor, 1, err);
    TSR_TRY(tsr_digest_start(host, algorithm, &digest, err));
    return tsr_digest_finish(&digest, tsr_stream_tensor(checkpoint, entry, ring, update, &digest, err), out);
}

/* ---- a list ---- */

struct tsr_digests {
    digesting with;
    const tsr_allocator *allocator;
    tsr_digest_list list;
    uint64_t small_bytes; /* no tensor up to here keeps the other threads waiting for long */
    size_t from, to;      /* of the list: what `digests` has */
    size_t batch_count;
    uint64_t batch_bytes;
    const tsr_entry **entries; /* the tensors of a batch, batch_count each */
    whole_tensor *tensors;
    tsr_digest *digests;
};

static uint64_t bytes_of(const tsr_entry *entry)
{
    uint64_t bytes;
    return tsr_entry_bytes(entry, &bytes) ? bytes : UINT64_MAX;
}

tsr_status tsr_digests_open(tsr_checkpoint *checkpoint, const tsr_digest_list *list, tsr_ring *ring, tsr_digests **out,
                            tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    const uint32_t threads = host->threads ? host->threads : 1;
    uint64_t total = 0;
    tsr_digests *d = tsr_alloc(host->allocator, 1, sizeof *d, err);
    if (!d) return TSR_E_NOMEM;
    *d = (tsr_digests){.with = {checkpoint, ring, list->algorithm}, .allocator = host->allocator, .list = *list};
    for (size_t i = 0; i < list->count; i++) {
        if (list->entries[i]->kind == TSR_ENTRY_TENSOR && !tsr_add_u64(total, bytes_of(list->entries[i]), &total))
            total = UINT64_MAX;
    }
    d->small_bytes = total / (8 * (uint64_t)threads) > ALWAYS_SMALL ? total / (8 * (uint64_t)threads) : ALWAYS_SMALL;
    d->batch_count = threads == 1 ? 1 : (size_t)BATCH_COUNT * threads;
    d->batch_bytes = BATCH_BYTES * threads;
    d->entries = tsr_alloc(d->allocator, d->batch_count, sizeof *d->entries, err);
    d->tensors = tsr_alloc(d->allocator, d->batch_count, sizeof *d->tensors, err);
    d->digests = tsr_alloc(d->allocator, d->batch_count, sizeof *d->digests, err);
    if (!d->entries || !d->tensors || !d->digests) {
        tsr_digests_close(d);
        return TSR_E_NOMEM;
    }
    *out = d;
    return TSR_OK;
}

void tsr_digests_close(tsr_digests *d)
{
    if (!d) return;
    tsr_free(d->allocator, d->entries, d->batch_count, sizeof *d->entries);
    tsr_free(d->allocator, d->tensors, d->batch_count, sizeof *d->tensors);
    tsr_free(d->allocator, d->digests, d->batch_count, sizeof *d->digests);
    tsr_free(d->allocator, d, 1, sizeof *d);
}

/* The tensors from number `at` of the list on that make one batch. Returns how many they are: 0 when the first is large. */
static size_t take_batch(tsr_digests *d, size_t at)
{
    size_t count = 0;
    uint64_t bytes = 0, chunks = 0;
    for (d->from = d->to = at; d->to < d->list.count && count < d->batch_count; d->to++) {
        const tsr_entry *entry = d->list.entries[d->to];
        if (bytes >= d->batch_bytes || chunks >= BATCH_CHUNKS) break;
        if (entry->kind != TSR_ENTRY_TENSOR) continue;
        if (bytes_of(entry) > d->small_bytes) break;
        bytes += bytes_of(entry);
        chunks += entry->chunk_count;
        d->tensors[count] = (whole_tensor){.out = &d->digests[count]};
        d->entries[count++] = entry;
    }
    return count;
}

tsr_status tsr_digests_get(tsr_digests *d, size_t index, tsr_digest *out, tsr_error *err)
{
    const tsr_entry *entry = d->list.entries[index];
    size_t at = 0;
    if (index < d->from || index >= d->to) {
        const size_t count = take_batch(d, index);
        if (!count) return tsr_tensor_digest(d->with.checkpoint, entry, d->with.algorithm, d->with.ring, out, err);
        TSR_TRY(run_batch(&d->with, d->entries, d->tensors, count, err));
    }
    while (d->entries[at] != entry) at++;
    *out = d->digests[at];
    return TSR_OK;
}
