/* Prints findings for people. */
#ifndef TSR_CLI_TEXT_FINDINGS_TEXT_H
#define TSR_CLI_TEXT_FINDINGS_TEXT_H

#include "cli/program/cli.h"
#include "tessera/findings.h"
#include "tessera/sys/policy.h"

/* Prints findings on stdout, one per paragraph, errors first, at most `most` (0: all). Each begins with `path` (may be
 * NULL). */
void cli_put_findings(const cli_terminal *terminal, const char *path, const tsr_findings *findings, size_t most);
/* Prints the table of the rules of `scope` (NULL: all rules). */
void cli_put_rules(const cli_terminal *terminal, const tsr_policy_scope *scope);

#endif
