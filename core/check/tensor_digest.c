/* Digests of tensors. A digest needs a tensor's bytes in order, so threads cannot divide a tensor. Instead, each thread
 * takes one tensor of a batch, reads it tile by tile, and hashes every tile while it is in the cache.
 *
 *   thread 0:  [layer 0 ··············][layer 2 ·····][layer 5 ···
 *   thread 1:  [layer 1 ·····][layer 3 ·······][layer 4 ·······
 *
 * Tensors that would leave threads idle at the end, because they are few or large, are read ahead by all threads, and hashed
 * in order. That is slower if the files are in memory, because the tiles leave the cache, but lets several reads wait for a
 * disk or a server at the same time. */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/cursor.h"
#include "check/check_share.h"
#include "stream/gather.h"
#include "stream/tile_job.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/json.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

/* ---- digest ---- */

/* Running digests. */

typedef tsr_running_digest running;

/* Fails with TSR_E_UNSUPPORTED if the host does not provide this digest. */
static tsr_status digest_start(const tsr_host *host, tsr_digest_algorithm algorithm, running *out, tsr_error *err)
{
    *out = (running){algorithm == TSR_DIGEST_SHA256 ? host->sha256 : host->xxh3, NULL};
    TSR_FAIL_IF(!out->ops, err, TSR_E_UNSUPPORTED, "built without %s", algorithm == TSR_DIGEST_SHA256 ? "sha256" : "xxh3");
    out->state = out->ops->start();
    TSR_FAIL_IF(!out->state, err, TSR_E_NOMEM, "out of memory for a digest");
    return TSR_OK;
}

/* Frees the digest, after writing the result if `status` is TSR_OK. Returns `status`. */
static tsr_status digest_finish(const running *digest, tsr_status status, tsr_digest *out)
{
    if (status != TSR_OK) {
        digest->ops->abandon(digest->state);
        return status;
    }
    out->size = digest->ops->size;
    digest->ops->finish(digest->state, out->bytes);
    return TSR_OK;
}

/* ---- object digest ---- */

/* Digests of objects: computed from their JSON, or from a binary form if JSON cannot represent them. */

static tsr_status take_text(void *ctx, const char *data, size_t size, tsr_error *err)
{
    const running *digest = ctx;
    (void)err;
    digest->ops->update(digest->state, data, size);
    return TSR_OK;
}

enum { VALUE_DEPTH = 48 };

/* Hashes a node, before its items: kind | number of items | size of text | number (two for complex) | text. */
static void put_node(const running *digest, const tsr_value *value)
{
    uint8_t head[33] = {(uint8_t)value->kind};
    uint64_t numbers[4] = {value->count, value->text.size, 0, 0};
    if (value->kind == TSR_VALUE_BOOL) numbers[2] = value->as.boolean;
    if (value->kind == TSR_VALUE_INT) numbers[2] = (uint64_t)value->as.integer;
    if (value->kind == TSR_VALUE_FLOAT) memcpy(&numbers[2], &value->as.real, sizeof(double));
    if (value->kind == TSR_VALUE_COMPLEX) memcpy(&numbers[2], &value->as.complex, 2 * sizeof(double));
    for (size_t i = 0; i < 32; i++) head[1 + i] = (uint8_t)(numbers[i / 8] >> 8 * (i % 8));
    digest->ops->update(digest->state, head, sizeof head);
    if (value->text.size) digest->ops->update(digest->state, value->text.data, value->text.size);
    if (value->kind != TSR_VALUE_DTYPE) return;
    const char *name = tsr_dtype_describe(value->as.dtype)->name;
    digest->ops->update(digest->state, name, strlen(name) + 1);
}

/* What is needed to hash tensors inside a value. */
typedef struct inner {
    tsr_checkpoint *checkpoint;
    tsr_digest_algorithm algorithm;
    tsr_ring *ring;
    tsr_status status;
    tsr_error *err;
} inner;

