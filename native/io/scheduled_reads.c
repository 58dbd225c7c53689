/* See block_cache.h. Part n is kept in slot n % slot_count. */
#include "io/block_cache.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "io/locked.h"
#include "io/sys.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"

/* KEPT_…: what stays behind the reader, so many parts at most, and so many bytes for each thread. */
enum {
    PART = 1 << 20,
    SMALL = PART / 4,       /* a last part of at most this size is joined to the part before it, which saves a request */
    LARGEST = PART + SMALL, /* part */
    LEAST_AHEAD = 16,
    KEPT_PARTS = 320,
    KEPT_BYTES = 2 << 20
};

typedef struct slot {
    uint64_t part; /* whose bytes these are, or will be */
    bool is_used, is_busy, is_fetched;
    unsigned readers; /* threads that copy from it */
    char *bytes;      /* of that part, or NULL */
} slot;

typedef struct range {
    tsr_store_place place;
    uint64_t first; /* number of its first part */
    uint64_t begin; /* bytes of the ranges before it */
} range;

struct tsr_scheduled_reads {
    atomic_bool is_active; /* something is being fetched, or was; read without the lock */
    tsr_process process;   /* the one that the threads belong to */
    const tsr_allocator *allocator;
    tsr_block_fetch *fetch;
    void *ctx;
    size_t depth;      /* requests in flight at most */
    size_t ahead;      /* parts from the reader's on that may be fetched */
    uint64_t kept;     /* bytes behind the reader that stay, of KEPT_PARTS at most */
    size_t slot_count; /* for the parts ahead and behind */
    slot *slots;
    char **
        spare; /* buffers of LARGEST bytes for parts of more than SMALL: memory freed by one thread would not serve the others */
    size_t spare_count;
    pthread_t *threads;
    size_t thread_count;
    pthread_mutex_t lock;
    pthread_cond_t work;    /* signalled when there may be something to fetch, or to stop */
    pthread_cond_t fetched; /* signalled when a slot has changed */
    range *ranges;
    size_t range_count;
    uint32_t *range_of; /* for each file the number of its range; range_count: none */
    uint32_t file_count;
    uint64_t part_count, next; /* of all ranges; the part to fetch next */
    uint64_t reached;          /* where the reader is */
    uint64_t oldest;           /* parts before it are gone */
    bool stop;
};

tsr_status tsr_scheduled_reads_new(const tsr_host *host, tsr_block_fetch *fetch, void *ctx, tsr_scheduled_reads **out,
                                   tsr_error *err)
{
    const size_t depth = tsr_io_depth(host);
    /* Parts that have arrived wait for the reader, while as many are under way. Readers look some files ahead, whatever the depth. */
    const size_t ahead = 2 * depth < LEAST_AHEAD ? LEAST_AHEAD : 2 * depth;
    tsr_scheduled_reads *reads = tsr_alloc(host->allocator, 1, sizeof *reads, err);
    if (!reads) return TSR_E_NOMEM;
    *reads = (tsr_scheduled_reads){.allocator = host->allocator,
                                   .fetch = fetch,
                                   .ctx = ctx,
                                   .depth = depth,
                                   .ahead = ahead,
                                   .kept = (uint64_t)KEPT_BYTES * (tsr_threads(host) + 1),
                                   .slot_count = ahead + KEPT_PARTS};
    tsr_process_init(&reads->process);
    pthread_mutex_init(&reads->lock, NULL);
    pthread_cond_init(&reads->work, NULL);
    pthread_cond_init(&reads->fetched, NULL);
    *out = reads;
    return TSR_OK;
}

/* ---- fetching ---- */

/* The range that a part belongs to: the last one that begins at or before it. */
static const range *range_with(const tsr_scheduled_reads *reads, uint64_t part)
{
    size_t low = 0, high = reads->range_count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (reads->ranges[middle].first <= part) low = middle;
        else high = middle;
    }
    return &reads->ranges[low];
}

