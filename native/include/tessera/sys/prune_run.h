/* Removes old checkpoints of a training run. (native/publish)
 *
 * Example:
 *
 *     const tsr_prune_options options = {.size = sizeof options, .keep = 3};
 *     tsr_prune_result result;
 *     status = tsr_prune_run(host, "run", &options, arena, &result, &err); */
#ifndef TESSERA_SYS_PRUNE_RUN_H
#define TESSERA_SYS_PRUNE_RUN_H

#include "tessera/host.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/latest.h"

TSR_API_BEGIN

/* Removes the checkpoints of `run`, a directory or the URL of an object store, that `options` do not keep. Of each it removes the
 * marker first, then the other files that belong to it, then empty directories. Before that, it writes a record of these files into
 * the run, so that the next call finishes what a killed one has begun. Several processes may do this at the same time, and others may
 * save checkpoints. A checkpoint is never removed if it is the newest valid one, has no step in its name or no marker, was changed in
 * the last ten minutes, or is named by a tracker file or a kept checkpoint, or if a symbolic link below the run leads to it. Links are not
 * followed otherwise: what they lead to is neither removed nor counted through them.
 *
 * The result is in `arena`. Errors: those of tsr_run_list; TSR_E_USAGE if there are several runs below `run`; TSR_E_IO if something
 * cannot be removed: then the record stays, too. */
tsr_status tsr_prune_run(const tsr_host *host, const char *run, const tsr_prune_options *options, tsr_arena *arena,
                         tsr_prune_result *out, tsr_error *err);

/* ---- where a run is stored ---- */

typedef enum tsr_run_file_kind { TSR_RUN_FILE, TSR_RUN_DIRECTORY, TSR_RUN_LINK, TSR_RUN_OTHER } tsr_run_file_kind;

typedef struct tsr_run_file {
    tsr_str name; /* below the run */
    tsr_run_file_kind kind;
    uint64_t size;
    int64_t seconds, nanoseconds; /* when it was changed, by the clock of the store */
    tsr_str version;              /* of an object; empty for a file on a disk */
    tsr_str target;               /* of a link: the path below the run to which it leads; empty if that is outside */
    bool is_mount;                /* something is mounted here */
    bool is_unreadable;           /* a directory that cannot be listed */
} tsr_run_file;

typedef enum tsr_run_removal { TSR_RUN_REMOVED, TSR_RUN_ABSENT, TSR_RUN_CHANGED } tsr_run_removal;

typedef struct tsr_run_place tsr_run_place;
struct tsr_run_place {
    /* Appends everything below the run, of tsr_run_file, with texts in `arena`. *now is the time of the store's clock in seconds. */
    tsr_status (*list)(tsr_run_place *place, tsr_arena *arena, tsr_vec *files, int64_t *now, tsr_error *err);
    /* Reads a file of at most `most` bytes; a larger or missing one is empty. */
    tsr_status (*read)(tsr_run_place *place, const tsr_run_file *file, size_t most, tsr_arena *arena, tsr_str *text,
                       tsr_error *err);
    /* Writes the record, durably. Called once at most. */
    tsr_status (*write_record)(tsr_run_place *place, tsr_str text, tsr_error *err);
    /* Removes the record again. */
    tsr_status (*drop_record)(tsr_run_place *place, tsr_error *err);
    /* Whether the process that wrote a record has ended. NULL: that cannot be known. */
    bool (*is_abandoned)(tsr_run_place *place, const tsr_run_file *record);
    /* Whether no file of a checkpoint was written again since it was listed. NULL: `remove` checks each. */
    tsr_status (*check)(tsr_run_place *place, tsr_str path, const tsr_run_file *const *files, size_t count, bool *is_same,
                        tsr_error *err);
    /* Removes a file or a link, unless it is not the one that was listed. */
    tsr_status (*remove)(tsr_run_place *place, const tsr_run_file *file, tsr_run_removal *out, tsr_error *err);
    /* Removes several files at the same time, where each answer takes long. NULL: `remove` does it. */
    tsr_status (*remove_all)(tsr_run_place *place, const tsr_run_file *const *files, size_t count, tsr_error *err);
    /* Removes a directory if it is empty. */
    tsr_status (*remove_directory)(tsr_run_place *place, tsr_str name, tsr_error *err);
    /* Makes removals in the directory that contains a file durable before others follow. */
    tsr_status (*settle)(tsr_run_place *place, tsr_str name, tsr_error *err);
    void (*close)(tsr_run_place *place);
};

#define TSR_PRUNE_RECORD      ".tessera-prune-" /* what the names of records begin with, before 16 hexadecimal digits */
#define TSR_PRUNE_RECORD_HEAD "tessera.prune-record/1\n" /* what records begin with, from when they are created */

/* Opens a directory on this machine; with `dry_run` nothing is written, and the record is not created. */
tsr_status tsr_directory_run_open(const tsr_host *host, const char *path, bool dry_run, tsr_run_place **out, tsr_error *err);
/* Opens a directory in an object store that can be written to. */
tsr_status tsr_object_run_open(const tsr_host *host, const char *url, bool dry_run, tsr_run_place **out, tsr_error *err);

TSR_API_END

#endif
