/* See block_cache.h. */
#include "io/block_cache.h"
#include "io/locked.h"

#include <assert.h>
#include <pthread.h>

#include "tessera/sys/containers.h"

/* Of a store with many files, a conversion to rows reads all of them at the same time, a little of each: blocks for all of them stay, half of
 * them for what is fetched ahead. */
enum {
    BLOCK = TSR_CACHE_BLOCK,
    LEAST_BLOCKS = 256,
    MOST_BLOCKS = 4096,
    BLOCKS_A_FILE = 8,
    BLOCKS_AHEAD = 4,
    MOST_AT_ONCE = 8,
    SLOTS = 2 * MOST_BLOCKS
};

typedef struct block {
    uint32_t file;
    uint64_t number;
    size_t size;  /* 0: empty */
    bool is_busy; /* being fetched */
    size_t read;  /* bytes that were read from it: all of them, if it is not needed again */
    uint64_t used_at;
    char *bytes;
    struct block *next; /* in its slot */
} block;

struct tsr_block_cache {
    const tsr_allocator *allocator;
    tsr_block_fetch *fetch;
    void *ctx;
    pthread_mutex_t lock;
    pthread_cond_t fetched; /* signalled when a block is no longer busy */
    block blocks[MOST_BLOCKS];
    block *slots[SLOTS]; /* the blocks that are not empty, by file and number */
    size_t block_count;  /* of `blocks`, that are used */
    size_t ahead;        /* blocks to fetch at once of what is read from front to back */
    uint64_t clock;
};

tsr_status tsr_block_cache_new(const tsr_allocator *allocator, tsr_block_fetch *fetch, void *ctx, tsr_block_cache **out,
                               tsr_error *err)
{
    tsr_block_cache *cache = tsr_alloc(allocator, 1, sizeof *cache, err);
    if (!cache) return TSR_E_NOMEM;
    *cache = (tsr_block_cache){
        .allocator = allocator, .fetch = fetch, .ctx = ctx, .block_count = LEAST_BLOCKS, .ahead = BLOCKS_AHEAD};
    pthread_mutex_init(&cache->lock, NULL);
    pthread_cond_init(&cache->fetched, NULL);
    *out = cache;
    return TSR_OK;
}

void tsr_block_cache_free(tsr_block_cache *cache)
{
    if (!cache) return;
    for (size_t i = 0; i < MOST_BLOCKS; i++) tsr_free(cache->allocator, cache->blocks[i].bytes, BLOCK, 1);
    pthread_cond_destroy(&cache->fetched);
    pthread_mutex_destroy(&cache->lock);
    tsr_free(cache->allocator, cache, 1, sizeof *cache);
}

void tsr_block_cache_forget(tsr_block_cache *cache, size_t file_count)
{
    const size_t most = file_count < MOST_BLOCKS ? BLOCKS_A_FILE * file_count : MOST_BLOCKS;
    for (size_t i = 0; i < MOST_BLOCKS; i++) cache->blocks[i].size = 0;
    for (size_t i = 0; i < SLOTS; i++) cache->slots[i] = NULL;
    cache->block_count = most < LEAST_BLOCKS ? LEAST_BLOCKS : most < MOST_BLOCKS ? most : MOST_BLOCKS;
    cache->ahead = file_count ? cache->block_count / 2 / file_count : BLOCKS_AHEAD;
    cache->ahead = cache->ahead < 1 ? 1 : cache->ahead < BLOCKS_AHEAD ? cache->ahead : BLOCKS_AHEAD;
}

static block **slot_of(tsr_block_cache *cache, uint32_t file, uint64_t number)
{
    return &cache->slots[(number + file * UINT64_C(0x9E3779B1)) % SLOTS];
}

static block *find(tsr_block_cache *cache, uint32_t file, uint64_t number)
{
    block *b = *slot_of(cache, file, number);
    while (b && (b->file != file || b->number != number)) b = b->next;
    return b;
}

static void empty(tsr_block_cache *cache, block *b)
{
    block **at = slot_of(cache, b->file, b->number);
    if (!b->size) return;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    b->size = 0;
}

static void fill(tsr_block_cache *cache, block *b, uint32_t file, uint64_t number, size_t size)
{
    block **slot = slot_of(cache, file, number);
    *b = (block){file, number, size, true, 0, ++cache->clock, b->bytes, *slot};
    *slot = b;
}

