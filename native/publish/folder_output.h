/* The state of a folder output, shared by its descriptors (output_files.c), its publishing half (folder_publish.c) and, above
 * these, its writing half (folder_output.c). */
#ifndef TSR_NATIVE_FOLDER_OUTPUT_H
#define TSR_NATIVE_FOLDER_OUTPUT_H

#include <pthread.h>

#include "io/sys.h"
#include "publish/file_sums.h"
#include "publish/identity.h"
#include "tessera/sys/folder.h"

/* Two folders that are exchanged for a trial. */
#define TSR_TRIAL_A ".tessera-a"
#define TSR_TRIAL_B ".tessera-b"

typedef struct output_file {
    const char *name;      /* final, in the arena */
    const char *temporary; /* in `work` until published; equal to `name` in a new folder */
    int fd;                /* -1: closed */
    uint32_t users;
    uint64_t size; /* final; 0: not known */
    bool is_final; /* under its final name */
    bool replaces; /* a file of this name that is in the destination now, whose permissions it gets */
    uint64_t sum;  /* of what was written since it was last taken */
    bool unsynced; /* this process created, sized or wrote it since it last synced it; others sync what they write themselves */
} output_file;

/* In the order of tsr_switch (record.h). */
typedef enum output_mode { OUTPUT_FILE, OUTPUT_NEW_FOLDER, OUTPUT_SWAP_FOLDER, OUTPUT_INTO_FOLDER } output_mode;

typedef struct folder_output {
    tsr_output base; /* first */
    const tsr_sys *sys;
    const tsr_allocator *allocator;
    tsr_arena *arena;
    output_mode mode;
    tsr_folder_output_options options;
    const char *name;      /* of the destination in `parent` */
    const char *temporary; /* OUTPUT_NEW_FOLDER, OUTPUT_SWAP_FOLDER: of the folder in work, in `parent`, until published */
    int parent;
    int work; /* where files are written: the parent, the new folder or the replaced one */
    char tag[64];    /* of temporary names */
    unsigned number; /* the next tag, where none was given */
    tsr_vec files;        /* of output_file */
    tsr_vec folders;      /* of const char *: directories inside (subfolders.h) */
    pthread_mutex_t lock; /* files and their descriptors */
    uint32_t open_files;
    bool published;
    bool exists;          /* there is a destination, which is replaced */
    unsigned widest;      /* the permissions that any file of the old checkpoint gives */
    const struct stat *model; /* a file of the old checkpoint, whose owner new ones get; or NULL */
    bool unsynced_names; /* files were created or opened since the folders were last synced */
    bool begins; /* with a tag: a file was not there, or not whole */
    bool cannot_copy; /* copy_range failed once for good, or its bytes could not be summed up */
    const tsr_sum_key *sums; /* or NULL: nothing is summed up */
} folder_output;

static inline output_file *tsr_output_file(const folder_output *output, uint32_t file)
{
    return (output_file *)output->files.items + file;
}

/* output_files.c. Opens a file of the folder in work that exists; -1 with errno. */
int tsr_output_open_file(folder_output *output, const char *name);
/* Closes a file that nobody uses where as many are open as may be. Under the lock. */
void tsr_output_make_room(folder_output *output);
/* The descriptor and final name of a file, opened again if need be; `give` lets it be closed. */
tsr_status tsr_output_take(folder_output *output, uint32_t file, int *fd, const char **name, tsr_error *err);
void tsr_output_give(folder_output *output, uint32_t file);

/* The generation that follows that of a data file's name; 0 for a name that is not one of a data file. */
uint32_t tsr_generation_after(const char *name);

/* folder_publish.c: the output's `sync` and `publish`. */
tsr_status tsr_output_sync_all(tsr_output *output, tsr_error *err);
tsr_status tsr_output_publish(tsr_output *output, uint32_t marker, tsr_error *err);
/* folder_swap.c: whether the destination can be swapped, asked before anything is written by who made the new folder; and
 * the swap itself. */
tsr_status tsr_output_check_swap(folder_output *output, bool made, tsr_error *err);
tsr_status tsr_output_swap(folder_output *output, tsr_error *err);
/* What a name is in the destination as it is now; not through links. */
bool tsr_output_stat_old(const folder_output *output, const char *name, struct stat *info);
/* Calls `each` for every name of a folder in the parent but "." and "..". */
tsr_status tsr_output_each_in(folder_output *output, const char *folder,
                              tsr_status (*each)(void *output, int folder, const char *name, tsr_error *err), tsr_error *err);
/* Removes what is not published. */
void tsr_output_discard(folder_output *output);

#endif