/* Hashes a tensor inside a value: dtype, shape, and the digest of its elements. */
static bool put_tensor(const running *digest, const tsr_entry *entry, inner *in)
{
    tsr_digest own;
    uint8_t size[8];
    tsr_arena *arena = tsr_arena_new(tsr_checkpoint_host(in->checkpoint)->allocator, 0, in->err);
    const tsr_entry *readable = arena ? tsr_entry_readable(in->checkpoint, arena, entry, in->err) : NULL;
    in->status =
        readable ? tsr_tensor_digest(in->checkpoint, readable, in->algorithm, in->ring, &own, in->err) : TSR_E_NOMEM;
    tsr_arena_free(arena);
    if (in->status != TSR_OK) return false;
    const char *name = tsr_dtype_describe(entry->dtype)->name;
    digest->ops->update(digest->state, name, strlen(name) + 1);
    for (uint32_t d = 0; d < entry->ndim; d++) {
        for (size_t i = 0; i < sizeof size; i++) size[i] = (uint8_t)(entry->shape[d] >> 8 * i);
        digest->ops->update(digest->state, size, sizeof size);
    }
    digest->ops->update(digest->state, own.bytes, own.size);
    return true;
}

/* Hashes a value that JSON cannot represent, node by node; only checks it if `digest` is NULL. Returns false if the value
 * has no unique form: for sets, which are unordered, for tensors of which it has only a part, and beyond the limits; also if
 * a tensor inside it cannot be read, which sets in->status. */
static bool put_value(const running *digest, const tsr_value *value, uint64_t nodes, inner *in)
{
    struct {
        const tsr_value *container;
        size_t next;
    } stack[VALUE_DEPTH];
    uint32_t height = 0;
    for (;; nodes--) {
        const tsr_entry *tensor = value->kind == TSR_VALUE_TENSOR ? value->as.tensor : NULL;
        if (nodes == 0 || value->kind == TSR_VALUE_SET || value->expanded == TSR_VALUE_ENDLESS) return false;
        if (tensor && (tensor->is_sharded || tensor->chunk_count != 1)) return false;
        if (digest) put_node(digest, value);
        if (digest && tensor && !put_tensor(digest, tensor, in)) return false;
        if (value->count) {
            if (height == VALUE_DEPTH) return false;
            stack[height].container = value;
            stack[height++].next = 0;
        }
        while (height && stack[height - 1].next == stack[height - 1].container->count) height--;
        if (height == 0) return true;
        value = stack[height - 1].container->items[stack[height - 1].next++];
        if (!value) return false;
    }
}

tsr_status tsr_object_digest(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_digest_algorithm algorithm,
                             tsr_ring *ring, bool *there, tsr_digest *out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    inner in = {checkpoint, algorithm, ring, TSR_OK, err};
    running digest;
    tsr_json json;
    const bool json_holds = entry->value && tsr_value_is_json(entry->value, VALUE_DEPTH, host->limits.expansion);
    *there = json_holds || (entry->value && put_value(NULL, entry->value, host->limits.expansion, &in));
    if (!*there) return TSR_OK;
    TSR_TRY(digest_start(host, algorithm, &digest, err));
    if (!json_holds) {
        put_value(&digest, entry->value, host->limits.expansion, &in);
        return digest_finish(&digest, in.status, out);
    }
    tsr_json_start(&json, take_text, &digest, 0, err);
    tsr_json_value(&json, entry->value);
    return digest_finish(&digest, tsr_json_finish(&json), out);
}

const char *tsr_digest_text(const tsr_digest *digest, char *out)
{
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < digest->size; i++) {
        out[2 * i] = hex[digest->bytes[i] >> 4];
        out[2 * i + 1] = hex[digest->bytes[i] & 15];
    }
    out[2 * digest->size] = 0;
    return out;
}

/* ---- tensor digest ---- */

