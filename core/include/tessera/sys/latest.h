/* The newest checkpoint of a training run that would load. (core/formats/recognize)
 *
 * Example:
 *
 *     tsr_latest latest;
 *     status = tsr_latest_find(store, host, NULL, arena, &latest, &err);
 *     if (status == TSR_OK && latest.found) printf("%.*s\n", TSR_STR_ARG(latest.path)); */
#ifndef TESSERA_SYS_LATEST_H
#define TESSERA_SYS_LATEST_H

#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"

TSR_API_BEGIN

/* A checkpoint that is newer than the answer, and why it is not the answer. */
typedef struct tsr_passed_over {
    tsr_str path; /* below the run; empty if the run itself is a checkpoint */
    bool has_step;
    uint64_t step;
    tsr_str reason;
} tsr_passed_over;

typedef struct tsr_latest {
    bool found;
    tsr_str path;  /* below the run; empty if the run is a checkpoint itself and has no steps */
    bool has_step; /* of less than 2^64 */
    uint64_t step;
    const tsr_passed_over *passed_over; /* the newest first */
    size_t passed_count;
    /* A directory whose name states no step and that could not be listed, and why; empty if there is none. Newer checkpoints may
     * be in it. */
    tsr_str unlisted, unlisted_why;
    bool deeper; /* there are directories below the levels that were searched */
} tsr_latest;

typedef struct tsr_latest_options {
    size_t size; /* TSR_OPTIONS sets it */
    /* Checks an opened checkpoint further and adds to its findings; NULL: only metadata and the sizes of files count. */
    tsr_status (*check)(void *ctx, tsr_checkpoint *checkpoint, tsr_error *err);
    void *check_ctx;
} tsr_latest_options;

/* Searches a run, up to three levels down, for directories and files with a step in their names. Validates them, the highest step
 * first, until one has no errors. Tracker files such as `latest` have no influence. The step of
 * Lightning's last.ckpt is the one in it. A DCP without the state of an optimizer, which the step before has, is not valid. If a step's
 * directory contains several checkpoints, all of them have to be valid. A run without steps may be a checkpoint itself, or contain one.
 * Hidden directories and links to the run itself do not belong to it. A link to one of its steps is that step, and hard links to all files
 * of a checkpoint are the same checkpoint.
 *
 * The result is in `arena`. `found` is false if no checkpoint is valid. May make the store list deeper levels. Errors: TSR_E_USAGE
 * if `store` is a file, if the newest step is in several runs, or if several checkpoints have no step, with their list;
 * TSR_E_UNSUPPORTED for a newer checkpoint in a format that is known but not read; TSR_E_LIMIT if the run has too many files;
 * TSR_E_IO if something that could be newer cannot be read or listed, or if no checkpoint is valid and links that are named like
 * checkpoints lead nowhere; TSR_E_NOMEM; and those of `check`. */
tsr_status tsr_latest_find(tsr_store *store, const tsr_host *host, const tsr_latest_options *options, tsr_arena *arena,
                           tsr_latest *out, tsr_error *err);

/* ---- all checkpoints of a run, for programs that remove old ones ---- */

typedef struct tsr_run_checkpoint {
    tsr_str path; /* below the run; empty if the run itself is a checkpoint */
    tsr_str run;  /* the directory, below the run, that contains this and other steps */
    bool has_step, is_file, holds_checkpoint;
    uint64_t step, version; /* of the same step, a later save has a higher version */
    tsr_str error;          /* the reason why it is not valid; empty: it is */
    bool is_unmarked;       /* the file that the framework writes last is missing: it may be a save that has not finished */
    bool is_unknown;        /* whether it would load cannot be decided, for the reason in `error` */
    const tsr_str *files;   /* below the run: those that it lists or is read from */
    size_t file_count;
    const tsr_str *references; /* texts that contain paths of other checkpoints, which it needs or remembers as the best */
    size_t reference_count;
} tsr_run_checkpoint;

typedef struct tsr_run_checkpoints {
    tsr_run_checkpoint *items; /* the newest first */
    size_t count;
    tsr_str unlisted, unlisted_why; /* as in tsr_latest */
} tsr_run_checkpoints;

/* As tsr_latest_find, but judges every step. A run without steps gives at most one checkpoint, without a step. A checkpoint of which
 * nothing can be decided is not an error; something that cannot be read is. */
tsr_status tsr_run_list(tsr_store *store, const tsr_host *host, const tsr_latest_options *options, tsr_arena *arena,
                        tsr_run_checkpoints *out, tsr_error *err);

