/* `tessera inspect`: what a checkpoint holds. The document comes from core; the text is made here: a head that answers
 * the first questions, a table or a tree with equal layers folded, objects, findings. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/findings_text.h"
#include "cli/listing.h"
#include "cli/session.h"
#include "cli/term.h"
#include "tessera/document.h"

typedef struct inspect_arguments {
    bool json, tree, stats;
    unsigned hash; /* a tsr_digest_algorithm */
    cli_selection selection;
} inspect_arguments;

typedef struct partner { /* tensors by storage, to tell which share one */
    uint32_t storage_id;
    const tsr_entry *entry;
} partner;

typedef struct view {
    const cli *program;
    const cli_terminal *out;
    cli_session session;
    const inspect_arguments *arguments;
    cli_listing listing;
    tsr_vec partners;                                         /* sorted by storage */
    unsigned name_width, type_width, shape_width, size_width; /* columns */
    bool has_stored; /* some tensor is sharded or shares its storage: worth a column */
} view;

enum { CELL = 128 };

/* ---- head ---- */

/* "float32 98%, bfloat16 2%": largest first, the first few. */
static void put_mix(const view *v, const cli_node *root)
{
    enum { MOST = 5 };

    uint64_t bytes[TSR_DTYPE_COUNT] = {0}, tensors[TSR_DTYPE_COUNT] = {0};
    const cli_node *nodes = v->listing.nodes.items;
    for (size_t i = 0; i < v->listing.nodes.count; i++) {
        uint64_t n = 0;
        if (!nodes[i].entry || nodes[i].entry->kind != TSR_ENTRY_TENSOR) continue;
        tsr_entry_bytes(nodes[i].entry, &n);
        bytes[nodes[i].entry->dtype] += n;
        tensors[nodes[i].entry->dtype]++;
    }
    const char *between = "";
    for (int round = 0; round < TSR_DTYPE_COUNT; round++) {
        int most = -1, left = 0;
        for (int d = 0; d < TSR_DTYPE_COUNT; d++) {
            left += tensors[d] > 0;
            if (tensors[d] && (most < 0 || bytes[d] > bytes[most])) most = d;
        }
        if (most < 0) break;
        if (round == MOST && left > 1) {
            printf(" and %d more dtypes", left);
            break;
        }
        printf("%s%s", between, tsr_dtype_describe((tsr_dtype)most)->name);
        if (root->mixed && root->bytes) {
            double share = 100.0 * (double)bytes[most] / (double)root->bytes;
            if (share >= 99.5) fputs(" >99%", stdout);
            else if (share >= 0.1) printf(" %.*f%%", share < 9.95 ? 1 : 0, share);
            else printf(" %s", cli_bytes(bytes[most]).text);
        }
        between = ", ";
        tensors[most] = 0;
    }
    putchar('\n');
}

/* "48 in 4 chunks, 2 whole": how many tensors are cut in how many pieces. */
static void put_sharding(const view *v)
{
    enum { KINDS = 6 };
    struct {
        uint64_t chunks, tensors;
    } kinds[KINDS] = {{0}};
    uint64_t others = 0, replicated = 0;
    bool sharded = false;
    for (uint64_t i = 0; i < v->session.catalog->entry_count; i++) {
        const tsr_entry *entry = &v->session.catalog->entries[i];
        if (entry->kind != TSR_ENTRY_TENSOR || !cli_selects(&v->arguments->selection, entry->fqn)) continue;
        replicated += entry->replica_count > 0;
        sharded |= entry->chunk_count > 1;
        unsigned k = 0;
        while (k < KINDS && kinds[k].tensors && kinds[k].chunks != entry->chunk_count) k++;
        if (k == KINDS) others++;
        else kinds[k].chunks = entry->chunk_count, kinds[k].tensors++;
    }
    const char *between = "";
    if (!sharded && !replicated) {
        puts("not sharded");
        return;
    }
    for (unsigned k = 0; k < KINDS && kinds[k].tensors; k++) {
        if (kinds[k].chunks == 1) printf("%s%s whole", between, cli_number(kinds[k].tensors).text);
        else printf("%s%s in %" PRIu64 " chunks", between, cli_plural(kinds[k].tensors, "tensor").text, kinds[k].chunks);
        between = ", ";
    }
    if (others) printf("%s%s in other numbers", between, cli_number(others).text);
    if (replicated) printf("; %s with further copies", cli_number(replicated).text);
    putchar('\n');
}

