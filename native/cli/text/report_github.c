/* GitHub's workflow commands (::error file=…::), and the summary of the step. GitHub shows ten annotations of each level and
 * silently drops the rest, so the tenth states how many more there are. */
#include "cli/text/report_github.h"

#include <stdio.h>
#include <stdlib.h>

#include "cli/program/term.h"
#include "cli/text/findings_text.h"

#include "tessera/sys/document_text.h"

enum { ANNOTATIONS = 10, SUMMARY_ROWS = 200 };

static const cli_escape in_messages[] = {{'%', "%25"}, {0}};
static const cli_escape in_properties[] = {{'%', "%25"}, {':', "%3A"}, {',', "%2C"}, {0}};
static const cli_escape in_cells[] = {{'|', "\\|"}, {'<', "&lt;"}, {'@', "&#64;"}, {0}}; /* of tables; @ mentions people */

static const char *command_of(tsr_level level)
{
    return level == TSR_NOTE ? "notice" : tsr_level_name(level);
}

static void put_annotation(const char *path, const tsr_finding *finding)
{
    char place[4096], text[CLI_FINDING_WORDS];
    printf("::%s file=", command_of(finding->level));
    cli_put_escaped(stdout, tsr_finding_place(tsr_str_from(path), finding, place, sizeof place), in_properties);
    printf(",title=%s::", finding->rule->id);
    cli_put_escaped(stdout, cli_finding_words(finding, text), in_messages);
    putchar('\n');
}

static void put_summary(const char *path, const tsr_findings *findings)
{
    const char *name = getenv("GITHUB_STEP_SUMMARY");
    FILE *to = name && *name ? fopen(name, "a") : NULL;
    const size_t count = tsr_findings_count(findings);
    char text[CLI_FINDING_WORDS];
    if (!to) return; /* not an error: the summary is optional, and the annotations were printed */
    fputs("### ", to);
    cli_put_escaped(to, tsr_str_from(path), in_cells);
    fprintf(to, "\n\n%s, %s, %s\n", cli_plural(tsr_findings_total(findings, TSR_ERROR), "error").text,
            cli_plural(tsr_findings_total(findings, TSR_WARNING), "warning").text,
            cli_plural(tsr_findings_total(findings, TSR_NOTE), "note").text);
    if (count) fputs("\n| level | rule | what |\n|---|---|---|\n", to);
    for (size_t i = 0; i < count && i < SUMMARY_ROWS; i++) {
        const tsr_finding *finding = tsr_findings_at(findings, i);
        fprintf(to, "| %s | `%s` | ", tsr_level_name(finding->level), finding->rule->id);
        cli_put_escaped(to, cli_finding_words(finding, text), in_cells);
        fputs(" |\n", to);
    }
    if (count > SUMMARY_ROWS) fprintf(to, "\n… and %zu more\n", count - SUMMARY_ROWS);
    fputc('\n', to);
    fclose(to);
}

void cli_github_add(uint64_t shown[3], const char *path, const tsr_findings *findings)
{
    for (int level = TSR_ERROR; level >= TSR_NOTE; level--) {
        uint64_t left = tsr_findings_total(findings, (tsr_level)level);
        for (size_t i = 0; i < tsr_findings_count(findings); i++) {
            const tsr_finding *finding = tsr_findings_at(findings, i);
            if (finding->level != (tsr_level)level || shown[level] >= ANNOTATIONS) continue;
            if (shown[level]++ + 1 == ANNOTATIONS && left > 1) {
                printf("::%s title=tessera::%s more in ", command_of((tsr_level)level), cli_plural(left, "finding").text);
                cli_put_escaped(stdout, tsr_str_from(path), in_messages);
                puts("; the step summary lists them");
            } else {
                put_annotation(path, finding);
            }
            left--;
        }
    }
    put_summary(path, findings);
}
