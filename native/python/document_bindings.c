/* The JSON documents of the Python package. They are made by the same functions as those of the command line; inputs are
 * texts rather than files. */
#include "session.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/contract_rules.h"
#include "tessera/sys/document.h"
#include "tessera/sys/json.h"
#include "tessera/sys/report.h"
#include "tessera/sys/try.h"
#include "tessera/tessera.h"

/* What to measure. Mirrored in _library.py. */
typedef struct inspection {
    uint32_t hash; /* a tsr_digest_algorithm */
    uint8_t stats;
} inspection;
EXPORT tsr_status tsr_python_inspect(session *s, const char *path, const inspection *asked, tsr_write_fn *write, void *ctx,
                                     tsr_error *err);

/* What to compare, and the names of the two checkpoints. Mirrored in _library.py. */
typedef struct difference {
    const char *path_a, *path_b;
    tsr_tolerance tolerance; /* for comparing values */
    uint8_t values, layout;
    const char *format; /* of a report of the differences; NULL: tessera.diff/1 */
} difference;
EXPORT tsr_status tsr_python_diff(session *a, session *b, const difference *asked, tsr_write_fn *write, void *ctx,
                                  tsr_error *err);

/* What to validate against, and which findings count. Mirrored in _library.py. The data of texts may be NULL. */
typedef struct validation {
    tsr_str layout;           /* a tessera.layout/1 document */
    tsr_str against;          /* any document that tsr_contract_read accepts */
    const session *loads;     /* or a checkpoint whose names, dtypes and shapes are compared; NULL: none */
    tsr_str prefix;           /* like --prefix */
    tsr_str allow;            /* like --allow */
    tsr_str baseline;         /* a tessera.findings/1 document */
    const char *const *rules; /* each of the form "ID=LEVEL" */
    size_t rule_count;
    uint8_t deep;
    const char *format; /* of the report; NULL: tessera.findings/1 */
} validation;
EXPORT tsr_status tsr_python_validate(session *s, const char *path, const validation *options, tsr_write_fn *write,
                                      void *ctx, tsr_error *err);

tsr_status tsr_python_inspect(session *s, const char *path, const inspection *asked, tsr_write_fn *write, void *ctx,
                              tsr_error *err)
{
    tsr_json json;
    tsr_ring *ring = NULL;
    tsr_status status = tsr_validate_catalog(tsr_checkpoint_catalog(s->checkpoint), &s->native.host,
                                             tsr_checkpoint_findings(s->checkpoint), err);
    if (status == TSR_OK) status = tsr_ring_new(&s->native.host, 0, &ring, err);
    const tsr_inspect_options options = {
        .path = tsr_str_from(path), .hash = (tsr_digest_algorithm)asked->hash, .stats = asked->stats != 0, .ring = ring};
    tsr_json_start(&json, write, ctx, 0, err);
    if (status == TSR_OK) status = tsr_document_inspect(s->checkpoint, &options, &json, err);
    if (status == TSR_OK) status = tsr_json_finish(&json);
    tsr_ring_free(ring);
    return status;
}

static const tsr_report_form *form_of(const char *format, tsr_error *err)
{
    return format ? tsr_report_form_of(tsr_str_from(format), err) : &tsr_report_json;
}

/* ---- validate ---- */

typedef struct validating {
    session *session;
    const validation *options;
    tsr_arena *arena;
    tsr_contract layout, against;
    tsr_policy *policy;
} validating;

static tsr_status read_contract(const validating *v, tsr_str text, const char *what, tsr_contract *out, tsr_error *err)
{
    const tsr_status status = tsr_contract_read(text, &v->session->native.host, v->arena, out, err);
    if (status != TSR_OK) tsr_error_context(err, "%s", what);
    return status;
}

static tsr_status read_contracts(validating *v, tsr_error *err)
{
    const validation *options = v->options;
    uint32_t allow = 0;
    tsr_status status = tsr_leniency_parse(options->allow, &allow, err);
    if (status == TSR_OK && options->layout.data) status = read_contract(v, options->layout, "layout", &v->layout, err);
    if (status == TSR_OK && options->against.data) status = read_contract(v, options->against, "against", &v->against, err);
    if (options->loads)
        v->against = (tsr_contract){.expected = *tsr_checkpoint_catalog(options->loads->checkpoint),
                                    .called = "the other checkpoint"};
    v->layout.match = v->against.match = tsr_glob_match;
    v->layout.allow = allow;
    v->against.allow |= allow | TSR_ANY_CHUNKS;
    v->against.prefix = options->prefix;
    return status;
}

