/* --config: the config.json of the source next to the output, with what the conversion changed. */
#ifndef TSR_CLI_WRITING_CONFIG_COPY_H
#define TSR_CLI_WRITING_CONFIG_COPY_H

#include "cli/writing/writing.h"

typedef struct cli_config_copy {
    tsr_str text;     /* what it will hold; empty: there is nothing to write */
    const char *path; /* where */
} cli_config_copy;

/* Makes the text, and refuses a destination that has another config.json, before anything is written. The source must be
 * open. Does nothing without --config. */
tsr_status cli_config_plan(cli_writing *writing, cli_config_copy *out, tsr_error *err);
/* Writes it, after the output was published. */
tsr_status cli_config_write(cli_writing *writing, const cli_config_copy *copy, tsr_error *err);

#endif
