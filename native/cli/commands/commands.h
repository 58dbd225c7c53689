/* The commands of `tessera`. Each is defined in cmd_<name>.c. */
#ifndef TSR_CLI_COMMANDS_COMMANDS_H
#define TSR_CLI_COMMANDS_COMMANDS_H

#include "cli/program/cli.h"

extern const cli_command cli_inspect, cli_layout, cli_validate, cli_explain, cli_diff, cli_get, cli_convert, cli_plan,
    cli_exec, cli_reshard, cli_doctor, cli_manifest, cli_verify, cli_repair, cli_view_command, cli_map, cli_merge, cli_cp;
extern const cli_command cli_fqn, cli_optim, cli_help, cli_completions, cli_latest, cli_prune;

#endif
