/* Finds the value that most files of a checkpoint state, so that a single file from another save is the one that gets
 * reported. Boyer–Moore majority vote, which needs one pass and no memory: if some value has more than half of the votes, it
 * wins; otherwise the winner is one of the values that were voted for. */
#ifndef TSR_FORMATS_COMMON_MAJORITY_H
#define TSR_FORMATS_COMMON_MAJORITY_H

#include <stdint.h>

typedef struct tsr_majority {
    uint64_t value; /* 0 before the first vote */
    uint32_t votes;
} tsr_majority;

/* A `value` of 0 is not counted as a vote. */
static inline void tsr_majority_vote(tsr_majority *m, uint64_t value)
{
    if (value && m->value == value) m->votes++;
    else if (value && m->votes) m->votes--;
    else if (value) *m = (tsr_majority){value, 1};
}

#endif
