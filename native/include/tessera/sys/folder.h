/* A store over a folder or a file of this machine, and an output into one.
 *
 * Example:
 *
 *     const tsr_folder_output_options options = {.is_folder = true};
 *     status = tsr_folder_store_open(NULL, host->allocator, "step-1000", &store, &err);
 *     if (status == TSR_OK)
 *         status = tsr_folder_output_open(NULL, host->allocator, "copy-of-step-1000", &options, &output, &err); */
#ifndef TESSERA_SYS_FOLDER_H
#define TESSERA_SYS_FOLDER_H

#include "tessera/output.h"
#include "tessera/sys/vec.h"

TSR_API_BEGIN

typedef struct tsr_sys tsr_sys; /* io/sys.h: only for tests that stand in for system calls */

/* Opens PATH for reading. A folder gives all its regular files, dotfiles included, and those of its direct subfolders
 * ("step-100/.metadata"), so that a folder of several checkpoints can be told from one checkpoint. What is deeper is listed
 * on demand (`deepen`), 100,000 names at most, and without following links from one directory to another. A file gives
 * itself alone, named by its last path component; a file that holds a JSON object, or is called ".metadata", gives its
 * folder's files (no subfolders) too. Either is `primary`. Names outside the listing cannot be read, so that ".." or an
 * absolute path in a checkpoint leads nowhere; symbolic links that are in the folder are followed. Names that contain
 * ".tessera-" belong to an output that is being written: they are not listed.
 *
 * Files are opened read-only on first use and kept open (at most 256 at once); `map` serves files of 1 MiB and more.
 * `sys` NULL: the real calls. Borrows `allocator` and `sys`. Errors: TSR_E_NOT_FOUND, TSR_E_IO, TSR_E_LIMIT (more than
 * 2^20 files), TSR_E_UNSUPPORTED (neither file nor folder), TSR_E_NOMEM. */
tsr_status tsr_folder_store_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *path, tsr_store **out,
                                 tsr_error *err);

/* How a path is opened (tsr_path_store_open_by). */
typedef struct tsr_store_opener {
    tsr_status (*open)(const struct tsr_store_opener *opener, const char *path, tsr_store **out, tsr_error *err);
    const tsr_host *host;
    const tsr_sys *sys; /* for paths on this machine; NULL: the real calls */
} tsr_store_opener;

/* Several directories as one store: for a checkpoint whose ranks wrote to the local disks of their nodes. A name that is in more
 * than one of them must have equal bytes in all (TSR_E_FORMAT names it). TSR_E_USAGE where a path is not a directory; other
 * errors as `opener`, which is borrowed during the call only. */
tsr_status tsr_joined_store_open(const tsr_store_opener *opener, const char *const *paths, size_t count, tsr_store **out,
                                 tsr_error *err);

/* Compares size and modification time of every file that was read with what they were when the store was opened.
 * TSR_E_CHANGED names the first that differs. Of other stores nothing is known here: unchanged, without holes, time 0. */
tsr_status tsr_folder_store_unchanged(tsr_store *store, tsr_error *err);
/* Whether files take less room (by 1 MiB or more) than they have bytes: reads of its holes cost nothing. */
bool tsr_folder_store_has_holes(const tsr_store *store);
/* When a file was last changed, as it was when the store was opened: seconds since 1970 and nanoseconds. */
void tsr_folder_store_modified(tsr_store *store, uint32_t file, int64_t *seconds, int64_t *nanoseconds);
/* Which file it is, whatever its names and links. */
typedef struct tsr_file_id {
    uint64_t device, inode;
    bool was_read; /* bytes of it were read through the store */
} tsr_file_id;
/* As it was when the store was opened; for TSR_NO_FILE of the directory that the files are in. False for other stores. */
bool tsr_folder_store_identify(const tsr_store *store, uint32_t file, tsr_file_id *out);
/* The descriptor behind a file of a folder store, until given back. TSR_E_UNSUPPORTED for other stores. */
tsr_status tsr_folder_store_take_fd(tsr_store *store, uint32_t file, int *fd, tsr_error *err);
void tsr_folder_store_give_fd(tsr_store *store, uint32_t file);

