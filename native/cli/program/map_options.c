/* See map_options.h. */
#include "cli/program/map_options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/program/term.h"
#include "tessera/path.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

/* ---- what the layers are made of ---- */

/* Loads the text of the map that --map names: a file or a built-in map. It lives in `arena`. */
static tsr_status load_map(cli *program, const char *name, tsr_arena *arena, tsr_str *text, tsr_error *err)
{
    *text = tsr_mapping_builtin(tsr_str_from(name));
    if (text->size) return TSR_OK;
    if (!tsr_is_document(name) && access(name, R_OK) != 0)
        return tsr_mapping_unknown(tsr_str_from(name), tsr_naming(err)); /* opening a pipe twice would lose its text */
    return cli_in_option(tsr_path_load(name, cli_host(program), arena, text, err), "map", name, err);
}

/* Sets the session's map, and the layering's. */
static tsr_status read_map(cli *program, const char *name, cli_session *session, tsr_layering *out, tsr_error *err)
{
    if (!name) return TSR_OK;
    const tsr_str called = tsr_arena_format(session->arena, err, "--map %s", tsr_is_document(name) ? "document" : name);
    if (!called.data) return TSR_E_NOMEM;
    out->map_called = called.data;
    TSR_TRY(load_map(program, name, session->arena, &session->map_text, err));
    out->map = session->map_text;
    return TSR_OK;
}

static tsr_status open_adapter(cli *program, const char *path, cli_session *session, tsr_layering *out, tsr_error *err)
{
    if (!path) return TSR_OK;
    session->others = calloc(1, sizeof *session->others);
    if (!session->others) return tsr_fail(err, TSR_E_NOMEM, "out of memory");
    const tsr_status status = cli_open_apart(program, path, NULL, session->others, err);
    if (status != TSR_OK) return cli_in_option(status, "lora", path, err);
    session->other_count = 1;
    out->adapter = session->others->checkpoint;
    out->adapter_name = tsr_str_from(path);
    return TSR_OK;
}

/* ---- what --quantize did ---- */

/* Tells the user what to add to config.json, which a loader builds its modules from. Only --config writes it. */
static tsr_status tell_settings(const cli *program, tsr_str settings, tsr_arena *arena, tsr_error *err)
{
    const tsr_str line =
        tsr_arena_format(arena, err, "add this to config.json: \"quantization_config\": %.*s", TSR_STR_ARG(settings));
    if (!line.data) return TSR_E_NOMEM;
    if (program->caller) {
        program->caller->say(program->caller->ctx, CLI_SAYS_WARNING, line.data, err);
        return TSR_OK;
    }
    cli_put(stderr, line);
    fputc('\n', stderr);
    return TSR_OK;
}

static tsr_status tell_config(cli *program, cli_session *session, tsr_error *err)
{
    const tsr_quantized *made = &session->layers.quantized;
    TSR_TRY(tsr_quantized_config(session->checkpoint, made, session->arena, &session->quantization, err));
    if (!cli_speaks(program) || program->options.quiet) return TSR_OK;
    cli_note(program, "quantized to float8_e4m3fn: %s; other two-dimensional tensors, left as they are: %s",
             cli_plural(made->count, "weight").text, cli_number(made->kept_count).text);
    return program->options.config ? TSR_OK : tell_settings(program, session->quantization, session->arena, err);
}

/* ---- opening ---- */

/* The session's checkpoint is the topmost layer. */
static void show_top(cli_session *session)
{
    if (!session->layers.count) return;
    if (!session->source) session->source = session->checkpoint;
    session->checkpoint = session->layers.top;
    session->catalog = tsr_checkpoint_catalog(session->checkpoint);
}

static tsr_status add_layers(cli *program, const cli_map_options *map, const tsr_open_options *used, cli_session *session,
                             tsr_error *err)
{
    const tsr_command_options *options = map->options;
    tsr_layering wanted = {.options = options, .used = used, .lists = map->lists, .plain = map->plain};
    TSR_TRY(read_map(program, options->map, session, &wanted, err));
    if (options->canonical && options->modules) {
        const tsr_status status =
            tsr_path_load(options->modules, cli_host(program), session->arena, &session->modules_text, err);
        TSR_TRY(cli_in_option(status, "modules", options->modules, err));
    }
    wanted.modules = session->modules_text;
    if (options->flat_params) {
        tsr_status status = tsr_path_load(options->flat_params, cli_host(program), session->arena, &session->flat_text, err);
        if (status == TSR_OK) status = tsr_layers_unflatten(&session->layers, session->flat_text, session->arena, err);
        TSR_TRY(cli_in_option(status, "flat-params", options->flat_params, err));
    }
    TSR_TRY(open_adapter(program, options->lora, session, &wanted, err));
    const tsr_status status = tsr_layers_open(&session->layers, &wanted, session->arena, err);
    show_top(session);
    if (status != TSR_OK) return status;
    if (options->quantize) TSR_TRY(tell_config(program, session, err));
    for (size_t i = 0; tsr_mapping_note(session->checkpoint, options->config, i).size; i++)
        cli_note(program, "%.*s", TSR_STR_ARG(tsr_mapping_note(session->checkpoint, options->config, i)));
    return TSR_OK;
}

/* Tensors that differ between ranks may be slices of those that --flat-params makes, which decides about them. */
static bool select_none(const void *ctx, tsr_str fqn)
{
    (void)ctx;
    (void)fqn;
    return false;
}

tsr_status cli_open_mapped(cli *program, const char *path, const tsr_open_options *used, const cli_map_options *map,
                           cli_session *out, tsr_error *err)
{
    tsr_open_options all = used ? *used : (tsr_open_options){.selects = NULL};
    if (!tsr_options_are_layered(map->options) && !map->options->flat_params) {
        TSR_TRY(tsr_layering_check(&(tsr_layering){.options = map->options}, err));
        return cli_open(program, path, used, out, err);
    }
    all.selects = map->options->flat_params ? select_none : NULL;
    TSR_TRY(cli_open(program, path, &all, out, err));
    const tsr_status status = add_layers(program, map, used, out, err);
    if (status != TSR_OK) cli_close(out);
    return status;
}

tsr_status cli_quantize(cli *program, const tsr_command_options *options, const tsr_open_options *used, cli_session *session,
                        tsr_error *err)
{
    TSR_TRY(tsr_layers_quantize(&session->layers, &(tsr_layering){.options = options, .used = used}, err));
    show_top(session);
    return options->quantize ? tell_config(program, session, err) : TSR_OK;
}

bool cli_has_map_table(const cli_session *session)
{
    return session->source && !session->recipe.data;
}

tsr_status cli_put_map_table(const cli *program, const cli_session *session, tsr_error *err)
{
    if (!cli_has_map_table(session) || !cli_speaks(program) || program->caller) return TSR_OK;
    return tsr_mapping_write_table(session->checkpoint, cli_write_file, stderr, err);
}
