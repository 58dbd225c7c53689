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

/* Removes what killed jobs (job_state.h) left next to a destination; shares of plans stay, with a warning. `say` may be NULL. */
tsr_status tsr_journals_clear(const tsr_journals *journals, const char *path, void (*say)(void *ctx, const char *text),
                              void *ctx, tsr_error *err);

/* Creates the journal of a rank's files; `directory` exists. Needs no open save. */
tsr_status tsr_save_journal(const tsr_sys *sys, const char *directory, const char *token, const tsr_str *names, size_t count,
                            bool is_durable, tsr_error *err);

#endif