typedef struct tsr_folder_output_options {
    bool is_folder; /* the destination is a folder of files; otherwise one file, created under the name "" */
    bool overwrite; /* an existing destination is replaced */
    bool absent;    /* nothing was there when that was decided: what appeared since is not replaced */
    /* NULL: temporary names of this process alone. Else a word (letters, digits, '-') that they are made of, so that several
     * processes, or a later one, write into the same unpublished files: with `join`, `create` opens what is there already.
     * Files must be created in the same order by all. */
    const char *tag;
    /* With a tag: what has its names already was made by another process of the same job, or by an earlier run of it, and is
     * opened. Otherwise it is in the way. */
    bool join;
    bool whole; /* with `join`: files that are not there in their full size are refused, since records speak of them */
    bool sums;  /* with a tag: what is written is summed up (native/publish/file_sums.h), for tsr_folder_output_verify */
    bool publishing;     /* with a tag: a run before was renaming when it ended, so files may have their final names already */
    bool keep;           /* close leaves what is not published where it is, for others with the same tag */
    bool chosen;         /* `generation` is given; otherwise the next one is taken (tsr_folder_next_generation) */
    uint32_t generation;
    /* Zeros become holes where they fill blocks, and no room is reserved: for sources with holes (then a full disk shows when
     * it is full, not before). */
    bool holes;
    const char *source; /* NULL, or the path that is read: a destination inside it, or itself, is refused */
    /* When replacing a folder whose new files keep the names of the old ones, and that has no marker: the new folder is made
     * next to it and the two change places. Other files get a second name in the new one before; the old one is removed. */
    bool swap;
    /* When replacing a folder: names in it that belong to the old checkpoint, removed once the new one is in place. Other
     * files of the folder are never touched. */
    const tsr_str *obsolete;
    size_t obsolete_count;
} tsr_folder_output_options;

/* Opens a destination for writing. Where it goes before it is published:
 *
 *   one file           .NAME.tessera-TAG next to it, renamed over or to NAME
 *   a new folder       .NAME.tessera-TAG/ next to it, renamed to NAME as a whole
 *   a swapped folder   .NAME.tessera-TAG/ next to it, exchanged with NAME; then what is there goes
 *   a replaced folder  .tessera-TAG-N in it; data files (under names that were free), then the marker are renamed; then
 *                      the obsolete files go
 *
 * with fsync of every file before, and of the folder after its renames. TAG is the process id unless one is given. A killed
 * run leaves such temporary names and nothing else. Files are preallocated where the size is known, so that a full disk
 * shows before the first byte. Names are single components, or paths below a new directory, whose subdirectories are made.
 * `copy_range` serves folder stores where the file system can. `sys` NULL: the real calls.
 *
 * What replaces a file or a directory is private until it gets the mode, owner, group and access control list of the old
 * one, shortly before it is published; other extended attributes are not kept. New files follow the umask; in a replaced
 * directory they are open to nobody whom all old files were closed to.
 *
 * Borrows allocator, sys and options.obsolete until close. Errors: TSR_E_EXISTS ("… exists …"), TSR_E_USAGE (inside the
 * source; a file where a folder is wanted), TSR_E_UNSUPPORTED (names cannot be exchanged here, or the folder to be swapped
 * has subfolders), TSR_E_NOT_FOUND (no parent folder), TSR_E_IO, TSR_E_NOMEM. */
tsr_status tsr_folder_output_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *path,
                                  const tsr_folder_output_options *options, tsr_output **out, tsr_error *err);

/* Removes what is not published of an output that other threads still write, for a process that is about to end: nothing
 * can be created in it afterwards, and it must not be closed. An output with `keep` stays. */
void tsr_folder_output_abandon(tsr_output *output);

/* One above those of the data files in a folder (tsr_output.generation); 0 where there are none, or no folder. */
tsr_status tsr_folder_next_generation(const tsr_sys *sys, const char *path, uint32_t *out, tsr_error *err);

/* With a tag: whether all files created so far were there before, in their full size. Then, and only then, may records of
 * what they hold be believed. */
bool tsr_folder_output_continues(const tsr_output *output);
/* With `whole`: all files that records speak of were opened; those created from now on are new. */
void tsr_folder_output_has_all(tsr_output *output);
/* With `keep`: `close` removes what is not published after all. */
void tsr_folder_output_drop(tsr_output *output);
/* Files created so far. */
uint32_t tsr_folder_output_count(const tsr_output *output);
/* The sum of what was written to a file since this was last asked for. Not while it is written. */
uint64_t tsr_folder_output_take_sum(tsr_output *output, uint32_t file);
/* Reads bytes of a file again: what tsr_folder_output_take_sum would have returned after they were written. The file must have them. */
typedef struct tsr_file_range {
    uint64_t offset, size;
} tsr_file_range;
tsr_status tsr_folder_output_sum(tsr_output *output, uint32_t file, tsr_file_range range, uint64_t *sum, tsr_error *err);
/* Reads the first `count` files again and compares them with the sums of all that was ever written to them. TSR_E_CHANGED names
 * one that differs. */
tsr_status tsr_folder_output_verify(tsr_output *output, const uint64_t *sums, uint32_t count, tsr_error *err);
/* What publishing will do, as text (native/publish/record.h), for who must know after a kill how far it came. `companion` is NULL
 * or another file that is published after this one. */
tsr_status tsr_folder_output_record(tsr_output *output, uint32_t marker, tsr_output *companion, tsr_vec *text, tsr_error *err);
/* Whether files go into a folder that exists: publishing takes several renames then. */
bool tsr_folder_output_replaces(const tsr_output *output);

TSR_API_END

#endif
