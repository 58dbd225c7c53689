/* Fetches ranges that will be read from front to back, before they are read. The ranges are cut into parts of 1 MiB, and a fixed
 * number of requests are in flight for the parts that come next, whichever files they are in:
 *
 *   parts    | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | …
 *              gone    kept  ↑   being fetched      not yet requested
 *                            where the reader is
 *
 * Reads of other bytes, and of parts that are gone or could not be fetched, are left to the caller. */
#ifndef TSR_IO_SCHEDULED_READS_H
#define TSR_IO_SCHEDULED_READS_H

#include "io/block_cache.h"

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
