/* What all forms of reports have in common: counting, and the sources of findings. */
#include "tessera/sys/report.h"

#include <math.h>

#include "base/line.h"
#include "codec/json.h"
#include "tessera/sys/number_text.h"
#include "tessera/sys/try.h"

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
