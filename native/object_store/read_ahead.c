/* See read_ahead.h. */
#include "object_store/read_ahead.h"
#include "io/locked.h"

#include <assert.h>
#include <pthread.h>

#include "tessera/sys/alloc.h"

enum { WINDOW = 8 << 20, WINDOWS = 4, RUNS = 16, BEFORE = 64 << 10 };

typedef struct window {
    uint32_t file;
    uint64_t offset;
    size_t size;  /* 0: empty */
    bool is_busy; /* being fetched */
    uint64_t used_at;
    char *bytes;
} window;

/* A sequence of reads, each of which begins where the previous one ended. */
typedef struct run {
    uint32_t file;
    uint64_t begin, end; /* `end` is where the last read ended; 0: unused */
} run;

struct tsr_read_ahead {
    const tsr_allocator *allocator;
    tsr_block_fetch *fetch;
    void *ctx;
    pthread_mutex_t lock;
    pthread_cond_t fetched;
    window windows[WINDOWS];
    run runs[RUNS];
    run expected[RUNS]; /* ranges that were announced */
    uint64_t clock;
    unsigned expected_count; /* number of announcements so far */
};

tsr_status tsr_read_ahead_new(const tsr_allocator *allocator, tsr_block_fetch *fetch, void *ctx, tsr_read_ahead **out,
                              tsr_error *err)
{
    tsr_read_ahead *ahead = tsr_alloc(allocator, 1, sizeof *ahead, err);
    if (!ahead) return TSR_E_NOMEM;
    *ahead = (tsr_read_ahead){.allocator = allocator, .fetch = fetch, .ctx = ctx};
    pthread_mutex_init(&ahead->lock, NULL);
    pthread_cond_init(&ahead->fetched, NULL);
    *out = ahead;
    return TSR_OK;
}

void tsr_read_ahead_free(tsr_read_ahead *ahead)
{
    if (!ahead) return;
    for (size_t i = 0; i < WINDOWS; i++) tsr_free(ahead->allocator, ahead->windows[i].bytes, WINDOW, 1);
    pthread_cond_destroy(&ahead->fetched);
    pthread_mutex_destroy(&ahead->lock);
    tsr_free(ahead->allocator, ahead, 1, sizeof *ahead);
}

void tsr_read_ahead_forget(tsr_read_ahead *ahead)
{
    for (size_t i = 0; i < WINDOWS; i++) ahead->windows[i].size = 0;
    for (size_t i = 0; i < RUNS; i++) ahead->runs[i].end = ahead->expected[i].end = 0;
}

void tsr_read_ahead_expect(tsr_read_ahead *ahead, uint32_t file, uint64_t offset, uint64_t size)
{
    bool is_known = false;
    pthread_mutex_lock(&ahead->lock);
    for (size_t i = 0; i < RUNS && !is_known; i++) {
        const run *e = &ahead->expected[i];
        is_known = e->end == offset + size && e->file == file && e->begin == offset;
    }
    if (!is_known) ahead->expected[ahead->expected_count++ % RUNS] = (run){file, offset, offset + size};
    pthread_mutex_unlock(&ahead->lock);
}

static window *find(tsr_read_ahead *ahead, uint32_t file, uint64_t offset)
{
    for (size_t i = 0; i < WINDOWS; i++) {
        window *w = &ahead->windows[i];
        if (w->size && w->file == file && w->offset <= offset && offset - w->offset < w->size) return w;
    }
    return NULL;
}

/* The window that was used longest ago; NULL if all are busy. */
static window *oldest(tsr_read_ahead *ahead)
{
    window *found = NULL;
    for (size_t i = 0; i < WINDOWS; i++) {
        window *w = &ahead->windows[i];
        if (!w->is_busy && (!found || w->used_at < found->used_at)) found = w;
    }
    return found;
}

/* How many bytes to read ahead. Ends where an announced range ends if the run began in it or shortly before it, for example
 * in the header of its member. A run that came here from elsewhere may continue after the range. Never extends into another
 * window. */
static size_t window_size(const tsr_read_ahead *ahead, const tsr_block_range *range, uint64_t begin)
{
    uint64_t end = range->file_size - range->offset < WINDOW ? range->file_size : range->offset + WINDOW;
    for (size_t i = 0; i < RUNS; i++) {
        const run *e = &ahead->expected[i];
        const bool is_in = e->file == range->file && range->offset >= e->begin && range->offset < e->end;
        if (is_in && begin + BEFORE >= e->begin && e->end < end) end = e->end;
    }
    for (size_t i = 0; i < WINDOWS; i++) {
        const window *w = &ahead->windows[i];
        if (w->size && w->file == range->file && w->offset > range->offset && w->offset < end) end = w->offset;
    }
    return (size_t)(end - range->offset);
}

/* Whether the read continues a run, which began at *begin and now ends after this read. Otherwise, a new run replaces the
 * oldest. */
static bool continues_run(tsr_read_ahead *ahead, const tsr_block_range *range, size_t size, uint64_t *begin)
{
    run *found = NULL;
    for (size_t i = 0; i < RUNS && !found; i++)
        if (ahead->runs[i].end && ahead->runs[i].file == range->file && ahead->runs[i].end == range->offset)
            found = &ahead->runs[i];
    *begin = found ? found->begin : range->offset;
    if (found) found->end = range->offset + size;
    else ahead->runs[ahead->clock++ % RUNS] = (run){range->file, range->offset, range->offset + size};
    return found != NULL;
}

/* Fetches a window. Must be called with the lock held, and releases it during the request. */
static tsr_status fill(tsr_read_ahead *ahead, const tsr_block_range *range, uint64_t begin, tsr_error *err)
{
    assert(tsr_is_locked(&ahead->lock));
    window *w = oldest(ahead);
    if (!w) {
        pthread_cond_wait(&ahead->fetched, &ahead->lock);
        return TSR_OK;
    }
    w->size = 0;
    *w = (window){range->file, range->offset, window_size(ahead, range, begin), true, ++ahead->clock, w->bytes};
    pthread_mutex_unlock(&ahead->lock);
    if (!w->bytes) w->bytes = tsr_alloc(ahead->allocator, WINDOW, 1, err);
    const tsr_status status = w->bytes ? ahead->fetch(ahead->ctx, w->file, w->offset, w->bytes, w->size, err) : TSR_E_NOMEM;
    pthread_mutex_lock(&ahead->lock);
    w->is_busy = false;
    if (status != TSR_OK) w->size = 0;
    pthread_cond_broadcast(&ahead->fetched);
    return status;
}

tsr_status tsr_read_ahead_read(tsr_read_ahead *ahead, tsr_block_range range, void *buffer, size_t size, bool *served,
                               tsr_error *err)
{
    tsr_status status = TSR_OK;
    char *to = buffer;
    uint64_t begin;
    pthread_mutex_lock(&ahead->lock);
    *served = continues_run(ahead, &range, size, &begin) || find(ahead, range.file, range.offset);
    while (*served && size && status == TSR_OK) {
        window *w = find(ahead, range.file, range.offset);
        if (!w) {
            status = fill(ahead, &range, begin, err);
        } else if (w->is_busy) {
            pthread_cond_wait(&ahead->fetched, &ahead->lock);
        } else {
            const size_t at = (size_t)(range.offset - w->offset), taken = w->size - at < size ? w->size - at : size;
            memcpy(to, w->bytes + at, taken);
            w->used_at = ++ahead->clock;
            to += taken;
            range.offset += taken;
            size -= taken;
        }
    }
    pthread_mutex_unlock(&ahead->lock);
    return status;
}