#define TILE_BYTES   ((size_t)128 << 10)   /* stays in the cache of a core */
#define BATCH_BYTES  (UINT64_C(256) << 20) /* per thread, between two reports of progress */
#define BATCH_COUNT  16u                   /* per thread */
#define BATCH_CHUNKS (UINT64_C(1) << 14)   /* located at a time; limits memory that --max-mem does not cover */

/* A tensor of the current batch. */
typedef struct batch_tensor {
    const tsr_entry *entry;
    uint64_t bytes;
    tsr_gather *gather;
    tsr_running_digest digest; /* its state is NULL if it was not started */
    tsr_digest *out;
    tsr_status status; /* the first error of this tensor, with `failure` */
    tsr_error failure;
} batch_tensor;

/* What all digests of a list have in common. */
typedef struct digesting {
    tsr_checkpoint *checkpoint;
    tsr_ring *ring;
    tsr_digest_algorithm algorithm;
} digesting;

typedef struct batch {
    const digesting *d;
    batch_tensor *tensors; /* in the order of the list */
    size_t count;
    batch_tensor **by_size; /* sorted by size, largest first */
    size_t together;        /* how many of by_size are read by all threads */
    atomic_size_t next;     /* next of the others to be taken by a thread */
} batch;

static void fail(batch_tensor *t, tsr_status status, const tsr_error *why)
{
    if (t->status != TSR_OK || status == TSR_OK) return;
    t->status = status;
    t->failure = *why;
}

/* ---- opening ---- */

/* Called by tsr_parallel. */
static void open_tensor(void *arg, size_t index)
{
    const batch *b = arg;
    batch_tensor *t = &b->tensors[index];
    if (t->gather || t->status != TSR_OK) return;
    t->status = tsr_gather_open(b->d->checkpoint, t->entry, NULL, &t->gather, &t->failure);
    if (t->status == TSR_OK)
        t->status = digest_start(tsr_checkpoint_host(b->d->checkpoint), b->d->algorithm, &t->digest, &t->failure);
}

static void open_tensors(batch *b)
{
    const bool fetches = tsr_checkpoint_store(b->d->checkpoint)->prefetch;
    for (size_t i = 0; fetches && i < b->count; i++)
        if (b->tensors[i].entry->chunk_count > 1) open_tensor(b, i); /* it locates all its chunks in parallel */
    tsr_parallel(tsr_checkpoint_host(b->d->checkpoint), b->count, open_tensor, b);
}

/* ---- dividing the work ---- */

static int by_falling_size(const void *left, const void *right)
{
    const batch_tensor *a = *(batch_tensor *const *)left, *b = *(batch_tensor *const *)right;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    return a < b ? -1 : 1;
}

/* A lower bound on the bytes of the busiest thread, for the tensors from number `from` of by_size on: among threads × k + 1
 * tensors, some thread has k + 1, each at least as large as the last of them. */
static uint64_t busiest(const batch *b, size_t from, uint64_t total, uint32_t threads)
{
    uint64_t most = total / threads;
    for (size_t k = 0; from + k * threads < b->count; k++) {
        uint64_t those;
        if (!tsr_mul_u64(b->by_size[from + k * threads]->bytes, k + 1, &those)) those = UINT64_MAX;
        if (those > most) most = those;
    }
    return most;
}

/* How many of the largest tensors all threads should read together: the smallest number with which a batch takes at most 15
 * % longer than with the best number. */
static size_t choose_together(const batch *b, uint32_t threads)
{
    uint64_t total = 0, shared = 0, least = UINT64_MAX;
    for (size_t i = 0; i < b->count; i++)
        if (!tsr_add_u64(total, b->tensors[i].bytes, &total)) return b->count;
    for (unsigned pass = 0; pass < 2; pass++) {
        shared = 0;
        for (size_t j = 0; j <= b->count; j++) {
            const uint64_t time = shared / threads + busiest(b, j, total - shared, threads);
            if (pass == 0 && time < least) least = time;
            if (pass == 1 && time <= least + least / 7) return j;
            if (j < b->count) shared += b->by_size[j]->bytes;
        }
    }
    return b->count;
}