/* The slot for the next part; NULL if it need not, or cannot, be fetched yet. */
static slot *next_slot(const tsr_scheduled_reads *reads)
{
    if (reads->next >= reads->part_count || reads->next >= reads->reached + reads->ahead) return NULL;
    slot *s = &reads->slots[reads->next % reads->slot_count];
    return s->is_used ? NULL : s;
}

/* Wakes one thread if there is a part to fetch. It wakes the next one. */
static void wake(tsr_scheduled_reads *reads)
{
    assert(tsr_is_locked(&reads->lock));
    if (next_slot(reads)) pthread_cond_signal(&reads->work);
}

static slot *claim(tsr_scheduled_reads *reads)
{
    slot *s = next_slot(reads);
    if (!s) return NULL;
    *s = (slot){.part = reads->next++, .is_used = true, .is_busy = true};
    wake(reads);
    return s;
}

static uint64_t position_of(const tsr_scheduled_reads *reads, uint64_t part)
{
    const range *r = range_with(reads, part);
    return r->begin + (part - r->first) * PART;
}

static uint64_t parts_of(const tsr_store_place *place)
{
    return place->size / PART + (place->size < PART ? place->size > 0 : place->size % PART > SMALL);
}

static size_t size_of(const range *r, uint64_t part)
{
    const uint64_t left = r->place.size - (part - r->first) * PART;
    return left <= LARGEST ? (size_t)left : PART;
}

static char *take_buffer(tsr_scheduled_reads *reads, size_t size)
{
    tsr_error unused = {0};
    if (size <= SMALL) return tsr_alloc(reads->allocator, size, 1, &unused);
    return reads->spare_count ? reads->spare[--reads->spare_count] : tsr_alloc(reads->allocator, LARGEST, 1, &unused);
}

static void release(tsr_scheduled_reads *reads, slot *s)
{
    const size_t size = s->bytes ? size_of(range_with(reads, s->part), s->part) : 0;
    if (size > SMALL) reads->spare[reads->spare_count++] = s->bytes;
    else tsr_free(reads->allocator, s->bytes, size, 1);
    *s = (slot){.is_used = false};
}

/* Releases the parts that are too far behind the reader. */
static void drop_old(tsr_scheduled_reads *reads)
{
    assert(tsr_is_locked(&reads->lock));
    const uint64_t end = position_of(reads, reads->reached);
    for (; reads->oldest < reads->reached; reads->oldest++) {
        slot *s = &reads->slots[reads->oldest % reads->slot_count];
        const bool is_kept =
            end - position_of(reads, reads->oldest) <= reads->kept && reads->reached - reads->oldest < KEPT_PARTS;
        const bool is_its = s->is_used && s->part == reads->oldest;
        if (is_kept || (is_its && (s->is_busy || s->readers))) return;
        if (is_its) release(reads, s);
    }
}

static void make_room(tsr_scheduled_reads *reads)
{
    drop_old(reads);
    wake(reads);
}

/* After a failure nothing more is fetched: the reads report why. */
static void fetch_part(tsr_scheduled_reads *reads, slot *s)
{
    const range *r = range_with(reads, s->part);
    const uint64_t offset = r->place.offset + (s->part - r->first) * PART;
    const size_t size = size_of(r, s->part);
    tsr_error unused = {0};
    s->bytes = take_buffer(reads, size);
    pthread_mutex_unlock(&reads->lock);
    const bool is_fetched = s->bytes && reads->fetch(reads->ctx, r->place.file, offset, s->bytes, size, &unused) == TSR_OK;
    pthread_mutex_lock(&reads->lock);
    s->is_busy = false;
    s->is_fetched = is_fetched;
    if (!is_fetched && reads->part_count > reads->next) reads->part_count = reads->next;
    make_room(reads);
    pthread_cond_broadcast(&reads->fetched);
}

