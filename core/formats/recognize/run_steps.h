/* Lists what may be the checkpoints of a training run, by the names of its directories and files only. */
#ifndef TSR_FORMATS_RECOGNIZE_RUN_STEPS_H
#define TSR_FORMATS_RECOGNIZE_RUN_STEPS_H

#include "tessera/store.h"
#include "tessera/sys/vec.h"

/* A directory or a file with a step in its name. */
typedef struct tsr_run_step {
    tsr_str path; /* borrowed from the store */
    uint64_t step;
    uint64_t version;                /* of Lightning: a later file of the same step has a higher one */
    uint32_t file;                   /* TSR_NO_FILE for a directory */
    bool holds_checkpoint;           /* a file's name is typical of checkpoints */
    const tsr_store_gap *empty;      /* the directory shows no files; NULL: it does */
    const tsr_store_gap *unreadable; /* the directory, or something in it, that could not be looked at; or NULL */
} tsr_run_step;

/* Whether a directory, by its path, is part of another checkpoint. */
typedef bool tsr_is_owned_fn(const void *ctx, tsr_str path);

/* Appends the steps of a store whose levels were listed, sorted: the newest first. Directories below a step are not steps of their
 * own, except that "epoch_1/step_100" is step 100. Numbers that may count something else ("run1") count only if the names of no
 * others state that they are steps. Directories without a checkpoint's files are listed only next to others that have some, or if
 * there are no others. *unlisted is a directory that could not be listed and is in no step, or NULL. TSR_E_NOMEM. */
tsr_status tsr_list_run_steps(const tsr_store *store, tsr_is_owned_fn *is_owned, const void *ctx, tsr_vec *steps,
                              const tsr_store_gap **unlisted, tsr_error *err);
/* The part of a path before its last component: the run that a step belongs to. */
tsr_str tsr_run_of(tsr_str path);

#endif
