/* Reports findings as GitHub Actions shows them. */
#ifndef TSR_CLI_TEXT_REPORT_GITHUB_H
#define TSR_CLI_TEXT_REPORT_GITHUB_H

#include "tessera/sys/document.h"

/* Prints annotations on stdout, and a table into the file that GITHUB_STEP_SUMMARY names. `shown` counts the annotations of
 * each level so far, for all paths of a run. */
void cli_github_add(uint64_t shown[3], const char *path, const tsr_findings *findings);

#endif
