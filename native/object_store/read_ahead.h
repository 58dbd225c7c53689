/* Reads ahead when objects are read from front to back: a window of 8 MiB is fetched by several requests at the same time,
 * and the reads that follow are served from it. At most one window per run of reads is fetched in vain; none if the run
 * reads all of a range that was announced, such as the bytes of a chunk.
 *
 * This is not io/block_cache.h with larger blocks. That one keeps what small reads in any order use again, and fetches
 * only what is requested. This one guesses where a run continues, and forgets what was read. An object store has both,
 * for two kinds of reads. */
#ifndef TSR_OBJECT_STORE_READ_AHEAD_H
#define TSR_OBJECT_STORE_READ_AHEAD_H

#include "io/block_cache.h"

typedef struct tsr_read_ahead tsr_read_ahead;

/* Creates the windows: at most four, 32 MiB. Borrows `ctx`. `fetch` is called without a lock, from any thread. */
tsr_status tsr_read_ahead_new(const tsr_allocator *allocator, tsr_block_fetch *fetch, void *ctx, tsr_read_ahead **out,
                              tsr_error *err);
void tsr_read_ahead_free(tsr_read_ahead *ahead); /* accepts NULL */
/* Forgets everything, because the numbers of files have changed. There must be no reads at the same time. */
void tsr_read_ahead_forget(tsr_read_ahead *ahead);

/* Announces that this range will be read sequentially. Only the latest 16 announcements count. Thread-safe. */
void tsr_read_ahead_expect(tsr_read_ahead *ahead, uint32_t file, uint64_t offset, uint64_t size);
/* Serves a read that continues an earlier one. Otherwise *served is false, and nothing was read. Thread-safe. */
tsr_status tsr_read_ahead_read(tsr_read_ahead *ahead, tsr_block_range range, void *buffer, size_t size, bool *served,
                               tsr_error *err);

#endif