/* ---- one tensor per thread ---- */

/* Whether a part's elements are contiguous both in the tensor and in its file. */
static bool is_run(const tsr_gather *gather, const tsr_located *part)
{
    uint64_t elements;
    const tsr_box box = {gather->ndim, NULL, part->sizes};
    return tsr_box_volume(box, &elements) && part->last - part->first + 1 == elements &&
           part->span == elements * gather->itemsize;
}

/* The size of a tile: small enough for the cache, unless that would split reads. */
static uint64_t elements_of_tile(const tsr_ring *ring, const tsr_gather *gather)
{
    const uint64_t most = tsr_tile_most(ring, gather, gather->itemsize, 1), least = TILE_BYTES / gather->itemsize;
    for (size_t i = 0; i < gather->part_count; i++)
        if (!is_run(gather, &gather->parts[i])) return most;
    return least < most ? least : most;
}

static size_t tile_memory_of(const batch *b, const batch_tensor *t)
{
    return t->status == TSR_OK ? tsr_tile_memory((size_t)elements_of_tile(b->d->ring, t->gather) * t->gather->itemsize) : 0;
}

static tsr_status digest_tensor(const batch *b, const batch_tensor *t, uint8_t *memory, tsr_error *err)
{
    const tsr_box all = {t->gather->ndim, NULL, t->gather->shape};
    tsr_tiles tiles;
    for (tsr_tiles_start(&tiles, all, elements_of_tile(b->d->ring, t->gather)); !tiles.done; tsr_tiles_next(&tiles)) {
        tsr_tile tile;
        TSR_TRY(tsr_tile_start(&tile, t->gather, &tiles, memory, err));
        TSR_TRY(tsr_tile_fill(&tile, err));
        t->digest.ops->update(t->digest.state, tile.data, tile.bytes);
    }
    return TSR_OK;
}

/* One thread's job: takes tensors until none is left. */
static tsr_status fill_alone(void *ctx, void *job, tsr_error *err)
{
    batch *b = ctx;
    (void)err;
    for (size_t i; (i = atomic_fetch_add(&b->next, 1)) < b->count;) {
        batch_tensor *t = b->by_size[i];
        if (t->status == TSR_OK) t->status = digest_tensor(b, t, *(uint8_t **)job, &t->failure);
    }
    return TSR_OK;
}

static tsr_status run_alone(batch *b, uint32_t threads, tsr_error *err)
{
    const tsr_ring_work work = {.job_size = sizeof(uint8_t *), .fill = fill_alone, .ctx = b};
    const size_t left = b->count - b->together, jobs = left < threads ? left : threads;
    size_t bytes = 0;
    for (size_t i = b->together; i < b->count; i++) {
        const size_t own = tile_memory_of(b, b->by_size[i]);
        bytes = own > bytes ? own : bytes;
    }
    atomic_init(&b->next, b->together);
    TSR_TRY(tsr_ring_begin(b->d->ring, &work, err));
    TSR_TRY(tsr_ring_reserve(b->d->ring, jobs * bytes, err));
    for (size_t i = 0; i < jobs; i++) {
        void *job;
        uint8_t *memory;
        TSR_TRY(tsr_ring_job(b->d->ring, bytes, &job, &memory, err));
        *(uint8_t **)job = memory;
    }
    return tsr_ring_end(b->d->ring, err);
}

/* ---- all threads together ---- */

typedef struct shared_tile {
    tsr_tile tile;
    batch_tensor *of;
    tsr_status status;
    tsr_error failure;
} shared_tile;

static tsr_status fill_shared(void *ctx, void *job, tsr_error *err)
{
    shared_tile *s = job;
    (void)ctx, (void)err;
    if (s->status == TSR_OK) s->status = tsr_tile_fill(&s->tile, &s->failure);
    return TSR_OK;
}

