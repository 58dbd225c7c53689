/* `tessera diff A B`: compares two checkpoints by name, whatever their formats, world sizes and shardings. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "cli/text/listing.h"
#include "cli/text/report_text.h"
#include "tessera/fqn.h"
#include "tessera/path.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/document.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/names.h"
#include "tessera/sys/options.h"

typedef struct comparison {
    cli *program;
    const tsr_command_options *arguments;
    cli_session a, b;
    tsr_arena *arena;
    tsr_policy *policy;
    tsr_diff diff; /* the differences that the policy keeps */
    tsr_policy_result left_out;
    tsr_difference *differences; /* one per pair */
} comparison;

/* The module tree of --modules; *out stays NULL without it. */
static tsr_status read_modules(comparison *c, tsr_modules **out, tsr_error *err)
{
    const tsr_host *host = cli_host(c->program);
    const char *path = c->arguments->modules;
    tsr_modules_document document;
    tsr_str text;
    if (!path) return TSR_OK;
    tsr_status status = tsr_path_load(path, host, c->arena, &text, err);
    if (status == TSR_OK) status = tsr_modules_parse(text, host, c->arena, &document, err);
    if (status == TSR_OK) status = tsr_modules_new(document.root, host, out, err);
    return cli_in_option(status, "modules", path, err);
}

static tsr_status match(comparison *c, tsr_error *err)
{
    const tsr_host *host = cli_host(c->program);
    const tsr_catalog *const both[] = {c->a.catalog, c->b.catalog};
    tsr_diff_options options = {.layout = c->arguments->compares_layout};
    tsr_canonical_names *names = NULL;
    tsr_modules *modules = NULL;
    tsr_status status = read_modules(c, &modules, err);
    if (status == TSR_OK && c->arguments->compares_canonical) {
        status = tsr_canonical_names_new(both, (const char *const[]){c->a.path, c->b.path}, 2, modules, host, &names, err);
        options.canonical = tsr_canonical_names_find;
        options.canonical_value = tsr_canonical_names_value;
        options.canonical_ctx = names;
    }
    if (status == TSR_OK)
        status = tsr_diff_catalogs((tsr_catalog_pair){c->a.catalog, c->b.catalog}, &options, host, c->arena, &c->diff, err);
    tsr_canonical_names_free(names);
    tsr_modules_free(modules);
    return status;
}

/* ---- values ---- */

static tsr_status compare_values(comparison *c, tsr_error *err)
{
    const bool exact = !c->arguments->atol.given && !c->arguments->rtol.given;
    const tsr_tolerance tolerance = {exact, c->arguments->atol.value, c->arguments->rtol.value};
    tsr_ring *ring = NULL;
    cli_progress progress;
    c->differences = tsr_arena_array(c->arena, (size_t)c->diff.pair_count, sizeof *c->differences, err);
    const tsr_host *host = tsr_host_wider(tsr_checkpoint_host(c->a.checkpoint), tsr_checkpoint_host(c->b.checkpoint));
    tsr_status status = c->differences ? tsr_ring_new(host, 0, &ring, err) : TSR_E_NOMEM;
    cli_progress_start(&progress, c->program, "comparing");
    if (status == TSR_OK) {
        status = tsr_diff_values(c->a.checkpoint, c->b.checkpoint, &c->diff,
                                 &(tsr_value_comparison){.tolerance = &tolerance, .ring = ring, .progress = &progress.base},
                                 c->differences, err);
    }
    cli_progress_end(&progress);
    tsr_ring_free(ring);
    return status;
}

/* ---- text ---- */

static void put_side(const tsr_entry *entry, uint32_t what)
{
    char text[160], layout[128];
    if (entry->kind != TSR_ENTRY_TENSOR) {
        cli_put(stdout, entry->type);
        if (!entry->value) return;
        putchar(' ');
        cli_put_fitted(stdout, tsr_str_from(tsr_value_text(entry->value, text, sizeof text)), 60, false);
        return;
    }
    cli_shape_text(entry, text, sizeof text);
    printf("%s %s", tsr_dtype_describe(entry->dtype)->name, text);
    if (what & TSR_DIFF_LAYOUT) {
        cli_layout_text(entry, layout, sizeof layout);
        fputs(", ", stdout);
        cli_put(stdout, tsr_str_from(layout));
    }
}

