/* tessera.findings/1, and what it has in common with other documents: findings, types of entries, and digests. */
#include "documents/document_parts.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/check.h"
#include "tessera/sys/document.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/try.h"

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

/* ---- latest ---- */

/* tessera.latest/1: the newest checkpoint of a run that would load, and the newer ones that would not. */

tsr_status tsr_latest_path(tsr_str run, tsr_str path, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const bool is_separate = path.size && run.size && run.data[run.size - 1] != '/';
    *out = tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(run), is_separate ? "/" : "", TSR_STR_ARG(path));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status put_path(tsr_json *json, tsr_str run, tsr_str path, tsr_arena *arena, tsr_error *err)
{
    tsr_str whole;
    TSR_TRY(tsr_latest_path(run, path, arena, &whole, err));
    tsr_json_put_str(json, "path", whole);
    return TSR_OK;
}

tsr_status tsr_document_latest(const tsr_latest *latest, tsr_str run, tsr_arena *arena, tsr_json *json, tsr_error *err)
{
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.latest/1");
    tsr_json_put_str(json, "run", run);
    if (latest->found) {
        TSR_TRY(put_path(json, run, latest->path, arena, err));
        if (latest->has_step) tsr_json_put_uint(json, "step", latest->step);
    }
    tsr_json_put_array(json, "passed_over");
    for (size_t i = 0; i < latest->passed_count; i++) {
        const tsr_passed_over *passed = &latest->passed_over[i];
        tsr_json_object(json);
        TSR_TRY(put_path(json, run, passed->path, arena, err));
        if (passed->has_step) tsr_json_put_uint(json, "step", passed->step);
        tsr_json_put_str(json, "reason", passed->reason);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_object_end(json);
    return json->status;
}

/* ---- fqn ---- */

/* tessera.fqn/1: canonical names, what was removed from each and why, and names that collide. */

static void put_removed(tsr_json *json, const tsr_name *name)
{
    tsr_json_put_array(json, "removed");
    for (size_t i = 0; i < name->removed_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "component", name->removed[i].component);
        tsr_json_put_str(json, "why", name->removed[i].why);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void put_name(tsr_json *json, const tsr_name *name)
{
    tsr_json_object(json);
    tsr_json_put_str(json, "raw", name->raw);
    tsr_json_put_strs(json, "fqns", name->fqns, name->fqn_count);
    put_removed(json, name);
    if (name->ambiguity.size) tsr_json_put_str(json, "ambiguity", name->ambiguity);
    tsr_json_object_end(json);
}

static void put_collisions(tsr_json *json, const tsr_fqn_document *d)
{
    tsr_json_put_array(json, "collisions");
    for (size_t i = 0; i < d->collision_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "fqn", d->collisions[i].fqn);
        tsr_json_put_array(json, "raw");
        for (size_t n = 0; n < d->collisions[i].count; n++) tsr_json_str(json, d->names[d->collisions[i].names[n]].raw);
        tsr_json_array_end(json);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

tsr_status tsr_document_fqn(const tsr_fqn_document *d, tsr_json *json)
{
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.fqn/1");
    tsr_json_put_text(json, "by", d->by_text ? "text" : "modules");
    tsr_json_put_array(json, "names");
    for (size_t i = 0; i < d->count; i++) put_name(json, &d->names[i]);
    tsr_json_array_end(json);
    put_collisions(json, d);
    if (d->more) d->more(d->more_ctx, json);
    tsr_json_object_end(json);
    return json->status;
}

/* ---- prune ---- */

static tsr_status put_pruned(tsr_json *json, tsr_str run, const tsr_pruned *pruned, tsr_arena *arena, tsr_error *err)
{
    static const char *const reasons[] = {"older", "damaged", "unfinished"};
    tsr_json_object(json);
    TSR_TRY(put_path(json, run, pruned->path, arena, err));
    if (pruned->has_step) tsr_json_put_uint(json, "step", pruned->step);
    tsr_json_put_text(json, "because", reasons[pruned->because]);
    if (pruned->error.size) tsr_json_put_str(json, "error", pruned->error);
    tsr_json_put_uint(json, "files", pruned->files);
    tsr_json_put_uint(json, "bytes", pruned->bytes);
    tsr_json_put_array(json, "left");
    for (size_t i = 0; i < pruned->left_count; i++) {
        tsr_str path;
        TSR_TRY(tsr_latest_path(run, pruned->left[i], arena, &path, err));
        tsr_json_str(json, path);
    }
    tsr_json_array_end(json);
    if (pruned->left_because.size) tsr_json_put_str(json, "left_because", pruned->left_because);
    tsr_json_object_end(json);
    return TSR_OK;
}

/* tessera.prune/1: what was removed from a run, and what was kept. */
tsr_status tsr_document_prune(const tsr_prune_result *result, tsr_str run, tsr_arena *arena, tsr_json *json, tsr_error *err)
{
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.prune/1");
    tsr_json_put_str(json, "run", run);
    tsr_json_put_bool(json, "dry_run", result->dry_run);
    tsr_json_put_array(json, "removed");
    for (size_t i = 0; i < result->removed_count; i++) TSR_TRY(put_pruned(json, run, &result->removed[i], arena, err));
    tsr_json_array_end(json);
    tsr_json_put_array(json, "kept");
    for (size_t i = 0; i < result->kept_count; i++) {
        const tsr_prune_kept *kept = &result->kept[i];
        tsr_json_object(json);
        TSR_TRY(put_path(json, run, kept->path, arena, err));
        if (kept->has_step) tsr_json_put_uint(json, "step", kept->step);
        tsr_json_put_bool(json, "valid", kept->is_valid);
        tsr_json_put_str(json, "reason", kept->reason);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_object_end(json);
    return json->status;
}
