/* The ring: two halves of reused memory that change places after each round. */
#include "stream/tile_job.h"

#include "stream/gather.h"
#include "tessera/read.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

#include <assert.h>
#include <stdatomic.h>

#define MOST_JOBS   256u
#define FIRST_BYTES ((size_t)64 << 10)
#define ALIGNMENT   ((size_t)64)
#define BEST_BYTES  ((size_t)2 << 20) /* larger jobs are not faster, and exceed the cache */

#define ROUND_LENT 4u /* memory lent to the jobs of one round in total, in halves; it is used repeatedly */
#define KEPT_SHARE 8u /* if most memory is lent, jobs may keep 1 / KEPT_SHARE of it */

typedef struct buffer {
    uint8_t *allocated; /* capacity + ALIGNMENT bytes */
    uint8_t *memory;    /* the first aligned byte */
    size_t capacity;
} buffer;

typedef struct half {
    buffer kept;
    size_t used;
    void *jobs; /* MOST_JOBS of work.job_size */
    size_t count;
    tsr_error *errors; /* one per job */
    size_t *lent;      /* bytes lent to each job */
    size_t all_lent;
} half;

/* The memory that one thread lends to its jobs. */
typedef struct lender {
    atomic_flag busy;
    buffer own;
} lender;

struct tsr_ring {
    const tsr_host *host;
    size_t half_bytes;
    tsr_ring_work work;
    half halves[2];
    unsigned filling;  /* the half that takes jobs; the other one is drained in the next round */
    lender *lenders;   /* one per thread, or NULL */
    tsr_error failure; /* the first one */
};

/* The buffers are divided among the threads. On a file server every read has to wait, so many threads with small buffers
 * would wait more often. */
static size_t default_bytes(const tsr_host *host)
{
    const size_t threads = tsr_threads(host), most = TSR_RING_DEFAULT_MOST / TSR_RING_THREAD_BYTES;
    const size_t bytes = (threads < most ? threads : most) * TSR_RING_THREAD_BYTES;
    return bytes > TSR_RING_DEFAULT_BYTES ? bytes : TSR_RING_DEFAULT_BYTES;
}

tsr_status tsr_ring_new(const tsr_host *host, size_t max_bytes, tsr_ring **out, tsr_error *err)
{
    if (max_bytes == 0) max_bytes = default_bytes(host);
    if (max_bytes < TSR_RING_LEAST_BYTES) max_bytes = TSR_RING_LEAST_BYTES;
    tsr_ring *ring = tsr_alloc(host->allocator, 1, sizeof *ring, err);
    if (!ring) return TSR_E_NOMEM;
    *ring = (tsr_ring){.host = host, .half_bytes = max_bytes / 2 / ALIGNMENT * ALIGNMENT};
    *out = ring;
    return TSR_OK;
}

static void release(const tsr_ring *ring, buffer *b)
{
    tsr_free(ring->host->allocator, b->allocated, b->capacity + ALIGNMENT, 1);
    *b = (buffer){0};
}

static void release_jobs(tsr_ring *ring, half *h)
{
    tsr_free(ring->host->allocator, h->jobs, MOST_JOBS, ring->work.job_size);
    tsr_free(ring->host->allocator, h->errors, MOST_JOBS, sizeof *h->errors);
    tsr_free(ring->host->allocator, h->lent, MOST_JOBS, sizeof *h->lent);
    h->jobs = NULL;
    h->errors = NULL;
    h->lent = NULL;
}

static void release_lenders(tsr_ring *ring)
{
    const size_t count = tsr_threads(ring->host);
    for (size_t i = 0; ring->lenders && i < count; i++) release(ring, &ring->lenders[i].own);
    tsr_free(ring->host->allocator, ring->lenders, count, sizeof *ring->lenders);
    ring->lenders = NULL;
}

void tsr_ring_free(tsr_ring *ring)
{
    if (!ring) return;
    for (unsigned i = 0; i < 2; i++) {
        release(ring, &ring->halves[i].kept);
        release_jobs(ring, &ring->halves[i]);
    }
    release_lenders(ring);
    tsr_free(ring->host->allocator, ring, 1, sizeof *ring);
}

