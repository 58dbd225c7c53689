/* The command line's documents that depend on options. Each call opens the checkpoint again, as the command does. */
#include "request.h"
#include "tessera/convert.h"
#include "tessera/glob.h"
#include "tessera/optim_convert.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/document.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

#include <stdlib.h>

/* ---- inspect, layout and manifest ---- */

static tsr_status write_inspect(call *c, tsr_json *json, tsr_error *err)
{
    const tsr_command_options *asked = &c->request.options;
    tsr_inspect_options options = {.path = c->path,
                                   .selection = {tsr_globs_select, &asked->selection},
                                   .hash = (tsr_digest_algorithm)asked->hash,
                                   .stats = asked->stats};
    tsr_status status =
        tsr_validate_catalog(tsr_checkpoint_catalog(c->checkpoint), &c->host, tsr_checkpoint_findings(c->checkpoint), err);
    if (status == TSR_OK && (options.hash || options.stats)) status = tessera_call_ring(c, err);
    options.ring = c->ring;
    return status == TSR_OK ? tsr_document_inspect(c->checkpoint, &options, json, err) : status;
}

static tsr_status put_layout(call *c, tsr_layout_options *options, tsr_json *json, tsr_error *err)
{
    tsr_name_choice choice;
    tsr_status status = tessera_name_choice(c, NULL, &choice, err);
    if (status == TSR_OK && options->hash) status = tessera_call_ring(c, err);
    if (status != TSR_OK) return status;
    options->selection = (tsr_selection){tsr_globs_select, &c->request.options.selection};
    options->checkpoint = c->checkpoint;
    options->ring = c->ring;
    return tsr_document_layout(tsr_checkpoint_catalog(c->checkpoint), options, &c->host, json, err);
}

static tsr_status write_layout(call *c, tsr_json *json, tsr_error *err)
{
    const tsr_command_options *asked = &c->request.options;
    return put_layout(c, &(tsr_layout_options){.no_chunks = asked->no_chunks, .hash = (tsr_digest_algorithm)asked->hash},
                      json, err);
}

static tsr_status write_manifest(call *c, tsr_json *json, tsr_error *err)
{
    const unsigned hash = c->request.options.hash;
    tsr_layout_options options = {.no_chunks = true, .is_manifest = true};
    options.hash = hash ? (tsr_digest_algorithm)hash : TSR_DIGEST_XXH3;
    return put_layout(c, &options, json, err);
}

/* ---- plan: what each rank of a reshard would read, hold and send ---- */

