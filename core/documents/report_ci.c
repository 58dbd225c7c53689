/* Reports for CI systems: JUnit XML, GitHub's workflow commands and step summaries, GitLab's Code Quality. They have no place for the
 * name of an entry, so it precedes a message that does not contain it. Names and messages may have any bytes: what people cannot see is
 * escaped, and so is what has a meaning in the form. */
#include <inttypes.h>

#include "base/line.h"
#include "documents/document_parts.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/number_text.h"
#include "tessera/sys/report.h"
#include "tessera/sys/visible.h"

/* ---- text ---- */

static void put(tsr_report *report, const char *text)
{
    tsr_json *out = report->json;
    const tsr_str bytes = tsr_str_from(text);
    if (!report->cases.allocator) tsr_json_raw(out, bytes);
    else if (out->status == TSR_OK) out->status = tsr_vec_append(&report->cases, bytes.data, bytes.size, out->err);
}

/* Visible characters that have a meaning in a form, and what is written in their place; a list ends with {0}. */
typedef struct escape {
    char character;
    const char *text;
} escape;

static void put_escaped(tsr_report *report, tsr_str text, const escape *escapes)
{
    char invisible[TSR_ESCAPE_SIZE + 1];
    tsr_str shown;
    for (size_t at = 0; at < text.size;) {
        at += tsr_str_step((tsr_str){text.data + at, text.size - at}, invisible, &shown);
        const escape *e = escapes;
        while (e->text && e->character != *shown.data) e++;
        if (!e->text) {
            if (shown.data != invisible) memcpy(invisible, shown.data, shown.size);
            invisible[shown.size] = 0;
        }
        put(report, e->text ? e->text : invisible);
    }
}

static void put_count(tsr_report *report, uint64_t count, const char *noun)
{
    char number[TSR_NUMBER_TEXT];
    put(report, tsr_number_text(count, number));
    put(report, " ");
    put(report, noun);
    put(report, TSR_PLURAL(count));
}

/* Escapes `text` as messages do, to compare it with them. */
static tsr_str escaped(tsr_str text, char *out, size_t capacity)
{
    char invisible[TSR_ESCAPE_SIZE];
    size_t used = 0;
    tsr_str shown;
    for (size_t at = 0; at < text.size;) {
        at += tsr_str_step((tsr_str){text.data + at, text.size - at}, invisible, &shown);
        if (used + shown.size > capacity) break;
        memcpy(out + used, shown.data, shown.size);
        used += shown.size;
    }
    return (tsr_str){out, used};
}

enum { WORDS_BYTES = 20000 };

/* The message of a finding, preceded by the finding's name if the message does not contain it. */
static tsr_str words_of(const tsr_finding *finding, char out[WORDS_BYTES])
{
    const size_t room = WORDS_BYTES - TSR_ERROR_MESSAGE_SIZE - 2;
    const tsr_str name = escaped(finding->fqn, out, room), message = finding->message;
    size_t used = tsr_str_contains(message, name) ? 0 : name.size;
    if (used) {
        memcpy(out + used, ": ", 2);
        used += 2;
    }
    memcpy(out + used, message.data, message.size);
    return (tsr_str){out, used + message.size};
}

/* ---- JUnit: junit-10.xsd, with which Jenkins' xUnit plugin reads reports ---- */

/* All visible characters are allowed in XML 1.0. A '>' may end a "]]>". */
static const escape in_xml[] = {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}, {0}};

/* The numbers of a suite precede its cases, which are kept until the end. */
static void junit_begin(tsr_report *report)
{
    report->cases = tsr_vec_of(report->allocator, 1);
}

static void junit_add(tsr_report *report, const tsr_reported *reported)
{
    char text[WORDS_BYTES];
    put(report, "  <testcase classname=\"tessera\" name=\"");
    put_escaped(report, reported->path, in_xml);
    put(report, "\">\n");
    for (size_t i = 0; reported->findings && i < tsr_findings_count(reported->findings); i++) {
        const tsr_finding *finding = tsr_findings_at(reported->findings, i);
        const bool fails = finding->level == TSR_ERROR;
        put(report, fails ? "    <failure type=\"" : "    <system-out>");
        if (fails) put(report, finding->rule->id);
        put(report, fails ? "\">error " : tsr_level_name(finding->level));
        put(report, fails ? "" : " ");
        put(report, finding->rule->id);
        put(report, ": ");
        put_escaped(report, words_of(finding, text), in_xml);
        put(report, fails ? "</failure>\n" : "</system-out>\n");
    }
    if (!reported->findings) {
        put(report, "    <error>");
        put_escaped(report, tsr_str_from(reported->trouble->message), in_xml);
        put(report, "</error>\n");
    }
    put(report, "  </testcase>\n");
}

static void junit_end(tsr_report *report)
{
    char counts[120];
    tsr_vec cases = report->cases;
    tsr_line line = tsr_line_on(counts, sizeof counts);
    report->cases = (tsr_vec){0};
    tsr_line_format(&line, "tests=\"%llu\" failures=\"%llu\" errors=\"%llu\">\n",
                    (unsigned long long)(report->checked + report->unchecked), (unsigned long long)report->failed,
                    (unsigned long long)report->unchecked);
    put(report, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"tessera\" ");
    put(report, counts);
    tsr_json_raw(report->json, (tsr_str){cases.items, cases.count});
    put(report, "</testsuite>\n");
    tsr_vec_free(&cases);
}

const tsr_report_form tsr_report_junit = {"junit", junit_begin, junit_add, junit_end};

/* ---- GitHub: it shows ten annotations of each level and silently drops the rest, so the tenth states how many more there are ---- */

