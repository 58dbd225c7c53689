/* See findings_text.h. */
#include "cli/findings_text.h"

#include <inttypes.h>
#include <stdio.h>

#include "cli/term.h"

static cli_style style_of(tsr_level level)
{
    return level == TSR_ERROR ? CLI_RED : level == TSR_WARNING ? CLI_YELLOW : CLI_BLUE;
}

static bool holds(tsr_str text, tsr_str part)
{
    for (size_t at = 0; part.size && at + part.size <= text.size; at++) {
        if (memcmp(text.data + at, part.data, part.size) == 0) return true;
    }
    return false;
}

static void put_finding(const cli_terminal *terminal, const char *path, const tsr_finding *finding)
{
    char text[2048];
    size_t used = 0;
    const char *between = "";
    cli_on(terminal, stdout, style_of(finding->level));
    printf("%-8s", tsr_level_name(finding->level));
    cli_off(terminal, stdout);
    printf("%s", finding->rule->id);
    text[0] = '\0';
    if (path) used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", between, path), between = ", ";
    if (finding->file.size && used < sizeof text) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%.*s", between, TSR_STR_ARG(finding->file)),
            between = ", ";
    }
    if (finding->byte_offset != TSR_NO_POSITION && used < sizeof text) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%sbyte %" PRIu64, between, finding->byte_offset),
            between = ", ";
    }
    if (finding->fqn.data && !holds(finding->message, finding->fqn) && used < sizeof text) {
        snprintf(text + used, sizeof text - used, "%s%.*s", between, TSR_STR_ARG(finding->fqn));
    }
    if (*text) {
        cli_on(terminal, stdout, CLI_DIM);
        fputs("  ", stdout);
        cli_put(stdout, tsr_str_from(text));
        cli_off(terminal, stdout);
    }
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
