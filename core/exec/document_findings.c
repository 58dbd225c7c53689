/* tessera.findings/1, and the array of findings that other documents hold. */
#include "exec/document_parts.h"

static const char *const level_names[] = {"note", "warning", "error"};

static void put_finding(tsr_json *json, tsr_str path, const tsr_finding *finding)
{
    tsr_json_object(json);
    tsr_json_key(json, "rule");
    tsr_json_text(json, finding->rule->id);
    tsr_json_key(json, "level");
    tsr_json_text(json, level_names[finding->level]);
    tsr_json_key(json, "message");
    tsr_json_str(json, finding->message);
    if (path.data) {
        tsr_json_key(json, "path");
        tsr_json_str(json, path);
    }
    if (finding->file.size) {
        tsr_json_key(json, "file");
        tsr_json_str(json, finding->file);
    }
    if (finding->byte_offset != TSR_NO_POSITION) {
        tsr_json_key(json, "byte_offset");
        tsr_json_uint(json, finding->byte_offset);
    }
    if (finding->fqn.data) {
        tsr_json_key(json, "fqn");
        tsr_json_str(json, finding->fqn);
    }
    tsr_json_object_end(json);
}

void tsr_document_findings_array(const tsr_path_findings *paths, size_t count, tsr_json *json)
{
    tsr_json_array(json);
    for (size_t p = 0; p < count; p++) {
        for (size_t i = 0; i < tsr_findings_count(paths[p].findings); i++) {
            put_finding(json, paths[p].path, tsr_findings_at(paths[p].findings, i));
        }
    }
    tsr_json_array_end(json);
}

tsr_status tsr_document_findings(const tsr_path_findings *paths, size_t count, tsr_json *json)
{
    static const struct {
        const char *key;
        tsr_level level;
    } levels[] = {{"errors", TSR_ERROR}, {"warnings", TSR_WARNING}, {"notes", TSR_NOTE}};
    tsr_json_object(json);
    tsr_json_key(json, "schema");
    tsr_json_text(json, "tessera.findings/1");
    tsr_json_key(json, "findings");
    tsr_document_findings_array(paths, count, json);
    tsr_json_key(json, "summary");
    tsr_json_object(json);
    tsr_json_key(json, "paths");
    tsr_json_uint(json, count);
    for (size_t l = 0; l < 3; l++) {
        uint64_t total = 0;
        for (size_t p = 0; p < count; p++) total += tsr_findings_total(paths[p].findings, levels[l].level);
        tsr_json_key(json, levels[l].key);
        tsr_json_uint(json, total);
    }
    tsr_json_object_end(json);
    tsr_json_object_end(json);
    return json->status;
}
