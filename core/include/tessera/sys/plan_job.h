/* The document tessera.plan/1: a request to convert or reshard that can be carried out later, what it reads, and how much.
 *
 * Example:
 *
 *     tsr_plan_job job;
 *     status = tsr_plan_job_read(text, host, arena, &job, &err);
 *     if (status == TSR_OK) printf("tessera %s\n", job.request.command->name); */
#ifndef TESSERA_SYS_PLAN_JOB_H
#define TESSERA_SYS_PLAN_JOB_H

#include "tessera/check.h"
#include "tessera/plan.h"
#include "tessera/sys/command_request.h"
#include "tessera/sys/plan_items.h"
#include "tessera/sys/storage_document.h"
#include "tessera/sys/target_texts.h"

TSR_API_BEGIN

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

/* The target of a plan for a conversion, of which only what is read counts: everything on one rank. In `arena`. */
tsr_status tsr_target_of_conversion(tsr_arena *arena, tsr_target_texts *texts, tsr_target *out, tsr_error *err);

/* A checkpoint that a plan reads: enough to find it, and to notice that it has changed. */
typedef struct tsr_plan_file {
    tsr_str name;
    uint64_t bytes;
    tsr_str modified; /* seconds since 1970 with nine decimals, or a server's ETag or date; empty: not known */
} tsr_plan_file;
typedef struct tsr_plan_source {
    tsr_str path, format;
    tsr_str digest_algorithm, digest; /* of the catalog (tsr_catalog_digest), in hexadecimal */
    tsr_plan_file *files;             /* those that hold tensors */
    uint64_t file_count;
} tsr_plan_source;
/* Fills in everything but `path` from a catalog; `modified` stays empty. The only file of a store is always listed, whatever it
 * contains, and config.json and params.json are where the options take numbers from them. A digest_algorithm that is
 * already set ("sha256", "xxh3") is used, because the plan of another build may have to be checked. In `arena`. TSR_E_UNSUPPORTED
 * if this build lacks that digest. */
tsr_status tsr_plan_source_describe(const tsr_catalog *catalog, const tsr_command_options *options, const tsr_host *host,
                                    tsr_arena *arena, tsr_plan_source *out, tsr_error *err);
/* TSR_E_CHANGED if a checkpoint has changed since it was described for a plan; the message has the difference, found and expected. */
tsr_status tsr_plan_source_check(const tsr_plan_source *planned, const tsr_plan_source *found, tsr_error *err);

/* What a plan says about its work. */
typedef struct tsr_plan_job {
    tsr_plan_source source;
    tsr_plan_source adapter;     /* of --lora; `path` empty: none */
    tsr_command_request request; /* of convert or reshard; its documents are texts, and its target and storage are here: */
    tsr_target_texts target;     /* the default spelled out; `mesh` empty: convert */
    tsr_storage_text storage;    /* its `servers` is NULL without one */
} tsr_plan_job;
/* Reads the job of a tessera.plan/1 document, and ignores its totals. The job lives in `arena`. Errors: those of
 * tsr_contract_read; TSR_E_UNSUPPORTED for a plan of a version that wrote no request. */
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
