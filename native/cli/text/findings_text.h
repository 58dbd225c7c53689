/* Findings for people. */
#ifndef TSR_CLI_TEXT_FINDINGS_TEXT_H
#define TSR_CLI_TEXT_FINDINGS_TEXT_H

#include "cli/program/cli.h"
#include "tessera/findings.h"

/* A finding's message, behind its name where the message does not have it, for reports that have no other place for it. */
enum { CLI_FINDING_WORDS = 20000 };
tsr_str cli_finding_words(const tsr_finding *finding, char out[CLI_FINDING_WORDS]);
/* On stdout, one finding a paragraph, errors first, at most `most` (0: all); `path` (may be NULL) heads each. */
void cli_put_findings(const cli_terminal *terminal, const char *path, const tsr_findings *findings, size_t most);
/* "2 errors, 1 warning", or "no findings". */
void cli_put_finding_counts(const cli_terminal *terminal, const uint64_t totals[3]);
/* The table of rules whose ids begin with `prefix` ("": all). */
void cli_put_rules(const cli_terminal *terminal, const char *prefix);

#endif
