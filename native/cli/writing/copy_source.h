/* Identifies the source of a copy by a text that is the same in a later run only if none of its files has changed. */
#ifndef TSR_CLI_WRITING_COPY_SOURCE_H
#define TSR_CLI_WRITING_COPY_SOURCE_H

#include "cli/writing/copy_files.h"

/* One line per file: its size and its version, which is the ETag of a remote file, or inode and modification time of a local
 * one. Empty if a remote file has no version. The text is in `arena`. It contains no URL, because a URL may contain a
 * signature. */
tsr_status cli_copy_source(const cli_copy_files *files, tsr_arena *arena, tsr_str *out, tsr_error *err);

#endif
