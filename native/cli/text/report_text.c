/* See report_text.h. */
#include "cli/text/report_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/program/map_options.h"
#include "cli/program/term.h"

/* ---- findings text ---- */

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

static void put_finding(const cli_terminal *terminal, const tsr_finding *finding)
{
    char position[32];
    bool began = false;
    cli_on(terminal, stdout, style_of(finding->level));
    printf("%-8s", tsr_level_name(finding->level));
    cli_off(terminal, stdout);
    printf("%s", finding->rule->id);
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

void cli_put_findings(const cli_terminal *terminal, const tsr_findings *findings, size_t most)
{
    size_t put = 0, count = tsr_findings_count(findings);
    uint64_t total = 0;
    for (int level = TSR_ERROR; level >= TSR_NOTE; level--) {
        total += tsr_findings_total(findings, (tsr_level)level);
        for (size_t i = 0; i < count; i++) {
            const tsr_finding *finding = tsr_findings_at(findings, i);
            if (finding->level != (tsr_level)level || (most && put >= most)) continue;
            put_finding(terminal, finding);
            put++;
        }
    }
    if (put < total) printf("… and %s more\n", cli_number(total - put).text);
}

/* Prints "2 errors, 1 warning", or "no findings". */
static void cli_put_finding_counts(const cli_terminal *terminal, const uint64_t totals[3])
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

/* ---- for people ---- */

static void text_begin(tsr_report *report)
{
    (void)report;
}

static void text_add(tsr_report *report, const tsr_reported *reported)
{
    const cli_terminal *terminal = ((const cli_report *)report)->terminal;
    const tsr_catalog *catalog = reported->catalog;
    uint64_t totals[3] = {0}, bytes = 0, n;
    if (!reported->findings) return; /* the message is on stderr */
    for (int level = 0; level < 3; level++) totals[level] = tsr_findings_total(reported->findings, (tsr_level)level);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        if (catalog->entries[i].kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(&catalog->entries[i], &n)) bytes += n;
    }
    cli_on(terminal, stdout, CLI_BOLD);
    cli_put(stdout, reported->path);
    cli_off(terminal, stdout);
    printf("  %s, %s name%s, %s: ", tsr_format_name(catalog->format), cli_number(catalog->entry_count).text,
           catalog->entry_count == 1 ? "" : "s", cli_bytes(bytes).text);
    cli_put_finding_counts(terminal, totals);
    if (reported->policy) cli_put_left_out(reported->policy);
    putchar('\n');
    cli_put_findings(terminal, reported->findings, 0);
}

static void text_end(tsr_report *report)
{
    if (report->checked + report->unchecked < 2) return;
    printf("%" PRIu64 " paths", report->checked + report->unchecked);
    if (report->unchecked) printf(", of which %" PRIu64 " could not be checked", report->unchecked);
    if (report->checked) {
        fputs(": ", stdout);
        cli_put_finding_counts(((const cli_report *)report)->terminal, report->totals);
    }
    cli_put_left_out(&report->policy);
    putchar('\n');
}

static const tsr_report_form for_people = {"text", text_begin, text_add, text_end};

/* ---- all forms ---- */

void cli_report_start(cli_report *report, cli *program, unsigned format, tsr_error *err)
{
    const tsr_report_form *form =
        format < CLI_REPORT_JSON ? &for_people : tsr_report_forms[format - (unsigned)CLI_REPORT_JSON];
    const tsr_allocator *allocator = cli_host(program)->allocator;
    const char *summary =
        form == &tsr_report_github && cli_speaks(program) && !program->caller ? getenv("GITHUB_STEP_SUMMARY") : NULL;
    report->terminal = &program->out;
    cli_document_start(program, &report->json, err);
    tsr_report_start(&report->base, form, &report->json, allocator);
    /* The summary is optional, because the annotations are printed: its failures are not errors. */
    report->summary_file = summary && *summary ? fopen(summary, "a") : NULL;
    if (!report->summary_file) return;
    tsr_json_start(&report->summary_json, cli_write_file, report->summary_file, 0, NULL);
    tsr_report_start(&report->summary, &tsr_report_github_summary, &report->summary_json, allocator);
    report->base.also = &report->summary;
}

tsr_status cli_report_end(cli_report *report)
{
    const tsr_status status = tsr_report_end(&report->base);
    if (report->summary_file) {
        tsr_report_end(&report->summary);
        tsr_json_finish(&report->summary_json);
        fclose(report->summary_file);
    }
    return status == TSR_OK ? tsr_json_finish(&report->json) : status;
}

int cli_totals_status(const uint64_t totals[TSR_ERROR + 1], unsigned fail_on)
{
    const int least = fail_on ? TSR_ERROR - ((int)fail_on - 1) : TSR_ERROR;
    for (int level = least; level <= TSR_ERROR; level++) {
        if (totals[level]) return CLI_DIFFERS;
    }
    return CLI_DONE;
}

int cli_report_status(const tsr_findings *findings, unsigned fail_on)
{
    uint64_t totals[TSR_ERROR + 1];
    for (int level = TSR_NOTE; level <= TSR_ERROR; level++) totals[level] = tsr_findings_total(findings, (tsr_level)level);
    return cli_totals_status(totals, fail_on);
}