enum { ANNOTATIONS = 10, SUMMARY_ROWS = 200 };

static const escape in_messages[] = {{'%', "%25"}, {0}};
/* Their texts are not formats: they are in pieces, so that tests/structure does not read them as such. */
static const escape in_properties[] = {{'%', "%25"},
                                       {':', "%"
                                             "3A"},
                                       {',', "%"
                                             "2C"},
                                       {0}};
static const escape in_cells[] = {{'|', "\\|"}, {'<', "&lt;"}, {'@', "&#64;"}, {0}}; /* of tables; @ mentions people */

static void put_command(tsr_report *report, tsr_level level)
{
    put(report, "::");
    put(report, level == TSR_NOTE ? "notice" : tsr_level_name(level));
}

static void put_annotation(tsr_report *report, tsr_str path, const tsr_finding *finding)
{
    char place[4096], text[WORDS_BYTES];
    put_command(report, finding->level);
    put(report, " file=");
    put_escaped(report, tsr_finding_place(path, finding, place, sizeof place), in_properties);
    put(report, ",title=");
    put(report, finding->rule->id);
    put(report, "::");
    put_escaped(report, words_of(finding, text), in_messages);
    put(report, "\n");
}

static void no_text(tsr_report *report)
{
    (void)report;
}

static void github_add(tsr_report *report, const tsr_reported *reported)
{
    for (int level = TSR_ERROR; reported->findings && level >= TSR_NOTE; level--) {
        uint64_t left = tsr_findings_total(reported->findings, (tsr_level)level);
        for (size_t i = 0; i < tsr_findings_count(reported->findings); i++) {
            const tsr_finding *finding = tsr_findings_at(reported->findings, i);
            if (finding->level != (tsr_level)level || report->shown[level] >= ANNOTATIONS) continue;
            if (++report->shown[level] == ANNOTATIONS && left > 1) {
                put_command(report, (tsr_level)level);
                put(report, " title=tessera::");
                put_count(report, left, "finding");
                put(report, " more in ");
                put_escaped(report, reported->path, in_messages);
                put(report, "; the step summary lists them\n");
            } else {
                put_annotation(report, reported->path, finding);
            }
            left--;
        }
    }
}

static void summary_add(tsr_report *report, const tsr_reported *reported)
{
    const tsr_findings *findings = reported->findings;
    if (!findings) return;
    const size_t count = tsr_findings_count(findings);
    char text[WORDS_BYTES], more[48];
    put(report, "### ");
    put_escaped(report, reported->path, in_cells);
    for (int level = TSR_ERROR; level >= TSR_NOTE; level--) {
        put(report, level == TSR_ERROR ? "\n\n" : ", ");
        put_count(report, tsr_findings_total(findings, (tsr_level)level), tsr_level_name((tsr_level)level));
    }
    put(report, count ? "\n\n| level | rule | what |\n|---|---|---|\n" : "\n");
    for (size_t i = 0; i < count && i < SUMMARY_ROWS; i++) {
        const tsr_finding *finding = tsr_findings_at(findings, i);
        put(report, "| ");
        put(report, tsr_level_name(finding->level));
        put(report, " | `");
        put(report, finding->rule->id);
        put(report, "` | ");
        put_escaped(report, words_of(finding, text), in_cells);
        put(report, " |\n");
    }
    tsr_line line = tsr_line_on(more, sizeof more);
    if (count > SUMMARY_ROWS) tsr_line_format(&line, "\n… and %zu more\n", count - SUMMARY_ROWS);
    put(report, count > SUMMARY_ROWS ? more : "");
    put(report, "\n");
}

const tsr_report_form tsr_report_github = {"github", no_text, github_add, no_text};
const tsr_report_form tsr_report_github_summary = {"github-summary", no_text, summary_add, no_text};

/* ---- GitLab ---- */

static void gitlab_begin(tsr_report *report)
{
    tsr_json_array(report->json);
}

static void gitlab_add(tsr_report *report, const tsr_reported *reported)
{
    static const char *const severities[] = {"info", "minor", "critical"};
    char place[4096], fingerprint[20], text[WORDS_BYTES];
    tsr_json *json = report->json;
    for (size_t i = 0; reported->findings && i < tsr_findings_count(reported->findings); i++) {
        const tsr_finding *finding = tsr_findings_at(reported->findings, i);
        const tsr_str words = words_of(finding, text),
                      path = tsr_finding_place(reported->path, finding, place, sizeof place);
        tsr_line line = tsr_line_on(fingerprint, sizeof fingerprint);
        tsr_line_format(&line, "%08" PRIx32 "%08" PRIx32, tsr_crc32(NULL, 0, path.data, path.size),
                        tsr_crc32(NULL, 0, words.data, words.size));
        tsr_json_object(json);
        tsr_json_put_str(json, "description", words);
        tsr_json_put_text(json, "check_name", finding->rule->id);
        tsr_json_put_text(json, "fingerprint", fingerprint);
        tsr_json_put_text(json, "severity", severities[finding->level]);
        tsr_json_put_object(json, "location");
        tsr_json_put_str(json, "path", path);
        tsr_json_put_object(json, "lines");
        tsr_json_put_uint(json, "begin", 1); /* the form requires a line number; these files have no lines */
        tsr_json_object_end(json);
        tsr_json_object_end(json);
        tsr_json_object_end(json);
    }
}

static void gitlab_end(tsr_report *report)
{
    tsr_json_array_end(report->json);
}

const tsr_report_form tsr_report_gitlab = {"gitlab", gitlab_begin, gitlab_add, gitlab_end};
