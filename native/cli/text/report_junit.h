/* Findings as JUnit's XML: one test case a path; errors are failures. */
#ifndef TSR_CLI_TEXT_REPORT_JUNIT_H
#define TSR_CLI_TEXT_REPORT_JUNIT_H

#include <stdio.h>

#include "tessera/sys/document.h"

/* The suite's counts stand before its cases, so these are kept until the end. */
typedef struct cli_junit {
    FILE *cases; /* NULL: there was no memory */
    char *text;
    size_t size;
    size_t tests, failures, errors;
} cli_junit;

void cli_junit_start(cli_junit *junit);
void cli_junit_add(cli_junit *junit, const char *path, const tsr_findings *findings);
/* A path that could not be checked at all. */
void cli_junit_trouble(cli_junit *junit, const char *path, const tsr_error *err);
/* Writes the whole to stdout. TSR_E_NOMEM. */
tsr_status cli_junit_end(cli_junit *junit, tsr_error *err);

#endif
