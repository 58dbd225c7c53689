/* `tessera inspect`: shows what a checkpoint contains. core makes the JSON document; the text is a summary, a
 * table or tree in which equal layers are folded (cli/text/listing.c), objects and findings. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/commands/commands.h"
#include "cli/text/listing.h"
#include "cli/text/report_text.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

/* ---- the summary: sizes, dtypes and sharding ---- */

typedef struct share {
    uint64_t bytes, tensors;
} share;

static int largest_share(const share *shares)
{
    int most = -1;
    for (int d = 0; d < TSR_DTYPE_COUNT; d++) {
        if (shares[d].tensors && (most < 0 || shares[d].bytes > shares[most].bytes)) most = d;
    }
    return most;
}

/* Prints "float32 98%, bfloat16 2%": the largest shares, in descending order. */
static void put_mix(const cli_view *v)
{
    enum { MOST = 5 };
    share shares[TSR_DTYPE_COUNT] = {{0}};
    const cli_node *nodes = v->listing.nodes.items;
    unsigned left = 0;
    for (size_t i = 0; i < v->listing.nodes.count; i++) {
        uint64_t bytes = 0;
        if (!nodes[i].entry || nodes[i].entry->kind != TSR_ENTRY_TENSOR) continue;
        share *s = &shares[nodes[i].entry->dtype];
        tsr_entry_bytes(nodes[i].entry, &bytes);
        left += s->tensors++ == 0;
        s->bytes += bytes;
    }
    const unsigned kinds = left;
    for (int most; (most = largest_share(shares)) >= 0; left--) {
        if (kinds - left == MOST && left > 1) {
            printf(" and %u more dtypes", left);
            break;
        }
        double percent = nodes->bytes ? 100.0 * (double)shares[most].bytes / (double)nodes->bytes : 0;
        printf("%s%s", left == kinds ? "" : ", ", tsr_dtype_describe((tsr_dtype)most)->name);
        if (kinds > 1 && percent >= 99.5) fputs(" >99%", stdout);
        else if (kinds > 1 && percent >= 0.1) printf(" %.*f%%", percent < 9.95 ? 1 : 0, percent);
        else if (kinds > 1) printf(" %s", cli_bytes(shares[most].bytes).text);
        shares[most].tensors = 0;
    }
    putchar('\n');
}

typedef struct cut {
    uint64_t chunks, tensors;
} cut;

static int cut_order(const void *a, const void *b)
{
    const cut *x = a, *y = b;
    return (x->tensors < y->tensors) - (x->tensors > y->tensors);
}

/* Prints "40 tensors in 2 chunks, 12 in 4, 26 whole": how many tensors have how many chunks. */
static void put_sharding(const cli_view *v)
{
    enum { KINDS = 8, SHOWN = 4 };
    cut cuts[KINDS] = {{0}};
    uint64_t whole = 0, others = 0, replicated = 0;
    unsigned kinds = 0;
    const cli_node *nodes = v->listing.nodes.items;
    for (size_t i = 0; i < v->listing.nodes.count; i++) {
        const tsr_entry *entry = nodes[i].entry;
        if (!entry || entry->kind != TSR_ENTRY_TENSOR) continue;
        replicated += entry->replica_count > 0;
        unsigned k = 0;
        while (k < kinds && cuts[k].chunks != entry->chunk_count) k++;
        if (entry->chunk_count == 1) whole++;
        else if (k < KINDS) cuts[k].chunks = entry->chunk_count, cuts[k].tensors++, kinds += k == kinds;
        else others++;
    }
    if (kinds == 0 && !replicated) {
        puts("not sharded");
        return;
    }
    qsort(cuts, kinds, sizeof *cuts, cut_order);
    const char *between = "";
    for (unsigned k = 0; k < kinds; k++) {
        if (k >= SHOWN) others += cuts[k].tensors;
        else if (k == 0)
            printf("%s in %s", cli_plural(cuts[k].tensors, "tensor").text, cli_plural(cuts[k].chunks, "chunk").text);
        else printf(", %s in %s", cli_number(cuts[k].tensors).text, cli_number(cuts[k].chunks).text);
        between = ", ";
    }
    if (others) printf("%s%s in different numbers", between, cli_number(others).text), between = ", ";
    if (whole) printf("%s%s whole", between, cli_number(whole).text);
    if (replicated) printf("; %s held more than once", cli_number(replicated).text);
    putchar('\n');
}

