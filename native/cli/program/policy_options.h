/* --rule and --baseline of `validate` and `diff`. */
#ifndef TSR_CLI_PROGRAM_POLICY_OPTIONS_H
#define TSR_CLI_PROGRAM_POLICY_OPTIONS_H

#include "cli/program/cli.h"
#include "tessera/sys/policy.h"

/* Opens the policy that the options describe; without options, it changes nothing. On failure *out is NULL, and *path is the
 * baseline file if that is the cause. */
tsr_status cli_policy_open(cli *program, tsr_policy_scope scope, const tsr_command_options *options, tsr_policy **out,
                           const char **path, tsr_error *err);

/* Prints "; 5 left out by the baseline, 2 turned off" on stdout; nothing if nothing was left out. */
void cli_put_left_out(const tsr_policy_result *result);
/* The same as a note on stderr, for formats that cannot contain it. */
void cli_note_left_out(const cli *program, const tsr_policy_result *result);

#endif
