/* `tessera fqn`: canonicalizes names with a module tree, or a checkpoint's own keys by their text. Also lists the renames
 * with which a checkpoint fits a model or another checkpoint. */
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/cli.h"
#include "cli/program/map_options.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "tessera/diff.h"
#include "tessera/document_read.h"
#include "tessera/fqn.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/names.h"
#include "tessera/sys/try.h"

/* One name of a side. */
typedef struct cli_known_name {
    tsr_str name;  /* as written in the checkpoint or model */
    tsr_str match; /* the canonical name, which is compared */
    bool is_tensor;
    uint32_t ndim;
    const uint64_t *shape;
} cli_known_name;

typedef struct cli_known_names {
    const cli_known_name *names;
    size_t count;
} cli_known_names;

typedef struct cli_against {
    tsr_rename_rule *rules;
    size_t rule_count;
    tsr_name_pair *pairs; /* one per name of the checkpoint */
    size_t pair_count;
    const tsr_str *missing; /* wanted names that have no counterpart */
    size_t missing_count;
} cli_against;

/* ---- pairing the names with those of a model or another checkpoint ---- */

/* Makes a catalog of one side under its canonical names. The dtypes of tensors are ignored: a float32 model may be saved as
 * bfloat16. All objects get the same type, different from that of tensors, so that they can be paired, too. */
static tsr_status make_catalog(cli_known_names side, tsr_arena *arena, tsr_catalog *out, tsr_error *err)
{
    tsr_entry *entries = tsr_arena_array(arena, side.count, sizeof *entries, err);
    if (!entries) return TSR_E_NOMEM;
    for (size_t i = 0; i < side.count; i++) {
        entries[i] = (tsr_entry){.fqn = side.names[i].match,
                                 .kind = TSR_ENTRY_TENSOR,
                                 .dtype = side.names[i].is_tensor ? TSR_UINT8 : TSR_BOOL,
                                 .ndim = side.names[i].ndim,
                                 .shape = side.names[i].shape};
    }
    *out = (tsr_catalog){.format = TSR_FORMAT_DCP, .entries = entries, .entry_count = side.count};
    return TSR_OK;
}

static void pair_up(const tsr_diff *diff, const tsr_catalog *a, const tsr_catalog *b, const cli_known_name *want,
                    tsr_name_pair *pairs, bool *met)
{
    for (uint64_t i = 0; i < diff->pair_count + diff->renamed_count; i++) {
        bool same = i < diff->pair_count;
        const tsr_diff_rename *rename = same ? NULL : &diff->renamed[i - diff->pair_count];
        size_t from = (size_t)((same ? diff->pairs[i].a : rename->a) - a->entries),
               to = (size_t)((same ? diff->pairs[i].b : rename->b) - b->entries);
        pairs[from].to = want[to].name;
        met[to] = true;
    }
}

/* Pairs `have` with `want`, first by canonical name, then tensors of equal shape as `diff` detects renamed ones, and derives
 * renames. Everything lives in `arena`. Errors: TSR_E_NOMEM. */
static tsr_status compare_names(cli_known_names have, cli_known_names want, const tsr_host *host, tsr_arena *arena,
                                cli_against *out, tsr_error *err)
{
    tsr_catalog a, b;
    tsr_diff diff;
    *out = (cli_against){.pair_count = have.count};
    tsr_status status = make_catalog(have, arena, &a, err);
    if (status == TSR_OK) status = make_catalog(want, arena, &b, err);
    if (status == TSR_OK) status = tsr_diff_catalogs((tsr_catalog_pair){&a, &b}, NULL, host, arena, &diff, err);
    if (status != TSR_OK) return status;
    bool *met = tsr_arena_array(arena, want.count, sizeof *met, err);
    tsr_str *missing = tsr_arena_array(arena, want.count, sizeof *missing, err);
    out->pairs = tsr_arena_array(arena, have.count, sizeof *out->pairs, err);
    if (!met || !missing || !out->pairs) return TSR_E_NOMEM;
    for (size_t i = 0; i < have.count; i++) out->pairs[i] = (tsr_name_pair){have.names[i].name, {NULL, 0}};
    pair_up(&diff, &a, &b, want.names, out->pairs, met);
    for (size_t i = 0; i < want.count; i++) {
        if (!met[i]) missing[out->missing_count++] = want.names[i].name;
    }
    out->missing = missing;
    return tsr_fqn_rename_rules(out->pairs, have.count, arena, &out->rules, &out->rule_count, err);
}

/* ---- output ---- */

