/* tessera.findings/1, and what it has in common with other documents: findings, types of entries, and digests. */
#include "documents/document_parts.h"

#include "base/line.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/report.h"

static void put_finding(tsr_json *json, tsr_str path, const tsr_finding *finding)
{
    tsr_json_object(json);
    tsr_json_put_text(json, "rule", finding->rule->id);
    tsr_json_put_text(json, "level", tsr_level_name(finding->level));
    tsr_json_put_str(json, "message", finding->message);
    if (path.data) tsr_json_put_str(json, "path", path);
    if (finding->file.size) tsr_json_put_str(json, "file", finding->file);
    if (finding->byte_offset != TSR_NO_POSITION) tsr_json_put_uint(json, "byte_offset", finding->byte_offset);
    if (finding->fqn.data) tsr_json_put_str(json, "fqn", finding->fqn);
    tsr_json_object_end(json);
}

void tsr_document_put_type(tsr_json *json, const tsr_entry *entry)
{
    tsr_json_put_text(json, "kind", tsr_entry_kind_name(entry->kind));
    if (entry->kind != TSR_ENTRY_TENSOR) {
        tsr_json_put_str(json, "type", entry->type);
        return;
    }
    tsr_json_put_text(json, "dtype", tsr_dtype_describe(entry->dtype)->name);
    tsr_json_put_u64s(json, "shape", entry->shape, entry->ndim);
}

void tsr_document_put_digest(tsr_json *json, tsr_digest_algorithm algorithm, const tsr_digest *digest)
{
    char text[65];
    tsr_json_object(json);
    tsr_json_put_text(json, "algorithm", algorithm == TSR_DIGEST_SHA256 ? "sha256" : "xxh3");
    tsr_json_put_text(json, "digest", tsr_digest_text(digest, text));
    tsr_json_object_end(json);
}

tsr_str tsr_finding_place(tsr_str path, const tsr_finding *finding, char *out, size_t capacity)
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

void tsr_document_put_findings(tsr_json *json, tsr_str path, const tsr_findings *findings)
{
    for (size_t i = 0; i < tsr_findings_count(findings); i++) put_finding(json, path, tsr_findings_at(findings, i));
}

void tsr_document_put_policy(tsr_json *json, const tsr_policy_result *result)
{
    if (result->has_baseline) tsr_json_put_uint(json, "left_out", result->left_out);
    if (result->has_rules_off) tsr_json_put_uint(json, "turned_off", result->turned_off);
}

static void put_unlisted(tsr_json *json, const uint64_t *unlisted)
{
    size_t count, put = 0;
    const tsr_rule *rules = tsr_rules(&count);
    for (size_t r = 0; r < count; r++) {
        if (!unlisted[r]) continue;
        if (put++ == 0) {
            tsr_json_put_object(json, "unlisted");
        }
        tsr_json_put_uint(json, rules[r].id, unlisted[r]);
    }
    if (put) tsr_json_object_end(json);
}

static void begin(tsr_report *report)
{
    tsr_json_object(report->json);
    tsr_json_put_text(report->json, "schema", "tessera.findings/1");
    tsr_json_put_array(report->json, "findings");
}

static void add(tsr_report *report, const tsr_reported *reported)
{
    if (reported->findings) tsr_document_put_findings(report->json, reported->path, reported->findings);
}

static void end(tsr_report *report)
{
    tsr_json *json = report->json;
    tsr_json_array_end(json);
    tsr_json_put_object(json, "summary");
    tsr_json_put_uint(json, "paths", report->checked);
    tsr_json_put_uint(json, "errors", report->totals[TSR_ERROR]);
    tsr_json_put_uint(json, "warnings", report->totals[TSR_WARNING]);
    tsr_json_put_uint(json, "notes", report->totals[TSR_NOTE]);
    tsr_document_put_policy(json, &report->policy);
    put_unlisted(json, report->unlisted);
    tsr_json_object_end(json);
    tsr_json_object_end(json);
}

const tsr_report_form tsr_report_json = {"json", begin, add, end};
