/* A store over a folder or a file of this machine, and an output into one. */
#ifndef TSR_NATIVE_FOLDER_H
#define TSR_NATIVE_FOLDER_H

#include "io/sys.h"
#include "tessera/output.h"

/* Opens PATH for reading. A folder gives all its regular files, dotfiles included, and those of its direct subfolders
 * ("step-100/.metadata"), so that a folder of several checkpoints can be told from one checkpoint; nothing deeper. A file
 * gives itself alone, named by its last path component; a file that holds a JSON object, or is called ".metadata", gives
 * its folder's files (no subfolders) with itself as `primary`. Names outside the listing cannot be read, so that ".." or
 * an absolute path in a checkpoint leads nowhere; symbolic links that lie in the folder are followed.
 *
 * Files are opened read-only on first use and kept open (at most 256 at once); `map` serves files of 1 MiB and more.
 * `sys` NULL: the real calls. Borrows `allocator` and `sys`. Errors: TSR_E_NOT_FOUND, TSR_E_IO, TSR_E_LIMIT (more than
 * 2^20 files), TSR_E_UNSUPPORTED (neither file nor folder), TSR_E_NOMEM. */
tsr_status tsr_folder_store_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *path, tsr_store **out,
                                 tsr_error *err);

/* Compares size and modification time of every file that was read with what they were when the store was opened.
 * TSR_E_CHANGED names the first that differs. */
tsr_status tsr_folder_store_unchanged(tsr_store *store, tsr_error *err);

#endif
