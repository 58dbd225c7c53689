/* Reads documents from pipes, such as those that a shell makes of `<(command)`.
 *
 * Example:
 *
 *     if (tsr_is_pipe("/dev/fd/63")) status = tsr_pipe_store_open(host->allocator, "/dev/fd/63", &store, &err); */
#ifndef TESSERA_SYS_PIPE_STORE_H
#define TESSERA_SYS_PIPE_STORE_H

#include "tessera/memory.h"
#include "tessera/store.h"

TSR_API_BEGIN

/* Whether a path is a pipe or a character device. */
bool tsr_is_pipe(const char *path);
/* Reads all that comes from it, until its writers close it, and makes it the one file of a store. A pipe can be read once only.
 * Borrows `path` and `allocator`. Errors: TSR_E_IO, TSR_E_LIMIT (more than 1 GiB), TSR_E_NOMEM. */
tsr_status tsr_pipe_store_open(const tsr_allocator *allocator, const char *path, tsr_store **out, tsr_error *err);

TSR_API_END

#endif