static tsr_status read_policy(validating *v, tsr_error *err)
{
    v->policy = tsr_policy_new(TSR_POLICY_VALIDATE, &v->session->native.host, err);
    tsr_status status = v->policy ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < v->options->rule_count && status == TSR_OK; i++)
        status = tsr_policy_rule(v->policy, v->options->rules[i], err);
    if (status != TSR_OK || !v->options->baseline.data) return status;
    status = tsr_policy_baseline(v->policy, v->options->baseline, err);
    if (status != TSR_OK) tsr_error_context(err, "baseline");
    return status;
}

static tsr_status check(validating *v, tsr_error *err)
{
    const validation *asked = v->options;
    const tsr_validate_options options = {.size = sizeof options,
                                          .layout = asked->layout.data ? &v->layout : NULL,
                                          .against = asked->against.data || asked->loads ? &v->against : NULL,
                                          .deep = asked->deep != 0};
    return tsr_validate(v->session->checkpoint, &options, err);
}

static tsr_status write_findings(const validating *v, const tsr_report_form *form, tsr_str path, tsr_json *json,
                                 tsr_error *err)
{
    const tsr_allocator *allocator = v->session->native.host.allocator;
    tsr_policy_result left_out = {0};
    tsr_findings *left = tsr_findings_new(allocator, 0, err);
    if (!left) return TSR_E_NOMEM;
    tsr_status status =
        tsr_policy_findings(v->policy, tsr_checkpoint_findings(v->session->checkpoint), left, &left_out, err);
    if (status == TSR_OK)
        status = tsr_report_one(form, &(tsr_reported){.path = path, .findings = left, .policy = &left_out}, json, allocator);
    tsr_findings_free(left);
    return status == TSR_OK ? tsr_json_finish(json) : status;
}

tsr_status tsr_python_validate(session *s, const char *path, const validation *options, tsr_write_fn *write, void *ctx,
                               tsr_error *err)
{
    const tsr_host *host = &s->native.host;
    validating v = {
        .session = s, .options = options, .arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err)};
    tsr_json json;
    const tsr_report_form *form = form_of(options->format, err);
    tsr_status status = !form ? err->status : v.arena ? read_contracts(&v, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = read_policy(&v, err);
    if (status == TSR_OK) status = check(&v, err);
    tsr_json_start(&json, write, ctx, 1, err);
    if (status == TSR_OK) status = write_findings(&v, form, tsr_str_from(path), &json, err);
    tsr_policy_free(v.policy);
    tsr_arena_free(v.arena);
    return status;
}

/* ---- diff ---- */

tsr_status tsr_python_diff(session *a, session *b, const difference *asked, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    const tsr_host *host = &a->native.host;
    const tsr_diff_options options = {.layout = asked->layout != 0};
    tsr_diff diff = {0};
    tsr_difference *differences = NULL;
    tsr_ring *ring = NULL;
    if (tsr_checkpoint_require(a->checkpoint, TSR_FOR_VALUES, err) != TSR_OK) return err->status;
    if (tsr_checkpoint_require(b->checkpoint, TSR_FOR_VALUES, err) != TSR_OK) return err->status;
    const tsr_report_form *form = form_of(asked->format, err);
    if (!form) return err->status;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status =
        tsr_diff_catalogs((tsr_catalog_pair){tsr_checkpoint_catalog(a->checkpoint), tsr_checkpoint_catalog(b->checkpoint)},
                          &options, host, arena, &diff, err);
    if (status == TSR_OK && asked->values) {
        differences = tsr_arena_array(arena, (size_t)diff.pair_count, sizeof *differences, err);
        status = differences ? tsr_ring_new(host, 0, &ring, err) : TSR_E_NOMEM;
        if (status == TSR_OK)
            status =
                tsr_diff_values(a->checkpoint, b->checkpoint, &diff,
                                &(tsr_value_comparison){.tolerance = &asked->tolerance, .ring = ring}, differences, err);
        tsr_ring_free(ring);
    }
    if (status == TSR_OK) {
        tsr_json json;
        const tsr_diff_document document = {tsr_str_from(asked->path_a), tsr_str_from(asked->path_b), &diff, differences,
                                            NULL};
        tsr_json_start(&json, write, ctx, 1, err);
        status = tsr_report_diff(form, &document, NULL, &json, host->allocator, err);
        if (status == TSR_OK) status = tsr_json_finish(&json);
    }
    tsr_arena_free(arena);
    return status;
}
