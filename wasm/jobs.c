/* Jobs in steps, so that a worker can handle other messages, such as a cancellation, in between: the tally of a tensor, and
 * the comparison of two checkpoints' values, tensor by tensor. */
#include <stdlib.h>

#include "request.h"
#include "shim.h"
#include "tessera/fqn.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/names.h"
#include "tessera/sys/try.h"

/* ---- tally ---- */

enum { HISTOGRAM_BINS = 48 };

static void free_tally(void *tally)
{
    tsr_tally_free(tally);
}

TSR_EXPORT(tessera_tally) uint32_t tessera_tally(uint32_t handle, uint32_t entry, tsr_error *err)
{
    const opened *item = tessera_checkpoint_of(handle, err);
    const tsr_entry *of = item ? tessera_entry_of(item, entry, err) : NULL;
    tsr_tally *tally;
    if (!of || tsr_tally_new(item->checkpoint, of, &tally, err) != TSR_OK) return 0;
    return tessera_add_handle(HANDLE_TALLY, tally, free_tally, handle, 0, err);
}

/* Reads about `byte_budget` bytes. Returns TESSERA_MORE or TESSERA_DONE. */
TSR_EXPORT(tessera_tally_step) uint32_t tessera_tally_step(uint32_t handle, uint32_t byte_budget, tsr_error *err)
{
    tsr_tally *tally = tessera_item_of(handle, HANDLE_TALLY, err);
    bool done;
    if (!tally || tsr_tally_step(tally, byte_budget, &done, err) != TSR_OK) return 0;
    return done ? TESSERA_DONE : TESSERA_MORE;
}

static tsr_status write_tally(void *ctx, tsr_json *json, tsr_error *err)
{
    (void)err;
    uint64_t byte_done, byte_total, bins[HISTOGRAM_BINS];
    tsr_stats stats;
    tsr_tally_progress(ctx, &byte_done, &byte_total);
    tsr_tally_stats(ctx, &stats);
    tsr_tally_histogram(ctx, bins, HISTOGRAM_BINS);
    const struct {
        const char *key;
        double value;
    } reals[] = {{"min", stats.min}, {"max", stats.max}, {"mean", stats.mean}, {"std", stats.std}};
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.tally/1");
    tsr_json_put_uint(json, "byte_done", byte_done);
    tsr_json_put_uint(json, "byte_total", byte_total);
    tsr_json_put_uint(json, "count", stats.count);
    for (size_t i = 0; i < 4; i++) tsr_json_put_double(json, reals[i].key, reals[i].value);
    tsr_json_put_uint(json, "nan", stats.nan);
    tsr_json_put_uint(json, "inf", stats.inf);
    tsr_json_put_uint(json, "zero", stats.zero);
    tsr_json_put_u64s(json, "histogram", bins, HISTOGRAM_BINS);
    tsr_json_object_end(json);
    return json->status;
}

/* Returns the tessera.tally/1 document of what was read so far. */
TSR_EXPORT(tessera_tally_document) document *tessera_tally_document(uint32_t handle, tsr_error *err)
{
    tsr_tally *tally = tessera_item_of(handle, HANDLE_TALLY, err);
    return tally ? tessera_make_document(write_tally, tally, err) : NULL;
}

/* ---- diff ---- */

/* The policy of a diff. Its code is in the second file, but a diff is in the first one, so it gets these functions. */
typedef struct judge {
    tsr_policy *policy; /* NULL if all differences count */
    tsr_status (*apply)(const tsr_policy *policy, const tsr_diff *from, tsr_arena *arena, tsr_diff *to,
                        tsr_policy_result *result, tsr_error *err);
    void (*release)(tsr_policy *policy);
} judge;

typedef struct comparison {
    opened *a, *b;
    judge judge;
    tsr_arena *arena;
    tsr_ring *ring;
    tsr_diff diff;
    tsr_tolerance tolerance;
    tsr_difference *differences; /* NULL until the first values are compared */
    uint64_t next, end;          /* the pairs of the chosen part that were not compared yet */
} comparison;

static void free_comparison(void *pointer)
{
    comparison *c = pointer;
    if (c->judge.policy) c->judge.release(c->judge.policy);
    tsr_ring_free(c->ring);
    tsr_arena_free(c->arena);
    free(c);
}

