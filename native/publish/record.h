/* The record of a publication that takes several steps, written before the first: what is done and what is left to do can be
 * told from it after a kill. Files are named with what tells them from others (identity.h), so that a file of the same name that
 * somebody else has put there since, with the same inode number too, is neither removed nor taken for ours.
 *
 *   tessera.publishing/2
 *   into .metadata               or: file, new, swap           what is switched
 *   beside 2049                  the device of the directory that this record is in
 *   identity ID                  of what gets the destination's name (into: of the marker)
 *   new ID __0_1.distcp          a file that gets this name in the destination
 *   old ID __0_0.distcp          a file there that the old checkpoint lists
 *   (an empty line)
 *
 * An ID is "device inode size seconds nanoseconds".
 *
 * Of one file, `new` also names a file beside it that gets its name after it, and `old` what that replaces. */
#ifndef TSR_NATIVE_RECORD_H
#define TSR_NATIVE_RECORD_H

#include "publish/identity.h"
#include "publish/journal.h"

#include "tessera/sys/vec.h"

typedef enum tsr_switch { TSR_SWITCH_FILE, TSR_SWITCH_NEW_FOLDER, TSR_SWITCH_FOLDERS, TSR_SWITCH_MARKER } tsr_switch;

typedef struct tsr_recorded_file {
    tsr_str name;
    tsr_identity identity;
    bool old;
} tsr_recorded_file;

typedef struct tsr_record {
    tsr_switch kind;
    tsr_str marker; /* TSR_SWITCH_MARKER: empty where there is none */
    uint64_t device; /* of the directory that the record is in */
    tsr_identity identity;
    const tsr_recorded_file *files;
    size_t count;
} tsr_record;

tsr_status tsr_record_put(const tsr_record *record, tsr_vec *text, tsr_error *err);
/* False where the text is not a whole record. Borrows the text. */
bool tsr_record_parse(tsr_str text, tsr_arena *arena, tsr_record *out);

/* Whether what was to be switched has been. */
bool tsr_record_is_published(const tsr_record *record, const tsr_journals *journals);
/* What is left to do then: the old files go, or a file beside the destination gets its name. */
tsr_status tsr_record_end(const tsr_record *record, const tsr_journals *journals, const char *tag, tsr_error *err);
/* Takes back what was renamed before the switch. */
tsr_status tsr_record_undo(const tsr_record *record, const tsr_journals *journals, tsr_error *err);
/* Names in the destination that the publication has put there, in `arena`. */
tsr_status tsr_record_written(const tsr_record *record, const tsr_journals *journals, tsr_arena *arena, const tsr_str **names,
                              size_t *count, tsr_error *err);

/* Whether a file of a replaced checkpoint was listed by it. */
typedef struct tsr_obsolete_test {
    bool (*is_obsolete)(const void *ctx, const char *name, const struct stat *info);
    const void *ctx;
} tsr_obsolete_test;

/* Removes a directory that another one has replaced: obsolete files go, so do second names of files in the new one; any other
 * file that appeared since moves there. Both are names in `parent`. */
tsr_status tsr_retire_folder(const tsr_sys *sys, int parent, const char *retired, const char *replacing,
                             tsr_obsolete_test test, tsr_error *err);
/* Calls `each` for every name but "." and ".." of a directory in `parent` that is not a link, until it fails. */
tsr_status tsr_each_name(const tsr_sys *sys, int parent, const char *folder,
                         tsr_status (*each)(void *ctx, int folder, const char *name, tsr_error *err), void *ctx, tsr_error *err);
/* unlink that EINTR does not stop; what is not there, or is not the folder that it should be, is no error. */
tsr_status tsr_remove_name(const tsr_sys *sys, int folder, const char *name, bool is_folder, tsr_error *err);

#endif
