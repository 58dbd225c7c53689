/* Finds out whether a file to be read is among those to be replaced. Compares device and inode, so other names and links are
 * recognized. */
#ifndef TSR_NATIVE_OVERLAP_H
#define TSR_NATIVE_OVERLAP_H

#include "tessera/checkpoint.h"
#include "tessera/sys/folder.h"

/* All files that a job reads. */
typedef struct tsr_inputs {
    tsr_vec files;   /* of tsr_input */
    tsr_vec folders; /* of tsr_input: directories that contain files of a checkpoint */
} tsr_inputs;

typedef struct tsr_input {
    uint64_t device, inode;
    const char *name; /* borrowed */
} tsr_input;

tsr_inputs tsr_inputs_of(const tsr_allocator *allocator);
void tsr_inputs_free(tsr_inputs *inputs); /* accepts a zeroed one */

/* Adds the files of an opened checkpoint: those that belong to it, and those that were read so far. `checkpoint` NULL: all
 * files of the store. Ignores files that are not on a file system of this machine. Borrows the store's names. */
tsr_status tsr_inputs_add(tsr_inputs *inputs, tsr_store *store, tsr_checkpoint *checkpoint, tsr_error *err);
/* Adds a document by its path. Ignores NULL and paths that do not exist. Borrows the path. */
tsr_status tsr_inputs_add_path(tsr_inputs *inputs, const char *path, tsr_error *err);

/* The input that is the same file as a path in `folder` (a descriptor, or AT_FDCWD), following links; or NULL. */
const tsr_input *tsr_inputs_find(const tsr_inputs *inputs, int folder, const char *path);

#endif
