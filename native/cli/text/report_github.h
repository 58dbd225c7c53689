/* Findings as GitHub Actions shows them. */
#ifndef TSR_CLI_TEXT_REPORT_GITHUB_H
#define TSR_CLI_TEXT_REPORT_GITHUB_H

#include "tessera/sys/document.h"

/* Annotations on stdout, and a table in the file that GITHUB_STEP_SUMMARY names. `shown`: annotations of each level so far,
 * over all paths of one run. */
void cli_github_add(uint64_t shown[3], const char *path, const tsr_findings *findings);

#endif
