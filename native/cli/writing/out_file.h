/* What -o names: written beside its place and renamed, so that a failed or stopped run leaves an earlier file as it was. "-" is standard
 * output; a device or a pipe is written where it is. */
#ifndef TSR_CLI_WRITING_OUT_FILE_H
#define TSR_CLI_WRITING_OUT_FILE_H

#include <stdio.h>

#include "cli/program/session.h"
#include "cli/program/signals.h"
#include "publish/publication.h"

typedef struct cli_out_file {
    FILE *to;
    const char *path;
    char *place;     /* of the file itself, behind symbolic links; NULL: written directly */
    char *temporary; /* beside it */
    bool made;       /* `temporary` is there */
    tsr_publication publication; /* so that the next run finds what a killed one left */
    cli_cleanup cleanup;
} cli_out_file;

/* Creates the output of a command that reads `source`. TSR_E_USAGE, before anything is created, when `path` leads to a file of
 * the source, by whatever spelling or link. Files that an earlier command wrote into the checkpoint's directory (layouts,
 * manifests, .npy) may be replaced. `out` stays where it is until cli_out_close: a signal's cleanup finds it there. */
tsr_status cli_out_open(const char *path, const cli_session *source, cli_out_file *out, tsr_error *err);
/* Ends the file that cli_out_open opened: under its name when `status` is TSR_OK, else nothing of it stays. Returns `status`,
 * or what went wrong here. */
tsr_status cli_out_close(cli_out_file *out, tsr_status status, tsr_error *err);

#endif
