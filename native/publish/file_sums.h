/* Digests of unpublished files, computed while they are written. They reveal changes that other programs make before the
 * files are published. The digest of a file is a sum over its little-endian 32-bit words w[j], where r is a number that each
 * job has for itself:
 *
 *   w[0] + w[1] r + w[2] r² + …   modulo 2^61 - 1
 *
 * The sums of writes to different offsets can be added in any order and from any process. Bytes that were never written
 * are zeros, which add nothing. Changing one word always changes the sum. Any other change goes unnoticed with a
 * probability of at most (words of the file) / 2^61. */
#ifndef TSR_NATIVE_FILE_SUMS_H
#define TSR_NATIVE_FILE_SUMS_H

#include "tessera/memory.h"
#include "tessera/sys/containers.h"

#define TSR_SUM_WORDS 1024u /* number of words that are summed up at a time */

typedef struct tsr_sum_key {
    uint64_t powers[TSR_SUM_WORDS];   /* r^0, r^1, … */
    uint32_t parts[3][TSR_SUM_WORDS]; /* bits 0 to 20, 21 to 41 and 42 to 60 of the powers, for vector code */
    uint64_t next;                    /* r^TSR_SUM_WORDS */
} tsr_sum_key;

/* The key of a job, derived from the tag of its journals. */
tsr_sum_key tsr_sum_key_of(const char *tag);
/* The sum of `size` bytes that are at `offset` of a file. */
uint64_t tsr_sum_bytes(const tsr_sum_key *key, uint64_t offset, const void *data, size_t size);
uint64_t tsr_sum_add(uint64_t a, uint64_t b);

/* One step in a journal: the records of the units that are done (tessera/sys/work.h), and what those units added to the
 * sums of the files, which are identified by their numbers in the output. A step that was not written completely does not
 * count. */
typedef struct tsr_journal_step {
    tsr_str records;
    const uint8_t *sums; /* count × (file u32, sum u64), little-endian */
    uint32_t count;
} tsr_journal_step;

/* Appends a step to `text`. Sums that are 0 are left out. */
tsr_status tsr_step_put(tsr_str records, const uint64_t *sums, uint32_t count, tsr_vec *text, tsr_error *err);
/* Takes the first step off `rest`. False if there is no complete step. */
bool tsr_journal_step_next(tsr_str *rest, tsr_journal_step *out);
/* Adds the sums of a step to `sums`. Ignores files whose number is `count` or more. */
void tsr_journal_step_sum(const tsr_journal_step *step, uint64_t *sums, uint32_t count);

#endif
