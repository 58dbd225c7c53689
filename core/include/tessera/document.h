/* The JSON documents of `tessera`: tessera.inspect/1, layout/1, findings/1, diff/1 and fqn/1 (their schemas are in
 * native/cli/schemas). The command line and the browser call these, so that both say the same. Everything is streamed:
 * no function here holds a document. Thread rule: as the checkpoint.
 *
 * Example:
 *
 *     const tsr_inspect_options options = {.path = TSR_STR("step-1000")};
 *     tsr_json json;
 *     tsr_json_start(&json, write_to_stdout, stdout, 1, &err);
 *     status = tsr_document_inspect(checkpoint, &options, &json, &err);
 *     if (status == TSR_OK) status = tsr_json_finish(&json); */
#ifndef TESSERA_DOCUMENT_H
#define TESSERA_DOCUMENT_H

#include "tessera/check.h"
#include "tessera/compare.h"
#include "tessera/diff.h"
#include "tessera/document_read.h"
#include "tessera/fqn.h"
#include "tessera/sys/json.h"
#include "tessera/plan.h"
#include "tessera/policy.h"

TSR_API_BEGIN

typedef struct tsr_inspect_options {
    tsr_str path; /* as the user gave it */
    tsr_selection selection;
    tsr_digest_algorithm hash; /* 0: none */
    bool stats;
    tsr_ring *ring;               /* needed for hash and stats */
    const tsr_progress *progress; /* over the bytes that hash and stats read; may be NULL */
} tsr_inspect_options;

/* tessera.inspect/1: summary, entries in the container's order, findings. A tensor whose bytes cannot be read has no
 * `hash` and `stats` and becomes a finding (file/unreadable); what stops everything (memory, cancelling, the sink's
 * own failure) is returned. */
tsr_status tsr_document_inspect(tsr_checkpoint *checkpoint, const tsr_inspect_options *options, tsr_json *json,
                                tsr_error *err);

/* tessera.layout/1, entries sorted by FQN and chunks by offsets, so that a container's order does not count. */
typedef struct tsr_layout_options {
    tsr_selection selection;
    bool no_chunks;
    tsr_digest_algorithm hash;    /* 0: none. Else of every tensor, and of every object without tensors or sets in it */
    tsr_checkpoint *checkpoint;   /* these three are needed for hash only */
    tsr_ring *ring;
    const tsr_progress *progress; /* may be NULL */
} tsr_layout_options;
tsr_status tsr_document_layout(const tsr_catalog *catalog, const tsr_layout_options *options, const tsr_host *host,
                               tsr_json *json, tsr_error *err);
/* tessera.fqn/1: `names` in order, and their collisions (tsr_fqn_collisions). */
typedef struct tsr_fqn_document {
    const tsr_name *names;
    size_t count;
    const tsr_collision *collisions;
    size_t collision_count;
    bool by_text; /* without a module tree */
    void (*more)(void *ctx, tsr_json *json); /* puts further members behind these; may be NULL */
    void *more_ctx;
} tsr_fqn_document;
tsr_status tsr_document_fqn(const tsr_fqn_document *document, tsr_json *json);
/* tessera.findings/1 over any number of paths: start, add each path's findings (`path` empty: not printed), end. Zero the
 * struct before start. The summary counts what is not listed, by rule, so that the document can serve as a baseline. */
typedef struct tsr_findings_document {
    tsr_json *json;
    uint64_t paths;
    uint64_t totals[3]; /* by tsr_level */
    uint64_t unlisted[TSR_MAX_RULES];
    tsr_policy_result policy; /* of all paths together: filled by the caller before the end where a policy was applied */
} tsr_findings_document;
void tsr_findings_document_start(tsr_findings_document *document, tsr_json *json);
void tsr_findings_document_add(tsr_findings_document *document, tsr_str path, const tsr_findings *findings);
tsr_status tsr_findings_document_end(tsr_findings_document *document);

/* SARIF 2.1.0 (OASIS) of the findings of any number of paths: start, add each path's, end. `version`: the program's. A
 * result has a fingerprint (rule, file, FQN) that stays the same in later runs, a byte region and the FQN. */
void tsr_sarif_start(tsr_json *json, const char *version);
void tsr_sarif_add(tsr_json *json, tsr_str path, const tsr_findings *findings);
tsr_status tsr_sarif_end(tsr_json *json);
/* "path/file" of a finding, "path" where that is the file itself, written to `out` and cut at its capacity. */
tsr_str tsr_finding_place(tsr_str path, const tsr_finding *finding, char *out, size_t capacity);