static void *run(void *ctx)
{
    tsr_scheduled_reads *reads = ctx;
    pthread_mutex_lock(&reads->lock);
    while (!reads->stop) {
        slot *s = claim(reads);
        if (s) fetch_part(reads, s);
        else pthread_cond_wait(&reads->work, &reads->lock);
    }
    pthread_mutex_unlock(&reads->lock);
    return NULL;
}

/* Blocks signals, because other threads are to handle them. */
static void start_threads(tsr_scheduled_reads *reads)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (reads->thread_count < reads->depth && reads->thread_count < reads->part_count &&
           pthread_create(&reads->threads[reads->thread_count], NULL, run, reads) == 0)
        reads->thread_count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void forget(tsr_scheduled_reads *reads)
{
    const tsr_allocator *allocator = reads->allocator;
    for (size_t i = 0; reads->slots && i < reads->slot_count; i++) release(reads, &reads->slots[i]);
    while (reads->spare_count) tsr_free(allocator, reads->spare[--reads->spare_count], LARGEST, 1);
    tsr_free(allocator, reads->spare, reads->slot_count, sizeof *reads->spare);
    tsr_free(allocator, reads->slots, reads->slot_count, sizeof *reads->slots);
    tsr_free(allocator, reads->threads, reads->depth, sizeof *reads->threads);
    tsr_free(allocator, reads->ranges, reads->range_count, sizeof *reads->ranges);
    tsr_free(allocator, reads->range_of, reads->file_count, sizeof *reads->range_of);
    reads->slots = NULL;
    reads->spare = NULL;
    reads->threads = NULL;
    reads->ranges = NULL;
    reads->range_of = NULL;
    reads->range_count = reads->thread_count = 0;
    reads->part_count = reads->next = reads->reached = reads->oldest = 0;
    reads->file_count = 0;
    reads->stop = false;
    atomic_store(&reads->is_active, false);
}

static void begin_in_child(void *ctx)
{
    tsr_scheduled_reads *reads = ctx;
    pthread_mutex_init(&reads->lock, NULL);
    pthread_cond_init(&reads->work, NULL);
    pthread_cond_init(&reads->fetched, NULL);
    forget(reads);
}

static void end(tsr_scheduled_reads *reads)
{
    tsr_process_enter(&reads->process, begin_in_child, reads);
    pthread_mutex_lock(&reads->lock);
    reads->stop = true;
    pthread_cond_broadcast(&reads->work);
    pthread_mutex_unlock(&reads->lock);
    for (size_t i = 0; i < reads->thread_count; i++) pthread_join(reads->threads[i], NULL);
    forget(reads);
}

void tsr_scheduled_reads_free(tsr_scheduled_reads *reads)
{
    if (!reads) return;
    end(reads);
    pthread_cond_destroy(&reads->fetched);
    pthread_cond_destroy(&reads->work);
    pthread_mutex_destroy(&reads->lock);
    tsr_free(reads->allocator, reads, 1, sizeof *reads);
}

static tsr_status allocate(tsr_scheduled_reads *reads, const tsr_store_place *places, size_t count, tsr_error *err)
{
    uint32_t files = 0;
    for (size_t i = 0; i < count; i++)
        if (places[i].file >= files) files = places[i].file + 1;
    reads->range_count = count;
    reads->file_count = files;
    reads->slots = tsr_alloc(reads->allocator, reads->slot_count, sizeof *reads->slots, err);
    if (!reads->slots) return TSR_E_NOMEM;
    for (size_t i = 0; i < reads->slot_count; i++) reads->slots[i] = (slot){.is_used = false};
    reads->spare = tsr_alloc(reads->allocator, reads->slot_count, sizeof *reads->spare, err);
    reads->threads = tsr_alloc(reads->allocator, reads->depth, sizeof *reads->threads, err);
    reads->ranges = tsr_alloc(reads->allocator, count, sizeof *reads->ranges, err);
    reads->range_of = tsr_alloc(reads->allocator, files, sizeof *reads->range_of, err);
    return reads->spare && reads->threads && reads->ranges && reads->range_of ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_scheduled_reads_begin(tsr_scheduled_reads *reads, const tsr_store_place *places, size_t count, tsr_error *err)
{
    end(reads);
    if (count == 0) return TSR_OK;
    if (allocate(reads, places, count, err) != TSR_OK) {
        forget(reads);
        return TSR_E_NOMEM;
    }
    uint64_t bytes = 0;
    for (uint32_t f = 0; f < reads->file_count; f++) reads->range_of[f] = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        reads->ranges[i] = (range){places[i], reads->part_count, bytes};
        bytes += places[i].size;
        reads->range_of[places[i].file] = (uint32_t)i;
        reads->part_count += parts_of(&places[i]);
    }
    start_threads(reads);
    if (reads->thread_count == 0) forget(reads);
    else atomic_store(&reads->is_active, true);
    return TSR_OK;
}

