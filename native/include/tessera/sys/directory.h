/* A store that reads a directory or a file of this machine, and an output that writes one.
 *
 * Example:
 *
 *     const tsr_directory_output_options options = {.is_directory = true};
 *     status = tsr_directory_store_open(NULL, host->allocator, "step-1000", &store, &err);
 *     if (status == TSR_OK)
 *         status = tsr_directory_output_open(NULL, host->allocator, "copy-of-step-1000", &options, &output, &err); */
#ifndef TESSERA_SYS_DIRECTORY_H
#define TESSERA_SYS_DIRECTORY_H

#include "tessera/output.h"
#include "tessera/sys/containers.h"

TSR_API_BEGIN

/* Bytes of memory that the names of one listing may take: enough for two million files. */
#define TSR_MOST_LISTING ((uint64_t)512 << 20)

typedef struct tsr_sys tsr_sys; /* io/sys.h: only for tests that replace system calls */

/* Opens PATH for reading. The store of a directory lists all its regular files, including dotfiles, and those of its direct
 * subdirectories ("step-100/.metadata"), which distinguishes a directory of several checkpoints from a single checkpoint. Files
 * further down are listed on demand (`deepen`), up to TSR_MOST_LISTING bytes, without following links from one directory to
 * another. The store of a file lists only that file, under its last path component. If the file holds a JSON object or is
 * called ".metadata", the store also lists the other files of its directory, without subdirectories. In both cases the file is
 * `primary`. Names outside the listing cannot be read, so ".." or an absolute path in a checkpoint has no effect; symbolic
 * links in the directory are followed. Names that begin with a dot and contain ".tessera-" are those of outputs that are
 * being written: they are not listed.
 *
 * Files are opened read-only on first use and kept open (at most 256 at once); `map` serves files of 1 MiB and more.
 * `sys` NULL: the real calls. Borrows `allocator` and `sys`. Errors: TSR_E_NOT_FOUND, TSR_E_IO, TSR_E_LIMIT (more
 * files than TSR_MOST_LISTING bytes hold), TSR_E_UNSUPPORTED (neither file nor directory), TSR_E_NOMEM. */
tsr_status tsr_directory_store_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *path, tsr_store **out,
                                    tsr_error *err);

/* How a path is opened (tsr_path_store_open_by). */
typedef struct tsr_store_opener {
    tsr_status (*open)(const struct tsr_store_opener *opener, const char *path, tsr_store **out, tsr_error *err);
    const tsr_host *host;
    const tsr_sys *sys; /* for paths on this machine; NULL: the real calls */
} tsr_store_opener;

/* Opens several directories as one store, for a checkpoint whose ranks wrote to the local disks of their nodes. A name that
 * is in several of them must have equal bytes in all (TSR_E_FORMAT names it). TSR_E_USAGE if a path is not a directory;
 * other errors as `opener`, which is borrowed only during the call. */
tsr_status tsr_joined_store_open(const tsr_store_opener *opener, const char *const *paths, size_t count, tsr_store **out,
                                 tsr_error *err);

/* Compares size and modification time of every file that was read with those at the time when the store was opened.
 * TSR_E_CHANGED names the first that differs. For stores of other kinds, these three functions report: unchanged, no holes,
 * time 0. */
tsr_status tsr_directory_store_unchanged(tsr_store *store, tsr_error *err);
/* Files and directories that a store does not list because their names are like those of unfinished outputs. */
typedef struct tsr_hidden_names {
    uint64_t count;
    char first[256]; /* one of the names, perhaps cut off */
} tsr_hidden_names;
tsr_hidden_names tsr_directory_store_hidden(const tsr_store *store);
/* What else a store does not list, after its levels were listed with `deepen`. Both are empty for stores of other kinds. */
typedef struct tsr_unlisted {
    tsr_hidden_names
        special; /* pipes, sockets, devices, and links that lead nowhere or to directories that are not followed */
    tsr_hidden_names unreadable; /* directories and links that this user may not access */
} tsr_unlisted;
tsr_unlisted tsr_directory_store_unlisted(const tsr_store *store);
/* Whether files take at least 1 MiB less space than they have bytes. Reading their holes costs nothing. */
bool tsr_directory_store_has_holes(const tsr_store *store);
/* When a file was last changed, according to its state when the store was opened: seconds since 1970 and nanoseconds. */
void tsr_directory_store_modified(tsr_store *store, uint32_t file, int64_t *seconds, int64_t *nanoseconds);
/* The identity of a file, independent of its names and links. */
typedef struct tsr_file_id {
    uint64_t device, inode;
    bool was_read; /* bytes of it were read through the store */
} tsr_file_id;
/* The identity of a file when the store was opened; with TSR_NO_FILE that of the directory that contains the files. False
 * for stores of other kinds. */