static void put_against_json(tsr_json *json, const cli_against *against)
{
    tsr_json_put_object(json, "against");
    tsr_json_put_array(json, "renames");
    for (size_t i = 0; i < against->rule_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "rename", against->rules[i].text);
        tsr_json_put_uint(json, "names", against->rules[i].names);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_put_array(json, "pairs");
    for (size_t i = 0; i < against->pair_count; i++) {
        if (!against->pairs[i].to.data) continue;
        tsr_json_object(json);
        tsr_json_put_str(json, "from", against->pairs[i].from);
        tsr_json_put_str(json, "to", against->pairs[i].to);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_put_array(json, "unexpected");
    for (size_t i = 0; i < against->pair_count; i++) {
        if (!against->pairs[i].to.data) tsr_json_str(json, against->pairs[i].from);
    }
    tsr_json_array_end(json);
    tsr_json_put_strs(json, "missing", against->missing, against->missing_count);
    tsr_json_object_end(json);
}

static void put_line(const char *what, tsr_str name)
{
    fputs(what, stdout);
    cli_put(stdout, name);
    putchar('\n');
}

static void put_against_text(const cli *program, const cli_against *against)
{
    size_t same = 0, moved = 0, settled = 0;
    for (size_t i = 0; i < against->pair_count; i++) {
        const tsr_name_pair *pair = &against->pairs[i];
        same += pair->to.data && tsr_str_equal(pair->from, pair->to);
        moved += pair->to.data && !tsr_str_equal(pair->from, pair->to);
    }
    for (size_t i = 0; i < against->rule_count; i++) {
        cli_on(&program->out, stdout, CLI_YELLOW);
        fputs("--rename '", stdout);
        cli_put(stdout, against->rules[i].text);
        fputs("'", stdout);
        cli_off(&program->out, stdout);
        printf("  %s\n", cli_plural(against->rules[i].names, "name").text);
        settled += against->rules[i].names;
    }
    for (size_t i = 0; i < against->missing_count; i++) put_line("missing: ", against->missing[i]);
    for (size_t i = 0; i < against->pair_count; i++) {
        if (!against->pairs[i].to.data) put_line("unexpected: ", against->pairs[i].from);
    }
    printf("%s %s the same, %s %s different", cli_plural(same, "name").text, same == 1 ? "is" : "are",
           cli_number(moved).text, moved == 1 ? "is" : "are");
    if (moved > settled) printf(", %s of them without a rename", cli_number(moved - settled).text);
    putchar('\n');
}

/* ---- cmd fqn ---- */

typedef struct answer {
    tsr_name *names;
    size_t count;
    tsr_collision *collisions;
    size_t collision_count;
    bool by_text;
    bool compared;
    cli_against against;
} answer;

/* ---- canonical names ---- */

static tsr_status resolve_all(cli *program, const tsr_modules *modules, tsr_arena *arena, void *result, tsr_error *err)
{
    answer *out = result;
    const tsr_texts *operands = &program->operands;
    const size_t asked = operands->count - 1;
    tsr_str *raws = tsr_arena_array(arena, asked, sizeof *raws, err);
    if (!raws) return TSR_E_NOMEM;
    for (size_t i = 0; i < asked; i++) raws[i] = tsr_str_from(operands->items[1 + i]);
    const tsr_name_list list = {raws, asked};
    tsr_names names = {0};
    const tsr_status status = tsr_fqn_resolve_all(modules, asked ? &list : NULL, cli_host(program), arena, &names, err);
    out->names = names.names;
    out->count = names.count;
    return status;
}

/* Calls `use` with the module tree of a document. */
static tsr_status with_modules(cli *program, const char *path, tsr_arena *arena, void *out,
                               tsr_status (*use)(cli *program, const tsr_modules *modules, tsr_arena *arena, void *out,
                                                 tsr_error *err),
                               tsr_error *err)
{
    tsr_store *store = NULL;
    tsr_bytes bytes = {0};
    tsr_modules_document document;
    tsr_modules *modules = NULL;
    tsr_status status = cli_load_file(program, path, &store, &bytes, err);
    if (status == TSR_OK) status = tsr_modules_parse(bytes.data, cli_host(program), arena, &document, err);
    tsr_bytes_free(&bytes);
    if (store) store->close(store);
    if (status == TSR_OK) status = tsr_modules_new(document.root, cli_host(program), &modules, err);
    if (status == TSR_OK) status = use(program, modules, arena, out, err);
    tsr_modules_free(modules);
    return status;
}

/* The keys of a checkpoint with their canonical names. --prefix selects the keys that begin with it, and removes it. */
typedef struct keys {
    tsr_name *names;
    cli_known_name *known;
    size_t count;
} keys;

static tsr_status copy_key(const tsr_entry *entry, size_t cut, tsr_arena *arena, cli_known_name *out, tsr_error *err)
{
    uint64_t *shape = tsr_arena_array(arena, entry->ndim, sizeof *shape, err); /* the arena outlives the session */
    out->name = tsr_arena_str(arena, tsr_str_after(entry->fqn, cut), err);
    if (!shape || !out->name.data) return TSR_E_NOMEM;
    if (entry->ndim) memcpy(shape, entry->shape, entry->ndim * sizeof *shape);
    out->shape = shape;
    out->ndim = entry->ndim;
    out->is_tensor = entry->kind == TSR_ENTRY_TENSOR;
    return TSR_OK;
}

static tsr_status name_by_text(cli *program, tsr_arena *arena, keys *out, tsr_error *err)
{
    tsr_str *raws = tsr_arena_array(arena, out->count, sizeof *raws, err);
    out->names = tsr_arena_array(arena, out->count, sizeof *out->names, err);
    if (!raws || !out->names) return TSR_E_NOMEM;
    for (size_t i = 0; i < out->count; i++) raws[i] = out->known[i].name;
    return tsr_fqn_from_text(raws, out->count, cli_host(program)->allocator, arena, out->names, err);
}

static tsr_status copy_keys(const tsr_catalog *catalog, tsr_str prefix, tsr_arena *arena, keys *out, tsr_error *err)
{
    tsr_status status = TSR_OK;
    out->known = tsr_arena_array(arena, (size_t)catalog->entry_count, sizeof *out->known, err);
    if (!out->known) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) {
        if (!tsr_str_starts(catalog->entries[i].fqn, prefix)) continue;
        status = copy_key(&catalog->entries[i], prefix.size, arena, &out->known[out->count++], err);
    }
    return status;
}

