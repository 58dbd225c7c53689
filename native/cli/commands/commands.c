/* All commands, in the order in which help lists them. */
#include "cli/commands/commands.h"

const cli_command *const cli_commands[] = {
    &cli_inspect, &cli_view_command, &cli_validate, &cli_layout,   &cli_diff,   &cli_get,         &cli_convert, &cli_plan,
    &cli_reshard, &cli_exec,         &cli_merge,    &cli_manifest, &cli_verify, &cli_repair,      &cli_cp,      &cli_explain,
    &cli_map,     &cli_fqn,          &cli_optim,    &cli_doctor,   &cli_help,   &cli_completions, NULL};
