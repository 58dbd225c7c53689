/* tessera.findings/1, and what it has in common with other documents: findings, types of entries, and digests. */
#include "documents/document_parts.h"

#include "tessera/sys/entries.h"
#include "tessera/sys/finding_add.h"

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

void tsr_document_put_findings(tsr_json *json, tsr_str path, const tsr_findings *findings)
{
    for (size_t i = 0; i < tsr_findings_count(findings); i++) put_finding(json, path, tsr_findings_at(findings, i));
}

void tsr_findings_document_start(tsr_findings_document *document, tsr_json *json)
{
    document->json = json;
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.findings/1");
    tsr_json_put_array(json, "findings");
}

void tsr_findings_document_add(tsr_findings_document *document, tsr_str path, const tsr_findings *findings)
{
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    document->paths++;
    for (int level = TSR_NOTE; level <= TSR_ERROR; level++) {
        document->totals[level] += tsr_findings_total(findings, (tsr_level)level);
        for (size_t r = 0; r < count; r++)
            document->unlisted[r] += tsr_findings_unlisted(findings, &rules[r], (tsr_level)level);
    }
    tsr_document_put_findings(document->json, path, findings);
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

tsr_status tsr_findings_document_end(tsr_findings_document *document)
{
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"paths", document->paths},
                  {"errors", document->totals[TSR_ERROR]},
                  {"warnings", document->totals[TSR_WARNING]},
                  {"notes", document->totals[TSR_NOTE]}};
    tsr_json *json = document->json;
    tsr_json_array_end(json);
    tsr_json_put_object(json, "summary");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) tsr_json_put_uint(json, counts[i].key, counts[i].count);
    tsr_document_put_policy(json, &document->policy);
    put_unlisted(json, document->unlisted);
    tsr_json_object_end(json);
    tsr_json_object_end(json);
    return json->status;
}