/* Returns a block to fill: an empty one; otherwise, after emptying it, the one that was used longest ago. Blocks that were read whole are
 * taken before all others, because one that was fetched ahead is still to be read, however long ago it was fetched. NULL if all are busy. */
static block *take(tsr_block_cache *cache)
{
    block *oldest = NULL;
    bool was_read = false;
    for (size_t i = 0; i < cache->block_count; i++) {
        block *b = &cache->blocks[i];
        if (b->is_busy) continue;
        if (!b->size) return b;
        const bool is_read = b->read >= b->size;
        if (!oldest || (is_read != was_read ? is_read : b->used_at < oldest->used_at)) {
            oldest = b;
            was_read = is_read;
        }
    }
    if (oldest) empty(cache, oldest);
    return oldest;
}

static size_t size_of(const tsr_block_range *range, uint64_t number)
{
    const uint64_t left = range->file_size - number * BLOCK;
    return left < BLOCK ? (size_t)left : BLOCK;
}

/* Claims block `number` and the missing blocks that follow it, up to `last`. They are fetched together. */
static size_t claim(tsr_block_cache *cache, const tsr_block_range *range, uint64_t number, uint64_t last, block **claimed)
{
    size_t count = 0;
    while (number <= last && count < MOST_AT_ONCE && !find(cache, range->file, number)) {
        block *b = take(cache);
        if (!b) break;
        fill(cache, b, range->file, number, size_of(range, number));
        claimed[count++] = b;
        number++;
    }
    return count;
}

static tsr_status fetch(tsr_block_cache *cache, const tsr_block_range *range, block *const *claimed, size_t count,
                        tsr_error *err)
{
    const uint64_t from = claimed[0]->number * BLOCK;
    size_t size = 0, at = 0;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < count; i++) {
        size += claimed[i]->size;
        if (!claimed[i]->bytes) claimed[i]->bytes = tsr_alloc(cache->allocator, BLOCK, 1, err);
        if (!claimed[i]->bytes) status = TSR_E_NOMEM;
    }
    if (status != TSR_OK || count == 1)
        return status == TSR_OK ? cache->fetch(cache->ctx, range->file, from, claimed[0]->bytes, size, err) : status;
    char *together = tsr_alloc(cache->allocator, size, 1, err);
    if (!together) return TSR_E_NOMEM;
    status = cache->fetch(cache->ctx, range->file, from, together, size, err);
    for (size_t i = 0; i < count && status == TSR_OK; at += claimed[i++]->size)
        memcpy(claimed[i]->bytes, together + at, claimed[i]->size);
    tsr_free(cache->allocator, together, size, 1);
    return status;
}

/* Must be called with the lock held. Afterwards the block has been fetched; but it may already have been replaced, so the
 * caller must look for it again. */
static tsr_status load(tsr_block_cache *cache, const tsr_block_range *range, uint64_t number, uint64_t last, tsr_error *err)
{
    block *claimed[MOST_AT_ONCE];
    assert(tsr_is_locked(&cache->lock));
    const size_t count = claim(cache, range, number, last, claimed);
    if (!count) { /* another thread is fetching this block, or all blocks are busy */
        pthread_cond_wait(&cache->fetched, &cache->lock);
        return TSR_OK;
    }
    pthread_mutex_unlock(&cache->lock);
    const tsr_status status = fetch(cache, range, claimed, count, err);
    pthread_mutex_lock(&cache->lock);
    for (size_t i = 0; i < count; i++) {
        claimed[i]->is_busy = false;
        if (status != TSR_OK) empty(cache, claimed[i]);
    }
    pthread_cond_broadcast(&cache->fetched);
    return status;
}

/* The last block to fetch with block `number`, of which `last` is needed: after blocks that were read one after the other, as many more as
 * the cache has room for of each file. */
static uint64_t reach(tsr_block_cache *cache, const tsr_block_range *range, uint64_t number, uint64_t last)
{
    const uint64_t end = (range->file_size - 1) / BLOCK, further = number + cache->ahead - 1;
    if (number < 2 || !find(cache, range->file, number - 1) || !find(cache, range->file, number - 2)) return last;
    return further <= last ? last : further < end ? further : end;
}

