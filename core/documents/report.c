/* What all forms of reports have in common: counting, and the sources of findings. */
#include <inttypes.h>
#include <math.h>

#include "base/line.h"
#include "codec/json.h"
#include "tessera/sys/document.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"
#include "tessera/version.h"

const tsr_report_form *const tsr_report_forms[TSR_REPORT_FORM_COUNT] = {
    &tsr_report_json, &tsr_report_sarif, &tsr_report_junit, &tsr_report_github, &tsr_report_gitlab};

const tsr_report_form *tsr_report_form_of(tsr_str name, tsr_error *err)
{
    for (size_t i = 0; i < TSR_REPORT_FORM_COUNT; i++)
        if (tsr_str_equal(name, tsr_str_from(tsr_report_forms[i]->name))) return tsr_report_forms[i];
    tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "format expects json, sarif, junit, github or gitlab, not '%.*s'",
              TSR_STR_ARG(name));
    return NULL;
}

void tsr_report_start(tsr_report *report, const tsr_report_form *form, tsr_json *json, const tsr_allocator *allocator)
{
    *report = (tsr_report){.form = form, .json = json, .allocator = allocator};
    form->begin(report);
}

void tsr_report_add(tsr_report *report, const tsr_reported *reported)
{
    const tsr_findings *findings = reported->findings;
    const tsr_policy_result *policy = reported->policy;
    size_t rules;
    const tsr_rule *table = tsr_rules(&rules);
    if (findings) report->checked++;
    else report->unchecked++;
    for (int level = TSR_NOTE; findings && level <= TSR_ERROR; level++) {
        report->totals[level] += tsr_findings_total(findings, (tsr_level)level);
        for (size_t r = 0; r < rules; r++)
            report->unlisted[r] += tsr_findings_unlisted(findings, &table[r], (tsr_level)level);
    }
    if (findings) report->failed += tsr_findings_total(findings, TSR_ERROR) > 0;
    if (policy) {
        report->policy.left_out += policy->left_out;
        report->policy.turned_off += policy->turned_off;
        report->policy.has_baseline = report->policy.has_baseline || policy->has_baseline;
        report->policy.has_rules_off = report->policy.has_rules_off || policy->has_rules_off;
    }
    report->form->add(report, reported);
    if (report->also) tsr_report_add(report->also, reported);
}

tsr_status tsr_report_end(tsr_report *report)
{
    report->form->end(report);
    tsr_vec_free(&report->cases);
    return report->json->status;
}

tsr_status tsr_report_one(const tsr_report_form *form, const tsr_reported *reported, tsr_json *json,
                          const tsr_allocator *allocator)
{
    tsr_report report;
    tsr_report_start(&report, form, json, allocator);
    tsr_report_add(&report, reported);
    return tsr_report_end(&report);
}

/* ---- tessera.findings/1 ---- */

/* A damaged file may state a position that no file reaches: above 2^53, where a double is rounded, the position is one of those. */
static tsr_status read_position(const cJSON *item, const char *where, uint64_t *out, tsr_error *err)
{
    const double value = item->valuedouble;
    char text[TSR_REAL_TEXT];
    TSR_FAIL_IF(!(value >= 0 && value < 0x1p64) || value != floor(value), err, TSR_E_FORMAT,
                "json: expected a position of at least 0 at %s.byte_offset, found %s", where,
                tsr_real_text(value, 17, text));
    *out = (uint64_t)value;
    return TSR_OK;
}

static tsr_status read_finding(const cJSON *item, const char *where, tsr_findings *findings, tsr_error *err)
{
    const cJSON *byte_offset;
    tsr_place place = TSR_NOWHERE;
    tsr_str rule, name, message;
    int level = TSR_ERROR;
    TSR_TRY(tsr_json_get_str(item, "rule", where, &rule, err));
    TSR_TRY(tsr_json_get_str(item, "level", where, &name, err));
    TSR_TRY(tsr_json_get_str(item, "message", where, &message, err));
    TSR_TRY(tsr_json_find_str(item, "file", where, &place.file, err));
    TSR_TRY(tsr_json_find_str(item, "fqn", where, &place.fqn, err));
    TSR_TRY(tsr_json_find(item, "byte_offset", TSR_JSON_NUMBER, where, &byte_offset, err));
    if (byte_offset) TSR_TRY(read_position(byte_offset, where, &place.byte_offset, err));
    while (level >= TSR_NOTE && !tsr_str_equal(name, tsr_str_from(tsr_level_name((tsr_level)level)))) level--;
    TSR_FAIL_IF(level < TSR_NOTE, err, TSR_E_FORMAT, "json: expected error, warning or note at %s.level, found '%.*s'",
                where, TSR_STR_ARG(name));
    return tsr_finding_add_at(findings, (tsr_rated_rule){rule.data, (tsr_level)level}, place, err, "%.*s",
                              TSR_STR_ARG(message));
}