/* Returns the most bytes that jobs may keep in one half. */
static size_t most_kept(const tsr_ring *ring)
{
    return ring->work.fill_lent ? ring->half_bytes / KEPT_SHARE / ALIGNMENT * ALIGNMENT : ring->half_bytes;
}

static size_t most_lent(const tsr_ring *ring)
{
    return 2 * (ring->half_bytes - most_kept(ring)) / tsr_threads(ring->host) / ALIGNMENT * ALIGNMENT;
}

size_t tsr_ring_best(const tsr_ring *ring)
{
    if (ring->work.fill_lent) return most_lent(ring) < BEST_BYTES ? most_lent(ring) : BEST_BYTES;
    const size_t best = ring->half_bytes / (2 * tsr_threads(ring->host)) / ALIGNMENT * ALIGNMENT;
    const size_t least = TSR_RING_LEAST_BYTES / 4;
    return best < least ? least : best > BEST_BYTES ? BEST_BYTES : best;
}

size_t tsr_ring_largest(const tsr_ring *ring)
{
    if (ring->work.fill_lent) return most_lent(ring);
    const size_t best = tsr_ring_best(ring), largest = ring->half_bytes / tsr_threads(ring->host) / ALIGNMENT * ALIGNMENT;
    return largest < best ? best : largest;
}

/* Like tsr_ring_best, for what jobs keep in a work with fill_lent. */
static size_t ring_best_kept(const tsr_ring *ring)
{
    return ring->work.fill_lent ? most_kept(ring) / 2 : tsr_ring_best(ring);
}

/* Frees either the lenders or the large halves, depending on which the new work does not use. */
static tsr_status change_memory(tsr_ring *ring, tsr_error *err)
{
    for (unsigned i = 0; i < 2; i++)
        if (ring->halves[i].kept.capacity > most_kept(ring)) release(ring, &ring->halves[i].kept);
    if (!ring->work.fill_lent) release_lenders(ring);
    if (!ring->work.fill_lent || ring->lenders) return TSR_OK;
    const size_t count = tsr_threads(ring->host);
    ring->lenders = tsr_alloc(ring->host->allocator, count, sizeof *ring->lenders, err);
    if (!ring->lenders) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        atomic_flag_clear(&ring->lenders[i].busy);
        ring->lenders[i].own = (buffer){0};
    }
    return TSR_OK;
}

static void empty(half *h)
{
    h->count = h->used = h->all_lent = 0;
}

