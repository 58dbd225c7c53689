/* Serves small reads of remote files from blocks of 64 KiB. Neighboring values cost a single request, and no block is
 * fetched twice at the same time, however many threads need it. After reads of neighboring blocks of a file, the blocks that follow are fetched
 * with the next one. Must not be used for reads of more than 256 KiB. */
#ifndef TSR_IO_BLOCK_CACHE_H
#define TSR_IO_BLOCK_CACHE_H

#include "tessera/store.h"

enum { TSR_CACHE_BLOCK = 64 << 10, TSR_CACHE_LARGEST_READ = 4 * TSR_CACHE_BLOCK };

typedef struct tsr_block_cache tsr_block_cache;

/* Reads a range that is inside the file. Called without a lock, from any thread. */
typedef tsr_status tsr_block_fetch(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);

/* Creates a cache of at most 16 MiB; 256 MiB for many files, of 1,024 three blocks each at the same time. Borrows `ctx`. */
tsr_status tsr_block_cache_new(const tsr_allocator *allocator, tsr_block_fetch *fetch, void *ctx, tsr_block_cache **out,
                               tsr_error *err);
void tsr_block_cache_free(tsr_block_cache *cache); /* accepts NULL */
/* Forgets everything, because the files and their numbers have changed. There must be no reads at the same time. */
void tsr_block_cache_forget(tsr_block_cache *cache, size_t file_count);

/* One range to fetch. The function below fetches several, and sets is_fetched in those that succeed. */
typedef struct tsr_block_run {
    uint32_t file;
    uint64_t offset;
    size_t size;
    char *bytes;
    bool is_fetched;
} tsr_block_run;
typedef void tsr_block_fetch_many(void *ctx, tsr_block_run *runs, size_t count);
/* Fetches the missing blocks of these places with a single call of `fetch`, which gets the ctx of the cache. Fills at most
 * 8 MiB of the cache. `files` states the sizes of files. Thread-safe. */
void tsr_block_cache_prefetch(tsr_block_cache *cache, const tsr_store_file *files, const tsr_store_place *places,
                              size_t count, tsr_block_fetch_many *fetch);

/* Reads `size` bytes at `offset` of a file of `file_size` bytes. Thread-safe. Errors: those of `fetch`; TSR_E_NOMEM. */
typedef struct tsr_block_range {
    uint32_t file;
    uint64_t file_size, offset;
} tsr_block_range;
tsr_status tsr_block_cache_read(tsr_block_cache *cache, tsr_block_range range, void *buffer, size_t size, tsr_error *err);

/* Copies those of `size` bytes that the cache has already from the beginning on (*head bytes of `buffer`) and up to the end (*tail), so that
 * bytes that arrived with a small read are not fetched a second time by a larger one. Waits for blocks that are being fetched. Thread-safe. */
void tsr_block_cache_take(tsr_block_cache *cache, tsr_block_range range, void *buffer, size_t size, size_t *head,
                          size_t *tail);

/* Whether the first or the last block of a range is in the cache with other bytes than these, which were fetched at the same time. */
bool tsr_block_cache_differs(tsr_block_cache *cache, tsr_block_range range, const void *bytes, size_t size);

/* Fetches ranges that will be read from front to back, before they are read. The ranges are cut into parts of 1 MiB (the last
 * one of a range has up to 1.25), and a fixed number of requests are in flight for the parts that come next, whichever files they are in:
 *
 *   parts    | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | …
 *              gone    kept  ↑   being fetched      not yet requested
 *                            where the reader is
 *
 * Reads of other bytes, and of parts that are gone or could not be fetched, are left to the caller. */

typedef struct tsr_scheduled_reads tsr_scheduled_reads;

/* Keeps up to host->io_depth requests in flight, each in a thread of its own. Reads may be up to 2 MiB for each of the host's
 * threads behind what the reader has reached. Borrows `ctx`. Errors: TSR_E_NOMEM. */
tsr_status tsr_scheduled_reads_new(const tsr_host *host, tsr_block_fetch *fetch, void *ctx, tsr_scheduled_reads **out,
                                   tsr_error *err);
void tsr_scheduled_reads_free(tsr_scheduled_reads *reads); /* accepts NULL; waits for requests in flight */

/* Begins to fetch these ranges, of which a file has at most one, in place of those before; count 0: ends. No other thread may be
 * reading. Errors: TSR_E_NOMEM. */
tsr_status tsr_scheduled_reads_begin(tsr_scheduled_reads *reads, const tsr_store_place *places, size_t count,
                                     tsr_error *err);
/* States where the reader is. False if no range has this byte. Thread-safe. */
bool tsr_scheduled_reads_reach(tsr_scheduled_reads *reads, uint32_t file, uint64_t offset);
/* Reads the first of these bytes as far as they were or are being fetched, and returns how many. Thread-safe. */
size_t tsr_scheduled_reads_take(tsr_scheduled_reads *reads, uint32_t file, uint64_t offset, void *buffer, size_t size);

#endif