/* Whether the last part of a path is the name of a file that completes a checkpoint, or of a model alone. */
bool tsr_is_run_marker(tsr_str path);
/* Whether it is the name of a list of files that makes them a checkpoint, or names one. */
bool tsr_is_run_list(tsr_str path);
/* Whether it is such a list, or a file that the Trainer, Lightning, Megatron, DeepSpeed or OLMo-core writes last: what copies a
 * checkpoint writes these files last, too. */
bool tsr_is_run_end(tsr_str path);
/* Whether it is a name that only the data files of DCPs, DeepSpeed and verl have. */
bool tsr_is_run_data(tsr_str path);
/* Sets owned[i] for names that their framework always writes next to files for which it is set already, such as a tokenizer next
 * to a Trainer's model. `names` are all files of a directory, by their paths below it. */
void tsr_run_own_companions(const tsr_str *names, size_t count, bool *owned);

/* What to warn of where `step` was "latest" and the checkpoint that it opened has errors, judged by metadata and sizes of files; in
 * `arena`, empty if there is nothing to say. Errors: TSR_E_NOMEM. */
tsr_status tsr_latest_warning(tsr_checkpoint *checkpoint, tsr_arena *arena, tsr_str *out, tsr_error *err);

/* The directory of one step as a store, for what reads files of a step that need not be a whole checkpoint. (core/formats/recognize)
 *
 * Example:
 *
 *     tsr_checkpoint *step;
 *     status = tsr_step_open(store, host, TSR_STR("1000"), &step, &err);
 *     if (status == TSR_OK) printf("%u files\n", (unsigned)tsr_checkpoint_store(step)->file_count);
 *     tsr_checkpoint_close(step); */

/* Chooses a directory below `store` by `step` (see tsr_open_options.step), or, if that is not given (NULL data), by a
 * `latest` file; without either, the store itself. Interrupted saves can also be chosen. Nothing of the checkpoint is read:
 * the result has no entries, and tsr_checkpoint_store gives the files. Borrows `store` and `host` until
 * tsr_checkpoint_close. Errors: those of tsr_open_options.step. */
tsr_status tsr_step_open(tsr_store *store, const tsr_host *host, tsr_str step, tsr_checkpoint **out, tsr_error *err);

/* Checkpoints as nested value trees: what optimizer state is worked on as, before it is flattened to names. Tensor leaves
 * are entries whose bytes can be read through `checkpoint`. (core/formats/recognize)
 *
 * Example:
 *
 *     tsr_trees trees = {0};
 *     status = tsr_trees_of_part(store, host, (tsr_str){NULL, 0}, false, &trees, &err);
 *     if (status == TSR_OK) printf("%zu keys at the root\n", tsr_value_pairs(trees.roots[0]));
 *     tsr_trees_close(&trees); */

typedef struct tsr_trees {
    tsr_checkpoint *checkpoint;    /* reads the tensors of all trees; its catalog is empty when `raw` */
    const tsr_value *const *roots; /* one per file, in the order asked for */
    uint32_t count;
    bool raw;                /* chunks have the locations of the bytes */
    uint32_t zeros_file;     /* raw: a file of 16 zero bytes, which follows the others in the store */
    tsr_checkpoint *entered; /* NULL, or the checkpoint that keeps the store of a step open */
} tsr_trees;

/* Opens `count` files of `store` (numbers; zip or legacy form). Borrows `store` and `host` until close; the trees live as
 * long as the checkpoint. Errors: those of reading torch.save files, naming the file. */
tsr_status tsr_trees_open(tsr_store *store, const tsr_host *host, const uint32_t *files, uint32_t count, tsr_trees *out,
                          tsr_error *err);

/* The single tree of the checkpoint in `store`, or of a part of it (tsr_open_options.part; NULL data: all of it), whatever its format. For a torch.save file it is the pickled value itself,
 * as above; for other formats it is the nested state dict that the entries' paths describe, without empty containers. Their
 * chunks have to be located through `checkpoint`. With `located` that is done here (for DCP by looking into every item), and
 * the tree is also `raw`. Errors as tsr_checkpoint_open and tsr_checkpoint_locate. */
tsr_status tsr_trees_of_part(tsr_store *store, const tsr_host *host, tsr_str part, bool located, tsr_trees *out,
                             tsr_error *err);
void tsr_trees_close(tsr_trees *trees); /* accepts a zeroed one */

/* What is removed from a training run, and what is kept. (core/formats/recognize) tessera/sys/prune_run.h of native decides and removes.
 *
 * Example:
 *
 *     tsr_prune_result result = {.found_valid = false};
 *     if (!result.found_valid) printf("%u removed\n", (unsigned)result.removed_count); */

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
