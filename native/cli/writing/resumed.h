/* What a run into an object store has continued of an interrupted one. */
#ifndef TSR_CLI_WRITING_RESUMED_H
#define TSR_CLI_WRITING_RESUMED_H

#include "cli/program/cli.h"
#include "tessera/sys/object_output.h"

/* On stderr, for people; unless --quiet. */
void cli_report_resumed(const cli *program, const tsr_object_resumed *resumed);
/* The same of a copy onto a disk: objects are whole files, parts are chunks of other files. */
void cli_report_continued(const tsr_object_resumed *resumed);
/* "resumed": {…} */
void cli_put_resumed(tsr_json *json, const tsr_object_resumed *resumed);

/* Warns of what unfinished parts of other plans left at the destination, which stays. */
void cli_note_other_parts(const cli *program, const tsr_output *output, const char *destination);

#endif
