/* Reading ahead of those who read objects from front to back: a window of 8 MiB is fetched by several requests at once, and the
 * reads that follow are served from it. What is read ahead in vain is at most one window for each run of reads, and nothing where the run
 * is within bytes that were announced, such as those of a chunk, and reads all of them.
 *
 * This is not io/block_cache.h with larger blocks: that keeps what small reads in any order come back to, and fetches only what is
 * asked for; this guesses where a run goes on, and forgets what was read. An object store has both, for two kinds of reads. */
#ifndef TSR_OBJECT_STORE_READ_AHEAD_H
#define TSR_OBJECT_STORE_READ_AHEAD_H

#include "io/block_cache.h"

typedef struct tsr_read_ahead tsr_read_ahead;

/* Borrows `ctx`. `fetch` is called without a lock, from any thread. At most four windows, 32 MiB. */
tsr_status tsr_read_ahead_new(const tsr_allocator *allocator, tsr_block_fetch *fetch, void *ctx, tsr_read_ahead **out, tsr_error *err);
void tsr_read_ahead_free(tsr_read_ahead *ahead); /* takes NULL */
/* Forgets everything, because files got other numbers. Nobody may read meanwhile. */
void tsr_read_ahead_forget(tsr_read_ahead *ahead);

/* Announces that there is a run of reads within these bytes; counts for the latest 16. Thread-safe. */
void tsr_read_ahead_expect(tsr_read_ahead *ahead, uint32_t file, uint64_t offset, uint64_t size);
/* Serves a read that continues an earlier one. *served false: it does not, and nothing was read. Thread-safe. */
tsr_status tsr_read_ahead_read(tsr_read_ahead *ahead, tsr_block_range range, void *buffer, size_t size, bool *served, tsr_error *err);

#endif