/* Counts the findings that the document does not list. It states their rules, and their levels only as part of the totals. */
static tsr_status read_unlisted(const cJSON *root, tsr_findings *findings, tsr_error *err)
{
    static const char *const keys[] = {"notes", "warnings", "errors"};
    const cJSON *summary, *unlisted, *item;
    uint64_t left[TSR_ERROR + 1], count;
    TSR_TRY(tsr_json_get(root, "summary", TSR_JSON_OBJECT, "", &summary, err));
    for (int level = TSR_NOTE; level <= TSR_ERROR; level++) {
        const uint64_t listed = tsr_findings_total(findings, (tsr_level)level);
        TSR_TRY(tsr_json_get(summary, keys[level], TSR_JSON_NUMBER, "summary", &item, err));
        TSR_TRY(tsr_json_to_u64(item, "summary", &count, err));
        left[level] = count > listed ? count - listed : 0;
    }
    TSR_TRY(tsr_json_find(summary, "unlisted", TSR_JSON_OBJECT, "summary", &unlisted, err));
    cJSON_ArrayForEach(item, unlisted)
    {
        const tsr_rule *rule = tsr_rule_find(item->string);
        TSR_TRY(tsr_json_to_u64(item, "summary.unlisted", &count, err));
        for (int level = TSR_ERROR; rule && level >= TSR_NOTE; level--) {
            const uint64_t of_level = count < left[level] ? count : left[level];
            if (of_level) tsr_findings_count_more(findings, rule, (tsr_level)level, of_level);
            left[level] -= of_level;
            count -= of_level;
        }
    }
    return TSR_OK;
}

static tsr_status read_document(const cJSON *root, tsr_findings *findings, tsr_error *err)
{
    const cJSON *array, *item;
    tsr_str schema;
    char where[64];
    size_t index = 0;
    TSR_TRY(tsr_json_get_str(root, "schema", "", &schema, err));
    TSR_FAIL_IF(!tsr_str_equal(schema, TSR_STR("tessera.findings/1")), err, TSR_E_FORMAT,
                "a report is made of a tessera.findings/1 document, not of '%.64s'", schema.data);
    TSR_TRY(tsr_json_get(root, "findings", TSR_JSON_ARRAY, "", &array, err));
    cJSON_ArrayForEach(item, array)
    {
        tsr_line line = tsr_line_on(where, sizeof where);
        tsr_line_format(&line, "findings[%zu]", index++);
        TSR_TRY(read_finding(item, where, findings, err));
    }
    return read_unlisted(root, findings, err);
}

