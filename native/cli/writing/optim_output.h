/* Publishes the files of an optimizer conversion. */
#ifndef TSR_CLI_WRITING_OPTIM_OUTPUT_H
#define TSR_CLI_WRITING_OPTIM_OUTPUT_H

#include "cli/program/cli.h"
#include "cli/program/signals.h"
#include "cli/writing/writing.h"
#include "publish/publication.h"
#include "tessera/optim_convert.h"

/* The caller zeroes it and sets the fields above `output`, except for those marked "out". */
typedef struct cli_optim_output {
    cli *program;
    tsr_optim_job *optim;
    const char *source, *destination;
    const char *documents[2]; /* paths of further inputs, which the output must not replace; may be NULL */
    bool overwrite, resume, unsummed;
    tsr_store *store; /* the source's */
    tsr_ring *ring;
    uint32_t files_written; /* out: number of files written */
    uint64_t bytes_written; /* out: number of bytes written */
    bool is_complete;       /* out: an earlier run had written the same files, so nothing was written */
    tsr_output *output;     /* this and the following fields are private */
    cli_file_place place;   /* of a single file */
    bool is_folder;
    bool is_remote; /* the destination is in an object store */
    cli_cleanup cleanup;
    tsr_replacement replacement;
    tsr_publication publication;
    tsr_arena *arena;
} cli_optim_output;

/* Writes and publishes all files. A destination that ends in '/' is a directory, in which a single file has the source's
 * name. With `resume`, a destination that has these files already is left alone. On failure the destination stays as it
 * was. */
tsr_status cli_optim_output_write(cli_optim_output *output, const tsr_progress *progress, tsr_error *err);
void cli_optim_output_close(cli_optim_output *output); /* accepts a zeroed one */

#endif
