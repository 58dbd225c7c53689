/* Opening paths with more choices: other system calls, a checkpoint to compare with, a map of ranks.
 *
 * Example:
 *
 *     const tsr_store_opener opener = {.open = tsr_path_store_open_by, .host = host};
 *     const tsr_open_options options = {.part = TSR_STR("model")};
 *     status = tsr_path_open_compared(&opener, "model.safetensors", &options, &checkpoint, &err); */
#ifndef TESSERA_SYS_PATH_CHOICES_H
#define TESSERA_SYS_PATH_CHOICES_H

#include "tessera/path.h"
#include "tessera/shards.h"
#include "tessera/sys/path_store.h"

TSR_API_BEGIN

/* As tsr_path_open, with the host and the system calls of `opener`, which must outlive the checkpoint, and for a checkpoint whose
 * files may be in several directories: those of `paths` count as one. A name that is in more than one of them must have equal bytes in
 * all. Errors: also TSR_E_USAGE for one of several paths that is not a directory. */
tsr_status tsr_paths_open_by(const tsr_store_opener *opener, const char *const *paths, size_t count,
                             const tsr_open_options *options, tsr_checkpoint **out, tsr_error *err);
/* The store with the files of all `paths`, without opening a checkpoint. The caller closes it. */
tsr_status tsr_paths_store_open(const char *const *paths, size_t count, const tsr_host *host, tsr_store **out,
                                tsr_error *err);
/* For a store of a server that lists no directories: asks it for all files of the checkpoint in the store. Names that the checkpoint
 * lists and the server does not have are left out. Errors: those of opening the checkpoint. */
tsr_status tsr_remote_list_checkpoint(tsr_store *store, const tsr_host *host, tsr_error *err);
/* Like tsr_paths_open_by, for a checkpoint that another one is compared with. The part and the step in `options` were chosen
 * for the other one, so here they are used only if this one has parts or steps: a checkpoint without parts is opened as it
 * is despite a part, and a file despite a step. */
tsr_status tsr_path_open_compared(const tsr_store_opener *opener, const char *path, const tsr_open_options *options,
                                  tsr_checkpoint **out, tsr_error *err);
/* Reads the map of ranks that `given` names: a built-in map, or a tessera.shards/1 document at that path. The result is in
 * `arena`. Errors: those of tsr_path_load and tsr_shards_read. */
tsr_status tsr_path_load_shards(const char *given, const tsr_host *host, tsr_arena *arena, tsr_shards *out, tsr_error *err);

TSR_API_END

#endif
