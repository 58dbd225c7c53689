/* See map_options.h. */
#include "cli/program/map_options.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/program/target_options.h"
#include "tessera/mapping.h"
#include "tessera/path.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/merge.h"

cli_map_options cli_map_of(const tsr_command_options *options)
{
    return (cli_map_options){.map = options->map,
                             .inverse = options->inverse,
                             .dequantize = options->dequantize,
                             .lora = options->lora,
                             .quantize = options->quantize,
                             .no_quantize = options->no_quantize,
                             .dtype = options->dtype};
}

/* Loads the text of the map that --map names: a file or a built-in map. It lives in `arena`. */
static tsr_status load_map(cli *program, const char *name, tsr_arena *arena, tsr_str *text, tsr_error *err)
{
    *text = tsr_mapping_builtin(tsr_str_from(name));
    if (text->size) return TSR_OK;
    if (access(name, R_OK) != 0)
        return tsr_mapping_unknown(tsr_str_from(name), err); /* opening a pipe twice would lose its text */
    return tsr_path_load(name, cli_host(program), arena, text, err);
}

static tsr_status parse_map(cli *program, const cli_map_options *map, cli_session *session, const tsr_mapping_rules **rules,
                            tsr_error *err)
{
    tsr_status status;
    session->map_inverse = map->inverse;
    session->map_text = map->document;
    if (map->map) {
        session->map_path = tsr_mapping_builtin(tsr_str_from(map->map)).size ? NULL : map->map;
        status = load_map(program, map->map, session->map_arena, &session->map_text, err);
        if (status != TSR_OK) return status; /* the message names the map */
    }
    status = tsr_mapping_parse(session->map_text, cli_host(program), session->map_arena, rules, err);
    if (status == TSR_OK && map->inverse) status = tsr_mapping_invert(*rules, session->map_arena, rules, err);
    if (status != TSR_OK && map->map) tsr_error_context(err, "--map %s", map->map);
    else if (status != TSR_OK) tsr_error_context(err, "source.map");
    return status;
}

static tsr_status dequantize(cli_session *session, const cli_map_options *map, tsr_dequantizing *out, tsr_error *err)
{
    const tsr_status status = tsr_dequantize_open(session->checkpoint, tsr_str_from(map->dtype), out, err);
    if (status != TSR_OK) return status;
    cli_add_layer(session, out->layer);
    session->dequantized_to = tsr_dtype_describe(out->dtype)->name;
    return TSR_OK;
}

static tsr_status apply_map(cli *program, const cli_map_options *map, cli_session *session, tsr_error *err)
{
    const tsr_mapping_rules *rules;
    tsr_checkpoint *layer;
    session->map_arena = tsr_arena_new(cli_host(program)->allocator, 0, err);
    tsr_status status = session->map_arena ? parse_map(program, map, session, &rules, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_mapping_open(session->checkpoint, rules, &layer, err);
    if (status != TSR_OK) return status;
    cli_add_layer(session, layer);
    return tsr_mapping_compare_layers(layer, err);
}

static tsr_status fold_adapter(cli *program, const cli_map_options *map, cli_session *session, tsr_error *err)
{
    tsr_lora_options options = {.name = tsr_str_from(map->lora)};
    tsr_checkpoint *layer;
    session->others = calloc(1, sizeof *session->others);
    if (!session->others) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
    tsr_status status = tsr_cast_parse(tsr_str_from(map->dtype), false, &options.dtype, err);
    if (status != TSR_OK) return status;
    status = cli_open_apart(program, map->lora, NULL, session->others, err);
    if (status != TSR_OK) {
        tsr_error_context(err, "--lora %s", map->lora);
        return status;
    }
    session->other_count = 1;
    status = tsr_lora_fold(session->checkpoint, session->others->checkpoint, &options, &layer, err);
    if (status == TSR_OK) cli_add_layer(session, layer);
    return status;
}

/* Whether PATH is a single file with config.json next to it, of which only the file is read. The settings would have shown
 * what it lacks, which output layer is the embedding, and what its numbers are multiplied to, so the user must know. */
static bool leaves_settings(const char *path, const cli_session *session)
{
    char settings[PATH_MAX];
    struct stat info;
    const char *slash = strrchr(path, '/');
    const int folder = slash ? (int)(slash + 1 - path) : 0;
    if (session->store->primary == TSR_NO_FILE || session->store->file_count != 1 || session->is_remote) return false;
    const int length = snprintf(settings, sizeof settings, "%.*sconfig.json", folder, path);
    if (length >= (int)sizeof settings || stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return false;
    return stat(settings, &info) == 0 && S_ISREG(info.st_mode);
}

tsr_status cli_open_mapped(cli *program, const char *path, const tsr_open_options *options, const cli_map_options *map,
                           cli_session *out, tsr_error *err)
{
    tsr_open_options all = options ? *options : (tsr_open_options){.selects = NULL};
    tsr_dequantizing done;
    const bool mapped = map->map || map->document.data;
    if (!mapped && map->inverse) return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--inverse needs --map MAP");
    if (!mapped && !map->dequantize && !map->lora && !map->quantize) return cli_open(program, path, options, out, err);
    all.selects = NULL;
    tsr_status status = cli_open(program, path, &all, out, err);
    if (status != TSR_OK) return status;
    out->leaves_settings = (map->map || map->dequantize) && leaves_settings(path, out);
    if (out->leaves_settings) cli_warn(program, "%s", CLI_SETTINGS_UNREAD);
    if (map->dequantize) status = dequantize(out, map, &done, err);
    if (status == TSR_OK && map->lora) status = fold_adapter(program, map, out, err);
    if (status == TSR_OK && mapped) status = apply_map(program, map, out, err);
    if (status == TSR_OK && map->dequantize) status = tsr_dequantize_check(&done, out->checkpoint, options, err);
    if (status == TSR_OK && (mapped || map->lora) && !map->lists) status = tsr_mapping_check_tied(out->checkpoint, err);
    if (status == TSR_OK && map->quantize) status = cli_quantize(program, map, options, out, err);
    for (size_t i = 0; status == TSR_OK && tsr_mapping_note(out->checkpoint, i).size; i++)
        cli_note(program, "%.*s", TSR_STR_ARG(tsr_mapping_note(out->checkpoint, i)));
    if (status != TSR_OK) cli_close(out);
    return status;
}

bool cli_has_map_table(const cli_session *session)
{
    return session->source && !session->recipe.data;
}

tsr_status cli_put_map_table(const cli *program, const cli_session *session, tsr_error *err)
{
    if (!cli_has_map_table(session) || !cli_speaks(program)) return TSR_OK;
    return tsr_mapping_write_table(session->checkpoint, cli_write_file, stderr, err);
}