static uint64_t count_data_files(const view *v)
{
    uint64_t count = 0;
    const tsr_catalog *catalog = v->session.catalog;
    tsr_error err = {0};
    uint8_t *seen = tsr_alloc(&tsr_allocator_libc, catalog->store->file_count + 1, 1, &err);
    if (!seen) return 0;
    memset(seen, 0, catalog->store->file_count + 1);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        for (uint64_t c = 0; c < catalog->entries[i].chunk_count; c++) {
            uint32_t file = catalog->entries[i].chunks[c].file;
            if (file < catalog->store->file_count && !seen[file]) seen[file] = 1, count++;
        }
    }
    tsr_free(&tsr_allocator_libc, seen, catalog->store->file_count + 1, 1);
    return count;
}

static void put_head(const view *v)
{
    const cli_node *root = v->listing.nodes.items;
    uint64_t files = count_data_files(v);
    cli_on(v->out, stdout, CLI_BOLD);
    cli_put(stdout, tsr_str_from(v->session.path));
    cli_off(v->out, stdout);
    printf("  %s", tsr_format_name(v->session.catalog->format));
    if (files > 1) printf(", %s of data", cli_plural(files, "file").text);
    printf("\n  %s, %s elements, ", cli_plural(root->tensors, "tensor").text, cli_short_number(root->elements).text);
    cli_on(v->out, stdout, CLI_BOLD);
    fputs(cli_bytes(root->bytes).text, stdout);
    cli_off(v->out, stdout);
    if (root->others) printf(", and %s", cli_plural(root->others, "object").text);
    putchar('\n');
    if (root->tensors) {
        fputs("  ", stdout);
        put_mix(v, root);
        fputs("  ", stdout);
        put_sharding(v);
    }
}

/* ---- table ---- */

static int partner_order(const void *a, const void *b)
{
    const partner *x = a, *y = b;
    if (x->storage_id != y->storage_id) return x->storage_id < y->storage_id ? -1 : 1;
    return (x->entry > y->entry) - (x->entry < y->entry);
}

static tsr_status find_partners(view *v, tsr_error *err)
{
    const tsr_catalog *catalog = v->session.catalog;
    v->partners = tsr_vec_of(&tsr_allocator_libc, sizeof(partner));
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        if (!catalog->entries[i].storage_id) continue;
        partner *item = tsr_vec_push(&v->partners, err);
        if (!item) return TSR_E_NOMEM;
        *item = (partner){catalog->entries[i].storage_id, &catalog->entries[i]};
    }
    if (v->partners.count) qsort(v->partners.items, v->partners.count, sizeof(partner), partner_order);
    return TSR_OK;
}

/* Another tensor on the entry's storage, the first there is; NULL when it has its own. */
static const tsr_entry *partner_of(const view *v, const tsr_entry *entry)
{
    const partner *items = v->partners.items;
    size_t low = 0, high = v->partners.count;
    if (!entry->storage_id) return NULL;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (items[middle].storage_id < entry->storage_id) low = middle + 1;
        else high = middle;
    }
    if (low < v->partners.count && items[low].entry == entry) low++;
    return low < v->partners.count && items[low].storage_id == entry->storage_id ? items[low].entry : NULL;
}

static void times_text(uint64_t times, char *out, size_t capacity)
{
    if (times > 1) snprintf(out, capacity, "  ×%" PRIu64, times);
    else *out = '\0';
}

static uint64_t row_bytes(const cli_row *row)
{
    uint64_t bytes = 0;
    if (row->node->entry && row->node->entry->kind == TSR_ENTRY_TENSOR) tsr_entry_bytes(row->node->entry, &bytes);
    return bytes * row->times;
}

static void widen(unsigned *column, unsigned width)
{
    if (width > *column) *column = width;
}

