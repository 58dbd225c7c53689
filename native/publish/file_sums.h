/* Digests of unpublished files, summed up while they are written, so that what others changed since is noticed before it is
 * published. The sum of a file over its little-endian 32-bit words w[j], for a number r of the job:
 *
 *   w[0] + w[1] r + w[2] r² + …   modulo 2^61 - 1
 *
 * Sums of writes to different places add up, in any order and from any process, and bytes that nobody has written are zeros,
 * which add nothing. One changed word always changes the sum; any other change escapes it with a probability of at most the
 * file's words in 2^61. */
#ifndef TSR_NATIVE_FILE_SUMS_H
#define TSR_NATIVE_FILE_SUMS_H

#include "tessera/memory.h"
#include "tessera/sys/vec.h"

#define TSR_SUM_WORDS 1024u /* summed up at a time */

typedef struct tsr_sum_key {
    uint64_t powers[TSR_SUM_WORDS];   /* r^0, r^1, … */
    uint32_t parts[3][TSR_SUM_WORDS]; /* their bits 0 to 20, 21 to 41 and 42 to 60, for vectors */
    uint64_t next;                    /* r^TSR_SUM_WORDS */
} tsr_sum_key;

/* The key of a job, by the tag of its journals. */
tsr_sum_key tsr_sum_key_of(const char *tag);
/* The sum of bytes at `offset` of a file. */
uint64_t tsr_sum_bytes(const tsr_sum_key *key, uint64_t offset, const void *data, size_t size);
uint64_t tsr_sum_add(uint64_t a, uint64_t b);

/* What a journal keeps of one step: the records of the units that are done (tessera/sys/work.h), and what they added to the sums of
 * the files, by the output's numbers. A step whose end was not written is none. */
typedef struct tsr_journal_step {
    tsr_str records;
    const uint8_t *sums; /* count × (file u32, sum u64), little-endian */
    uint32_t count;
} tsr_journal_step;

/* Appends a step to `text`; sums that are 0 are left out. */
tsr_status tsr_step_put(tsr_str records, const uint64_t *sums, uint32_t count, tsr_vec *text, tsr_error *err);
/* The first step of `rest`, which becomes what follows; false where there is no whole one. */
bool tsr_journal_step_next(tsr_str *rest, tsr_journal_step *out);
/* Adds what a step added; files from `count` on are passed over. */
void tsr_journal_step_sum(const tsr_journal_step *step, uint64_t *sums, uint32_t count);

#endif