tsr_status tsr_report_document(const tsr_report_form *form, tsr_str path, tsr_str document, tsr_json *json,
                               const tsr_host *host, tsr_error *err)
{
    cJSON *root = NULL;
    tsr_findings *findings = tsr_findings_new(host->allocator, UINT32_MAX, err);
    tsr_status status = findings ? tsr_json_parse(document, host, &root, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = read_document(root, findings, err);
    if (status == TSR_OK)
        status = tsr_report_one(form, &(tsr_reported){.path = path, .findings = findings}, json, host->allocator);
    cJSON_Delete(root);
    tsr_findings_free(findings);
    return status;
}

/* Reports for CI systems: JUnit XML, GitHub's workflow commands and step summaries, GitLab's Code Quality. They have no place for the
 * name of an entry, so it precedes a message that does not contain it. Names and messages may have any bytes: what people cannot see is
 * escaped, and so is what has a meaning in the form. */

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
        at += tsr_str_step(tsr_str_after(text, at), invisible, &shown);
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
        at += tsr_str_step(tsr_str_after(text, at), invisible, &shown);
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

/* "path/file" of a finding, "path" where that is the file itself, written to `out` and cut at its capacity. */
static tsr_str finding_place(tsr_str path, const tsr_finding *finding, char *out, size_t capacity)
{
    const size_t tail = finding->file.size;
    const bool is_file = tail && path.size >= tail && memcmp(path.data + path.size - tail, finding->file.data, tail) == 0;
    const bool joined = tail && !is_file;
    tsr_line line = tsr_line_on(out, capacity);
    tsr_line_put(&line, path.data, path.size);
    if (joined && path.size && path.data[path.size - 1] != '/') tsr_line_put(&line, "/", 1);
    if (joined) tsr_line_put(&line, finding->file.data, tail);
    return (tsr_str){out, line.used};
}

static void put_annotation(tsr_report *report, tsr_str path, const tsr_finding *finding)
{
    char place[4096], text[WORDS_BYTES];
    put_command(report, finding->level);
    put(report, " file=");
    put_escaped(report, finding_place(path, finding, place, sizeof place), in_properties);
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
        const tsr_str words = words_of(finding, text), path = finding_place(reported->path, finding, place, sizeof place);
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

/* Writes findings as SARIF 2.1.0 (OASIS), for code scanning services: first the rules, then one result per finding. */

/* {"text": …} under `key`. */
static void put_message(tsr_json *json, const char *key, tsr_str text)
{
    tsr_json_put_object(json, key);
    tsr_json_put_str(json, "text", text);
    tsr_json_object_end(json);
}

static void put_rules(tsr_json *json)
{
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    tsr_json_put_array(json, "rules");
    for (size_t i = 0; i < count; i++) {
        tsr_json_object(json);
        tsr_json_put_text(json, "id", rules[i].id);
        put_message(json, "shortDescription", tsr_str_from(rules[i].summary));
        put_message(json, "help", tsr_str_from(rules[i].help));
        tsr_json_put_object(json, "defaultConfiguration");
        tsr_json_put_text(json, "level", tsr_level_name(rules[i].level));
        tsr_json_object_end(json);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void begin(tsr_report *report)
{
    tsr_json *json = report->json;
    json->replaces_surrogates = true;
    tsr_json_object(json);
    tsr_json_put_text(json, "$schema", "https://json.schemastore.org/sarif-2.1.0.json");
    tsr_json_put_text(json, "version", "2.1.0");
    tsr_json_put_array(json, "runs");
    tsr_json_object(json);
    tsr_json_put_object(json, "tool");
    tsr_json_put_object(json, "driver");
    tsr_json_put_text(json, "name", "tessera");
    tsr_json_put_text(json, "version", TSR_VERSION);
    put_rules(json);
    tsr_json_object_end(json);
    tsr_json_object_end(json);
    tsr_json_put_array(json, "results");
}

/* Writes what identifies a finding across runs: its rule, file and name, but not its message or position. */
static void put_fingerprint(tsr_json *json, const tsr_finding *finding)
{
    char text[2 * 8 + 1];
    uint32_t crc = tsr_crc32(NULL, 0, finding->rule->id, strlen(finding->rule->id));
    const uint32_t file = tsr_crc32(NULL, crc, finding->file.data, finding->file.size);
    crc = tsr_crc32(NULL, crc, finding->fqn.data, finding->fqn.size);
    tsr_line line = tsr_line_on(text, sizeof text);
    tsr_line_format(&line, "%08" PRIx32 "%08" PRIx32, file, crc);
    tsr_json_put_object(json, "partialFingerprints");
    tsr_json_put_text(json, "ruleFileAndName/v1", text);
    tsr_json_object_end(json);
}

static void put_physical(tsr_json *json, tsr_str path, const tsr_finding *finding)
{
    char place[4096], uri[3 * sizeof place];
    tsr_json_put_object(json, "physicalLocation");
    tsr_json_put_object(json, "artifactLocation");
    tsr_json_key(json, "uri");
    const size_t size = tsr_uri_path(finding_place(path, finding, place, sizeof place), uri, sizeof uri);
    tsr_json_str(json, (tsr_str){uri, size});
    tsr_json_object_end(json);
    if (finding->byte_offset != TSR_NO_POSITION) {
        tsr_json_put_object(json, "region");
        tsr_json_put_uint(json, "byteOffset", finding->byte_offset);
        tsr_json_object_end(json);
    }
    tsr_json_object_end(json);
}

static void put_result(tsr_json *json, tsr_str path, const tsr_finding *finding)
{
    tsr_json_object(json);
    tsr_json_put_text(json, "ruleId", finding->rule->id);
    tsr_json_put_text(json, "level", tsr_level_name(finding->level));
    put_message(json, "message", finding->message);
    put_fingerprint(json, finding);
    tsr_json_put_array(json, "locations");
    tsr_json_object(json);
    put_physical(json, path, finding);
    if (finding->fqn.data) {
        tsr_json_put_array(json, "logicalLocations");
        tsr_json_object(json);
        tsr_json_put_str(json, "fullyQualifiedName", finding->fqn);
        tsr_json_object_end(json);
        tsr_json_array_end(json);
    }
    tsr_json_object_end(json);
    tsr_json_array_end(json);
    tsr_json_object_end(json);
}

static void add(tsr_report *report, const tsr_reported *reported)
{
    for (size_t i = 0; reported->findings && i < tsr_findings_count(reported->findings); i++)
        put_result(report->json, reported->path, tsr_findings_at(reported->findings, i));
}

static void end(tsr_report *report)
{
    tsr_json_array_end(report->json);
    tsr_json_object_end(report->json);
    tsr_json_array_end(report->json);
    tsr_json_object_end(report->json);
}

const tsr_report_form tsr_report_sarif = {"sarif", begin, add, end};
