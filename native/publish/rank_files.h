/* Files that the ranks of a training job write next to a directory, and that get their names in it together
 * (tessera.torch.StorageWriter with form="safetensors"). Unlike those of a save in place (saves.h), their names are given, so the files
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
 * the old checkpoint was removed, its marker first (TSR_EXISTING_EITHER in folder.h). TAG is always the same, because PyTorch lets a rank
 * save by an old plan of its own, of which the coordinator knows nothing.
 *
 * Example, of the coordinator:
 *
 *     status = tsr_rank_files_open(&options, &files, &err);
 *     if (status == TSR_OK) status = tsr_rank_files_begin(files, &own, old, old_count, &err);
 *     ...
 *     if (status == TSR_OK) status = tsr_rank_files_publish(files, names, count, marker, &err);
 *     tsr_rank_files_close(files); */
#ifndef TSR_NATIVE_RANK_FILES_H
#define TSR_NATIVE_RANK_FILES_H

#include "publish/journal.h"

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
tsr_status tsr_rank_files_folder(const char *path, char folder[PATH_MAX], tsr_error *err);
/* Makes the journal of one of the ranks, from 0, before it creates its files. */
tsr_status tsr_rank_files_journal(const tsr_rank_files_request *request, uint64_t rank, tsr_journal_files files,
                                  tsr_error *err);

#endif
