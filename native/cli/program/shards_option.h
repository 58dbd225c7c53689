/* --shards MAP, an option of every command that opens PATH. */
#ifndef TSR_CLI_PROGRAM_SHARDS_OPTION_H
#define TSR_CLI_PROGRAM_SHARDS_OPTION_H

#include "cli/program/cli.h"
#include "tessera/shards.h"

/* Reads the map of --shards, which lives as long as the program. *out is NULL without the option. A built-in map takes
 * precedence over a file of the same name ("./vllm" is the file). */
tsr_status cli_read_shards(cli *program, const tsr_shards **out, tsr_error *err);
void cli_free_shards(cli *program);

#endif
