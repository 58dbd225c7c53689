/* `tessera inspect`: shows what a checkpoint contains. core makes the JSON document; the text comes from inspect_*.c: a
 * summary, a table or tree in which equal layers are folded, objects and findings. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/text/listing.h"
#include "cli/text/report_text.h"
#include "tessera/sys/check.h"
#include "tessera/sys/document.h"
#include "tessera/sys/read.h"
#include "tessera/validate.h"

static void put_digest(const tsr_digest *digest)
{
    for (size_t i = 0; i < digest->size; i++) printf("%02x", digest->bytes[i]);
}

enum { NARROW = 12, WIDE = 20 }; /* of columns; an int64 needs up to 20 characters */

static int width_of(const cli_session *session, const tsr_command_options *arguments)
{
    for (uint64_t i = 0; i < session->catalog->entry_count; i++) {
        const tsr_entry *entry = &session->catalog->entries[i];
        const bool is_long = entry->kind == TSR_ENTRY_TENSOR && (entry->dtype == TSR_INT64 || entry->dtype == TSR_UINT64);
        if (is_long && tsr_globs_select(&arguments->selection, entry->fqn)) return WIDE;
    }
    return NARROW;
}

/* Integers are not rounded. */
static void put_extreme(tsr_extremes_kind kind, uint64_t integer, double real, bool is_whole, int width)
{
    if (kind == TSR_EXTREMES_SIGNED) printf("%*" PRId64 " ", width, (int64_t)integer);
    else if (kind == TSR_EXTREMES_UNSIGNED) printf("%*" PRIu64 " ", width, integer);
    else printf(is_whole ? "%*.0f " : "%*.5g ", width, real);
}

/* Prints the statistics and the digest that were requested, and the name. */
static tsr_status put_line(const cli_session *session, const tsr_command_options *arguments, const tsr_entry *entry,
                           int width, tsr_ring *ring, tsr_error *err)
{
    tsr_digest digest;
    tsr_stats stats;
    tsr_extremes extremes;
    const bool numeric = arguments->stats && tsr_dtype_is_numeric(entry->dtype);
    tsr_status status = TSR_OK;
    if (arguments->hash) status = tsr_tensor_digest(session->checkpoint, entry, arguments->hash, ring, &digest, err);
    if (status == TSR_OK && numeric) status = tsr_tensor_extremes(session->checkpoint, entry, ring, &stats, &extremes, err);
    if (status != TSR_OK) return status;
    if (numeric) {
        const tsr_dtype_class kind = tsr_dtype_describe(entry->dtype)->kind;
        const bool is_whole = kind == TSR_CLASS_INT || kind == TSR_CLASS_UINT || kind == TSR_CLASS_BOOL;
        put_extreme(extremes.kind, extremes.min, stats.min, is_whole, width);
        put_extreme(extremes.kind, extremes.max, stats.max, is_whole, width);
        printf("%12.5g %12.5g %8" PRIu64 " %8" PRIu64 " %8" PRIu64 "  ", stats.mean, stats.std, stats.nan, stats.inf,
               stats.zero);
    } else if (arguments->stats) {
        printf("%*s %*s %12s %12s %8s %8s %8s  ", width, "-", width, "-", "-", "-", "-", "-", "-");
    }
    if (arguments->hash) {
        put_digest(&digest);
        fputs("  ", stdout);
    }
    cli_put(stdout, entry->fqn);
    putchar('\n');
    return TSR_OK;
}

static tsr_status put_values(const cli_session *session, const tsr_command_options *arguments, tsr_ring *ring,
                             tsr_error *err)
{
    const tsr_selection selection = {tsr_globs_select, &arguments->selection};
    tsr_status allowed = tsr_repeats_check_catalog(session->checkpoint, &selection, err);
    if (allowed != TSR_OK) return allowed;
    const int width = width_of(session, arguments);
    if (arguments->stats) {
        printf("%*s %*s %12s %12s %8s %8s %8s  %s\n", width, "MIN", width, "MAX", "MEAN", "STD", "NAN", "INF", "ZERO",
               "TENSOR");
    }
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < session->catalog->entry_count && status == TSR_OK; i++) {
        const tsr_entry *entry = &session->catalog->entries[i];
        if (entry->kind != TSR_ENTRY_TENSOR || !tsr_globs_select(&arguments->selection, entry->fqn)) continue;
        status = put_line(session, arguments, entry, width, ring, err);
    }
    if (status != TSR_OK) tsr_error_context(err, "%s", session->path);
    return status;
}

