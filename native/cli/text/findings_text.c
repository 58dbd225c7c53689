/* See findings_text.h. */
#include "cli/text/findings_text.h"

#include <inttypes.h>
#include <stdio.h>

#include "cli/program/term.h"

static cli_style style_of(tsr_level level)
{
    return level == TSR_ERROR ? CLI_RED : level == TSR_WARNING ? CLI_YELLOW : CLI_BLUE;
}

/* Prints one of the words that describe where a finding is. */
static void put_place(const cli_terminal *terminal, tsr_str text, bool *began)
{
    if (!*began) cli_on(terminal, stdout, CLI_DIM);
    fputs(*began ? ", " : "  ", stdout);
    cli_put(stdout, text);
    *began = true;
}

static void put_finding(const cli_terminal *terminal, const char *path, const tsr_finding *finding)
{
    char position[32];
    bool began = false;
    cli_on(terminal, stdout, style_of(finding->level));
    printf("%-8s", tsr_level_name(finding->level));
    cli_off(terminal, stdout);
    printf("%s", finding->rule->id);
    if (path) put_place(terminal, tsr_str_from(path), &began);
    if (finding->file.size) put_place(terminal, finding->file, &began);
    if (finding->byte_offset != TSR_NO_POSITION) {
        snprintf(position, sizeof position, "byte %" PRIu64, finding->byte_offset);
        put_place(terminal, tsr_str_from(position), &began);
    }
    if (finding->fqn.size && !tsr_str_contains(finding->message, finding->fqn)) put_place(terminal, finding->fqn, &began);
    if (began) cli_off(terminal, stdout);
    fputs("\n        ", stdout);
    cli_put_wrapped(stdout, finding->message, 8, 8, terminal->columns);
}

void cli_put_findings(const cli_terminal *terminal, const char *path, const tsr_findings *findings, size_t most)
{
    size_t put = 0, count = tsr_findings_count(findings);
    uint64_t total = 0;
    for (int level = TSR_ERROR; level >= TSR_NOTE; level--) {
        total += tsr_findings_total(findings, (tsr_level)level);
        for (size_t i = 0; i < count; i++) {
            const tsr_finding *finding = tsr_findings_at(findings, i);
            if (finding->level != (tsr_level)level || (most && put >= most)) continue;
            put_finding(terminal, path, finding);
            put++;
        }
    }
    if (put < total) printf("… and %s more\n", cli_number(total - put).text);
}

void cli_put_finding_counts(const cli_terminal *terminal, const uint64_t totals[3])
{
    const char *between = "";
    for (int level = TSR_ERROR; level >= TSR_NOTE; level--) {
        if (!totals[level]) continue;
        fputs(between, stdout);
        cli_on(terminal, stdout, style_of((tsr_level)level));
        fputs(cli_plural(totals[level], tsr_level_name((tsr_level)level)).text, stdout);
        cli_off(terminal, stdout);
        between = ", ";
    }
    if (!*between) {
        cli_on(terminal, stdout, CLI_GREEN);
        fputs("no findings", stdout);
        cli_off(terminal, stdout);
    }
}
