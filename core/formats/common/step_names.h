/* The training step in the name of a directory or a file: "step-100", "global_step100", "checkpoint-100", "iter_0000100", "100",
 * "epoch=1-step=100.ckpt". */
#ifndef TSR_FORMATS_COMMON_STEP_NAMES_H
#define TSR_FORMATS_COMMON_STEP_NAMES_H

#include <stdint.h>

#include "tessera/str.h"

typedef enum tsr_step_naming {
    TSR_STEP_NONE,
    TSR_STEP_OF_RANK, /* the number at the end is that of a rank or a model: "rank_0", "pytorch_model_fsdp_0" */
    TSR_STEP_NUMBER,  /* a number at the end of a name that does not say what it counts: "run1" */
    TSR_STEP_STATED   /* the name states that the number is a step, or consists of it */
} tsr_step_naming;

/* Parses the number at the end of a text. Returns false if there is none, or if it does not fit. */
bool tsr_number_at_end(tsr_str text, uint64_t *number);
/* The step in a single component of a path: N of "step=N" anywhere in it, otherwise of "epoch=N", otherwise the number at its end,
 * before ".ckpt". */
tsr_step_naming tsr_step_of_name(tsr_str name, uint64_t *step);
/* The step of a path: that of the last of its components that ends with a number. */
bool tsr_step_of_path(tsr_str path, uint64_t *step);
/* The step in the name of a file, without its directories, that is a checkpoint of its own: with .ckpt any number counts, with
 * other endings of checkpoints only one that the name states to be a step. */
bool tsr_step_of_file(tsr_str name, uint64_t *step);
/* N of "epoch=1-step=10-vN.ckpt" or "epoch=1-vN.ckpt", which Lightning writes where the name without it was taken; 0 without it. */
uint64_t tsr_step_version(tsr_str name);

#endif