static uint64_t count_data_files(const tsr_catalog *catalog)
{
    uint64_t count = 0;
    tsr_error ignored = {0};
    size_t room = catalog->store->file_count + 1;
    uint8_t *seen = tsr_alloc(&tsr_allocator_libc, room, 1, &ignored);
    if (!seen) return 0;
    memset(seen, 0, room);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        for (uint64_t c = 0; c < catalog->entries[i].chunk_count; c++) {
            uint32_t file = catalog->entries[i].chunks[c].file;
            if (file < catalog->store->file_count && !seen[file]) seen[file] = 1, count++;
        }
    }
    tsr_free(&tsr_allocator_libc, seen, room, 1);
    return count;
}

static uint64_t count_per_rank(const cli_view *v)
{
    uint64_t count = 0;
    const cli_node *nodes = v->listing.nodes.items;
    for (size_t i = 0; i < v->listing.nodes.count; i++) count += nodes[i].entry && nodes[i].entry->per_rank;
    return count;
}

/* Prints which of the checkpoints in a directory was opened. */
static void put_step(const cli_view *v)
{
    const char *marker;
    const tsr_str step = tsr_checkpoint_step(v->session->checkpoint, &marker);
    if (!step.size) return;
    fputs("  step ", stdout);
    cli_put(stdout, step);
    printf(marker ? ", which the file '%s' names\n" : "\n", marker);
}

/* Prints "parts: model (safetensors, 12 tensors), scheduler (torch-zip, 8 objects)". The contents of parts that were not
 * opened are unknown. */
static void put_parts(const cli_view *v)
{
    const tsr_catalog *catalog = v->session->catalog;
    for (uint32_t p = 0; p < catalog->part_count; p++) {
        const tsr_part *part = &catalog->parts[p];
        uint64_t tensors = 0;
        for (uint64_t i = 0; i < part->entry_count; i++)
            tensors += catalog->entries[part->first_entry + i].kind == TSR_ENTRY_TENSOR;
        const uint64_t objects = part->entry_count - tensors;
        fputs(p ? ", " : "  parts: ", stdout);
        cli_put(stdout, part->name.size ? part->name : TSR_STR("(without a name)"));
        printf(" (%s", tsr_format_name(part->format));
        if (tensors) printf(", %s", cli_plural(tensors, "tensor").text);
        if (objects) printf(", %s", cli_plural(objects, "object").text);
        putchar(')');
    }
    if (catalog->part_count) putchar('\n');
}

/* Prints "metadata: format = pt, modelspec.author = A. Berg, and 3 more": the first pairs, each shortened. */
static void put_metadata(const cli_view *v)
{
    enum { MOST = 8, KEY_COLUMNS = 40, VALUE_COLUMNS = 60 };
    const tsr_catalog *catalog = v->session->catalog;
    const size_t shown = catalog->metadata_count <= MOST + 1 ? catalog->metadata_count : MOST;
    for (size_t i = 0; i < shown; i++) {
        fputs(i ? ", " : "  metadata: ", stdout);
        cli_put_fitted(stdout, catalog->metadata[i].key, KEY_COLUMNS, false);
        fputs(" = ", stdout);
        cli_put_fitted(stdout, catalog->metadata[i].value, VALUE_COLUMNS, false);
    }
    if (shown < catalog->metadata_count)
        printf(", and %s more (--json lists all)", cli_number(catalog->metadata_count - shown).text);
    if (shown) putchar('\n');
}

/* Prints the summary. */
static void put_head(const cli_view *v)
{
    const cli_node *root = cli_view_root(v);
    uint64_t files = count_data_files(v->session->catalog);
    cli_on(v->out, stdout, CLI_BOLD);
    cli_put(stdout, tsr_str_from(v->session->path));
    cli_off(v->out, stdout);
    printf("  %s", tsr_format_name(v->session->catalog->format));
    if (files > 1) printf(", %s of data", cli_plural(files, "file").text);
    putchar('\n');
    put_step(v);
    put_parts(v);
    printf("  %s, %s element%s, ", cli_plural(root->tensors, "tensor").text, cli_short_number(root->elements).text,
           root->elements == 1 ? "" : "s");
    cli_on(v->out, stdout, CLI_BOLD);
    fputs(cli_bytes(root->bytes).text, stdout);
    cli_off(v->out, stdout);
    const uint64_t per_rank = count_per_rank(v), objects = root->others - per_rank;
    if (per_rank)
        printf(", %s that %s from rank to rank", cli_plural(per_rank, "tensor").text, per_rank == 1 ? "differs" : "differ");
    if (objects) printf(", and %s", cli_plural(objects, "object").text);
    putchar('\n');
    if (root->tensors) {
        fputs("  ", stdout);
        put_mix(v);
        fputs("  ", stdout);
        put_sharding(v);
    }
    put_metadata(v);
}

/* ---- values ---- */

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
    TSR_TRY(tsr_repeats_check_catalog(session->checkpoint, &selection, err));
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
        put_head(&v);
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
