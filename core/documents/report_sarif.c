/* Writes findings as SARIF 2.1.0 (OASIS), for code scanning services: first the rules, then one result per finding. */
#include <inttypes.h>

#include "base/line.h"
#include "documents/document_parts.h"

#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/report.h"
#include "tessera/sys/uri.h"
#include "tessera/version.h"

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
    const size_t size = tsr_uri_path(tsr_finding_place(path, finding, place, sizeof place), uri, sizeof uri);
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
