/* `validate --changed-files`: the checkpoints that files belong to, for hooks that know only which files have changed. */
#ifndef TSR_CLI_CHANGED_FILES_H
#define TSR_CLI_CHANGED_FILES_H

#include "cli/program/cli.h"

/* Fills `out` with the checkpoints that the files belong to, each once, in order. The checkpoint of a file is the outermost of
 * the directories in its path that opens as a checkpoint of several files and contains or uses the file; otherwise the file
 * itself. One that cannot be opened counts, too. A file that belongs to none is noted and left out. The texts are in `arena`.
 * Errors: TSR_E_NOMEM. */
tsr_status cli_list_changed(cli *program, tsr_texts files, tsr_arena *arena, tsr_texts *out, tsr_error *err);

#endif
