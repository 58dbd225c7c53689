/* The state of an output to a directory or a single file. It is shared by the code that opens, writes and closes it
 * (directory_output.c), keeps descriptors and sums (directory_files.c), and makes subdirectories, notices changes and publishes
 * (directory_publish.c). */
#ifndef TSR_NATIVE_DIRECTORY_OUTPUT_H
#define TSR_NATIVE_DIRECTORY_OUTPUT_H

#include "io/sys.h"
#include "publish/file_sums.h"
#include "publish/journal.h"
#include "publish/record.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>

/* Two directories that are exchanged to find out whether the file system can do it. */
#define TSR_TRIAL_A ".tessera-a"
#define TSR_TRIAL_B ".tessera-b"

typedef struct output_file {
    const char *name;      /* final name, in the arena */
    const char *temporary; /* name in `work` until it is published; equal to `name` in a new directory */
    int fd;                /* -1: closed */
    uint32_t users;
    uint64_t size; /* final size in bytes; 0: not known */
    bool is_final; /* it already has its final name */
    bool replaces; /* the destination has a file of this name, whose permissions this one gets */
    uint64_t sum;  /* sum of the bytes written since the sum was last taken */
    /* This process has created, resized or written it since its last sync; other processes sync what they write
     * themselves. */
    bool unsynced;
} output_file;

/* In the order of tsr_switch (record.h). */
typedef enum output_mode {
    OUTPUT_FILE,
    OUTPUT_NEW_DIRECTORY,
    OUTPUT_SWAP_DIRECTORY,
    OUTPUT_INTO_DIRECTORY,
    OUTPUT_MOVE
} output_mode;

typedef struct directory_output {
    tsr_output base; /* must be first */
    const tsr_sys *sys;
    const tsr_allocator *allocator;
    tsr_arena *arena;
    output_mode mode;
    tsr_directory_output_options options;
    const char *parent_path; /* as it was given, or "." */
    const char *name;        /* the destination's name in `parent` */
    /* OUTPUT_NEW_DIRECTORY, OUTPUT_SWAP_DIRECTORY, OUTPUT_MOVE: name in `parent` of the directory `work`, until it is published. */
    const char *temporary;
    int parent;
    int work; /* descriptor of the directory in which files are written: the parent, the new directory or the replaced one */
    char tag[64];         /* word that temporary names contain */
    unsigned number;      /* the next tag to try; only used if options.tag is NULL */
    tsr_vec files;        /* of output_file */
    tsr_map *names;       /* final name → the file's number, which the next file has if this one could not be created */
    tsr_vec directories;  /* of const char *: subdirectories that were made */
    pthread_mutex_t lock; /* protects the files and their descriptors */
    uint32_t open_files;
    uint32_t hand; /* the number of the file at which the search for one to close begins */
    bool published;
    bool exists;              /* the destination exists and is replaced */
    unsigned widest;          /* union of the permissions of all files of the old checkpoint */
    const struct stat *model; /* a file of the old checkpoint, whose owner and group new files get; or NULL */
    /* What is to be replaced, as it was when the output was opened (directory_publish.c). An inode of 0: nothing was there. */
    tsr_identity found;      /* of the destination */
    tsr_identity *obsolete;  /* one per name in options.obsolete; NULL: the destination is not a replaced directory */
    tsr_map *obsolete_names; /* name → its number in options.obsolete */
    bool unsynced_names;     /* files were created or opened since the directories were last synced */
    bool begins;             /* with a tag: a file was missing or did not have its full size */
    bool cannot_copy;        /* copy_range cannot work here, or its bytes could not be summed up */
    const tsr_sum_key *sums; /* NULL: no sums are computed */
} directory_output;

static inline output_file *tsr_output_file(const directory_output *output, uint32_t file)
{
    return (output_file *)output->files.items + file;
}

/* Returns the descriptor and the final name of a file, and opens it again if necessary. It stays open until it is given back
 * with tsr_output_give. */
tsr_status tsr_output_take(directory_output *output, uint32_t file, int *fd, const char **name, tsr_error *err);
void tsr_output_give(directory_output *output, uint32_t file);

#define TSR_MAX_TRIES 1000 /* how many temporary names are tried */
/* Closes a file that nobody uses if many are open. The caller holds the lock. */
void tsr_output_make_room(directory_output *output);
/* Counts files that were opened, or, below 0, closed. */
void tsr_output_keep(directory_output *output, int32_t change);
/* Opens an existing file in `work`; -1 with errno. */
int tsr_output_open_file(directory_output *output, const char *name);

/* replacement.c: one more than the generation in the name of a data file or sidecar; 0 for any other name. */
uint32_t tsr_generation_after(const char *name);

/* directory_files.c: TSR_E_CHANGED if the path of the parent directory leads to another directory now. */
tsr_status tsr_output_refuse_moved(const directory_output *output, tsr_error *err);
/* lstat of a name in the current destination; false if there is none. */
bool tsr_output_stat_old(const directory_output *output, const char *name, struct stat *info);
/* directory_publish.c: the functions `sync` and `publish` of the output. */
tsr_status tsr_output_sync_all(tsr_output *output, tsr_error *err);
tsr_status tsr_output_publish(tsr_output *output, uint32_t marker, tsr_error *err);
/* directory_publish.c: checks whether the destination can be swapped (`made`: this process created the new directory). */
tsr_status tsr_output_check_swap(directory_output *output, bool made, tsr_error *err);
/* Whether two names are in the same mount; if that is not known, it is assumed. Links are not followed. */
bool tsr_is_one_mount(const tsr_sys *sys, int directory, const char *name, int other_directory, const char *other);
/* Removes everything that is not published, and returns whether it is gone. */
bool tsr_output_discard(directory_output *output);

/* ---- permissions ---- */

/* Permissions of files and directories that replace others: nobody gets access who did not have it before.
 *
 * Mode, owner, group and access control lists are kept. If the system does not let this user give a file its old group or
 * its old list, the permissions of the group are cleared. Other extended attributes (user.*, security labels) are not
 * copied: the new file gets those of any new file. */

/* The mode of a file or directory that will replace another one. Nobody else can open it until it gets the permissions of
 * the old one. */
#define TSR_PRIVATE_FILE      0600u
#define TSR_PRIVATE_DIRECTORY 0700u

/* ---- subdirectories ---- */

/* Subdirectories of an output, for files named "a/b/c.pt". Only a new directory can have them, because it appears as a
 * whole. */

/* Creates the directories in the path of a file; those that an earlier run created are accepted. Errors: TSR_E_UNSUPPORTED
 * if the destination exists, except with TSR_EXISTING_EITHER, and those of making directories. */
tsr_status tsr_output_make_subdirectories(directory_output *output, const char *name, tsr_error *err);

#endif
