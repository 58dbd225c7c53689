/* Prints findings for people. */
#ifndef TSR_CLI_TEXT_FINDINGS_TEXT_H
#define TSR_CLI_TEXT_FINDINGS_TEXT_H

#include "cli/program/cli.h"
#include "tessera/findings.h"
#include "tessera/sys/policy.h"

/* The message of a finding, preceded by the finding's name if the message does not contain it. For reports with no other
 * place for the name. */
enum { CLI_FINDING_WORDS = 20000 };
tsr_str cli_finding_words(const tsr_finding *finding, char out[CLI_FINDING_WORDS]);
/* Prints findings on stdout, one per paragraph, errors first, at most `most` (0: all). Each begins with `path` (may be
 * NULL). */
void cli_put_findings(const cli_terminal *terminal, const char *path, const tsr_findings *findings, size_t most);
/* Prints "2 errors, 1 warning", or "no findings". */
void cli_put_finding_counts(const cli_terminal *terminal, const uint64_t totals[3]);
/* Prints the table of the rules of `scope` (NULL: all rules). */
void cli_put_rules(const cli_terminal *terminal, const tsr_policy_scope *scope);

#endif
