/* What a resharding of an open checkpoint would read, hold and send: tessera.plan/1 for a tessera.target/1. */
#include "handles.h"
#include "tessera/document.h"
#include "tessera/glob.h"
#include "tessera/sys/plan_job.h"

typedef struct plan_request {
    opened *item;
    tsr_str target, path;
} plan_request;

static tsr_status write_totals(const plan_request *r, const tsr_plan *plan, const tsr_target *target,
                               const tsr_target_texts *texts, tsr_arena *arena, tsr_json *json, tsr_error *err)
{
    tsr_plan_totals totals;
    tsr_plan_job job = {.source_path = r->path, .target = *texts};
    tsr_status status = tsr_plan_count_totals(plan, arena, &totals, err);
    if (status == TSR_OK)
        status = tsr_plan_job_source(tsr_checkpoint_catalog(r->item->checkpoint), &r->item->host, arena, &job, err);
    if (status != TSR_OK) return status;
    const tsr_plan_document about = {.plan = plan,
                                     .totals = &totals,
                                     .catalog = tsr_checkpoint_catalog(r->item->checkpoint),
                                     .mesh = &target->mesh,
                                     .job = &job};
    return tsr_document_plan(&about, json, err);
}

static tsr_status write_plan(void *ctx, tsr_json *json, tsr_error *err)
{
    const plan_request *r = ctx;
    const tsr_host *host = &r->item->host;
    tsr_target_texts texts;
    tsr_target target;
    tsr_plan *plan = NULL;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_status status = arena ? tsr_target_texts_read(r->target, host, arena, &texts, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_target_from_texts(&texts, tsr_glob_match, arena, &target, err);
    if (status == TSR_OK)
        status =
            tsr_plan_for_texts(tsr_checkpoint_catalog(r->item->checkpoint), &texts, &target, NULL, host, arena, &plan, err);
    if (status == TSR_OK) status = write_totals(r, plan, &target, &texts, arena, json, err);
    tsr_plan_free(plan);
    tsr_arena_free(arena);
    return status;
}

/* `target` is the text of a tessera.target/1 document, `path` what the plan says its source is. */
TSR_EXPORT(tessera_plan)
document *tessera_plan(uint32_t handle, const char *target, uint32_t target_size, const char *path, uint32_t path_size,
                       tsr_error *err)
{
    plan_request r = {tessera_checkpoint_of(handle, err), {target, target_size}, {path, path_size}};
    if (!r.item || tsr_checkpoint_require(r.item->checkpoint, TSR_FOR_VALUES, err) != TSR_OK) return NULL;
    return tessera_make_document(write_plan, &r, err);
}