tsr_status tessera_read_target(call *c, tsr_target_texts *texts, tsr_target *target, tsr_error *err)
{
    const tsr_command_options *asked = &c->request.options;
    const tsr_str document = tsr_str_from(asked->target), mesh = tsr_str_from(asked->mesh),
                  placements = tsr_str_from(asked->placements);
    if (document.data ? mesh.data || placements.data : !mesh.data || !placements.data)
        return tsr_fail(err, TSR_E_USAGE, "pass either --target FILE or --mesh with --placements");
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

static tsr_status write_plan(call *c, tsr_json *json, tsr_error *err)
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

/* ---- validate and verify ---- */

/* A document or another checkpoint to check against. */
typedef struct expectation {
    tsr_contract contract;
    call other; /* if it is a checkpoint */
} expectation;

static tsr_status read_document(call *c, const char *text, tsr_contract *out, tsr_error *err)
{
    return tsr_contract_read(tsr_str_from(text), &c->host, c->arena, out, err);
}

/* The option is the number of a handle. The names, dtypes and shapes of that checkpoint are compared, but not its chunks. */
static tsr_status take_checkpoint(call *c, expectation *out, tsr_error *err)
{
    const uint32_t handle = (uint32_t)strtoul(c->request.against_checkpoint, NULL, 10);
    const tsr_status status = tessera_call_open(&out->other, handle, &(tsr_open_options){.skip_objects = true}, true, err);
    if (status != TSR_OK) return status;
    out->contract = (tsr_contract){.expected = *tsr_checkpoint_catalog(out->other.checkpoint),
                                   .called = "the other checkpoint",
                                   .allow = TSR_ANY_CHUNKS};
    return TSR_OK;
}

/* JavaScript passes an array of names as an index document, because names in it may be any text. */
static tsr_status take_names(call *c, tsr_contract *out, tsr_error *err)
{
    const tsr_status status = read_document(c, c->request.against_names, out, err);
    out->called = "the list";
    return status;
}

static tsr_status read_against(call *c, expectation *out, bool *given, tsr_error *err)
{
    *given = true;
    if (c->request.against_checkpoint) return take_checkpoint(c, out, err);
    if (c->request.against_names) return take_names(c, &out->contract, err);
    *given = c->request.options.against != NULL;
    return *given ? read_document(c, c->request.options.against, &out->contract, err) : TSR_OK;
}

static tsr_status apply_allowed(call *c, tsr_contract *contract, uint32_t more, tsr_error *err)
{
    uint32_t allow;
    const tsr_status status = tsr_leniency_parse(tsr_str_from(c->request.options.allow), &allow, err);
    contract->match = tsr_glob_match;
    contract->names = (tsr_selection){tsr_globs_select, &c->request.options.selection};
    contract->allow |= allow | more;
    return status;
}

/* Reads the contracts that were given into `layout` and `against`, and sets them in `options`. */
static tsr_status read_contracts(call *c, tsr_contract *layout, expectation *against, tsr_validate_options *options,
                                 tsr_error *err)
{
    const tsr_command_options *asked = &c->request.options;
    bool has_against;
    if (asked->layout) options->layout = layout;
    tsr_status status = asked->layout ? read_document(c, asked->layout, layout, err) : TSR_OK;
    if (status == TSR_OK) status = apply_allowed(c, layout, 0, err);
    if (status == TSR_OK) status = read_against(c, against, &has_against, err);
    if (status != TSR_OK || !has_against) return status;
    against->contract.prefix = tsr_str_from(asked->prefix ? asked->prefix : "");
    options->against = &against->contract;
    return apply_allowed(c, &against->contract, TSR_ANY_CHUNKS, err);
}

tsr_status tessera_check_conversion(call *c, const tsr_conversion *conversion, tsr_error *err)
{
    expectation against = {.other = {.ring = NULL}};
    bool given;
    tsr_status status = read_against(c, &against, &given, err);
    against.contract.match = tsr_glob_match;
    if (status == TSR_OK && given) status = tsr_conversion_check(conversion, &against.contract, &c->host, err);
    tessera_call_close(&against.other);
    return status;
}

static tsr_status check(call *c, tsr_validate_options *options, tsr_error *err)
{
    tsr_status status = options->deep || options->hashes ? tessera_call_ring(c, err) : TSR_OK;
    options->ring = c->ring;
    return status == TSR_OK ? tsr_validate(c->checkpoint, options, err) : status;
}

static tsr_status put_findings(call *c, const tsr_findings *findings, const tsr_policy_result *left_out, tsr_json *json)
{
    return tsr_report_one(&tsr_report_json, &(tsr_reported){.path = c->path, .findings = findings, .policy = left_out}, json,
                          c->host.allocator);
}

tsr_status tessera_read_policy(const tsr_command_options *options, tsr_policy *policy, tsr_error *err)
{
    tsr_status status = TSR_OK;
    tsr_policy_names(policy, (tsr_selection){tsr_globs_select, &options->selection});
    for (size_t i = 0; i < options->rules.count && status == TSR_OK; i++)
        status = tsr_policy_rule(policy, options->rules.items[i], err);
    return status == TSR_OK && options->baseline ? tsr_policy_baseline(policy, tsr_str_from(options->baseline), err)
                                                 : status;
}

static tsr_status put_remaining(call *c, const tsr_policy *policy, tsr_json *json, tsr_error *err)
{
    tsr_policy_result left_out = {0};
    tsr_findings *left = tsr_findings_new(c->host.allocator, 0, err);
    tsr_status status = left ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_policy_findings(policy, tsr_checkpoint_findings(c->checkpoint), left, &left_out, err);
    if (status == TSR_OK) status = put_findings(c, left, &left_out, json);
    tsr_findings_free(left);
    return status;
}

/* Refuses options about a contract that was not given. */
static tsr_status check_options(const request *r, tsr_error *err)
{
    const bool against = r->options.against || r->against_names || r->against_checkpoint;
    TSR_FAIL_IF(r->options.prefix && !against, err, TSR_E_USAGE, "--prefix needs --against FILE");
    TSR_FAIL_IF(r->options.allow && !against && !r->options.layout, err, TSR_E_USAGE,
                "--allow needs --layout FILE or --against FILE");
    return TSR_OK;
}

static tsr_status write_validate(call *c, tsr_json *json, tsr_error *err)
{
    tsr_contract layout = {.digests = NULL};
    expectation against = {.other = {.ring = NULL}};
    tsr_validate_options options = {.size = sizeof options, .deep = c->request.options.deep};
    tsr_policy *policy = tsr_policy_new(TSR_POLICY_VALIDATE, &c->host, err);
    tsr_status status = policy ? check_options(&c->request, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tessera_read_policy(&c->request.options, policy, err);
    if (status == TSR_OK) status = read_contracts(c, &layout, &against, &options, err);
    if (status == TSR_OK) status = check(c, &options, err);
    if (status == TSR_OK) status = put_remaining(c, policy, json, err);
    tessera_call_close(&against.other);
    tsr_policy_free(policy);
    return status;
}

static tsr_status write_verify(call *c, tsr_json *json, tsr_error *err)
{
    tsr_contract manifest = {.digests = NULL};
    tsr_validate_options options = {.size = sizeof options, .layout = &manifest, .hashes = true};
    tsr_status status = read_document(c, c->request.manifest, &manifest, err);
    if (status == TSR_OK) status = apply_allowed(c, &manifest, 0, err);
    manifest.called = "the manifest";
    if (status == TSR_OK && !manifest.digests)
        status = tsr_fail(err, TSR_E_USAGE, "the manifest has no hashes; write a manifest with `tessera manifest`");
    if (status == TSR_OK) status = check(c, &options, err);
    return status == TSR_OK ? put_findings(c, tsr_checkpoint_findings(c->checkpoint), NULL, json) : status;
}

/* ---- reports in the forms of --format ---- */

typedef struct report_request {
    tsr_host host;
    const tsr_report_form *form;
    tsr_str path, findings;
} report_request;

static tsr_status write_report(void *ctx, tsr_json *json, tsr_error *err)
{
    const report_request *r = ctx;
    return tsr_report_document(r->form, r->path, r->findings, json, &r->host, err);
}

/* Returns the findings of a tessera.findings/1 document about `path` in another form. */
TSR_EXPORT(tessera_report)
document *tessera_report(const char *form, uint32_t form_size, const char *path, uint32_t path_size, const char *findings,
                         uint32_t findings_size, tsr_error *err)
{
    report_request r = {
        tessera_host(), tsr_report_form_of((tsr_str){form, form_size}, err), {path, path_size}, {findings, findings_size}};
    return r.form ? tessera_make_document(write_report, &r, err) : NULL;
}

/* ---- by name ---- */

typedef struct call_kind {
    const char *name;
    tsr_purpose purpose;
    bool whole;        /* examines every entry, whatever is selected */
    bool skip_objects; /* unless --hash was given */
    bool reads_values;
    tsr_status (*write)(call *call, tsr_json *json, tsr_error *err);
} call_kind;

static const call_kind kinds[] = {
    {"inspect", TSR_FOR_NAMES, true, false, false, write_inspect},
    {"layout", TSR_FOR_VALUES, false, true, false, write_layout},
    {"manifest", TSR_FOR_VALUES, false, false, true, write_manifest},
    {"validate", TSR_FOR_FINDINGS, true, false, false, write_validate},
    {"verify", TSR_FOR_VALUES, true, false, true, write_verify},
    {"plan", TSR_FOR_VALUES, false, true, false, write_plan},
};

typedef struct writing {
    const call_kind *kind;
    call *call;
} writing;

static tsr_status write_call(void *ctx, tsr_json *json, tsr_error *err)
{
    const writing *w = ctx;
    return w->kind->write(w->call, json, err);
}

static document *make(const call_kind *kind, uint32_t handle, const tessera_option *options, uint32_t count, tsr_error *err)
{
    call c = {.path = {NULL, 0}};
    writing w = {kind, &c};
    document *made = NULL;
    tsr_status status = tessera_call_start(&c, kind->name, options, count, err);
    const tsr_open_options wanted = {.skip_objects = kind->skip_objects && !c.request.options.hash,
                                     .purpose = kind->purpose,
                                     .selects = kind->whole ? NULL : tsr_globs_select,
                                     .selects_ctx = &c.request.options.selection};
    if (status == TSR_OK) status = tessera_call_open(&c, handle, &wanted, !kind->reads_values, err);
    if (status == TSR_OK) made = tessera_make_document(write_call, &w, err);
    tessera_call_close(&c);
    return made;
}

static tsr_status write_step(void *ctx, tsr_json *json, tsr_error *err)
{
    (void)err;
    const opened *item = ctx;
    const char *marker;
    const tsr_str step = item->checkpoint ? tsr_checkpoint_step(item->checkpoint, &marker) : (tsr_str){NULL, 0};
    tsr_json_str(json, step.data ? step : TSR_STR(""));
    return json->status;
}

/* Returns the directory of the checkpoint below the root that was opened, as a JSON string. Empty if it is the root
 * itself. */
TSR_EXPORT(tessera_step) document *tessera_step(uint32_t handle, tsr_error *err)
{
    opened *item = tessera_checkpoint_of(handle, err);
    return item ? tessera_make_document(write_step, item, err) : NULL;
}

/* Returns the document of the command with this name. */
TSR_EXPORT(tessera_call)
document *tessera_call(uint32_t handle, const char *name, const tessera_option *options, uint32_t count, tsr_error *err)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0) return make(&kinds[i], handle, options, count, err);
    tsr_fail(err, TSR_E_USAGE, "there is no call '%s'", name);
    return NULL;
}
