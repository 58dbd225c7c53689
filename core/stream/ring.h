/* The engine of every streaming job: small jobs, each with a piece of a reused buffer, are filled in parallel and drained
 * in order.
 *
 *   half A:  [job 0 ······][job 1 ···][job 2 ·········]   being filled by the host's threads
 *   half B:  [job 0 ·······][job 1 ·······]               filled before, being drained in order meanwhile
 *
 * A round fills one half and drains the other; then the halves change places.
 *
 * A job that needs memory only while it fills is lent some instead, of which there is one for each thread: the next job finds it in
 * the cache, and all threads together need little of it. */
#ifndef TSR_STREAM_RING_H
#define TSR_STREAM_RING_H

#include "tessera/read.h"

/* What happens to the jobs. `fill` runs on any thread, several at once; `drain` (may be NULL) by one thread at a time, in
 * the order of tsr_ring_job, while later jobs fill. The first failure in order ends the work and is its status. */
typedef struct tsr_ring_work {
    size_t job_size;
    tsr_status (*fill)(void *ctx, void *job, tsr_error *err);
    /* In place of `fill`, for jobs of tsr_ring_lent_job; an eighth of the memory is then for what jobs keep. */
    tsr_status (*fill_lent)(void *ctx, void *job, uint8_t *lent, tsr_error *err);
    tsr_status (*drain)(void *ctx, void *job, tsr_error *err);
    /* NULL, or called when the jobs of a half were drained, before their memory is used again. */
    tsr_status (*settle)(void *ctx, tsr_error *err);
    void *ctx;
    size_t enough; /* bytes of memory that keep all threads at work; more is not touched. 0: the more the better */
} tsr_ring_work;

/* One work at a time. Borrows nothing of `work` but its ctx. */
tsr_status tsr_ring_begin(tsr_ring *ring, const tsr_ring_work *work, tsr_error *err);
/* For several threads, right after tsr_ring_begin: memory for jobs of `bytes` in all, as far as the ring may have it. Without this it
 * grows from round to round, and the first rounds have fewer jobs than there are threads. */
tsr_status tsr_ring_reserve(tsr_ring *ring, size_t bytes, tsr_error *err);
/* A zeroed job and `bytes` of memory for it, both good until its drain has returned. May run a round first. More
 * than half of the ring is TSR_E_LIMIT. The caller completes the job before it calls again. */
tsr_status tsr_ring_job(tsr_ring *ring, size_t bytes, void **job, uint8_t **memory, tsr_error *err);
/* The same for fill_lent, with `lent` bytes more while the job fills; at most tsr_ring_largest. */
tsr_status tsr_ring_lent_job(tsr_ring *ring, size_t bytes, size_t lent, void **job, uint8_t **memory, tsr_error *err);
/* Runs what is left. Also to be called after a failure, which it returns again. */
tsr_status tsr_ring_end(tsr_ring *ring, tsr_error *err);

/* Returns where in `memory` to put bytes that are read from position `read_at` of a file and written to `write_at` of
 * another (TSR_NO_POSITION: the position does not matter). The result is at most TSR_COPY_SLACK bytes further on. The
 * kernel's copy (rep movs) is five times slower when its destination is 1 to 31 bytes ahead of its source modulo the page
 * size (measured on AMD EPYC). Two cache lines (128 bytes) are enough to get out of that range for the read and the write at
 * the same time. */
#define TSR_COPY_SLACK ((size_t)128)
uint8_t *tsr_place_for_copy(uint8_t *memory, uint64_t read_at, uint64_t write_at);

/* What a job should ask for so that all threads have work. */
size_t tsr_ring_best(const tsr_ring *ring);
/* The most that each thread's job can ask for: for jobs that are the cheaper the larger they are. */
size_t tsr_ring_largest(const tsr_ring *ring);
/* As tsr_ring_best, for what jobs keep although they have fill_lent. */
size_t tsr_ring_best_kept(const tsr_ring *ring);

#endif
