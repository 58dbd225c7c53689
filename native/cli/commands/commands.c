/* What each command of the table (tessera/sys/commands.h) does. */
#include "cli/commands/commands.h"

const cli_command *const cli_commands[] = {&cli_inspect, &cli_view_command, &cli_get,     &cli_diff,        &cli_validate,
                                           &cli_latest,  &cli_prune,        &cli_explain, &cli_layout,      &cli_manifest,
                                           &cli_verify,  &cli_convert,      &cli_merge,   &cli_plan,        &cli_reshard,
                                           &cli_exec,    &cli_optim,        &cli_cp,      &cli_repair,      &cli_fqn,
                                           &cli_map,     &cli_doctor,       &cli_help,    &cli_completions, NULL};