/* "key 0 → '0'" */
static void put_keys(const tsr_diff_pair *pair)
{
    char text[160];
    fputs("key ", stdout);
    cli_put(stdout, tsr_str_from(tsr_path_item_repr(tsr_path_other_type(pair->a, pair->b), text, sizeof text)));
    fputs(" → ", stdout);
    cli_put(stdout, tsr_str_from(tsr_path_item_repr(tsr_path_other_type(pair->b, pair->a), text, sizeof text)));
}

static void put_change(const comparison *c, uint64_t index)
{
    const tsr_diff_pair *pair = &c->diff.pairs[index];
    const tsr_difference *d = c->differences ? &c->differences[index] : NULL;
    cli_on(&c->program->out, stdout, CLI_YELLOW);
    fputs("~ ", stdout);
    cli_off(&c->program->out, stdout);
    cli_put(stdout, pair->a->fqn);
    fputs("  ", stdout);
    if (pair->what & TSR_DIFF_KEY) {
        put_keys(pair);
        if (pair->what & ~(uint32_t)TSR_DIFF_KEY) fputs("; ", stdout);
    }
    if (pair->what & ~(uint32_t)(TSR_DIFF_VALUE | TSR_DIFF_KEY)) {
        put_side(pair->a, pair->what);
        fputs(" → ", stdout);
        put_side(pair->b, pair->what);
    }
    if (pair->what & TSR_DIFF_VALUE && d) {
        printf("%s of %s values differ", cli_number(d->differing).text, cli_number(d->elements).text);
        if (d->numeric && d->max_abs > 0) printf(", by at most %.6g", d->max_abs);
        else if (d->numeric) fputs(", as NaN or in the sign of zero", stdout);
        if (d->numeric && d->max_ulp) printf(" (%s ulp)", cli_number(d->max_ulp).text);
    }
    putchar('\n');
}

static void put_one_sided(const comparison *c, const char *mark, cli_style style, const tsr_entry *const *entries,
                          uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        cli_on(&c->program->out, stdout, style);
        fputs(mark, stdout);
        cli_off(&c->program->out, stdout);
        cli_put(stdout, entries[i]->fqn);
        fputs("  ", stdout);
        put_side(entries[i], 0);
        putchar('\n');
    }
}

static void put_metadata(const comparison *c)
{
    enum { KEY_COLUMNS = 60, VALUE_COLUMNS = 60 };
    for (uint64_t i = 0; i < c->diff.metadata_count; i++) {
        const tsr_diff_text *text = &c->diff.metadata[i];
        cli_on(&c->program->out, stdout, CLI_CYAN);
        fputs("metadata ", stdout);
        cli_off(&c->program->out, stdout);
        cli_put_fitted(stdout, text->a ? text->a->key : text->b->key, KEY_COLUMNS, false);
        fputs("  ", stdout);
        if (text->a) cli_put_fitted(stdout, text->a->value, VALUE_COLUMNS, false);
        fputs(!text->a ? "only in B: " : !text->b ? " (only in A)" : " → ", stdout);
        if (text->b) cli_put_fitted(stdout, text->b->value, VALUE_COLUMNS, false);
        putchar('\n');
    }
}

static void put_text(const comparison *c)
{
    const tsr_diff *diff = &c->diff;
    uint64_t changed = 0;
    put_one_sided(c, "- ", CLI_RED, diff->removed, diff->removed_count);
    put_one_sided(c, "+ ", CLI_GREEN, diff->added, diff->added_count);
    for (uint64_t i = 0; i < diff->pair_count; i++) {
        if (!diff->pairs[i].what) continue;
        put_change(c, i);
        changed++;
    }
    for (uint64_t i = 0; i < diff->renamed_count; i++) {
        cli_on(&c->program->out, stdout, CLI_CYAN);
        fputs("? ", stdout);
        cli_off(&c->program->out, stdout);
        cli_put(stdout, diff->renamed[i].a->fqn);
        fputs(" → ", stdout);
        cli_put(stdout, diff->renamed[i].b->fqn);
        fputs("  ", stdout);
        cli_put(stdout, diff->renamed[i].why);
        putchar('\n');
    }
    put_metadata(c);
    const uint64_t same = diff->pair_count - changed - c->left_out.pairs;
    const char *compared =
        c->differences ? "values compared" : "names, dtypes, shapes and objects compared; values: --values";
    if (tsr_diff_is_same(diff)) {
        const bool left_out = c->left_out.left_out || c->left_out.turned_off;
        printf("%s: %s (%s)", left_out ? "nothing else differs; same" : "same", cli_plural(same, "name").text, compared);
    } else {
        printf("%s same, %s changed, %s only in A, %s only in B", cli_number(same).text, cli_number(changed).text,
               cli_number(diff->removed_count).text, cli_number(diff->added_count).text);
        if (diff->renamed_count) printf(", %s perhaps renamed", cli_number(diff->renamed_count).text);
        printf(" (%s)", compared);
    }
    cli_put_left_out(&c->left_out);
    putchar('\n');
}