tsr_status tsr_ring_begin(tsr_ring *ring, const tsr_ring_work *work, tsr_error *err)
{
    for (unsigned i = 0; i < 2; i++) {
        half *h = &ring->halves[i];
        if (ring->work.job_size != work->job_size) release_jobs(ring, h);
        empty(h);
    }
    ring->work = *work;
    ring->failure = (tsr_error){0};
    TSR_TRY(change_memory(ring, err));
    for (unsigned i = 0; i < 2; i++) {
        half *h = &ring->halves[i];
        if (!h->jobs) h->jobs = tsr_alloc(ring->host->allocator, MOST_JOBS, work->job_size, err);
        if (!h->errors) h->errors = tsr_alloc(ring->host->allocator, MOST_JOBS, sizeof *h->errors, err);
        if (!h->lent) h->lent = tsr_alloc(ring->host->allocator, MOST_JOBS, sizeof *h->lent, err);
        if (!h->jobs || !h->errors || !h->lent) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

uint8_t *tsr_place_for_copy(uint8_t *memory, uint64_t read_at, uint64_t write_at)
{
    for (unsigned tries = 0; tries < 2; tries++, memory += 64) {
        const uint64_t in = (uint64_t)(uintptr_t)memory - read_at, out = write_at - (uint64_t)(uintptr_t)memory;
        const bool slow_in = read_at != TSR_NO_POSITION && in % 4096 - 1 < 31,
                   slow_out = write_at != TSR_NO_POSITION && out % 4096 - 1 < 31;
        if (!slow_in && !slow_out) break;
    }
    return memory;
}

static void *job_at(const tsr_ring *ring, const half *h, size_t index)
{
    return (uint8_t *)h->jobs + index * ring->work.job_size;
}

/* For callbacks that fail without an error. */
static void name_failure(tsr_status status, tsr_error *err)
{
    if (status != TSR_OK) tsr_fail(err, status, "%s", tsr_status_name(status));
}

static void drain_half(tsr_ring *ring, half *h)
{
    for (size_t i = 0; i < h->count && ring->failure.status == TSR_OK; i++) {
        if (h->errors[i].status != TSR_OK) {
            ring->failure = h->errors[i];
        } else if (ring->work.drain) {
            name_failure(ring->work.drain(ring->work.ctx, job_at(ring, h, i), &ring->failure), &ring->failure);
        }
    }
}

static tsr_status grow(const tsr_ring *ring, buffer *b, size_t need, size_t most, tsr_error *err)
{
    size_t capacity = b->capacity ? b->capacity * 2 : FIRST_BYTES;
    while (capacity < need) capacity *= 2;
    if (capacity > most) capacity = most;
    release(ring, b);
    b->allocated = tsr_alloc(ring->host->allocator, capacity + ALIGNMENT, 1, err);
    if (!b->allocated) return TSR_E_NOMEM;
    b->memory = b->allocated + (ALIGNMENT - (uintptr_t)b->allocated % ALIGNMENT) % ALIGNMENT;
    b->capacity = capacity;
    return TSR_OK;
}

/* Finds a free lender. There is one, because at most as many jobs fill as there are threads. */
static lender *take_lender(const tsr_ring *ring)
{
    const size_t count = tsr_threads(ring->host);
    for (size_t i = 0;; i = (i + 1) % count)
        if (!atomic_flag_test_and_set(&ring->lenders[i].busy)) return &ring->lenders[i];
}

/* Index 0 drains the older half. Every other index fills one job of the newer half. */
static void round_body(void *arg, size_t index)
{
    tsr_ring *ring = arg;
    const tsr_ring_work *work = &ring->work;
    half *filling = &ring->halves[ring->filling];
    if (index-- == 0) {
        drain_half(ring, &ring->halves[1 - ring->filling]);
        return;
    }
    void *job = job_at(ring, filling, index);
    tsr_error *err = &filling->errors[index];
    tsr_status status = TSR_OK;
    if (work->fill_lent) {
        lender *l = take_lender(ring);
        if (filling->lent[index] > l->own.capacity) status = grow(ring, &l->own, filling->lent[index], most_lent(ring), err);
        if (status == TSR_OK) status = work->fill_lent(work->ctx, job, l->own.memory, err);
        atomic_flag_clear(&l->busy);
    } else {
        status = work->fill(work->ctx, job, err);
    }
    name_failure(status, err);
}

/* For a drain that only starts work: the half that was just filled is drained before this thread waits for the other one. */
static void drain_and_settle(tsr_ring *ring, half *filled)
{
    drain_half(ring, filled);
    empty(filled);
    if (ring->failure.status != TSR_OK) return;
    name_failure(ring->work.settle(ring->work.ctx, &ring->failure), &ring->failure);
}

static tsr_status run_round(tsr_ring *ring, tsr_error *err)
{
    half *filling = &ring->halves[ring->filling], *older = &ring->halves[1 - ring->filling];
    assert(older->used <= older->kept.capacity && older->count <= MOST_JOBS);
    tsr_parallel(ring->host, filling->count + 1, round_body, ring);
    empty(older);
    if (ring->work.settle && ring->failure.status == TSR_OK) drain_and_settle(ring, filling);
    ring->filling = 1 - ring->filling;
    if (ring->failure.status == TSR_OK) return TSR_OK;
    if (err && err->status == TSR_OK) *err = ring->failure;
    return ring->failure.status;
}

tsr_status tsr_ring_reserve(tsr_ring *ring, size_t bytes, tsr_error *err)
{
    if (tsr_threads(ring->host) < 2) return TSR_OK;
    if (bytes > ring->half_bytes) bytes = ring->half_bytes;
    for (unsigned i = 0; i < 2; i++) {
        assert(ring->halves[i].count == 0);
        if (bytes > ring->halves[i].kept.capacity) TSR_TRY(grow(ring, &ring->halves[i].kept, bytes, ring->half_bytes, err));
    }
    return TSR_OK;
}

static size_t most_jobs(const tsr_ring *ring)
{
    return ring->work.most_jobs && ring->work.most_jobs < MOST_JOBS ? ring->work.most_jobs : MOST_JOBS;
}

/* Whether the half has no place for a job that keeps `room` more bytes. */
static bool is_full(const tsr_ring *ring, const half *h, size_t room)
{
    return h->count && (room > h->kept.capacity - h->used || h->used + room > most_kept(ring));
}

static tsr_status check_sizes(const tsr_ring *ring, size_t room, size_t lent, tsr_error *err)
{
    assert(ring->failure.status == TSR_OK &&
           (ring->work.fill_lent || (ring->work.fill && !lent))); /* begun, and not failed */
    TSR_FAIL_IF(room > most_kept(ring) || (lent && lent > most_lent(ring)), err, TSR_E_LIMIT,
                "%zu bytes of memory are too few for buffers of %zu bytes", 2 * ring->half_bytes, room + lent);
    return TSR_OK;
}

tsr_status tsr_ring_lent_job(tsr_ring *ring, size_t bytes, size_t lent, void **job, uint8_t **memory, tsr_error *err)
{
    half *h = &ring->halves[ring->filling];
    const size_t room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    TSR_TRY(check_sizes(ring, room, lent, err));
    const bool full = is_full(ring, h, room);
    if (h->count == most_jobs(ring) || full || (h->count && h->all_lent + lent > ROUND_LENT * ring->half_bytes)) {
        TSR_TRY(run_round(ring, err));
        h = &ring->halves[ring->filling];
    }
    if (room > h->kept.capacity || (full && h->kept.capacity < most_kept(ring)))
        TSR_TRY(grow(ring, &h->kept, room, most_kept(ring), err));
    *job = job_at(ring, h, h->count);
    memset(*job, 0, ring->work.job_size);
    h->errors[h->count].status = TSR_OK;
    h->errors[h->count].byte_position = TSR_NO_POSITION;
    h->errors[h->count].message[0] = 0;
    h->lent[h->count++] = lent;
    h->all_lent += lent;
    *memory = room ? h->kept.memory + h->used : NULL;
    h->used += room;
    return TSR_OK;
}

tsr_status tsr_ring_job(tsr_ring *ring, size_t bytes, void **job, uint8_t **memory, tsr_error *err)
{
    return tsr_ring_lent_job(ring, bytes, 0, job, memory, err);
}

tsr_status tsr_ring_end(tsr_ring *ring, tsr_error *err)
{
    tsr_status status = ring->failure.status;
    for (unsigned i = 0; i < 2 && status == TSR_OK; i++) status = run_round(ring, err);
    if (status != TSR_OK && err && err->status == TSR_OK) *err = ring->failure;
    return status;
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
    if (gather->serial) return elements_in(ring_best_kept(ring) / tiles, itemsize);
    const uint64_t best = elements_in(tsr_ring_best(ring) / tiles, itemsize);
    if (!is_transposed(gather)) return best;
    /* A tile of a transposed matrix is a strip of storage's columns: the wider it is, the fewer reads. Of a whole part they are fewest. */
    const uint64_t largest = elements_in(tsr_ring_largest(ring) / tiles, itemsize);
    uint64_t part = 1;
    for (uint32_t d = 0; d < gather->ndim; d++) part *= gather->parts[0].sizes[d];
    return part < best ? best : part < largest ? part : largest;
}