tsr_status tsr_block_cache_read(tsr_block_cache *cache, tsr_block_range range, void *buffer, size_t size, tsr_error *err)
{
    tsr_status status = TSR_OK;
    char *to = buffer;
    pthread_mutex_lock(&cache->lock);
    while (size && status == TSR_OK) {
        const size_t at = (size_t)(range.offset % BLOCK);
        block *b = find(cache, range.file, range.offset / BLOCK);
        if (!b || b->is_busy) {
            const uint64_t number = range.offset / BLOCK, last = (range.offset + size - 1) / BLOCK;
            status = load(cache, &range, number, reach(cache, &range, number, last), err);
            continue;
        }
        const size_t taken = b->size - at < size ? b->size - at : size;
        memcpy(to, b->bytes + at, taken);
        b->used_at = ++cache->clock;
        b->read += taken;
        to += taken;
        range.offset += taken;
        size -= taken;
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

/* The block of a byte, once it is fetched; NULL if it is not in the cache. Must be called with the lock held. */
static block *find_fetched(tsr_block_cache *cache, uint32_t file, uint64_t offset)
{
    block *b;
    while ((b = find(cache, file, offset / BLOCK)) && b->is_busy) pthread_cond_wait(&cache->fetched, &cache->lock);
    if (b) b->used_at = ++cache->clock;
    return b;
}

void tsr_block_cache_take(tsr_block_cache *cache, tsr_block_range range, void *buffer, size_t size, size_t *head,
                          size_t *tail)
{
    const block *b;
    char *to = buffer;
    *head = *tail = 0;
    pthread_mutex_lock(&cache->lock);
    while (*head < size && (b = find_fetched(cache, range.file, range.offset + *head))) {
        const size_t at = (size_t)((range.offset + *head) % BLOCK), left = size - *head;
        const size_t taken = b->size - at < left ? b->size - at : left;
        memcpy(to + *head, b->bytes + at, taken);
        *head += taken;
    }
    while (*head + *tail < size && (b = find_fetched(cache, range.file, range.offset + size - *tail - 1))) {
        const size_t end = (size_t)((range.offset + size - *tail - 1) % BLOCK) + 1, left = size - *head - *tail;
        const size_t taken = end < left ? end : left;
        *tail += taken;
        memcpy(to + size - *tail, b->bytes + end - taken, taken);
    }
    pthread_mutex_unlock(&cache->lock);
}

/* Must be called with the lock held. */
static bool block_differs(tsr_block_cache *cache, const tsr_block_range *range, uint64_t number, const char *bytes,
                          size_t size)
{
    const block *b = find(cache, range->file, number);
    if (!b || b->is_busy) return false;
    const uint64_t from = number * BLOCK < range->offset ? range->offset : number * BLOCK, end = range->offset + size;
    const uint64_t to = number * BLOCK + b->size < end ? number * BLOCK + b->size : end;
    return memcmp(b->bytes + (from - number * BLOCK), bytes + (from - range->offset), (size_t)(to - from)) != 0;
}

bool tsr_block_cache_differs(tsr_block_cache *cache, tsr_block_range range, const void *bytes, size_t size)
{
    if (!size) return false;
    pthread_mutex_lock(&cache->lock);
    const bool differs = block_differs(cache, &range, range.offset / BLOCK, bytes, size) ||
                         block_differs(cache, &range, (range.offset + size - 1) / BLOCK, bytes, size);
    pthread_mutex_unlock(&cache->lock);
    return differs;
}

/* ---- prefetching ---- */

typedef struct prefetching {
    tsr_block_cache *cache;
    block *claimed[LEAST_BLOCKS / 2]; /* blocks of the same run are adjacent */
    tsr_block_run runs[LEAST_BLOCKS / 2];
    size_t claimed_count, run_count;
} prefetching;

static size_t blocks_of(const tsr_block_run *run)
{
    return (run->size + BLOCK - 1) / BLOCK;
}

/* Counts blocks that the cache already has as used now, so that they are not replaced by the ones that will be fetched with them. Must be called
 * with the lock held. */
static void keep_place(tsr_block_cache *cache, const tsr_store_place *place)
{
    const uint64_t last = (place->offset + place->size - 1) / BLOCK;
    for (uint64_t number = place->offset / BLOCK; number <= last; number++) {
        block *b = find(cache, place->file, number);
        if (b) b->used_at = ++cache->clock;
    }
}

static bool is_inside(const tsr_store_file *files, const tsr_store_place *place)
{
    const uint64_t end = files[place->file].size;
    return place->size && place->offset < end && place->size <= end - place->offset;
}

/* Must be called with the lock held. */
static void claim_place(prefetching *p, const tsr_block_range *range, uint64_t size)
{
    uint64_t number = range->offset / BLOCK;
    const uint64_t last = (range->offset + size - 1) / BLOCK;
    while (number <= last && p->claimed_count + MOST_AT_ONCE <= LEAST_BLOCKS / 2) {
        const size_t count = claim(p->cache, range, number, last, p->claimed + p->claimed_count);
        if (count) {
            tsr_block_run *run = &p->runs[p->run_count++];
            *run = (tsr_block_run){.file = range->file, .offset = number * BLOCK};
            for (size_t i = 0; i < count; i++) run->size += p->claimed[p->claimed_count + i]->size;
            p->claimed_count += count;
        }
        number += count ? count : 1;
    }
}

static bool allocate_blocks(const tsr_block_cache *cache, block *const *blocks, size_t count)
{
    tsr_error unused = {0};
    for (size_t i = 0; i < count; i++) {
        if (!blocks[i]->bytes) blocks[i]->bytes = tsr_alloc(cache->allocator, BLOCK, 1, &unused);
        if (!blocks[i]->bytes) return false;
    }
    return true;
}

/* Each run is fetched into contiguous memory and then copied, because its blocks are not adjacent in memory. */
static void fetch_runs(prefetching *p, tsr_block_fetch_many *fetch_many)
{
    const tsr_allocator *allocator = p->cache->allocator;
    tsr_error unused = {0};
    size_t first = 0, fetched = 0;
    if (!allocate_blocks(p->cache, p->claimed, p->claimed_count)) return;
    for (; fetched < p->run_count; fetched++) {
        tsr_block_run *run = &p->runs[fetched];
        run->bytes = tsr_alloc(allocator, run->size, 1, &unused);
        if (!run->bytes) break;
    }
    fetch_many(p->cache->ctx, p->runs, fetched);
    for (size_t r = 0; r < fetched; first += blocks_of(&p->runs[r++])) {
        const tsr_block_run *run = &p->runs[r];
        for (size_t i = 0; i < blocks_of(run) && run->is_fetched; i++)
            memcpy(p->claimed[first + i]->bytes, run->bytes + i * BLOCK, p->claimed[first + i]->size);
        tsr_free(allocator, run->bytes, run->size, 1);
    }
}

static void release(prefetching *p)
{
    size_t at = 0;
    pthread_mutex_lock(&p->cache->lock);
    for (size_t r = 0; r < p->run_count; r++)
        for (size_t i = blocks_of(&p->runs[r]); i > 0; i--, at++) {
            p->claimed[at]->is_busy = false;
            if (!p->runs[r].is_fetched) empty(p->cache, p->claimed[at]);
        }
    pthread_cond_broadcast(&p->cache->fetched);
    pthread_mutex_unlock(&p->cache->lock);
}

void tsr_block_cache_prefetch(tsr_block_cache *cache, const tsr_store_file *files, const tsr_store_place *places,
                              size_t count, tsr_block_fetch_many *fetch_many)
{
    tsr_error unused = {0};
    prefetching *p = tsr_alloc(cache->allocator, 1, sizeof *p, &unused);
    if (!p) return;
    p->cache = cache;
    p->claimed_count = p->run_count = 0;
    pthread_mutex_lock(&cache->lock);
    for (size_t i = 0; i < count; i++)
        if (is_inside(files, &places[i])) keep_place(cache, &places[i]);
    for (size_t i = 0; i < count; i++)
        if (is_inside(files, &places[i]))
            claim_place(p, &(tsr_block_range){places[i].file, files[places[i].file].size, places[i].offset}, places[i].size);
    pthread_mutex_unlock(&cache->lock);
    if (p->run_count) fetch_runs(p, fetch_many);
    release(p);
    tsr_free(cache->allocator, p, 1, sizeof *p);
}
