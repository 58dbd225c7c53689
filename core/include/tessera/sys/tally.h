/* Statistics and a histogram of one tensor, in steps: a job for a program that must stay responsive between reads.
 *
 *   new ─▶ step, step, … until done ─▶ stats, histogram (also in between: of what was read so far) ─▶ free
 *
 * A step reads the next boxes of the tensor in row-major order. Memory is one buffer of a step's size. One thread at a
 * time.
 *
 * Example:
 *
 *     tsr_tally *tally;
 *     tsr_stats stats;
 *     bool done = false;
 *     status = tsr_tally_new(checkpoint, entry, &tally, &err);
 *     while (status == TSR_OK && !done) status = tsr_tally_step(tally, (size_t)1 << 20, &done, &err);
 *     if (done) tsr_tally_stats(tally, &stats); */
#ifndef TESSERA_SYS_TALLY_H
#define TESSERA_SYS_TALLY_H

#include "tessera/check.h"
#include "tessera/sys/check.h"

TSR_API_BEGIN

typedef struct tsr_tally tsr_tally;

#define TSR_TALLY_BINS_MOST 256u

/* Borrows the checkpoint. Errors: TSR_E_UNSUPPORTED where values are not numbers, and those of tsr_read_box. */
tsr_status tsr_tally_new(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_tally **out, tsr_error *err);
void tsr_tally_free(tsr_tally *tally); /* accepts NULL */

/* Reads about `byte_budget` bytes more, at least one element. After an error the job stays where it was. */
tsr_status tsr_tally_step(tsr_tally *tally, size_t byte_budget, bool *done, tsr_error *err);
/* Bytes of the tensor read so far, and in all. */
void tsr_tally_progress(const tsr_tally *tally, uint64_t *byte_done, uint64_t *byte_total);

/* Of what was read so far; as tsr_tensor_stats has them. */
void tsr_tally_stats(const tsr_tally *tally, tsr_stats *out);
/* How many finite values are in each of `count` (1 to TSR_TALLY_BINS_MOST) equal parts of [min, max]; a value may be
 * counted in the neighboring part when it is within 1/1000 of the range from the border. */
void tsr_tally_histogram(const tsr_tally *tally, uint64_t *counts, size_t count);

TSR_API_END

#endif