/* ---- command ---- */

static tsr_status report(const comparison *c, tsr_error *err)
{
    const unsigned format = c->arguments->json ? CLI_REPORT_JSON : c->arguments->format;
    const tsr_diff_document document = {tsr_str_from(c->a.path), tsr_str_from(c->b.path), &c->diff, c->differences,
                                        &c->left_out};
    tsr_json json;
    cli_report out;
    tsr_status status;
    if (format < CLI_REPORT_JSON) {
        put_text(c);
        return TSR_OK;
    }
    if (format == CLI_REPORT_JSON) {
        cli_document_start(c->program, &json, err);
        status = tsr_document_diff(&document, &json);
        return status == TSR_OK ? tsr_json_finish(&json) : status;
    }
    cli_report_start(&out, c->program, format, err);
    status = tsr_report_add_diff(&out.base, &document, c->policy, err);
    cli_note_left_out(c->program, &c->left_out);
    const tsr_status ended = cli_report_end(&out);
    return status == TSR_OK ? ended : status;
}

static tsr_status apply_policy(comparison *c, tsr_error *err)
{
    const tsr_diff whole = c->diff;
    return tsr_policy_diff(c->policy, &whole, c->arena, &c->diff, &c->left_out, err);
}

static int run(cli *program, const tsr_command_options *arguments)
{
    comparison c = {.program = program, .arguments = arguments};
    tsr_error err = {0};
    const char *path = NULL;
    if (c.arguments->list_rules) {
        const tsr_policy_scope scope = TSR_POLICY_DIFF;
        return cli_put_rules(program, &scope);
    }
    if (program->operands.count < 2) return cli_fail(program, "diff needs A B; see tessera help diff");
    cli_allow_expansion(program, c.arguments->allow_expansion);
    const bool values = c.arguments->values || c.arguments->atol.given || c.arguments->rtol.given;
    const cli_map_options map = {.options = arguments, .lists = !values};
    tsr_status status = cli_policy_open(program, TSR_POLICY_DIFF, c.arguments, &c.policy, &err);
    if (status == TSR_OK) status = cli_open_mapped(program, path = program->operands.items[0], NULL, &map, &c.a, &err);
    if (status == TSR_OK) status = cli_open_compared(program, path = program->operands.items[1], NULL, &c.b, &err);
    if (status == TSR_OK) {
        path = NULL;
        c.arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
        status = c.arena ? match(&c, &err) : TSR_E_NOMEM;
    }
    if (status == TSR_OK && values) status = compare_values(&c, &err);
    if (status == TSR_OK) status = apply_policy(&c, &err);
    if (status == TSR_OK) status = report(&c, &err);
    if (status == TSR_OK) status = cli_unchanged(&c.a, &err);
    if (status == TSR_OK) status = cli_unchanged(&c.b, &err);
    const int result =
        status != TSR_OK ? cli_fail_error(program, path, &err) : cli_totals_status(c.left_out.totals, c.arguments->fail_on);
    tsr_policy_free(c.policy);
    tsr_arena_free(c.arena);
    cli_close(&c.a);
    cli_close(&c.b);
    return result;
}

const cli_command cli_diff = {
    .name = "diff",
    .examples = "tessera diff step-100/ step-200/\nCompare names, dtypes, shapes and objects\n"
                "tessera diff ckpt/ model.safetensors --values\n"
                "Compare values bit for bit, without loading either checkpoint into memory\n"
                "tessera diff a.pt b.pt --atol 1e-6\nCompare values with a tolerance\n"
                "tessera diff main/ branch/ --values --rule diff/value=note\n"
                "Expect new values, and fail for any other difference\n"
                "tessera diff main/ branch/ --baseline known.json\n"
                "Report only what is new since `tessera diff main/ branch/ --json >known.json`\n"
                "tessera diff main/ branch/ --format sarif\n"
                "Report for code scanning; junit, github and gitlab are available too\n",
    .run = run,
};
