/* What most of the files of a checkpoint say, so that a single file of another save is the one that is reported. One pass, without
 * memory: the value that more than half of the votes have; of others, any that was voted for. */
#ifndef TSR_FORMATS_COMMON_MAJORITY_H
#define TSR_FORMATS_COMMON_MAJORITY_H

#include <stdint.h>

typedef struct tsr_majority {
    uint64_t value; /* 0: no votes yet */
    uint32_t votes;
} tsr_majority;

/* 0 is no vote. */
static inline void tsr_majority_vote(tsr_majority *m, uint64_t value)
{
    if (value && m->value == value) m->votes++;
    else if (value && m->votes) m->votes--;
    else if (value) *m = (tsr_majority){value, 1};
}

#endif
