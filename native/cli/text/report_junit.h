/* Reports findings as JUnit XML: one test case per path; errors are failures. */
#ifndef TSR_CLI_TEXT_REPORT_JUNIT_H
#define TSR_CLI_TEXT_REPORT_JUNIT_H

#include <stdio.h>

#include "tessera/sys/document.h"

/* The counts of a suite precede its cases, so the cases are kept until the end. */
typedef struct cli_junit {
    FILE *cases; /* NULL: memory ran out */
    char *text;
    size_t size;
    size_t tests, failures, errors;
} cli_junit;

void cli_junit_start(cli_junit *junit);
void cli_junit_add(cli_junit *junit, const char *path, const tsr_findings *findings);
/* Reports a path that could not be checked at all. */
void cli_junit_trouble(cli_junit *junit, const char *path, const tsr_error *err);
/* Writes the whole report to stdout. Errors: TSR_E_NOMEM. */
tsr_status cli_junit_end(cli_junit *junit, tsr_error *err);

#endif
