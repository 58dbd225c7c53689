/* Reports the findings of several paths in formats for people and for CI systems. */
#ifndef TSR_CLI_TEXT_REPORT_H
#define TSR_CLI_TEXT_REPORT_H

#include "cli/program/cli.h"
#include "cli/text/report_junit.h"
#include "tessera/catalog.h"
#include "tessera/sys/document.h"

#define CLI_REPORT_FORMATS "text|json|sarif|junit|github|gitlab"
typedef enum cli_report_format {
    CLI_REPORT_TEXT = 1,
    CLI_REPORT_JSON,
    CLI_REPORT_SARIF,  /* SARIF 2.1.0 */
    CLI_REPORT_JUNIT,  /* one test case per path; errors are failures */
    CLI_REPORT_GITHUB, /* workflow commands: ::error file=…:: */
    CLI_REPORT_GITLAB  /* Code Quality */
} cli_report_format;

typedef struct cli_report {
    cli_report_format format;
    const cli_terminal *terminal;
    size_t path_count;
    uint64_t totals[3];
    tsr_policy_result policy;
    uint64_t annotations[3]; /* GitHub: annotations printed so far, per level */
    tsr_json json;
    tsr_findings_document document;
    cli_junit junit;
} cli_report;

void cli_report_start(cli_report *report, const cli_terminal *terminal, cli_report_format format, size_t path_count,
                      tsr_error *err);
/* `policy` counts what was left out of these findings; NULL: nothing was. */
void cli_report_add(cli_report *report, const char *path, const tsr_catalog *catalog, const tsr_findings *findings,
                    const tsr_policy_result *policy);
/* CLI_DIFFERS if there are findings at the level of --fail-on (0: not given, which means error) or above, otherwise
 * CLI_DONE. */
int cli_report_status(const tsr_findings *findings, unsigned fail_on);
int cli_totals_status(const uint64_t totals[TSR_ERROR + 1], unsigned fail_on);
/* Reports a path that could not be checked at all. */
void cli_report_trouble(cli_report *report, const char *path, const tsr_error *err);
tsr_status cli_report_end(cli_report *report);

#endif