static tsr_status drain_shared(void *ctx, void *job, tsr_error *err)
{
    shared_tile *s = job;
    batch_tensor *t = s->of;
    (void)ctx, (void)err;
    fail(t, s->status, &s->failure);
    if (t->status == TSR_OK) t->digest.ops->update(t->digest.state, s->tile.data, s->tile.bytes);
    return TSR_OK;
}

static tsr_status share_tensor(const batch *b, batch_tensor *t, tsr_error *err)
{
    const tsr_gather *gather = t->gather;
    const tsr_box all = {gather->ndim, NULL, gather->shape};
    tsr_tiles tiles;
    const uint64_t most = tsr_tile_most(b->d->ring, gather, gather->itemsize, 1);
    for (tsr_tiles_start(&tiles, all, most); !tiles.done && t->status == TSR_OK; tsr_tiles_next(&tiles)) {
        void *job;
        uint8_t *memory;
        TSR_TRY(tsr_ring_job(b->d->ring, tsr_tile_memory((size_t)tiles.elements * gather->itemsize), &job, &memory, err));
        shared_tile *s = job;
        s->of = t;
        s->status = tsr_tile_start(&s->tile, gather, &tiles, memory, &s->failure);
    }
    return TSR_OK;
}

static tsr_status run_together(batch *b, tsr_error *err)
{
    const tsr_ring_work work = {.job_size = sizeof(shared_tile), .fill = fill_shared, .drain = drain_shared};
    uint64_t bytes = 0;
    for (size_t i = 0; i < b->together; i++)
        if (!tsr_add_u64(bytes, b->by_size[i]->bytes, &bytes)) bytes = UINT64_MAX;
    TSR_TRY(tsr_ring_begin(b->d->ring, &work, err));
    TSR_TRY(tsr_ring_reserve(b->d->ring, bytes < SIZE_MAX ? (size_t)bytes : SIZE_MAX, err));
    for (size_t i = 0; i < b->together; i++)
        if (b->by_size[i]->status == TSR_OK) TSR_TRY(share_tensor(b, b->by_size[i], err));
    return tsr_ring_end(b->d->ring, err);
}

/* ---- a batch ---- */

static tsr_status close_tensors(const batch *b, tsr_status status, tsr_error *err)
{
    for (size_t i = 0; i < b->count; i++) {
        batch_tensor *t = &b->tensors[i];
        if (status == TSR_OK && t->status != TSR_OK) {
            if (err) *err = t->failure;
            status = t->status;
        }
        if (t->digest.state) digest_finish(&t->digest, status, t->out);
        tsr_gather_close(t->gather);
    }
    return status;
}

/* Computes the digests of `count` tensors, whose `entry`, `bytes` and `out` are set. `by_size` has room for that many. */
static tsr_status run_batch(const digesting *d, batch_tensor *tensors, batch_tensor **by_size, size_t count, tsr_error *err)
{
    const uint32_t threads = tsr_threads(tsr_checkpoint_host(d->checkpoint));
    batch b = {.d = d, .tensors = tensors, .count = count, .by_size = by_size};
    for (size_t i = 0; i < count; i++) by_size[i] = &tensors[i];
    if (threads > 1) qsort(by_size, count, sizeof(batch_tensor *), by_falling_size);
    open_tensors(&b);
    b.together = threads > 1 ? choose_together(&b, threads) : 0;
    tsr_status status = b.together < count ? run_alone(&b, threads, err) : TSR_OK;
    if (status == TSR_OK && threads > 1 && b.together) status = run_together(&b, err);
    return close_tensors(&b, status, err);
}

static uint64_t bytes_of(const tsr_entry *entry)
{
    uint64_t bytes;
    return tsr_entry_bytes(entry, &bytes) ? bytes : UINT64_MAX;
}

