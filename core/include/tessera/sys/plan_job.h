/* The document tessera.plan/1: a plan that can be carried out later, and the targets that people write as text.
 *
 * Example:
 *
 *     tsr_target_texts texts;
 *     tsr_target target;
 *     status = tsr_target_texts_read(text, host, arena, &texts, &err);
 *     if (status == TSR_OK) status = tsr_target_from_texts(&texts, tsr_glob_match, arena, &target, &err);
 *     if (status == TSR_OK) status = tsr_plan_for_texts(catalog, &(tsr_planning){&texts, &target, NULL}, host, arena, &plan, &err); */
#ifndef TESSERA_SYS_PLAN_JOB_H
#define TESSERA_SYS_PLAN_JOB_H

#include "tessera/check.h"
#include "tessera/plan.h"
#include "tessera/sys/json.h"
#include "tessera/sys/plan_items.h"
#include "tessera/sys/storage_document.h"

TSR_API_BEGIN

/* A tessera.target/1 document as it stands: texts that mesh.h reads. All live in `arena`. */
typedef struct tsr_target_rule_text {
    tsr_str match;
    tsr_str placements;    /* "shard(0),replicate"; empty with `ranks` or `stage`: replicate */
    const uint64_t *ranks; /* NULL: none are listed */
    uint64_t rank_count;
    tsr_str stage_dim, stage_capture; /* "pp", "layers.{n}."; empty: no stage */
    const tsr_span *stage_ranges;
    uint32_t stage_range_count;
} tsr_target_rule_text;
typedef struct tsr_target_texts {
    tsr_str mesh; /* "dp=4,tp=2" */
    tsr_target_rule_text *rules;
    uint32_t rule_count;
    tsr_str default_placements; /* data NULL when the document has none: replicate */
    bool fsdp1;                 /* "strategy": {"name": "fsdp1", …}: flat ranges in place of placements (target.h) */
    bool use_orig_params;
    const tsr_str *units; /* GLOBs of wrapped modules' parameters, innermost first */
    uint32_t unit_count;
    const tsr_str *ignored; /* GLOBs of tensors that are not flattened (buffers, ignored modules): whole on every rank */
    uint32_t ignored_count;
} tsr_target_texts;
tsr_status tsr_target_texts_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_target_texts *out,
                                 tsr_error *err);

/* The target that such texts mean; `match` as in tsr_target. A default that is empty becomes "replicate,…" in the texts too.
 * Everything lives in `arena` and borrows the texts. Checked. Errors: TSR_E_USAGE naming the rule and the byte in it. */
tsr_status tsr_target_from_texts(tsr_target_texts *texts, bool (*match)(tsr_str glob, tsr_str name), tsr_arena *arena,
                                 tsr_target *out, tsr_error *err);

typedef struct tsr_planning {
    const tsr_target_texts *texts;
    const tsr_target *target;        /* that of the texts */
    const tsr_plan_options *options; /* or NULL */
} tsr_planning;
/* The plan for a target of texts: as tsr_plan_new, or with FSDP1's flat ranges, where every wanted tensor is a parameter (then
 * the layouts live in `arena`, as long as the plan). Errors as tsr_plan_new and
 * tsr_target_fsdp1. */
tsr_status tsr_plan_for_texts(const tsr_catalog *catalog, const tsr_planning *what, const tsr_host *host, tsr_arena *arena,
                              tsr_plan **out, tsr_error *err);

/* The source and the target of a plan: enough to carry it out later, and to check that its source has not changed. */
typedef struct tsr_plan_file {
    tsr_str name;
    uint64_t bytes;
    tsr_str modified; /* seconds since 1970 with nine decimals, or a server's ETag or date; empty: not known */
} tsr_plan_file;
typedef struct tsr_plan_job {
    tsr_str source_path;
    tsr_str source_part, source_step; /* tsr_open_options.part, .step; empty: not given */
    tsr_str source_map;               /* the tessera.map/1 document through which the source is read; empty: none */
    bool source_inverse;              /* backwards */
    tsr_str source_format;
    tsr_str digest_algorithm, digest; /* of the source's catalog (tsr_catalog_digest), in hexadecimal */
    tsr_plan_file *files;             /* those that hold tensors */
    uint64_t file_count;
    tsr_target_texts target;    /* the default spelled out */
    tsr_str to, objects, dtype; /* as --to, --objects, --dtype have them; the latter two may be empty */
    bool raw_cast;
    const tsr_str *include, *exclude;
    size_t include_count, exclude_count;
    tsr_storage_text storage; /* its `servers` is NULL without one */
} tsr_plan_job;
/* Fills in a job's source from a catalog: format, digest, the files with their sizes, and `to` if that is empty. `modified`
 * stays empty. The only file of a store is always listed, whatever it contains. config.json or params.json is listed if
 * there is a source_map, which reads numbers from it. A digest_algorithm that is already set ("sha256", "xxh3") is used,
 * because the plan of another build may have to be checked. In `arena`. TSR_E_UNSUPPORTED if this build lacks that
 * digest. */
tsr_status tsr_plan_job_source(const tsr_catalog *catalog, const tsr_host *host, tsr_arena *arena, tsr_plan_job *out,
                               tsr_error *err);
/* TSR_E_CHANGED if the source of a plan has changed; the message has the difference, found and expected. */
tsr_status tsr_plan_job_check(const tsr_plan_job *planned, const tsr_plan_job *found, tsr_error *err);
/* Reads the job of a tessera.plan/1 document, and ignores its totals. The job lives in `arena`. Errors: those of
 * tsr_contract_read. */
tsr_status tsr_plan_job_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_plan_job *out, tsr_error *err);

/* tessera.plan/1: a job, and what it would read, send and hold. With `items`, every read item of every rank. */
typedef struct tsr_plan_document {
    const tsr_plan *plan;
    const tsr_plan_totals *totals;
    const tsr_catalog *catalog;
    const tsr_mesh *mesh;
    const tsr_plan_job *job;
    bool items;
    const tsr_storage *storage;     /* of job->storage, or NULL */
    const tsr_server_load *servers; /* its servers' loads */
} tsr_plan_document;
tsr_status tsr_document_plan(const tsr_plan_document *document, tsr_json *json, tsr_error *err);
/* Digest of a catalog, by `*algorithm` (0: SHA-256, or XXH3 if the host has no SHA-256; then set to the one used): names,
 * kinds, dtypes, shapes, boxes, and the locations of their bytes. Equal for two openings of an unchanged checkpoint. */
tsr_status tsr_catalog_digest(const tsr_catalog *catalog, const tsr_host *host, tsr_digest_algorithm *algorithm,
                              tsr_digest *out, tsr_error *err);

TSR_API_END

#endif
