/* Reports what a run has continued of an interrupted one. */
#ifndef TSR_CLI_WRITING_RESUMED_H
#define TSR_CLI_WRITING_RESUMED_H

#include "cli/program/cli.h"
#include "tessera/sys/object_output.h"

/* Prints it on stderr, for people; not with --quiet. */
void cli_report_resumed(const cli *program, const tsr_object_resumed *resumed);
/* The same for a copy to a disk: objects are whole files, parts are chunks of other files. */
void cli_report_continued(const tsr_object_resumed *resumed);
/* Writes "resumed": {…}. */
void cli_put_resumed(tsr_json *json, const tsr_object_resumed *resumed);

#endif