static tsr_status read_keys(cli *program, const char *path, const tsr_command_options *arguments, tsr_arena *arena,
                            keys *out, tsr_error *err)
{
    cli_session session;
    const tsr_open_options names = {.skip_objects = true, .purpose = TSR_FOR_ALL_NAMES};
    static const tsr_command_options none = {.map = NULL};
    const cli_map_options map = {.options = arguments ? arguments : &none, .lists = true};
    const char *prefix = arguments && arguments->prefix ? arguments->prefix : "";
    tsr_status status = cli_open_mapped(program, path, &names, &map, &session, err);
    if (status != TSR_OK) return status;
    status = copy_keys(session.catalog, tsr_str_from(prefix), arena, out, err);
    if (status == TSR_OK && *prefix && !out->count) cli_warn(program, "--prefix '%s' matches no key of '%s'", prefix, path);
    cli_close(&session);
    return status == TSR_OK ? name_by_text(program, arena, out, err) : status;
}

/* Matches names by their canonical form, unless two names of the same side have the same one. */
static tsr_status choose_matches(cli *program, keys *side, tsr_error *err)
{
    bool canonical = true;
    for (size_t attempt = 0; attempt < 2; attempt++) {
        bool unique = true;
        tsr_status status = TSR_OK;
        tsr_map *seen = tsr_map_new(cli_host(program)->allocator, side->count, err);
        if (!seen) return TSR_E_NOMEM;
        for (size_t i = 0; i < side->count && unique && status == TSR_OK; i++) {
            side->known[i].match = canonical ? side->names[i].fqns[0] : side->known[i].name;
            status = tsr_map_put(seen, side->known[i].match, 0, NULL, &unique, err);
        }
        tsr_map_free(seen);
        if (status != TSR_OK || unique) return status;
        canonical = false;
    }
    return TSR_OK;
}

/* ---- against a model or another checkpoint ---- */

/* Lists the keys of a model's state dict, each once. */
static tsr_status copy_tree_keys(cli *program, const tsr_catalog *tree, tsr_arena *arena, keys *out, tsr_error *err)
{
    tsr_status status = TSR_OK;
    tsr_map *seen = tsr_map_new(cli_host(program)->allocator, (size_t)tree->entry_count, err);
    out->known = tsr_arena_array(arena, (size_t)tree->entry_count, sizeof *out->known, err);
    if (!seen || !out->known) status = TSR_E_NOMEM;
    for (uint64_t i = 0; i < tree->entry_count && status == TSR_OK; i++) {
        bool fresh;
        status = tsr_map_put(seen, tree->entries[i].fqn, 0, NULL, &fresh, err);
        if (status == TSR_OK && fresh) status = copy_key(&tree->entries[i], 0, arena, &out->known[out->count++], err);
    }
    tsr_map_free(seen);
    return status;
}

