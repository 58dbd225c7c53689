/* Writes the plan of a reshard: what each rank would read, hold and send. */
#include "request.h"
#include "tessera/convert.h"
#include "tessera/glob.h"
#include "tessera/optim_convert.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/plan.h"

tsr_status tessera_read_target(call *c, tsr_target_texts *texts, tsr_target *target, tsr_error *err)
{
    const tsr_command_options *asked = &c->request.options;
    const tsr_str document = tsr_str_from(asked->target), mesh = tsr_str_from(asked->mesh),
                  placements = tsr_str_from(asked->placements);
    if (document.data ? mesh.data || placements.data : !mesh.data || !placements.data)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "pass either --target FILE or --mesh with --placements");
    *texts = (tsr_target_texts){.mesh = mesh, .default_placements = placements};
    const tsr_status status = document.data ? tsr_target_texts_read(document, &c->host, c->arena, texts, err) : TSR_OK;
    return status == TSR_OK ? tsr_target_from_texts(texts, tsr_glob_match, c->arena, target, err) : status;
}

/* Reads the document of --storage into the call's arena. *out is NULL if it was not given. */
static tsr_status read_storage(call *c, tsr_storage_text *text, tsr_storage **out, tsr_error *err)
{
    const tsr_str document = tsr_str_from(c->request.options.storage);
    *out = NULL;
    if (!document.data) return TSR_OK;
    *out = TSR_ARENA_NEW(c->arena, tsr_storage, err);
    if (!*out) return TSR_E_NOMEM;
    const tsr_status status = tsr_storage_read(document, &c->host, c->arena, text, err);
    if (status != TSR_OK) return status;
    return tsr_storage_of(text, tsr_checkpoint_catalog(c->checkpoint)->store, &c->host, c->arena, *out, err);
}

tsr_status tessera_make_plan(call *c, const tsr_target_texts *texts, const tsr_target *target, const tsr_storage *storage,
                             tsr_plan **out, tsr_error *err)
{
    const tsr_plan_options options = {.want = tsr_globs_want, .want_ctx = &c->request.options.selection, .storage = storage};
    return tsr_plan_for_texts(tsr_checkpoint_catalog(c->checkpoint), &(tsr_planning){texts, target, &options}, &c->host,
                              c->arena, out, err);
}

/* Describes what `tessera exec` has to do. */
static tsr_status describe_job(call *c, bool reshards, tsr_plan_job *job, tsr_error *err)
{
    const tsr_checkpoint *source = c->source ? c->source : c->checkpoint;
    tsr_command_options options = c->request.options;
    job->source.path = c->path;
    if (c->chosen.part.data) options.source.part = c->chosen.part.data;
    if (c->chosen.step.data) options.source.step = c->chosen.step.data;
    options.source.salvage = c->chosen.salvage;
    if (c->map.data) options.map = tsr_arena_str(c->arena, c->map, err).data;
    if (c->map.data && !options.map) return TSR_E_NOMEM;
    if (c->chosen.shards)
        options.source.shards =
            c->chosen.shards->document.size ? c->chosen.shards->document.data : c->chosen.shards->name.data;
    if (c->adapter) {
        job->adapter.path = c->adapter->path;
        options.lora = c->adapter->path.data;
    }
    tsr_status status = tsr_plan_request(c->checkpoint, &options, reshards, c->arena, &job->request, err);
    if (status != TSR_OK) return status;
    status = tsr_plan_source_describe(tsr_checkpoint_catalog(source), &options, &c->host, c->arena, &job->source, err);
    if (status != TSR_OK || !c->adapter) return status;
    return tsr_plan_source_describe(tsr_checkpoint_catalog(c->adapter->checkpoint), &options, &c->host, c->arena,
                                    &job->adapter, err);
}

/* What the document describes besides the job. */
typedef struct planned {
    tsr_target target;
    tsr_storage *storage; /* or NULL */
    tsr_plan *plan;
} planned;

static tsr_status write_totals(call *c, const planned *p, tsr_plan_job *job, tsr_json *json, tsr_error *err)
{
    tsr_plan_totals totals;
    tsr_status status = tsr_plan_count_totals(p->plan, c->arena, &totals, err);
    if (status == TSR_OK) status = describe_job(c, job->target.mesh.size != 0, job, err);
    if (status != TSR_OK) return status;
    tsr_plan_document about = {.plan = p->plan,
                               .totals = &totals,
                               .catalog = tsr_checkpoint_catalog(c->checkpoint),
                               .mesh = &p->target.mesh,
                               .job = job,
                               .items = c->request.options.items,
                               .storage = p->storage};
    if (p->storage) status = tsr_plan_count_servers(p->plan, p->storage, c->arena, &about.servers, err);
    if (status != TSR_OK) return status;
    return tsr_document_plan(&about, json, err);
}

tsr_status tessera_write_plan(call *c, tsr_json *json, tsr_error *err)
{
    tsr_plan_job job = {.target = {.rule_count = 0}};
    planned p = {.plan = NULL};
    tsr_name_choice choice;
    const tsr_command_options *o = &c->request.options;
    const bool reshards = o->target || o->mesh || o->placements;
    tsr_target_texts counted;
    tsr_status status = reshards ? tessera_read_target(c, &job.target, &p.target, err)
                                 : tsr_target_of_conversion(c->arena, &counted, &p.target, err);
    if (reshards) counted = job.target;
    if (status == TSR_OK) status = tessera_name_choice(c, NULL, &choice, err);
    if (status == TSR_OK) status = read_storage(c, &job.storage, &p.storage, err);
    if (status == TSR_OK) status = tessera_make_plan(c, &counted, &p.target, p.storage, &p.plan, err);
    if (status == TSR_OK) status = write_totals(c, &p, &job, json, err);
    tsr_plan_free(p.plan);
    return status;
}