static void measure_tensor_row(void *ctx, const cli_row *row)
{
    view *v = ctx;
    char text[CELL];
    if (row->node->entry->kind != TSR_ENTRY_TENSOR) return;
    times_text(row->times, text, sizeof text);
    widen(&v->name_width, cli_width(row->label) + cli_width(tsr_str_from(text)));
    widen(&v->type_width, (unsigned)strlen(tsr_dtype_describe(row->node->entry->dtype)->name));
    cli_shape_text(row->node->entry, text, sizeof text);
    widen(&v->shape_width, (unsigned)strlen(text));
    widen(&v->size_width, (unsigned)strlen(cli_bytes(row_bytes(row)).text));
    v->has_stored |= row->node->entry->chunk_count != 1 || row->node->entry->distribution || partner_of(v, row->node->entry);
}

static void put_name(const view *v, tsr_str label, uint64_t times, unsigned width)
{
    char text[32];
    times_text(times, text, sizeof text);
    unsigned suffix = cli_width(tsr_str_from(text));
    if (label.size == 0) label = TSR_STR("(root)");
    cli_put_fitted(stdout, label, width > suffix ? width - suffix : 1, false);
    unsigned used = cli_width(label);
    if (used > width - suffix) used = width - suffix;
    cli_on(v->out, stdout, CLI_DIM);
    fputs(text, stdout);
    cli_off(v->out, stdout);
    cli_pad(stdout, width - suffix - used);
}

static void put_tensor_row(void *ctx, const cli_row *row)
{
    const view *v = ctx;
    const tsr_entry *entry = row->node->entry;
    char shape[CELL], layout[CELL];
    if (entry->kind != TSR_ENTRY_TENSOR) return;
    cli_shape_text(entry, shape, sizeof shape);
    cli_layout_text(entry, layout, sizeof layout);
    put_name(v, row->label, row->times, v->name_width);
    printf("  %-*s  %-*s  %*s", (int)v->type_width, tsr_dtype_describe(entry->dtype)->name, (int)v->shape_width, shape,
           (int)v->size_width, cli_bytes(row_bytes(row)).text);
    if (v->has_stored) {
        const tsr_entry *other = partner_of(v, entry);
        cli_on(v->out, stdout, CLI_DIM);
        fputs("  ", stdout);
        cli_put(stdout, tsr_str_from(layout));
        if (other) {
            fputs(", shares ", stdout);
            cli_put(stdout, other->fqn);
        }
        cli_off(v->out, stdout);
    }
    putchar('\n');
}

static void put_column_heads(const view *v)
{
    cli_on(v->out, stdout, CLI_BOLD);
    printf("%-*s  %-*s  %-*s  %*s%s\n", (int)v->name_width, "TENSOR", (int)v->type_width, "DTYPE", (int)v->shape_width,
           "SHAPE", (int)v->size_width, "SIZE", v->has_stored ? "  STORED" : "");
    cli_off(v->out, stdout);
}

/* On a terminal the name column gives way, so that the others stay in view. */
static void fit_names(view *v)
{
    enum { LAYOUT_WIDTH = 14, LEAST = 24 };
    unsigned others = v->type_width + v->shape_width + v->size_width + 8 + (v->has_stored ? LAYOUT_WIDTH : 0);
    unsigned most = v->out->columns > others + LEAST ? v->out->columns - others : LEAST;
    if (v->out->is_terminal && v->name_width > most) v->name_width = most;
}

static tsr_status put_table(view *v, tsr_error *err)
{
    v->name_width = 6, v->type_width = 5, v->shape_width = 5, v->size_width = 4;
    tsr_status status = cli_listing_rows(&v->listing, false, measure_tensor_row, v, &tsr_allocator_libc, err);
    if (status != TSR_OK) return status;
    fit_names(v);
    putchar('\n');
    put_column_heads(v);
    return cli_listing_rows(&v->listing, false, put_tensor_row, v, &tsr_allocator_libc, err);
}

/* ---- objects ---- */

static void measure_object_row(void *ctx, const cli_row *row)
{
    view *v = ctx;
    char text[CELL];
    if (row->node->entry->kind == TSR_ENTRY_TENSOR) return;
    times_text(row->times, text, sizeof text);
    widen(&v->name_width, cli_width(row->label) + cli_width(tsr_str_from(text)));
    widen(&v->type_width, cli_width(row->node->entry->type));
}