/* The names are those that `validate --against` wants of a checkpoint. They live as long as the arena. */
static tsr_status tree_names(cli *program, const char *path, tsr_arena *arena, keys *out, tsr_error *err)
{
    tsr_store *store = NULL;
    tsr_bytes bytes = {0};
    tsr_contract contract;
    tsr_status status = cli_load_file(program, path, &store, &bytes, err);
    if (status == TSR_OK) status = tsr_contract_read(bytes.data, cli_host(program), arena, &contract, err);
    tsr_bytes_free(&bytes);
    if (store) store->close(store);
    if (status != TSR_OK) return status;
    if (!contract.object_trees) return tsr_fail(err, TSR_E_FORMAT, "expected a module tree (tessera.modules/1)");
    status = copy_tree_keys(program, &contract.expected, arena, out, err);
    return status == TSR_OK ? name_by_text(program, arena, out, err) : status;
}

/* The size of a key up to and including a component `_extra_state`, or of the whole key. */
static size_t state_size(tsr_str name)
{
    const tsr_str state = TSR_STR("_extra_state.");
    for (size_t i = 0; i + state.size < name.size; i++) {
        if ((i == 0 || name.data[i - 1] == '.') && memcmp(name.data + i, state.data, state.size) == 0)
            return i + state.size - 1;
    }
    return name.size;
}

/* The keys with one for each extra state, whatever entries its value has. */
static tsr_status fold_extra_states(cli *program, const keys *all, tsr_arena *arena, keys *out, tsr_error *err)
{
    tsr_status status = TSR_OK;
    tsr_map *seen = tsr_map_new(cli_host(program)->allocator, all->count, err);
    out->known = tsr_arena_array(arena, all->count, sizeof *out->known, err);
    if (!seen || !out->known) status = TSR_E_NOMEM;
    for (size_t i = 0; i < all->count && status == TSR_OK; i++) {
        bool fresh = true;
        cli_known_name known = all->known[i];
        const size_t size = state_size(known.name);
        if (size < known.name.size) {
            known = (cli_known_name){.name = {known.name.data, size}};
            status = tsr_map_put(seen, known.name, 0, NULL, &fresh, err);
        }
        if (fresh) out->known[out->count++] = known;
    }
    tsr_map_free(seen);
    return status == TSR_OK ? name_by_text(program, arena, out, err) : status;
}

static tsr_status read_wanted(cli *program, const tsr_command_options *arguments, tsr_arena *arena, keys *have, keys *want,
                              tsr_error *err)
{
    const keys all = *have;
    const char *tree = program->operands.count ? program->operands.items[0] : NULL;
    tsr_status status =
        tree ? tree_names(program, tree, arena, want, err) : read_keys(program, arguments->against, NULL, arena, want, err);
    if (status != TSR_OK) tsr_error_subject(err, "%s", tree ? tree : arguments->against);
    if (status != TSR_OK || !tree) return status;
    *have = (keys){0};
    return fold_extra_states(program, &all, arena, have, err);
}

static tsr_status ask_checkpoint(cli *program, const tsr_command_options *arguments, tsr_arena *arena, answer *out,
                                 tsr_error *err)
{
    keys have = {0}, want = {0};
    const bool tree = program->operands.count > 0;
    tsr_status status = read_keys(program, arguments->checkpoint, arguments, arena, &have, err);
    out->by_text = true;
    out->names = have.names;
    out->count = have.count;
    if (status != TSR_OK || !(tree || arguments->against)) return status;
    status = read_wanted(program, arguments, arena, &have, &want, err);
    if (status == TSR_OK) status = choose_matches(program, &want, err);
    if (status == TSR_OK) status = choose_matches(program, &have, err);
    if (status == TSR_OK)
        status = compare_names((cli_known_names){have.known, have.count}, (cli_known_names){want.known, want.count},
                               cli_host(program), arena, &out->against, err);
    out->compared = status == TSR_OK;
    return status;
}

/* ---- output ---- */

static void put_against(void *ctx, tsr_json *json)
{
    put_against_json(json, ctx);
}

static tsr_status put_json(const cli *program, const answer *a, tsr_error *err)
{
    cli_against against = a->against;
    const tsr_fqn_document document = {.names = a->names,
                                       .count = a->count,
                                       .collisions = a->collisions,
                                       .collision_count = a->collision_count,
                                       .by_text = a->by_text,
                                       .more = a->compared ? put_against : NULL,
                                       .more_ctx = &against};
    tsr_json json;
    cli_document_start(program, &json, err);
    const tsr_status status = tsr_document_fqn(&document, &json);
    return status == TSR_OK ? tsr_json_finish(&json) : status;
}

