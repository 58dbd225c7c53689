/* Reports the findings of several paths on stdout, for people or in one of the forms of tessera/sys/document.h. */
#ifndef TSR_CLI_TEXT_REPORT_TEXT_H
#define TSR_CLI_TEXT_REPORT_TEXT_H

#include <stdio.h>

#include "cli/program/cli.h"
#include "tessera/findings.h"
#include "tessera/sys/document.h"

typedef enum cli_report_format { CLI_REPORT_TEXT = 1, CLI_REPORT_JSON } cli_report_format; /* the others follow */

typedef struct cli_report {
    tsr_report base; /* what is reported is added to it; must be first, because the form for people casts back */
    const cli_terminal *terminal;
    tsr_json json;
    FILE *summary_file; /* GitHub: the file that GITHUB_STEP_SUMMARY names; otherwise NULL */
    tsr_report summary;
    tsr_json summary_json;
} cli_report;

/* `format`: the value of --format, or 0 for text. */
void cli_report_start(cli_report *report, cli *program, unsigned format, tsr_error *err);
/* Must be called once for each report, also after a failure. */
tsr_status cli_report_end(cli_report *report);

/* CLI_DIFFERS if there are findings at the level of --fail-on (0: not given, which means error) or above, otherwise
 * CLI_DONE. */
int cli_report_status(const tsr_findings *findings, unsigned fail_on);
int cli_totals_status(const uint64_t totals[TSR_ERROR + 1], unsigned fail_on);

/* ---- findings ---- */

/* Prints findings for people on stdout, one per paragraph, errors first, at most `most` (0: all). */
void cli_put_findings(const cli_terminal *terminal, const tsr_findings *findings, size_t most);
/* Prints the rules of `scope` (NULL: all rules) as a table, or with --json as the tessera.rules/1 document. Returns the exit status. */
int cli_put_rules(const cli *program, const tsr_policy_scope *scope);

#endif
