/* Which source a copy reads, as text that is equal in a later run only if no file of it changed. */
#ifndef TSR_CLI_WRITING_COPY_SOURCE_H
#define TSR_CLI_WRITING_COPY_SOURCE_H

#include "tessera/memory.h"
#include "tessera/store.h"

/* One line per file: its size and its version, which is the ETag of a remote file, and inode and modification time of a file of this
 * machine. Empty where a remote file has no version. The text is in `arena`; it holds no URL, because that may hold a signature. */
tsr_status cli_copy_source(tsr_store *store, const uint32_t *files, uint32_t count, tsr_arena *arena, tsr_str *out,
                           tsr_error *err);

#endif