static tsr_status match_names(comparison *c, uint32_t flags, tsr_error *err)
{
    const tsr_catalog *const both[] = {tsr_checkpoint_catalog(c->a->checkpoint), tsr_checkpoint_catalog(c->b->checkpoint)};
    const tsr_host *host = &c->a->host;
    tsr_diff_options options = {.layout = flags & TESSERA_DIFF_LAYOUT};
    tsr_text_names *names = NULL;
    tsr_status status = TSR_OK;
    if (flags & TESSERA_DIFF_CANONICAL) {
        status = tsr_text_names_new(both, 2, host->allocator, &names, err);
        options.canonical = tsr_text_names_find;
        options.canonical_ctx = names;
    }
    c->arena = tsr_arena_new(host->allocator, 0, err);
    if (!c->arena) status = TSR_E_NOMEM;
    if (status == TSR_OK)
        status = tsr_diff_catalogs((tsr_catalog_pair){both[0], both[1]}, &options, host, c->arena, &c->diff, err);
    c->end = c->diff.pair_count;
    tsr_text_names_free(names);
    return status;
}

/* Compares two open checkpoints by names, dtypes, shapes and objects. The tolerances apply to the steps, and only with their
 * flag. Returns a handle. */
TSR_EXPORT(tessera_diff)
uint32_t tessera_diff(uint32_t handle_a, uint32_t handle_b, uint32_t flags, double atol, double rtol, tsr_error *err)
{
    opened *a = tessera_checkpoint_of(handle_a, err), *b = tessera_checkpoint_of(handle_b, err);
    if (a && tsr_checkpoint_require(a->checkpoint, TSR_FOR_VALUES, err) != TSR_OK) return 0;
    if (b && tsr_checkpoint_require(b->checkpoint, TSR_FOR_VALUES, err) != TSR_OK) return 0;
    comparison *c = a && b ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        if (a && b) tsr_fail(err, TSR_E_NOMEM, "out of memory");
        return 0;
    }
    c->a = a;
    c->b = b;
    c->tolerance = (tsr_tolerance){!(flags & TESSERA_DIFF_TOLERANT), atol, rtol};
    if (match_names(c, flags, err) == TSR_OK)
        return tessera_add_handle(HANDLE_DIFF, c, free_comparison, handle_a, handle_b, err);
    free_comparison(c);
    return 0;
}

static tsr_status start_comparing(comparison *c, tsr_error *err)
{
    if (c->differences) return TSR_OK;
    if (tsr_diff_check_repeats(c->a->checkpoint, c->b->checkpoint, &c->diff, err) != TSR_OK) return err->status;
    if (!c->ring && tsr_ring_new(&c->a->host, 0, &c->ring, err) != TSR_OK) return TSR_E_NOMEM;
    c->differences = tsr_arena_array(c->arena, (size_t)c->diff.pair_count, sizeof *c->differences, err);
    return c->differences ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status compare_next(comparison *c, tsr_error *err)
{
    if (start_comparing(c, err) != TSR_OK) return err->status;
    while (c->next < c->end && !tsr_pair_is_comparable(&c->diff.pairs[c->next])) c->next++;
    if (c->next == c->end) return TSR_OK;
    tsr_diff_pair *pair = &c->diff.pairs[c->next];
    tsr_difference *difference = &c->differences[c->next];
    tsr_status status =
        tsr_compare_pair(c->a->checkpoint, c->b->checkpoint, pair,
                         &(tsr_value_comparison){.tolerance = &c->tolerance, .ring = c->ring}, difference, err);
    if (status != TSR_OK) return status;
    c->next++;
    return TSR_OK;
}

/* Compares the values of the next tensor. Returns TESSERA_MORE or TESSERA_DONE. */
TSR_EXPORT(tessera_diff_step) uint32_t tessera_diff_step(uint32_t handle, tsr_error *err)
{
    comparison *c = tessera_item_of(handle, HANDLE_DIFF, err);
    if (!c || compare_next(c, err) != TSR_OK) return 0;
    return c->next == c->end ? TESSERA_DONE : TESSERA_MORE;
}

static uint64_t cost_of(const tsr_diff_pair *pair)
{
    uint64_t bytes;
    const bool reads = tsr_pair_is_comparable(pair) && pair->a->kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(pair->a, &bytes);
    return reads && bytes < UINT64_MAX >> 32 ? bytes + 1 : 1;
}

/* Restricts the following steps to part `number` of `count` parts, which read about the same number of bytes. Returns a
 * pointer to the `*size` bytes of the part's results. The results of another module that compared the same part of the same
 * checkpoints may be written there instead. */
TSR_EXPORT(tessera_diff_part)
tsr_difference *tessera_diff_part(uint32_t handle, uint32_t number, uint32_t count, uint32_t *size, tsr_error *err)
{
    comparison *c = tessera_item_of(handle, HANDLE_DIFF, err);
    if (!c || start_comparing(c, err) != TSR_OK) return NULL;
    double total = 0, at = 0;
    for (uint64_t i = 0; i < c->diff.pair_count; i++) total += (double)cost_of(&c->diff.pairs[i]);
    c->next = c->end = 0;
    for (uint64_t i = 0; i < c->diff.pair_count; i++) {
        const uint32_t part = (uint32_t)(at / total * count);
        c->next += part < number;
        c->end += part <= number;
        at += (double)cost_of(&c->diff.pairs[i]);
    }
    *size = (uint32_t)((c->end - c->next) * sizeof *c->differences);
    return c->differences + c->next;
}

/* What is written about a diff: the paths of its sides, and a function for the differences that its policy (NULL if there is none)
 * leaves. */
typedef struct diff_request {
    tsr_str path_a, path_b;
    tsr_status (*write)(const void *ctx, const tsr_diff_document *document, const tsr_policy *policy, tsr_json *json,
                        tsr_error *err);
    const void *ctx;
} diff_request;

typedef struct writing_diff {
    comparison *c;
    const diff_request *request;
} writing_diff;

/* Writes what the policy, if there is one, leaves of the diff. The diff itself does not change, because more values may be compared
 * later. */
static tsr_status write_diff(void *ctx, tsr_json *json, tsr_error *err)
{
    const writing_diff *w = ctx;
    const diff_request *r = w->request;
    comparison *c = w->c;
    tsr_policy_result left_out = {0};
    tsr_diff left;
    tsr_diff_document document = {r->path_a, r->path_b, &c->diff, c->differences, NULL};
    tsr_arena *arena = NULL;
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; c->differences && i < c->diff.pair_count; i++)
        if (c->differences[i].differing) c->diff.pairs[i].what |= TSR_DIFF_VALUE; /* including what other modules compared */
    if (c->judge.policy) {
        arena = tsr_arena_new(c->a->host.allocator, 0, err);
        status = arena ? c->judge.apply(c->judge.policy, &c->diff, arena, &left, &left_out, err) : TSR_E_NOMEM;
        document.diff = &left;
        document.policy = &left_out;
    }
    if (status == TSR_OK) status = r->write(r->ctx, &document, c->judge.policy, json, err);
    tsr_arena_free(arena);
    return status;
}