tsr_status tsr_tensor_digest(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_digest_algorithm algorithm,
                             tsr_ring *ring, tsr_digest *out, tsr_error *err)
{
    batch_tensor tensor = {.entry = entry, .bytes = bytes_of(entry), .out = out}, *by_size;
    return run_batch(&(digesting){checkpoint, ring, algorithm}, &tensor, &by_size, 1, err);
}

/* ---- a list ---- */

struct tsr_digests {
    digesting with;
    const tsr_allocator *allocator;
    tsr_digest_list list;
    size_t from, to; /* range of the list for which `digests` has the results */
    size_t batch_count;
    uint64_t batch_bytes;
    batch_tensor *tensors; /* this and by_size: batch_count of them, for one batch */
    batch_tensor **by_size;
    tsr_digest *digests;
};

tsr_status tsr_digests_open(tsr_checkpoint *checkpoint, const tsr_digest_list *list, tsr_ring *ring, tsr_digests **out,
                            tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    const uint32_t threads = tsr_threads(host);
    tsr_digests *d = tsr_alloc(host->allocator, 1, sizeof *d, err);
    if (!d) return TSR_E_NOMEM;
    *d = (tsr_digests){.with = {checkpoint, ring, list->algorithm}, .allocator = host->allocator, .list = *list};
    d->batch_count = threads == 1 ? 1 : (size_t)BATCH_COUNT * threads;
    d->batch_bytes = BATCH_BYTES * threads;
    d->tensors = tsr_alloc(d->allocator, d->batch_count, sizeof *d->tensors, err);
    d->by_size = tsr_alloc(d->allocator, d->batch_count, sizeof(batch_tensor *), err);
    d->digests = tsr_alloc(d->allocator, d->batch_count, sizeof *d->digests, err);
    if (!d->tensors || !d->by_size || !d->digests) {
        tsr_digests_close(d);
        return TSR_E_NOMEM;
    }
    *out = d;
    return TSR_OK;
}

void tsr_digests_close(tsr_digests *d)
{
    if (!d) return;
    tsr_free(d->allocator, d->tensors, d->batch_count, sizeof *d->tensors);
    tsr_free(d->allocator, d->by_size, d->batch_count, sizeof(batch_tensor *));
    tsr_free(d->allocator, d->digests, d->batch_count, sizeof *d->digests);
    tsr_free(d->allocator, d, 1, sizeof *d);
}

/* Collects the tensors from number `at` of the list on that make up one batch, and returns how many there are. */
static size_t take_batch(tsr_digests *d, size_t at)
{
    const uint64_t most = tsr_checkpoint_store(d->with.checkpoint)->prefetch ? TSR_FETCHED_AT_ONCE : BATCH_CHUNKS;
    size_t count = 0;
    uint64_t bytes = 0, chunks = 0;
    for (d->from = d->to = at; d->to < d->list.count && count < d->batch_count; d->to++) {
        const tsr_entry *entry = d->list.entries[d->to];
        if (bytes >= d->batch_bytes || chunks >= most) break;
        if (entry->kind != TSR_ENTRY_TENSOR) continue;
        d->tensors[count] = (batch_tensor){.entry = entry, .bytes = bytes_of(entry), .out = &d->digests[count]};
        if (!tsr_add_u64(bytes, d->tensors[count].bytes, &bytes)) bytes = UINT64_MAX;
        chunks += entry->chunk_count;
        count++;
    }
    return count;
}

tsr_status tsr_digests_get(tsr_digests *d, size_t index, tsr_digest *out, tsr_error *err)
{
    const tsr_entry *entry = d->list.entries[index];
    size_t at = 0;
    if (index < d->from || index >= d->to) {
        const size_t count = take_batch(d, index);
        TSR_TRY(run_batch(&d->with, d->tensors, d->by_size, count, err));
    }
    while (d->tensors[at].entry != entry) at++;
    *out = d->digests[at];
    return TSR_OK;
}
