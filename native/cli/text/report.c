/* See report.h. Source for GitLab: its Code Quality report format. */
#include "cli/text/report.h"

#include <inttypes.h>

#include "cli/program/policy_options.h"
#include "cli/program/term.h"
#include "cli/text/findings_text.h"
#include "cli/text/report_github.h"

#include "tessera/sys/document_text.h"
#include "tessera/sys/host_calls.h"

/* ---- text ---- */

static void text_add(cli_report *r, const char *path, const tsr_catalog *catalog, const tsr_findings *findings,
                     const tsr_policy_result *policy)
{
    uint64_t totals[3] = {0}, bytes = 0, n;
    for (int level = 0; level < 3; level++) totals[level] = tsr_findings_total(findings, (tsr_level)level);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        if (catalog->entries[i].kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(&catalog->entries[i], &n)) bytes += n;
    }
    cli_on(r->terminal, stdout, CLI_BOLD);
    cli_put(stdout, tsr_str_from(path));
    cli_off(r->terminal, stdout);
    printf("  %s, %s name%s, %s: ", tsr_format_name(catalog->format), cli_number(catalog->entry_count).text,
           catalog->entry_count == 1 ? "" : "s", cli_bytes(bytes).text);
    cli_put_finding_counts(r->terminal, totals);
    if (policy) cli_put_left_out(policy);
    putchar('\n');
    cli_put_findings(r->terminal, NULL, findings, 0);
}

/* ---- GitLab ---- */

static void gitlab_add(tsr_json *json, const char *path, const tsr_finding *finding)
{
    static const char *const severities[] = {"info", "minor", "critical"};
    char place[4096], fingerprint[20], text[CLI_FINDING_WORDS];
    const tsr_str words = cli_finding_words(finding, text);
    tsr_finding_place(tsr_str_from(path), finding, place, sizeof place);
    snprintf(fingerprint, sizeof fingerprint, "%08" PRIx32 "%08" PRIx32, tsr_crc32(NULL, 0, place, strlen(place)),
             tsr_crc32(NULL, 0, words.data, words.size));
    tsr_json_object(json);
    tsr_json_put_str(json, "description", words);
    tsr_json_put_text(json, "check_name", finding->rule->id);
    tsr_json_put_text(json, "fingerprint", fingerprint);
    tsr_json_put_text(json, "severity", severities[finding->level]);
    tsr_json_put_object(json, "location");
    tsr_json_put_text(json, "path", place);
    tsr_json_put_object(json, "lines");
    tsr_json_put_uint(json, "begin", 1); /* the format requires a line number; these files have no lines */
    tsr_json_object_end(json);
    tsr_json_object_end(json);
    tsr_json_object_end(json);
}

/* ---- all formats ---- */

void cli_report_start(cli_report *report, const cli_terminal *terminal, cli_report_format format, size_t path_count,
                      tsr_error *err)
{
    *report = (cli_report){.format = format, .terminal = terminal, .path_count = path_count};
    tsr_json_start(&report->json, cli_write_file, stdout, 1, err);
    if (format == CLI_REPORT_JSON) tsr_findings_document_start(&report->document, &report->json);
    if (format == CLI_REPORT_SARIF) tsr_sarif_start(&report->json, TSR_VERSION);
    if (format == CLI_REPORT_GITLAB) tsr_json_array(&report->json);
    if (format == CLI_REPORT_JUNIT) cli_junit_start(&report->junit);
}

static void add_policy(tsr_policy_result *sum, const tsr_policy_result *more)
{
    sum->left_out += more->left_out;
    sum->turned_off += more->turned_off;
    sum->has_baseline = sum->has_baseline || more->has_baseline;
    sum->has_rules_off = sum->has_rules_off || more->has_rules_off;
}

void cli_report_add(cli_report *report, const char *path, const tsr_catalog *catalog, const tsr_findings *findings,
                    const tsr_policy_result *policy)
{
    if (policy) add_policy(&report->policy, policy);
    for (int level = 0; level < 3; level++) report->totals[level] += tsr_findings_total(findings, (tsr_level)level);
    if (report->format == CLI_REPORT_TEXT) text_add(report, path, catalog, findings, policy);
    if (report->format == CLI_REPORT_JSON) tsr_findings_document_add(&report->document, tsr_str_from(path), findings);
    if (report->format == CLI_REPORT_SARIF) tsr_sarif_add(&report->json, tsr_str_from(path), findings);
    if (report->format == CLI_REPORT_JUNIT) cli_junit_add(&report->junit, path, findings);
    if (report->format == CLI_REPORT_GITHUB) cli_github_add(report->annotations, path, findings);
    if (report->format != CLI_REPORT_GITLAB) return;
    for (size_t i = 0; i < tsr_findings_count(findings); i++) gitlab_add(&report->json, path, tsr_findings_at(findings, i));
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

void cli_report_trouble(cli_report *report, const char *path, const tsr_error *err)
{
    /* Other formats cannot express it; the message is on stderr. */
    if (report->format == CLI_REPORT_JUNIT) cli_junit_trouble(&report->junit, path, err);
}

tsr_status cli_report_end(cli_report *report)
{
    if (report->format == CLI_REPORT_TEXT && report->path_count > 1) {
        printf("%zu paths: ", report->path_count);
        cli_put_finding_counts(report->terminal, report->totals);
        cli_put_left_out(&report->policy);
        putchar('\n');
    }
    if (report->format == CLI_REPORT_JUNIT) return cli_junit_end(&report->junit, report->json.err);
    report->document.policy = report->policy;
    if (report->format == CLI_REPORT_JSON) tsr_findings_document_end(&report->document);
    if (report->format == CLI_REPORT_SARIF) tsr_sarif_end(&report->json);
    if (report->format == CLI_REPORT_GITLAB) tsr_json_array_end(&report->json);
    bool is_json =
        report->format == CLI_REPORT_JSON || report->format == CLI_REPORT_SARIF || report->format == CLI_REPORT_GITLAB;
    return is_json ? tsr_json_finish(&report->json) : TSR_OK;
}
