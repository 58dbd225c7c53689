/* What is removed from a training run, and what is kept. (core/formats/recognize) tessera/sys/prune_run.h of native decides and removes.
 *
 * Example:
 *
 *     tsr_prune_result result = {.found_valid = false};
 *     if (!result.found_valid) printf("%u removed\n", (unsigned)result.removed_count); */
#ifndef TESSERA_SYS_PRUNE_H
#define TESSERA_SYS_PRUNE_H

#include "tessera/sys/latest.h"

TSR_API_BEGIN

typedef struct tsr_prune_options {
    size_t size;         /* TSR_OPTIONS sets it */
    uint64_t keep;       /* the newest valid checkpoints to keep, at least 1 */
    uint64_t keep_every; /* valid ones whose step is a multiple of it are kept as well; 0: not used */
    bool whole_directory, dry_run;
    tsr_latest_options judging;
} tsr_prune_options;

typedef enum tsr_pruned_because {
    TSR_PRUNED_OLDER,     /* it is valid, and there are enough newer ones */
    TSR_PRUNED_DAMAGED,   /* it has errors and is older than the newest valid one */
    TSR_PRUNED_UNFINISHED /* an earlier run was killed while it removed it */
} tsr_pruned_because;

/* Paths are below the run. */
typedef struct tsr_pruned {
    tsr_str path;
    bool has_step;
    uint64_t step;
    tsr_pruned_because because;
    tsr_str error;         /* of a damaged one */
    uint64_t files, bytes; /* that are removed */
    const tsr_str *left;   /* files in its directory that are not its own, and stay */
    size_t left_count;
    tsr_str left_because; /* why they stay although whole directories are removed; otherwise empty */
} tsr_pruned;

typedef struct tsr_prune_kept {
    tsr_str path;
    bool has_step;
    uint64_t step;
    bool is_valid;
    bool is_asked; /* kept because of `keep` or `keep_every`; otherwise `reason` says why it is not removed */
    tsr_str reason;
} tsr_prune_kept;

typedef struct tsr_prune_result {
    bool found_valid; /* false: nothing was removed, because nothing is valid */
    bool dry_run;
    tsr_pruned *removed; /* the newest first */
    size_t removed_count;
    tsr_prune_kept *kept; /* the newest first */
    size_t kept_count;
    tsr_str unlisted, unlisted_why; /* as in tsr_latest */
} tsr_prune_result;

TSR_API_END

#endif