static tsr_status inspect_json(cli *program, const cli_session *session, const tsr_command_options *arguments,
                               tsr_ring *ring, tsr_error *err)
{
    tsr_json json;
    cli_progress progress;
    cli_progress_start(&progress, program, "reading");
    const tsr_inspect_options options = {
        .path = tsr_str_from(session->path),
        .selection = {tsr_globs_select, &arguments->selection},
        .hash = (tsr_digest_algorithm)arguments->hash,
        .stats = arguments->stats,
        .ring = ring,
        .progress = ring ? &progress.base : NULL,
    };
    cli_document_start(program, &json, 1, err);
    tsr_status status = tsr_document_inspect(session->checkpoint, &options, &json, err);
    if (status == TSR_OK) status = tsr_json_finish(&json);
    cli_progress_end(&progress);
    return status;
}

static tsr_status inspect_text(cli *program, const cli_session *session, const tsr_command_options *arguments,
                               tsr_ring *ring, tsr_error *err)
{
    cli_view v = {.out = &program->out, .session = session, .arguments = arguments};
    if (ring) return put_values(session, arguments, ring, err);
    tsr_status status =
        cli_listing_build(session->catalog, tsr_globs_select, &arguments->selection, &tsr_allocator_libc, &v.listing, err);
    if (status == TSR_OK) {
        cli_put_head(&v);
        if (arguments->tree) status = cli_put_tree(&v, err);
        else if (cli_view_root(&v)->tensors) status = cli_put_table(&v, err);
    }
    if (status == TSR_OK) status = cli_put_objects(&v, err);
    const tsr_findings *findings = tsr_checkpoint_findings(session->checkpoint);
    if (status == TSR_OK && tsr_findings_count(findings)) {
        putchar('\n');
        cli_put_findings(&program->out, NULL, findings, 20);
    }
    cli_listing_free(&v.listing);
    return status;
}

/* Where this build cannot read the objects, the rest is listed all the same. */
static tsr_status open_listed(cli *program, const char *path, cli_session *session, tsr_error *err)
{
    tsr_open_options options = {.purpose = TSR_FOR_NAMES};
    tsr_error why = {0};
    tsr_status status = cli_open(program, path, &options, session, err);
    if (status != TSR_E_NOT_BUILT) return status;
    options.skip_objects = true;
    if (cli_open(program, path, &options, session, &why) != TSR_OK) return status;
    cli_warn(program, "the objects are listed without their values: %s", err->message);
    *err = (tsr_error){0};
    return TSR_OK;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    tsr_error err = {0};
    cli_session session;
    tsr_ring *ring = NULL;
    const char *path = program->operands.items[0];
    cli_allow_expansion(program, arguments->allow_expansion);
    tsr_status status = open_listed(program, path, &session, &err);
    if (status == TSR_OK) {
        status = tsr_validate_catalog(session.catalog, cli_host(program), tsr_checkpoint_findings(session.checkpoint), &err);
    }
    if (status == TSR_OK) status = cli_check_selection(program, &session, arguments, NULL, false, &err);
    if (status == TSR_OK && (arguments->hash || arguments->stats))
        status = tsr_ring_new(tsr_checkpoint_host(session.checkpoint), 0, &ring, &err);
    if (status == TSR_OK) status = (arguments->json ? inspect_json : inspect_text)(program, &session, arguments, ring, &err);
    if (status == TSR_OK) status = cli_unchanged(&session, &err);
    tsr_ring_free(ring);
    cli_close(&session);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
}

const cli_command cli_inspect = {
    .name = "inspect",
    .examples = "tessera inspect ckpt/\nPrint a table; identical layers share a line\n"
                "tessera inspect model.safetensors --tree\nPrint a tree with totals per module\n"
                "tessera inspect ckpt/ --include '**.weight' --json\nPrint the weights as JSON, for scripts\n"
                "tessera inspect run.pt --hash sha256\nAdd digests that do not depend on sharding or format\n",
    .run = run,
};