static void put_object_row(void *ctx, const cli_row *row)
{
    const view *v = ctx;
    const tsr_entry *entry = row->node->entry;
    char text[4 * CELL];
    if (entry->kind == TSR_ENTRY_TENSOR) return;
    put_name(v, row->label, row->times, v->name_width);
    fputs("  ", stdout);
    cli_put_fitted(stdout, entry->type, v->type_width, true);
    fputs("  ", stdout);
    if (entry->kind == TSR_ENTRY_OPAQUE) {
        cli_on(v->out, stdout, CLI_YELLOW);
        fputs("opaque ", stdout);
        cli_off(v->out, stdout);
    }
    unsigned used = v->name_width + v->type_width + 4 + (entry->kind == TSR_ENTRY_OPAQUE ? 7 : 0);
    unsigned room = v->out->columns > used + 20 ? v->out->columns - used : 20;
    if (entry->value) cli_put_fitted(stdout, tsr_str_from(tsr_value_text(entry->value, text, sizeof text)), room, false);
    putchar('\n');
}

static tsr_status put_objects(view *v, tsr_error *err)
{
    if (((const cli_node *)v->listing.nodes.items)->others == 0) return TSR_OK;
    v->name_width = 6, v->type_width = 4;
    tsr_status status = cli_listing_rows(&v->listing, false, measure_object_row, v, &tsr_allocator_libc, err);
    if (status != TSR_OK) return status;
    if (v->type_width > 32) v->type_width = 32;
    v->size_width = 0, v->shape_width = 24;
    fit_names(v);
    putchar('\n');
    cli_on(v->out, stdout, CLI_BOLD);
    printf("%-*s  %-*s  %s\n", (int)v->name_width, "OBJECT", (int)v->type_width, "TYPE", "VALUE");
    cli_off(v->out, stdout);
    return cli_listing_rows(&v->listing, false, put_object_row, v, &tsr_allocator_libc, err);
}

/* ---- tree ---- */

static unsigned branch_width(const cli_row *row)
{
    return 3 * row->depth;
}

static void put_branch(const view *v, const cli_row *row)
{
    cli_on(v->out, stdout, CLI_DIM);
    for (unsigned d = 0; d + 1 < row->depth; d++) fputs(row->last_at >> (d + 1) & 1 ? "   " : "│  ", stdout);
    if (row->depth) fputs(row->last_at >> row->depth & 1 ? "└─ " : "├─ ", stdout);
    cli_off(v->out, stdout);
}

static void tree_details(const cli_row *row, char *out, size_t capacity)
{
    const cli_node *node = row->node;
    char shape[CELL], layout[CELL];
    if (node->entry && node->entry->kind == TSR_ENTRY_TENSOR) {
        cli_shape_text(node->entry, shape, sizeof shape);
        cli_layout_text(node->entry, layout, sizeof layout);
        snprintf(out, capacity, "%s  %s", shape, layout);
    } else if (node->entry) {
        char value[CELL];
        snprintf(out, capacity, "%s", node->entry->value ? tsr_value_text(node->entry->value, value, sizeof value) : "");
    } else {
        char *at = out;
        size_t left = capacity;
        if (node->tensors) {
            int n = snprintf(at, left, "%s", cli_plural(node->tensors * row->times, "tensor").text);
            at += n, left -= (size_t)n;
        }
        if (node->others) snprintf(at, left, "%s%s", node->tensors ? ", " : "", cli_plural(node->others * row->times, "object").text);
    }
}

static tsr_str tree_type(const cli_row *row)
{
    const tsr_entry *entry = row->node->entry;
    return entry && entry->kind != TSR_ENTRY_TENSOR ? entry->type : tsr_str_from(cli_node_dtype(row->node));
}

static void measure_tree_row(void *ctx, const cli_row *row)
{
    view *v = ctx;
    char text[32];
    times_text(row->times, text, sizeof text);
    widen(&v->name_width, branch_width(row) + cli_width(row->label) + cli_width(tsr_str_from(text)));
    widen(&v->type_width, cli_width(tree_type(row)));
    widen(&v->size_width, (unsigned)strlen(cli_bytes(row->node->bytes * row->times).text));
}

