/* --rule and --baseline, of `validate` and `diff`. */
#ifndef TSR_CLI_PROGRAM_POLICY_OPTIONS_H
#define TSR_CLI_PROGRAM_POLICY_OPTIONS_H

#include "cli/program/cli.h"
#include "tessera/sys/policy.h"

typedef struct cli_policy_options {
    cli_list rules;
    const char *baseline;
} cli_policy_options;

#define CLI_RULE_HELP \
    "Report a rule as error, warning or note, or turn it off; ID may end in * (repeatable; the last match wins)"

/* The policy that the options ask for; one without options changes nothing. On failure *path is the baseline where it is to
 * blame, and *out is NULL. */
tsr_status cli_policy_open(cli *program, tsr_policy_scope scope, const cli_policy_options *options, tsr_policy **out,
                           const char **path, tsr_error *err);

/* "; 5 left out by the baseline, 2 turned off" on stdout; nothing without a baseline and rules that are off. */
void cli_put_left_out(const tsr_policy_result *result);
/* The same as a note on stderr, for formats that have no place for it. */
void cli_note_left_out(const cli *program, const tsr_policy_result *result);

#endif
