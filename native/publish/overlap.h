/* Whether what will be read is among what will be replaced, by device and inode: names and links hide nothing. */
#ifndef TSR_NATIVE_OVERLAP_H
#define TSR_NATIVE_OVERLAP_H

#include "tessera/checkpoint.h"
#include "tessera/sys/folder.h"

/* Everything that a job reads. */
typedef struct tsr_inputs {
    tsr_vec files;   /* of tsr_input */
    tsr_vec folders; /* of tsr_input: directories that hold files of a checkpoint */
} tsr_inputs;

typedef struct tsr_input {
    uint64_t device, inode;
    const char *name; /* borrowed */
} tsr_input;

tsr_inputs tsr_inputs_of(const tsr_allocator *allocator);
void tsr_inputs_free(tsr_inputs *inputs); /* takes a zeroed one */

/* Adds the files of an opened checkpoint: its own, and all that were read so far. `checkpoint` NULL: all files of the store.
 * Files that are not on this machine's disks are passed over. Borrows the store's names. */
tsr_status tsr_inputs_add(tsr_inputs *inputs, tsr_store *store, tsr_checkpoint *checkpoint, tsr_error *err);
/* Adds a document by its path; NULL and paths that are not there are passed over. Borrows the path. */
tsr_status tsr_inputs_add_path(tsr_inputs *inputs, const char *path, tsr_error *err);

/* The input that a path in `folder` (a descriptor, or AT_FDCWD) leads to or is itself, or NULL. */
const tsr_input *tsr_inputs_find(const tsr_inputs *inputs, int folder, const char *path);
/* The same among the directories. */
const tsr_input *tsr_inputs_find_folder(const tsr_inputs *inputs, int folder, const char *path);

#endif
