/* Writes layout files, for `tessera layout` and `tessera manifest`. */
#ifndef TSR_CLI_COMMANDS_LAYOUT_FILE_H
#define TSR_CLI_COMMANDS_LAYOUT_FILE_H

#include "cli/program/map_options.h"
#include "tessera/check.h"

typedef struct cli_layout_file {
    const char *output; /* NULL: standard output */
    bool no_chunks, is_manifest, allow_expansion;
    unsigned hash; /* a tsr_digest_algorithm (the choice of CLI_HASHES); 0: none */
    cli_selection selection;
    cli_map_options map;
} cli_layout_file;

/* Writes the tessera.layout/1 or tessera.manifest/1 document of PATH. Returns the exit status. */
int cli_write_layout(cli *program, const char *path, const cli_layout_file *file);

#endif
