/* Saves in place: the ranks of a training job write their files straight into a directory, under names that nothing else has, and
 * its coordinator gives the marker its name when all of them are there (tessera.torch.StorageWriter). This is what such a save has
 * in common with other outputs: locks, journals and records, so that each is safe from the other, and cleans up what the other left.
 *
 *   DIR/__R_TOKEN.distcp                  a rank's file; TOKEN is 16 hexadecimal digits, random
 *   DIR/.tessera-save-TOKEN.journal       its journal (journal.h), made before it: what may be removed if the save is killed
 *   DIR/.tessera-save-TOKEN.metadata      the coordinator's: the marker, until it gets its name
 *   DIR/.tessera-save-TOKEN.publishing    the record (record.h) of what the marker replaces
 *   DIR/.tessera-save.lock                held by the coordinator, also where directories cannot be locked
 *
 * A save holds DIR itself as a replacement does (tsr_journals_hold). Ranks that save on their own, each with a marker of its own,
 * share DIR, and each holds .tessera-save-R.lock; their tokens begin with R in 8 digits.
 *
 * Example:
 *
 *     tsr_save *save;
 *     status = tsr_save_open(&options, &save, &err);
 *     if (status == TSR_OK) status = tsr_save_begin(save, ".metadata", names, count, &err);
 *     tsr_save_close(save); */
#ifndef TSR_NATIVE_SAVES_H
#define TSR_NATIVE_SAVES_H

#include "publish/journal.h"

#define TSR_SAVE_TOKEN_SIZE 16

typedef struct tsr_save tsr_save;

typedef struct tsr_save_request {
    const tsr_sys *sys;                        /* NULL: the real calls */
    const char *path;                          /* the directory, which exists */
    int64_t rank;                              /* of a rank that saves on its own; -1: all ranks save together */
    bool is_durable;                           /* what is written is on disk on return */
    void (*warn)(void *ctx, const char *text); /* may be NULL */
    void *ctx;
} tsr_save_request;

/* Holds the directory, and removes what killed runs of other jobs (job_state.h) left next to it; shares of plans stay, with a warning.
 * TSR_E_EXISTS if another process is saving there or replaces it; TSR_E_IO; TSR_E_NOMEM. Copies the options. */
tsr_status tsr_save_open(const tsr_save_request *options, tsr_save **out, tsr_error *err);
/* Notes the marker and the files of the checkpoint that will be replaced, as they are now, and removes what killed saves left, except
 * these. */
tsr_status tsr_save_begin(tsr_save *save, const char *marker, const tsr_str *replaced, size_t count, tsr_error *err);
/* TSR_E_CHANGED if another program has changed one of them since. */
tsr_status tsr_save_unchanged(const tsr_save *save, tsr_error *err);
/* Records what the marker, which has its temporary name, is about to replace; `files` are those of the new checkpoint. */
tsr_status tsr_save_record(const tsr_save *save, const char *token, const tsr_str *files, size_t count, tsr_error *err);
/* After the marker has got its name: removes the files that it replaces, and the journals of the new ones. */
tsr_status tsr_save_end(const tsr_save *save, const char *token, const tsr_str *files, size_t count, tsr_error *err);
/* Releases the directory. Accepts NULL. */
void tsr_save_close(tsr_save *save);

/* Creates the journal of a rank's files; the directory `path` exists. Needs no open save. */
tsr_status tsr_save_journal(const tsr_sys *sys, const char *path, const char *token, const tsr_str *names, size_t count,
                            bool is_durable, tsr_error *err);

/* ---- files next to the directory ---- */

/* Files that the ranks of a training job write next to a directory, and that get their names in it together
 * (tessera.torch.StorageWriter with form="safetensors"). Unlike those of a save in place, their names are given, so the files
 * of the checkpoint that they replace may have the same ones:
 *
 *   DIR/                             the destination, which exists
 *   .DIR.tessera-TAG/                the new files, "sharded/a.safetensors" among them, until they are published
 *   .DIR.tessera-TAG.3-by-9          the journal (journal.h) of rank 2 of 8, made before its files; the last one is the coordinator's
 *   .DIR.tessera-TAG.publishing      the record (record.h) of what they replace
 *
 * Nothing can be moved from there if DIR is a mount point, and nothing can be made there if that is not writable. All of this is then in
 * DIR itself, and called "...tessera-TAG" and so on.
 *
 * Where the file system can do it, DIR is exchanged for the directory with the new files. Otherwise they are moved there one by one, after
 * the old checkpoint was removed, its marker first (TSR_EXISTING_EITHER in directory.h). TAG is always the same, because PyTorch lets a rank
 * save by an old plan of its own, of which the coordinator knows nothing.
 *
 * Example, of the coordinator:
 *
 *     status = tsr_rank_files_open(&options, &files, &err);
 *     if (status == TSR_OK) status = tsr_rank_files_begin(files, &own, old, old_count, &err);
 *     ...
 *     if (status == TSR_OK) status = tsr_rank_files_publish(files, names, count, marker, &err);
 *     tsr_rank_files_close(files); */

typedef struct tsr_rank_files tsr_rank_files;

typedef struct tsr_rank_files_request {
    const tsr_sys *sys; /* NULL: the real calls */
    const char *path;   /* the directory, which exists */
    uint64_t ranks;
    bool is_durable;                           /* what is published is on disk on return */
    void (*warn)(void *ctx, const char *text); /* may be NULL */
    void *ctx;
} tsr_rank_files_request;

/* Holds the directory, and removes what killed jobs left next to it and killed saves in it; shares of plans stay, with a warning.
 * TSR_E_EXISTS if another process is writing there; TSR_E_IO; TSR_E_NOMEM. Copies the request. */
tsr_status tsr_rank_files_open(const tsr_rank_files_request *request, tsr_rank_files **out, tsr_error *err);
/* Makes the directory of the new files. `own` are those that the coordinator may write when all ranks have written theirs, `replaced` the
 * files of the old checkpoint in the directory, the marker first; names below it are allowed. Nothing else in the directory is changed. */
tsr_status tsr_rank_files_begin(tsr_rank_files *files, tsr_journal_files own, const tsr_str *replaced, size_t count,
                                tsr_error *err);
/* The output, for further files that the coordinator creates and writes: some of `own`. */
tsr_output *tsr_rank_files_output(tsr_rank_files *files);
/* Gives the new files their names. `names` are the files that are to be published and were not created in the output; `marker` is the
 * number of the name that makes them a checkpoint, or TSR_NO_FILE. Nothing else may be in their directory. TSR_E_CHANGED if another program has changed what is replaced;
 * TSR_E_EXISTS if another file has one of the names. */
tsr_status tsr_rank_files_publish(tsr_rank_files *files, const tsr_str *names, size_t count, uint32_t marker,
                                  tsr_error *err);
/* Removes what was not published, of all ranks, and releases the directory. Accepts NULL. */
void tsr_rank_files_close(tsr_rank_files *files);
/* Releases the directory while other ranks may still be writing. What they leave is removed by the next job. */
void tsr_rank_files_leave(tsr_rank_files *files);

/* Writes the path of the directory of the new files. */
tsr_status tsr_rank_files_directory(const char *path, char directory[PATH_MAX], tsr_error *err);
/* Makes the journal of one of the ranks, from 0, before it creates its files. */
tsr_status tsr_rank_files_journal(const tsr_rank_files_request *request, uint64_t rank, tsr_journal_files files,
                                  tsr_error *err);

#endif
