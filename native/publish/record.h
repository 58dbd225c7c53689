/* The record of a publication that takes several steps. It is written before the first step and shows after a kill what is
 * done and what is left to do. Files are recorded with their identities: a file of the same name that somebody
 * else has put there since, even with the same inode number, is neither removed nor taken for ours.
 *
 *   tessera.publishing/2
 *   into .metadata               or: file, new, swap, move     what is switched
 *   beside 2049                  device of the directory that this record is in
 *   identity ID                  of what gets the destination's name (into: of the marker)
 *   new ID __0_1.distcp          a file that gets this name in the destination
 *   old ID __0_0.distcp          a file there that the old checkpoint lists
 *   (an empty line)
 *
 * An ID is "device inode size seconds nanoseconds".
 *
 * If the destination is one file, `new` may also name a companion next to it, which is renamed after it, and `old` the
 * file that the companion replaces. */
#ifndef TSR_NATIVE_RECORD_H
#define TSR_NATIVE_RECORD_H

#include "publish/journal.h"
#include "tessera/sys/containers.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* The identity of a file, independent of its name. File systems reuse the inode number of a removed file for the next one,
 * so the number alone cannot distinguish our file from one that somebody else put in its place. */

/* The identity of a file at one time. Renaming the file, linking it or changing its permissions does not affect it. */
typedef struct tsr_identity {
    uint64_t device, inode;
    /* Size and modification time; 0 for a directory, whose time changes with its files. */
    uint64_t size, seconds, nanoseconds;
} tsr_identity;

static inline tsr_identity tsr_identity_of(const struct stat *info)
{
    tsr_identity id = {.device = (uint64_t)info->st_dev, .inode = (uint64_t)info->st_ino};
    if (S_ISDIR(info->st_mode)) return id;
    id.size = (uint64_t)info->st_size;
    id.seconds = (uint64_t)info->st_mtim.tv_sec;
    id.nanoseconds = (uint64_t)info->st_mtim.tv_nsec;
    return id;
}

/* Whether a file is the one of which `then` was taken. Device numbers must be compared only if they have not changed since:
 * after a restart, a file system may have another one. */
static inline bool tsr_identity_is(const tsr_identity *then, const struct stat *info, bool compare_device)
{
    const tsr_identity now = tsr_identity_of(info);
    return now.inode == then->inode && now.size == then->size && now.seconds == then->seconds &&
           now.nanoseconds == then->nanoseconds && (!compare_device || now.device == then->device);
}

/* Whether two names lead to the same file. Both must have been looked up just now. */
static inline bool tsr_is_one_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

typedef enum tsr_switch {
    TSR_SWITCH_FILE,
    TSR_SWITCH_NEW_DIRECTORY,
    TSR_SWITCH_DIRECTORIES,
    TSR_SWITCH_MARKER,
    TSR_SWITCH_MOVE /* as TSR_SWITCH_MARKER, but the old files were removed before, the marker first */
} tsr_switch;

typedef struct tsr_recorded_file {
    tsr_str name;
    tsr_identity identity;
    bool old;
} tsr_recorded_file;

typedef struct tsr_record {
    tsr_switch kind;
    tsr_str marker;  /* TSR_SWITCH_MARKER, TSR_SWITCH_MOVE; empty if there is none */
    uint64_t device; /* device of the directory that contains the record */
    tsr_identity identity;
    const tsr_recorded_file *files;
    size_t count;
} tsr_record;

tsr_status tsr_record_put(const tsr_record *record, tsr_vec *text, tsr_error *err);
/* False if the text is not a complete record. Borrows the text. */
bool tsr_record_parse(tsr_str text, tsr_arena *arena, tsr_record *out);

/* Whether the switch from old to new was done. */
bool tsr_record_is_published(const tsr_record *record, const tsr_journals *journals);
/* Completes a publication whose switch was done: removes the old files, or renames the companion of a file. */
tsr_status tsr_record_end(const tsr_record *record, const tsr_journals *journals, const char *tag, tsr_error *err);
/* Undoes the renames of a publication whose switch was not done. Where files were moved and old ones are already gone, removes what is left
 * of both. */
tsr_status tsr_record_undo(const tsr_record *record, const tsr_journals *journals, tsr_error *err);
/* The names in the destination that the publication has put there, in `arena`. */
tsr_status tsr_record_written(const tsr_record *record, const tsr_journals *journals, tsr_arena *arena,
                              const tsr_str **names, size_t *count, tsr_error *err);

/* Decides whether a file belongs to the list of the replaced checkpoint. */
typedef struct tsr_obsolete_test {
    bool (*is_obsolete)(const void *ctx, const char *name, const struct stat *info);
    const void *ctx;
} tsr_obsolete_test;

/* Removes a directory after another one has replaced it. Obsolete files are removed, also those in its subdirectories,
 * and so are second names of files in the new directory; any other file, which must have appeared since, is moved to the new one. Both are names in `parent`. */
tsr_status tsr_retire_directory(const tsr_sys *sys, int parent, const char *retired, const char *replacing,
                                tsr_obsolete_test test, tsr_error *err);
/* Calls `each` for every name in a subdirectory of `parent`, except "." and "..", until it fails. Does not follow a link. */
tsr_status tsr_each_name(const tsr_sys *sys, int parent, const char *directory,
                         tsr_status (*each)(void *ctx, int directory, const char *name, tsr_error *err), void *ctx,
                         tsr_error *err);
/* Opens the directory of a file below `directory`, one component after the other, so that no link leads elsewhere. *name is
 * then the last component. Returns `directory` itself if the name has only one component, and -1 if a directory is missing. */
int tsr_open_parent(const tsr_sys *sys, int directory, const char **name);
/* Removes the directories that a file below `directory` was in, if they are empty now. */
void tsr_remove_parents(const tsr_sys *sys, int directory, const char *name);
/* unlink that is repeated on EINTR. A name that does not exist, or that is not the directory it should be, is not an
 * error. */
tsr_status tsr_remove_name(const tsr_sys *sys, int directory, const char *name, bool is_directory, tsr_error *err);

#endif