bool tsr_directory_store_identify(const tsr_store *store, uint32_t file, tsr_file_id *out);
/* The descriptor of a file of a directory store. It must be given back. TSR_E_UNSUPPORTED for stores of other kinds. */
tsr_status tsr_directory_store_take_fd(tsr_store *store, uint32_t file, int *fd, tsr_error *err);
void tsr_directory_store_give_fd(tsr_store *store, uint32_t file);

/* What happens to an existing destination. */
typedef enum tsr_existing {
    TSR_EXISTING_REFUSED, /* there must not be one */
    TSR_EXISTING_REPLACED,
    TSR_EXISTING_ABSENT, /* it may be replaced, but there was none when that was checked: one that has appeared since is not */
    /* A directory is replaced whose new files keep the names of the old ones, and that has no marker: the new directory is made
     * next to the old one and exchanged with it. Before that, other files get a second name in the new directory; afterwards
     * the old directory is removed. */
    TSR_EXISTING_SWAPPED,
    /* The same if it is possible when the files are complete (tsr_directory_output_choose). Otherwise the obsolete files are removed, the
     * marker first, and the new files are moved to the old directory one by one, the marker last. The directory exists. */
    TSR_EXISTING_EITHER
} tsr_existing;
/* Which unpublished files with the tag there may be already. */
typedef enum tsr_begun {
    TSR_BEGUN_REFUSED,   /* none: they are an error */
    TSR_BEGUN_JOINED,    /* those of another process of the same job, or of an earlier run of it: they are opened */
    TSR_BEGUN_WHOLE,     /* all of them, in their full size, because records mention them */
    TSR_BEGUN_PUBLISHING /* those of an earlier run that ended while renaming: files may already have their final names */
} tsr_begun;
/* What `close` does with files that are not published. */
typedef enum tsr_unfinished {
    TSR_UNFINISHED_REMOVED,
    TSR_UNFINISHED_KEPT /* they stay, for other processes with the same tag */
} tsr_unfinished;

typedef struct tsr_directory_output_options {
    bool is_directory; /* the destination is a directory of files; otherwise one file, created under the name "" */
    tsr_existing existing;
    /* With TSR_EXISTING_EITHER: the new directory is made in the old one, because nothing can be made next to that, or moved from there.
     * Its files are always moved. */
    bool is_within;
    /* NULL: temporary names are private to this process. Otherwise a word (letters, digits, '-') that they contain. With the
     * same tag several processes, or a later one, write to the same unpublished files, which `create` opens as `begun` says.
     * All processes must create the files in the same order. */
    const char *tag;
    tsr_begun begun; /* with a tag */
    tsr_unfinished unfinished;
    /* With a tag: keeps sums of the written bytes (native/publish/file_sums.h), for tsr_directory_output_verify. */
    bool sums;
    /* Becomes that of the output; to replace a directory whose files are named by it, tsr_directory_next_generation. */
    uint32_t generation;
    /* Blocks of zeros become holes, and no space is reserved: for sources with holes. A full disk is then noticed only when
     * it is full. */
    bool holes;
    const char *const *sources; /* paths that are read: a destination that is one of them, or inside one, is refused */
    size_t source_count;
    /* When replacing a directory: names in it that belong to the old checkpoint, removed once the new one is in place. Other
     * files of the directory are never touched. */
    const tsr_str *obsolete;
    size_t obsolete_count;
    /* NULL: the directory that holds the destination is opened by its path. Otherwise a descriptor of it, from when its journals
     * were opened and decisions about the old checkpoint were made. TSR_E_CHANGED if another directory has its path now. */
    const int *parent;
} tsr_directory_output_options;

