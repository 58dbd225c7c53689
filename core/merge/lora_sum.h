/* Computing the elements of folded tensors, in runs of bounded size. */
#ifndef TSR_MERGE_LORA_SUM_H
#define TSR_MERGE_LORA_SUM_H

#include "merge/lora_parts.h"

/* The largest blocks of the matrices that are in memory at a time, and how many elements are computed at a time. */
enum {
    TSR_LORA_RANKS = 128,
    TSR_LORA_ROWS = 128,
    TSR_LORA_COLUMNS = 1024,
    TSR_LORA_RUN = TSR_LORA_RANKS * TSR_LORA_COLUMNS
};

/* Working memory for one run, and what computes with it. */
typedef struct tsr_lora_room tsr_lora_room;
struct tsr_lora_room {
    double *sums;            /* the run's sums; TSR_LORA_RUN elements */
    double *left;            /* TSR_LORA_ROWS × TSR_LORA_RANKS */
    double *right;           /* TSR_LORA_RANKS × TSR_LORA_COLUMNS */
    double *loaded;          /* TSR_LORA_RUN elements: as many as the larger of the two above */
    uint8_t *bytes;          /* room for the elements of `loaded` as they are stored */
    tsr_cast_losses *losses; /* what casts to the dtype of the result lose */
    /* Computes the run's elements of W plus the change in r->loaded, rounded only to float32, in which PyTorch computes. The
     * fold must have a change, and the run at most TSR_LORA_RUN elements. */
    tsr_status (*values)(const tsr_fold *fold, const tsr_run *run, const tsr_lora_room *r, tsr_error *err);
};

/* Makes the fold a DoRA fold with these magnitudes; the matrices must be set. Errors: TSR_E_FORMAT if it has another number
 * of outputs; TSR_E_NOMEM. */
tsr_status tsr_dora_open(tsr_arena *arena, tsr_fold *fold, tsr_error *err);

#endif