static void put_text_name(const cli *program, const tsr_name *name)
{
    for (size_t i = 0; i < name->fqn_count; i++) {
        cli_put(stdout, name->fqns[i]);
        putchar('\n');
    }
    if (name->removed_count == 0 && name->ambiguity.size == 0) return;
    cli_on(&program->out, stdout, CLI_DIM);
    fputs("  from ", stdout);
    cli_put(stdout, name->raw);
    putchar('\n');
    for (size_t i = 0; i < name->removed_count; i++) {
        fputs("  without ", stdout);
        cli_put(stdout, name->removed[i].component);
        fputs(": ", stdout);
        cli_put(stdout, name->removed[i].why);
        putchar('\n');
    }
    if (name->ambiguity.size) {
        fputs("  perhaps: ", stdout);
        cli_put(stdout, name->ambiguity);
        putchar('\n');
    }
    cli_off(&program->out, stdout);
}

static void put_text(const cli *program, const answer *a)
{
    /* Names that a module tree has are certain; others are judged by their text. */
    if (a->by_text && !program->operands.count)
        cli_warn(
            program,
            "names alone cannot always distinguish a wrapper from a module with that name; pass MODULES.json%s to be certain",
            a->compared ? " in place of --against" : "");
    for (size_t i = 0; i < a->count && !a->compared; i++) put_text_name(program, &a->names[i]);
    for (size_t i = 0; i < a->collision_count; i++) {
        fputs("collision: ", stdout);
        cli_put(stdout, a->collisions[i].fqn);
        fputs(" stands for", stdout);
        for (size_t n = 0; n < a->collisions[i].count; n++) {
            fputs(n ? ", " : " ", stdout);
            cli_put(stdout, a->names[a->collisions[i].names[n]].raw);
        }
        putchar('\n');
    }
    if (a->compared) put_against_text(program, &a->against);
}

static bool chooses_source(const tsr_source_options *source)
{
    return source->part || source->step || source->also.count || source->shards || source->salvage;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    tsr_error err = {0};
    answer a = {0};
    if (arguments->against && !arguments->checkpoint) return cli_fail(program, "--against needs --checkpoint PATH");
    if (arguments->prefix && !arguments->checkpoint) return cli_fail(program, "--prefix needs --checkpoint PATH");
    if ((arguments->map || arguments->inverse) && !arguments->checkpoint)
        return cli_fail(program, "--map needs --checkpoint PATH");
    if (!arguments->checkpoint && chooses_source(&program->options.source))
        return cli_fail(program, "--part, --step, --also, --shards and --salvage need --checkpoint PATH");
    if (!arguments->checkpoint && program->operands.count == 0)
        return cli_fail(program, "fqn needs MODULES.json or --checkpoint PATH; see tessera help fqn");
    if (arguments->checkpoint && program->operands.count + (arguments->against != NULL) > 1)
        return cli_fail(program, "fqn compares a checkpoint with either one MODULES.json or one --against PATH");
    const char *path = arguments->checkpoint ? arguments->checkpoint : program->operands.items[0];
    tsr_arena *arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
    tsr_status status = !arena                  ? TSR_E_NOMEM
                        : arguments->checkpoint ? ask_checkpoint(program, arguments, arena, &a, &err)
                                                : with_modules(program, path, arena, &a, resolve_all, &err);
    if (status == TSR_OK) {
        status = tsr_fqn_collisions(a.names, a.count, arena, &a.collisions, &a.collision_count, &err);
    }
    if (status == TSR_OK && arguments->json) status = put_json(program, &a, &err);
    else if (status == TSR_OK) put_text(program, &a);
    tsr_arena_free(arena);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
}

const cli_command cli_fqn = {
    .name = "fqn",
    .examples =
        "tessera fqn modules.json\nList all parameters, persistent buffers and extra states, in PyTorch's order\n"
        "tessera fqn modules.json --json -- module._orig_mod.fc.weight\n"
        "Canonicalize one name, and list the components removed\n"
        "tessera fqn --checkpoint ckpt/\nCanonicalize a checkpoint's keys, and report collisions and ambiguous names\n"
        "tessera fqn modules.json --checkpoint ckpt/\nPrint the --rename options with which `tessera convert` makes it fit "
        "the model\n",
    .run = run,
};