/* Opens a destination for writing. Before it is published it is written to:
 *
 *   one file           .NAME.tessera-TAG next to it, renamed over or to NAME
 *   a new directory       .NAME.tessera-TAG/ next to it, renamed to NAME as a whole
 *   a swapped directory   .NAME.tessera-TAG/ next to it, exchanged with NAME; then the old one is removed
 *   either             as a swapped directory; if it cannot be exchanged, its files are moved to NAME
 *   … within           ...tessera-TAG/ in it, whose files are moved to NAME
 *   a replaced directory  .tessera-TAG-N in it; data files (under names that were free), then the marker are renamed; then
 *                      the obsolete files are removed
 *
 * Every file is synced before its rename, and the directory after its renames. TAG is the process id unless one is given. A
 * killed run leaves only such temporary names. Files are preallocated if the size is known, so a full disk is noticed before
 * the first byte. Names are single components, or paths below a new directory, whose subdirectories are made. `copy_range`
 * serves directory stores if the file system supports it. `sys` NULL: the real calls.
 *
 * A replacement of a file or a directory is private until it gets the mode, owner, group and access control list of the old
 * one, shortly before it is published; other extended attributes are not kept. New files follow the umask; in a replaced
 * directory, users who could read none of the old files cannot read them.
 *
 * Borrows allocator, sys and options.obsolete until close. Errors: TSR_E_EXISTS ("… exists …"), TSR_E_USAGE (inside a
 * source; a file where a directory is wanted), TSR_E_UNSUPPORTED (names cannot be exchanged here, or the directory to be swapped
 * has subdirectories), TSR_E_NOT_FOUND (no parent directory), TSR_E_IO, TSR_E_NOMEM. */
tsr_status tsr_directory_output_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *path,
                                     const tsr_directory_output_options *options, tsr_output **out, tsr_error *err);
/* Whether tsr_directory_output_open would refuse the destination because of what is there, or because its parent is not. Creates
 * nothing. Errors: as tsr_directory_output_open. */
tsr_status tsr_directory_output_check(const tsr_allocator *allocator, const char *path,
                                      const tsr_directory_output_options *options, tsr_error *err);

/* Removes the unpublished files of an output to which other threads still write, for a process that is about to end. Nothing
 * can be created in the output afterwards, and it must not be closed. An output with TSR_UNFINISHED_KEPT is not removed.
 * Returns whether all that should be removed is gone. */
bool tsr_directory_output_abandon(tsr_output *output);

/* One more than the highest generation of the data files and sidecars in a directory (tsr_output.generation); 0 without such files or
 * directory. */
tsr_status tsr_directory_next_generation(const tsr_sys *sys, const char *path, uint32_t *out, tsr_error *err);

/* With a tag: whether all files created so far existed before, in their full size. Only then can records of their contents
 * be trusted. */
bool tsr_directory_output_continues(const tsr_output *output);
/* With TSR_BEGUN_WHOLE: tells the output that all files that records mention have been opened; files created from now on are new. */
void tsr_directory_output_has_all(tsr_output *output);
/* Makes `close` remove unpublished files after all. */
void tsr_directory_output_drop(tsr_output *output);
/* The number of files created so far. */
uint32_t tsr_directory_output_count(const tsr_output *output);
/* The sum of the bytes written to a file since the last call. Must not be called while the file is being written. */
uint64_t tsr_directory_output_take_sum(tsr_output *output, uint32_t file);
/* Reads bytes of a file again and returns the sum that tsr_directory_output_take_sum would have returned after they were
 * written. The file must have these bytes. */
typedef struct tsr_file_range {
    uint64_t offset, size;
} tsr_file_range;
tsr_status tsr_directory_output_sum(tsr_output *output, uint32_t file, tsr_file_range range, uint64_t *sum, tsr_error *err);
/* Reads the first `count` files again and compares them with the sums of all bytes that were written to them. TSR_E_CHANGED
 * names a file that differs. */
tsr_status tsr_directory_output_verify(tsr_output *output, const uint64_t *sums, uint32_t count, tsr_error *err);
/* With TSR_EXISTING_EITHER: decides whether the directories are exchanged or the files are moved, before anything is recorded. */
tsr_status tsr_directory_output_choose(tsr_output *output, tsr_error *err);
/* Describes as text what publishing will do (native/publish/record.h). After a kill this shows how far it came. `companion`
 * is NULL or another output that is published after this one. */
tsr_status tsr_directory_output_record(tsr_output *output, uint32_t marker, tsr_output *companion, tsr_vec *text,
                                       tsr_error *err);
/* Whether files are published in an existing directory, which takes several renames. */
bool tsr_directory_output_replaces(const tsr_output *output);

TSR_API_END

#endif
