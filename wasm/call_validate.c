/* validate and verify: check a checkpoint by itself, and against a layout, a manifest, or what it is to be loaded into. */
#include <stdlib.h>

#include "made.h"
#include "request.h"
#include "tessera/glob.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/document.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

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

static tsr_status read_policy(const tsr_command_options *options, tsr_policy *policy, tsr_error *err)
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

tsr_status tessera_write_validate(call *c, tsr_json *json, tsr_error *err)
{
    tsr_contract layout = {.digests = NULL};
    expectation against = {.other = {.ring = NULL}};
    tsr_validate_options options = {.size = sizeof options, .deep = c->request.options.deep};
    tsr_policy *policy = tsr_policy_new(TSR_POLICY_VALIDATE, &c->host, err);
    tsr_status status = policy ? check_options(&c->request, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = read_policy(&c->request.options, policy, err);
    if (status == TSR_OK) status = read_contracts(c, &layout, &against, &options, err);
    if (status == TSR_OK) status = check(c, &options, err);
    if (status == TSR_OK) status = put_remaining(c, policy, json, err);
    tessera_call_close(&against.other);
    tsr_policy_free(policy);
    return status;
}

tsr_status tessera_write_verify(call *c, tsr_json *json, tsr_error *err)
{
    tsr_contract manifest = {.digests = NULL};
    tsr_validate_options options = {.size = sizeof options, .layout = &manifest, .hashes = true};
    tsr_status status = read_document(c, c->request.manifest, &manifest, err);
    if (status == TSR_OK) status = apply_allowed(c, &manifest, 0, err);
    manifest.called = "the manifest";
    if (status == TSR_OK && !manifest.digests)
        status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                           "the manifest has no hashes; write a manifest with `tessera manifest`");
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

static tsr_status write_differences(const void *ctx, const tsr_diff_document *document, const tsr_policy *policy,
                                    tsr_json *json, tsr_error *err)
{
    return tsr_report_diff(ctx, document, policy, json, tessera_host().allocator, err);
}

/* Returns the differences of a diff as findings, in the form of a report. */
TSR_EXPORT(tessera_diff_report)
document *tessera_diff_report(uint32_t diff, const char *form, uint32_t form_size, const char *path_a, uint32_t path_a_size,
                              const char *path_b, uint32_t path_b_size, tsr_error *err)
{
    const tsr_report_form *wanted = tsr_report_form_of((tsr_str){form, form_size}, err);
    const tessera_diff_request request = {{path_a, path_a_size}, {path_b, path_b_size}, write_differences, wanted};
    return wanted ? tessera_diff_written(diff, &request, err) : NULL;
}

/* ---- the policy of a diff ---- */

/* Applies --rule and --baseline to a diff. Returns 1. */
TSR_EXPORT(tessera_judge_diff)
uint32_t tessera_judge_diff(uint32_t diff, const tessera_option *options, uint32_t count, tsr_error *err)
{
    request asked;
    const tsr_host *host = tessera_diff_host(diff, err); /* lives longer than the diff and its policy */
    tsr_arena *arena = host ? tsr_arena_new(host->allocator, 0, err) : NULL;
    tsr_policy *policy = arena ? tsr_policy_new(TSR_POLICY_DIFF, host, err) : NULL;
    tsr_status status = policy ? tessera_request_read("diff", options, count, arena, &asked, err) : err->status;
    if (status == TSR_OK) status = read_policy(&asked.options, policy, err);
    if (status == TSR_OK) status = tessera_diff_judge(diff, &(tessera_judge){policy, tsr_policy_diff, tsr_policy_free}, err);
    if (status != TSR_OK) tsr_policy_free(policy);
    tsr_arena_free(arena);
    return status == TSR_OK;
}