/* ---- reading ---- */

/* The part with this byte; part_count or more: none. */
static uint64_t part_with(const tsr_scheduled_reads *reads, uint32_t file, uint64_t offset, size_t *at)
{
    const size_t number = file < reads->file_count ? reads->range_of[file] : reads->range_count;
    const range *r = number < reads->range_count ? &reads->ranges[number] : NULL;
    if (!r || offset < r->place.offset || offset - r->place.offset >= r->place.size) return UINT64_MAX;
    const uint64_t byte = offset - r->place.offset, last = parts_of(&r->place) - 1;
    const uint64_t part = byte / PART < last ? byte / PART : last;
    *at = (size_t)(byte - part * PART);
    return r->first + part;
}

bool tsr_scheduled_reads_reach(tsr_scheduled_reads *reads, uint32_t file, uint64_t offset)
{
    size_t unused;
    if (!atomic_load(&reads->is_active)) return false;
    tsr_process_enter(&reads->process, begin_in_child, reads);
    pthread_mutex_lock(&reads->lock);
    const uint64_t part = part_with(reads, file, offset, &unused);
    const bool is_known = part != UINT64_MAX;
    if (is_known && part > reads->reached) {
        reads->reached = part;
        if (part > reads->next) { /* what the reader has passed over is not fetched */
            reads->next = part;
            pthread_cond_broadcast(&reads->fetched);
        }
        make_room(reads);
    }
    pthread_mutex_unlock(&reads->lock);
    return is_known;
}

/* Waits until a part is in its slot; NULL if it will not be. */
static slot *wait_for(tsr_scheduled_reads *reads, uint64_t part)
{
    assert(tsr_is_locked(&reads->lock));
    for (;;) {
        slot *s = reads->slots ? &reads->slots[part % reads->slot_count] : NULL;
        const bool is_here = s && s->is_used && s->part == part;
        const bool comes = part >= reads->next && part < reads->part_count && part < reads->reached + reads->ahead;
        if (is_here && !s->is_busy) return s->is_fetched ? s : NULL;
        if (!is_here && !comes) return NULL;
        pthread_cond_wait(&reads->fetched, &reads->lock);
    }
}

size_t tsr_scheduled_reads_take(tsr_scheduled_reads *reads, uint32_t file, uint64_t offset, void *buffer, size_t size)
{
    size_t taken = 0, at;
    if (!atomic_load(&reads->is_active)) return 0;
    tsr_process_enter(&reads->process, begin_in_child, reads);
    pthread_mutex_lock(&reads->lock);
    while (taken < size) {
        const uint64_t part = part_with(reads, file, offset + taken, &at);
        slot *s = part < reads->part_count ? wait_for(reads, part) : NULL;
        if (!s) break;
        const range *r = range_with(reads, part);
        const size_t left = size_of(r, part) - at, some = left < size - taken ? left : size - taken;
        s->readers++;
        pthread_mutex_unlock(&reads->lock);
        memcpy((char *)buffer + taken, s->bytes + at, some);
        pthread_mutex_lock(&reads->lock);
        if (--s->readers == 0) make_room(reads);
        taken += some;
    }
    pthread_mutex_unlock(&reads->lock);
    return taken;
}
