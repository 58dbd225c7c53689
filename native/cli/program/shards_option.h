/* --shards MAP, which every command that opens PATH takes. */
#ifndef TSR_CLI_PROGRAM_SHARDS_OPTION_H
#define TSR_CLI_PROGRAM_SHARDS_OPTION_H

#include "cli/program/cli.h"
#include "tessera/shards.h"

/* The map of --shards, which lives as long as the program; NULL in *out without the option. A built-in map's name counts
 * before a file of that name ("./vllm" is the file). */
tsr_status cli_read_shards(cli *program, const tsr_shards **out, tsr_error *err);
void cli_free_shards(cli *program);

#endif
