/* `tessera fqn`: canonical names over a module tree, or of a checkpoint's own keys by text. */
#include <stdio.h>

#include "cli/session.h"
#include "cli/term.h"
#include "tessera/fqn.h"

typedef struct fqn_arguments {
    const char *checkpoint;
    bool json;
} fqn_arguments;

typedef struct answer {
    tsr_name *names;
    size_t count;
    tsr_collision *collisions;
    size_t collision_count;
    bool by_text;
} answer;

/* ---- asking ---- */

static tsr_status resolve_all(cli *program, const tsr_modules *modules, tsr_arena *arena, answer *out, tsr_error *err)
{
    const cli_list *operands = &program->operands;
    tsr_state_item *items = NULL;
    size_t asked = operands->count - 1, count = asked;
    if (asked == 0) {
        tsr_status status = tsr_fqn_iterate(modules, cli_host(program), arena, &items, &count, err);
        if (status != TSR_OK) return status;
    }
    out->names = tsr_arena_array(arena, count, sizeof *out->names, err);
    if (!out->names) return TSR_E_NOMEM;
    for (; out->count < count; out->count++) {
        tsr_str raw = asked ? tsr_str_from(operands->items[1 + out->count]) : items[out->count].raw;
        tsr_status status = tsr_fqn_resolve(modules, raw, NULL, arena, &out->names[out->count], err);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

static tsr_status ask_modules(cli *program, tsr_arena *arena, answer *out, tsr_error *err)
{
    tsr_store *store = NULL;
    tsr_bytes bytes = {0};
    tsr_modules_document document;
    tsr_modules *modules = NULL;
    tsr_status status = cli_load_file(program, program->operands.items[0], &store, &bytes, err);
    if (status == TSR_OK) status = tsr_modules_parse(bytes.data, cli_host(program), arena, &document, err);
    tsr_bytes_free(&bytes);
    if (store) store->close(store);
    if (status == TSR_OK) status = tsr_modules_new(document.root, cli_host(program), &modules, err);
    if (status == TSR_OK) status = resolve_all(program, modules, arena, out, err);
    tsr_modules_free(modules);
    return status;
}

static tsr_status ask_checkpoint(cli *program, const char *path, tsr_arena *arena, answer *out, tsr_error *err)
{
    cli_session session;
    tsr_status status = cli_open(program, path, &(tsr_open_options){.skip_objects = true}, &session, err);
    if (status != TSR_OK) return status;
    size_t count = (size_t)session.catalog->entry_count;
    tsr_str *raws = tsr_arena_array(arena, count, sizeof *raws, err);
    out->names = tsr_arena_array(arena, count, sizeof *out->names, err);
    out->by_text = true;
    for (size_t i = 0; i < count && raws && status == TSR_OK; i++) { /* the arena outlives the session */
        raws[i] = tsr_arena_str(arena, session.catalog->entries[i].fqn, err);
        if (!raws[i].data) status = TSR_E_NOMEM;
    }
    if (!raws || !out->names) status = TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_fqn_from_text(raws, count, cli_host(program)->allocator, arena, out->names, err);
    out->count = status == TSR_OK ? count : 0;
    cli_close(&session);
    return status;
}

/* ---- telling ---- */

static void put_removed(tsr_json *json, const tsr_name *name)
{
    tsr_json_key(json, "removed");
    tsr_json_array(json);
    for (size_t i = 0; i < name->removed_count; i++) {
        tsr_json_object(json);
        tsr_json_key(json, "component");
        tsr_json_str(json, name->removed[i].component);
        tsr_json_key(json, "why");
        tsr_json_str(json, name->removed[i].why);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void put_name(tsr_json *json, const tsr_name *name)
{
    tsr_json_object(json);
    tsr_json_key(json, "raw");
    tsr_json_str(json, name->raw);
    tsr_json_key(json, "fqns");
    tsr_json_array(json);
    for (size_t i = 0; i < name->fqn_count; i++) tsr_json_str(json, name->fqns[i]);
    tsr_json_array_end(json);
    put_removed(json, name);
    if (name->ambiguity.size) {
        tsr_json_key(json, "ambiguity");
        tsr_json_str(json, name->ambiguity);
    }
    tsr_json_object_end(json);
}

static void put_collisions(tsr_json *json, const answer *a)
{
    tsr_json_key(json, "collisions");
    tsr_json_array(json);
    for (size_t i = 0; i < a->collision_count; i++) {
        tsr_json_object(json);
        tsr_json_key(json, "fqn");
        tsr_json_str(json, a->collisions[i].fqn);
        tsr_json_key(json, "raw");
        tsr_json_array(json);
        for (size_t n = 0; n < a->collisions[i].count; n++) tsr_json_str(json, a->names[a->collisions[i].names[n]].raw);
        tsr_json_array_end(json);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static tsr_status put_json(const answer *a, tsr_error *err)
{
    tsr_json json;
    tsr_json_start(&json, cli_write_file, stdout, 1, err);
    tsr_json_object(&json);
    tsr_json_key(&json, "schema");
    tsr_json_text(&json, "tessera.fqn/1");
    tsr_json_key(&json, "by");
    tsr_json_text(&json, a->by_text ? "text" : "modules");
    tsr_json_key(&json, "names");
    tsr_json_array(&json);
    for (size_t i = 0; i < a->count; i++) put_name(&json, &a->names[i]);
    tsr_json_array_end(&json);
    put_collisions(&json, a);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
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
    if (name->ambiguity.size) printf("  perhaps: %.*s\n", TSR_STR_ARG(name->ambiguity));
    cli_off(&program->out, stdout);
}

static void put_text(const cli *program, const answer *a)
{
    if (a->by_text)
        cli_warn(program, "names alone cannot always tell a wrapper from a module of that name; a module tree can");
    for (size_t i = 0; i < a->count; i++) put_text_name(program, &a->names[i]);
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
}

static int run(cli *program, const void *given)
{
    const fqn_arguments *arguments = given;
    tsr_error err = {0};
    answer a = {0};
    if (!arguments->checkpoint && program->operands.count == 0)
        return cli_fail(program, "fqn needs MODULES.json, or --checkpoint PATH");
    if (arguments->checkpoint && program->operands.count)
        return cli_fail(program, "fqn takes MODULES.json or --checkpoint, not both");
    const char *path = arguments->checkpoint ? arguments->checkpoint : program->operands.items[0];
    tsr_arena *arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
    tsr_status status = !arena                  ? TSR_E_NOMEM
                        : arguments->checkpoint ? ask_checkpoint(program, path, arena, &a, &err)
                                                : ask_modules(program, arena, &a, &err);
    if (status == TSR_OK) {
        status = tsr_fqn_collisions(a.names, a.count, cli_host(program)->allocator, arena, &a.collisions, &a.collision_count,
                                    &err);
    }
    if (status == TSR_OK && arguments->json) status = put_json(&a, &err);
    else if (status == TSR_OK) put_text(program, &a);
    tsr_arena_free(arena);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
}

static const cli_option options[] = {
    {"checkpoint", 0, CLI_TEXT, "PATH", "the keys of a checkpoint, by text alone, instead of a module tree",
     offsetof(fqn_arguments, checkpoint)},
    {"json", 0, CLI_FLAG, NULL, "a tessera.fqn/1 document", offsetof(fqn_arguments, json)},
    {0},
};

const cli_command cli_fqn = {
    .name = "fqn",
    .summary = "names as PyTorch canonicalizes them, with what was removed and why",
    .operands = "MODULES.json [NAME…]",
    .least = 0,
    .most = 1u << 20,
    .examples =
        "tessera fqn modules.json\nall parameters, persistent buffers and extra states, in PyTorch's order\n"
        "tessera fqn modules.json --json -- module._orig_mod.fc.weight\none name, with the wrappers' components that went\n"
        "tessera fqn --checkpoint ckpt/\na checkpoint's keys by text: wrappers, collisions, what is ambiguous\n",
    .options = options,
    .arguments_size = sizeof(fqn_arguments),
    .run = run,
};