static document *make_diff_document(uint32_t handle, const diff_request *request, tsr_error *err)
{
    writing_diff w = {tessera_item_of(handle, HANDLE_DIFF, err), request};
    return w.c ? tessera_make_document(write_diff, &w, err) : NULL;
}

static tsr_status write_json(const void *ctx, const tsr_diff_document *diff, const tsr_policy *policy, tsr_json *json,
                             tsr_error *err)
{
    (void)ctx;
    (void)policy;
    (void)err;
    return tsr_document_diff(diff, json);
}

/* Returns the tessera.diff/1 document. It contains the differences of values after the last step. */
TSR_EXPORT(tessera_diff_document)
document *tessera_diff_document(uint32_t handle, const char *path_a, uint32_t path_a_size, const char *path_b,
                                uint32_t path_b_size, tsr_error *err)
{
    const diff_request request = {{path_a, path_a_size}, {path_b, path_b_size}, write_json, NULL};
    return make_diff_document(handle, &request, err);
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
    const diff_request request = {{path_a, path_a_size}, {path_b, path_b_size}, write_differences, wanted};
    return wanted ? make_diff_document(diff, &request, err) : NULL;
}

/* Applies --rule and --baseline to a diff. Returns 1. */
TSR_EXPORT(tessera_judge_diff)
uint32_t tessera_judge_diff(uint32_t diff, const tessera_option *options, uint32_t count, tsr_error *err)
{
    request asked;
    comparison *c = tessera_item_of(diff, HANDLE_DIFF, err);
    const tsr_host *host = c ? &c->a->host : NULL; /* lives longer than the diff and its policy */
    tsr_arena *arena = host ? tsr_arena_new(host->allocator, 0, err) : NULL;
    tsr_policy *policy = arena ? tsr_policy_new(TSR_POLICY_DIFF, host, err) : NULL;
    tsr_status status = policy ? tessera_request_read("diff", options, count, arena, &asked, err) : err->status;
    if (status == TSR_OK) status = tessera_read_policy(&asked.options, policy, err);
    if (status == TSR_OK) c->judge = (judge){policy, tsr_policy_diff, tsr_policy_free};
    else tsr_policy_free(policy);
    tsr_arena_free(arena);
    return status == TSR_OK;
}