static void put_tree_row(void *ctx, const cli_row *row)
{
    const view *v = ctx;
    char details[4 * CELL];
    put_branch(v, row);
    unsigned used = branch_width(row), width = v->name_width > used + 8 ? v->name_width - used : 8;
    if (!row->node->entry) cli_on(v->out, stdout, CLI_BOLD);
    put_name(v, row->label, row->times, width);
    cli_off(v->out, stdout);
    printf("  %*s  ", (int)v->size_width, row->node->tensors ? cli_bytes(row->node->bytes * row->times).text : "");
    cli_put_fitted(stdout, tree_type(row), v->type_width, true);
    tree_details(row, details, sizeof details);
    fputs("  ", stdout);
    unsigned before = (used + width) + v->size_width + v->type_width + 6;
    cli_put_fitted(stdout, tsr_str_from(details), !v->out->is_terminal ? 200 : v->out->columns > before + 16 ? v->out->columns - before : 16, false);
    if (row->node->odd) {
        cli_on(v->out, stdout, CLI_YELLOW);
        fputs("  differs from its siblings", stdout);
        cli_off(v->out, stdout);
    }
    putchar('\n');
}

static tsr_status put_tree(view *v, tsr_error *err)
{
    v->name_width = 6, v->type_width = 5, v->size_width = 4, v->shape_width = 16;
    tsr_status status = cli_listing_rows(&v->listing, true, measure_tree_row, v, &tsr_allocator_libc, err);
    if (status != TSR_OK) return status;
    if (v->type_width > 24) v->type_width = 24;
    fit_names(v);
    putchar('\n');
    return cli_listing_rows(&v->listing, true, put_tree_row, v, &tsr_allocator_libc, err);
}

/* ---- values ---- */

static void put_digest(const tsr_digest *digest)
{
    for (size_t i = 0; i < digest->size; i++) printf("%02x", digest->bytes[i]);
}

/* One line a tensor: digest, statistics, name. */
static tsr_status put_values(view *v, const cli_selection *selection, tsr_ring *ring, tsr_error *err)
{
    const inspect_arguments *arguments = v->arguments;
    if (arguments->stats) {
        printf("%12s %12s %12s %12s %8s %8s %8s  %s\n", "MIN", "MAX", "MEAN", "STD", "NAN", "INF", "ZERO", "TENSOR");
    }
    for (uint64_t i = 0; i < v->session.catalog->entry_count; i++) {
        const tsr_entry *entry = &v->session.catalog->entries[i];
        tsr_digest digest;
        tsr_stats stats;
        if (entry->kind != TSR_ENTRY_TENSOR || !cli_selects(selection, entry->fqn)) continue;
        bool numeric = arguments->stats && tsr_dtype_is_numeric(entry->dtype);
        if (arguments->hash && tsr_tensor_digest(v->session.checkpoint, entry, arguments->hash, ring, &digest, err) != TSR_OK) break;
        if (numeric && tsr_tensor_stats(v->session.checkpoint, entry, ring, &stats, err) != TSR_OK) break;
        if (numeric) {
            printf("%12.5g %12.5g %12.5g %12.5g %8" PRIu64 " %8" PRIu64 " %8" PRIu64 "  ", stats.min, stats.max, stats.mean,
                   stats.std, stats.nan, stats.inf, stats.zero);
        } else if (arguments->stats) {
            printf("%12s %12s %12s %12s %8s %8s %8s  ", "-", "-", "-", "-", "-", "-", "-");
        }
        if (arguments->hash) {
            put_digest(&digest);
            fputs("  ", stdout);
        }
        cli_put(stdout, entry->fqn);
        putchar('\n');
    }
    return tsr_error_context(err, "%s", v->session.path);
}

/* ---- command ---- */