/* Values of a pair of tsr_diff that differ in bytes; `elements` 0 where they were not compared. */
typedef struct tsr_diff_document {
    tsr_str path_a, path_b;
    const tsr_diff *diff;
    const tsr_difference *differences; /* one a pair, or NULL: values were not compared */
    const tsr_policy_result *policy;   /* what was left out of `diff`, or NULL: nothing */
} tsr_diff_document;
tsr_status tsr_document_diff(const tsr_diff_document *document, tsr_json *json);
/* The same as findings: diff/added, removed, dtype, shape, value, object, layout; diff/renamed (a note) for suggestions. */
tsr_status tsr_diff_findings(const tsr_diff_document *document, tsr_findings *findings, tsr_error *err);

/* The target that such texts mean; `match` as in tsr_target. A default that is empty becomes "replicate,…" in the texts too.
 * Everything lives in `arena` and borrows the texts. Checked. Errors: TSR_E_USAGE naming the rule and the byte in it. */
tsr_status tsr_target_from_texts(tsr_target_texts *texts, bool (*match)(tsr_str glob, tsr_str name), tsr_arena *arena,
                                 tsr_target *out, tsr_error *err);

/* The plan for a target of texts: as tsr_plan_new, or with FSDP1's flat ranges, where every wanted tensor is a parameter (then
 * the layouts live in `arena`, as long as the plan). `target` is that of the texts. Errors as tsr_plan_new and
 * tsr_target_fsdp1. */
tsr_status tsr_plan_for_texts(const tsr_catalog *catalog, const tsr_target_texts *texts, const tsr_target *target,
                              const tsr_plan_options *options, const tsr_host *host, tsr_arena *arena, tsr_plan **out,
                              tsr_error *err);

/* What a plan is made from and for: enough to carry it out later, and to tell whether its source is still the same. */
typedef struct tsr_plan_file {
    tsr_str name;
    uint64_t bytes;
    tsr_str modified; /* seconds since 1970 with nine decimals, or a server's ETag or date; empty: not known */
} tsr_plan_file;
typedef struct tsr_plan_job {
    tsr_str source_path;
    tsr_str source_format;
    tsr_str digest_algorithm, digest; /* of the source's catalog (tsr_catalog_digest), in hexadecimal */
    tsr_plan_file *files;             /* those that hold tensors */
    uint64_t file_count;
    tsr_target_texts target;     /* the default spelled out */
    tsr_str to, objects, dtype;  /* as --to, --objects, --dtype have them; the latter two may be empty */
    bool raw_cast;
    const tsr_str *include, *exclude;
    size_t include_count, exclude_count;
} tsr_plan_job;
/* What a catalog tells of a job's source: format, digest, the files with their sizes (`modified` empty; a store of a single
 * file counts it whatever it holds), and `to`, where that is empty. A digest_algorithm that is set already ("sha256",
 * "xxh3") is kept to, so that a plan of another build can be checked. In `arena`. TSR_E_UNSUPPORTED without that digest. */
tsr_status tsr_plan_job_source(const tsr_catalog *catalog, const tsr_host *host, tsr_arena *arena, tsr_plan_job *out,
                               tsr_error *err);
/* TSR_E_CHANGED when the source of a plan is not what it was: what differs, found and expected. */
tsr_status tsr_plan_job_check(const tsr_plan_job *planned, const tsr_plan_job *found, tsr_error *err);
/* Reads a tessera.plan/1 document's job; what is counted in it is passed over. In `arena`. Errors as tsr_layout_read. */
tsr_status tsr_plan_job_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_plan_job *out, tsr_error *err);

/* tessera.plan/1: a job, and what it would read, send and hold. With `items`, every read item of every rank. */
typedef struct tsr_plan_document {
    const tsr_plan *plan;
    const tsr_plan_totals *totals;
    const tsr_catalog *catalog;
    const tsr_mesh *mesh;
    const tsr_plan_job *job;
    bool items;
} tsr_plan_document;
tsr_status tsr_document_plan(const tsr_plan_document *document, tsr_json *json, tsr_error *err);
/* Digest of a catalog, by `*algorithm` (0: SHA-256, or XXH3 where the host has no SHA-256; *algorithm says which): names, kinds, dtypes, shapes, boxes, and where their bytes
 * lie. Equal for two openings of an unchanged checkpoint. */
tsr_status tsr_catalog_digest(const tsr_catalog *catalog, const tsr_host *host, tsr_digest_algorithm *algorithm,
                              tsr_digest *out, tsr_error *err);

/* One element of a tensor as text: integers exactly, floats in the fewest digits that read back as the same float32 (or
 * float64), bool as true and false, complex as (re+imj), anything else as its bytes in hex. `element` has the bytes of one
 * element, little-endian. Returns `out`; 64 bytes suffice. */
const char *tsr_element_text(tsr_dtype dtype, const uint8_t *element, char *out, size_t capacity);

TSR_API_END

#endif
