/* Writes layout files, for `tessera layout` and `tessera manifest`. */
#ifndef TSR_CLI_COMMANDS_LAYOUT_FILE_H
#define TSR_CLI_COMMANDS_LAYOUT_FILE_H

#include "cli/program/map_options.h"
#include "tessera/sys/document.h"

/* Writes the tessera.layout/1 or tessera.manifest/1 document of PATH. `layout` says which, without what is needed to read the
 * checkpoint. Returns the exit status. */
int cli_write_layout(cli *program, const tsr_command_options *arguments, const tsr_layout_options *layout);

#endif
