/* The output file of -o. It is written under a temporary name and then renamed, so that a failed or interrupted run leaves
 * an earlier file as it was. "-" is standard output; a device or a pipe is written directly. */
#ifndef TSR_CLI_WRITING_OUT_FILE_H
#define TSR_CLI_WRITING_OUT_FILE_H

#include <stdio.h>

#include "cli/program/session.h"
#include "cli/writing/writing.h"

typedef struct cli_out_file {
    FILE *to; /* anonymous: it has no descriptor */
    const char *path;
    tsr_arena *arena; /* NULL: it is written directly */
    cli_guard guard;
    tsr_publication publication;
    uint32_t file; /* its number in the output */
    uint64_t size; /* bytes written so far */
    tsr_error failed;
} cli_out_file;

/* Creates the output of a command that reads `source`. TSR_E_USAGE, before anything is created, if `path` is a file of the
 * source under any spelling or link. Files that an earlier command wrote into the checkpoint's directory (layouts,
 * manifests, .npy) may be replaced. `out` must not move until cli_out_close, because a signal's cleanup uses it. */
tsr_status cli_out_open(cli *program, const char *path, const cli_session *source, cli_out_file *out, tsr_error *err);
/* Finishes the file that cli_out_open opened: gives it its name if `status` is TSR_OK, otherwise removes it. Returns
 * `status`, or the error that occurred here. */
tsr_status cli_out_close(cli_out_file *out, tsr_status status, tsr_error *err);

#endif