static tsr_status inspect_json(cli *program, const cli_session *session, const inspect_arguments *arguments, tsr_ring *ring, tsr_error *err)
{
    tsr_json json;
    cli_progress progress;
    cli_progress_start(&progress, program, "reading");
    const tsr_inspect_options options = {
        .path = tsr_str_from(session->path),
        .selection = {cli_selects, &arguments->selection},
        .hash = (tsr_digest_algorithm)arguments->hash,
        .stats = arguments->stats,
        .ring = ring,
        .progress = ring ? &progress.base : NULL,
    };
    tsr_json_start(&json, cli_write_file, stdout, 1, err);
    tsr_status status = tsr_document_inspect(session->checkpoint, &options, &json, err);
    if (status == TSR_OK) status = tsr_json_finish(&json);
    cli_progress_end(&progress);
    return status;
}

static tsr_status inspect_text(cli *program, const cli_session *session, const inspect_arguments *arguments, tsr_ring *ring, tsr_error *err)
{
    view v = {.program = program, .out = &program->out, .session = *session, .arguments = arguments};
    if (ring) return put_values(&v, &arguments->selection, ring, err);
    tsr_status status = cli_listing_build(session->catalog, cli_selects, &arguments->selection, &tsr_allocator_libc, &v.listing, err);
    if (status == TSR_OK) status = find_partners(&v, err);
    if (status == TSR_OK) {
        put_head(&v);
        if (arguments->tree) status = put_tree(&v, err);
        else if (((const cli_node *)v.listing.nodes.items)->tensors) status = put_table(&v, err);
        if (status == TSR_OK && !arguments->tree) status = put_objects(&v, err);
        const tsr_findings *findings = tsr_checkpoint_findings(session->checkpoint);
        if (status == TSR_OK && tsr_findings_count(findings)) {
            putchar('\n');
            cli_put_findings(&program->out, NULL, findings, 20);
        }
    }
    tsr_vec_free(&v.partners);
    cli_listing_free(&v.listing);
    return status;
}

static int run(cli *program, const void *given)
{
    const inspect_arguments *arguments = given;
    tsr_error err = {0};
    cli_session session;
    tsr_ring *ring = NULL;
    const char *path = program->operands.items[0];
    tsr_status status = cli_open(program, path, NULL, &session, &err);
    if (status == TSR_OK && (arguments->hash || arguments->stats)) status = tsr_ring_new(cli_host(program), 0, &ring, &err);
    if (status == TSR_OK) status = (arguments->json ? inspect_json : inspect_text)(program, &session, arguments, ring, &err);
    if (status == TSR_OK) status = cli_unchanged(&session, &err);
    tsr_ring_free(ring);
    cli_close(&session);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
}

static const cli_option options[] = {
    {"tree", 0, CLI_FLAG, NULL, "a tree with totals per prefix", offsetof(inspect_arguments, tree)},
    {"json", 0, CLI_FLAG, NULL, "the tessera.inspect/1 document", offsetof(inspect_arguments, json)},
    {"include", 0, CLI_LIST, "GLOB", "only names that match (repeatable): * within a component, ** across, ?, [...]", offsetof(inspect_arguments, selection.include)},
    {"exclude", 0, CLI_LIST, "GLOB", "no names that match (repeatable); beats --include", offsetof(inspect_arguments, selection.exclude)},
    {"hash", 0, CLI_CHOICE, "sha256|xxh3", "digest of every tensor's bytes, whatever its sharding or container", offsetof(inspect_arguments, hash)},
    {"stats", 0, CLI_FLAG, NULL, "min, max, mean, std, NaN, Inf and zeros of every tensor", offsetof(inspect_arguments, stats)},
    {0},
};

const cli_command cli_inspect = {
    .name = "inspect",
    .summary = "what a checkpoint holds, how big, in which dtypes, how sharded, what is wrong with it",
    .operands = "PATH",
    .least = 1,
    .most = 1,
    .examples = "tessera inspect ckpt/\na table; equal layers are one line\n"
                "tessera inspect model.safetensors --tree\ntotals per module\n"
                "tessera inspect ckpt/ --include '**.weight' --json\nfor scripts\n"
                "tessera inspect run.pt --hash sha256\ndigests that do not depend on sharding or container\n",
    .options = options,
    .arguments_size = sizeof(inspect_arguments),
    .run = run,
};
