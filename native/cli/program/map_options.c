/* See map_options.h. */
#include "cli/program/map_options.h"

#include <stdio.h>

#include "cli/program/target_options.h"
#include "tessera/convert.h"
#include "tessera/mapping.h"
#include "tessera/path.h"
#include "tessera/sys/work.h"

static tsr_status raise_unknown(const char *name, tsr_error *err)
{
    char names[512];
    size_t used = 0;
    tsr_str builtin;
    for (size_t i = 0; (builtin = tsr_mapping_builtin_name(i)).size && used + builtin.size + 3 < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%.*s", i ? ", " : "", TSR_STR_ARG(builtin));
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--map '%s' is neither a file nor a built-in map (%s)", name, names);
}

tsr_status cli_load_map(cli *program, const char *name, tsr_arena *arena, tsr_str *text, tsr_error *err)
{
    *text = tsr_mapping_builtin(tsr_str_from(name));
    if (text->size) return TSR_OK;
    FILE *file = fopen(name, "rb");
    if (!file) return raise_unknown(name, err);
    fclose(file);
    return tsr_path_load(name, cli_host(program), arena, text, err);
}

static tsr_status parse_map(cli *program, const cli_map_options *map, cli_session *session, const tsr_mapping_rules **rules,
                            tsr_error *err)
{
    session->map_inverse = map->inverse;
    session->map_path = tsr_mapping_builtin(tsr_str_from(map->map)).size ? NULL : map->map;
    tsr_status status = cli_load_map(program, map->map, session->map_arena, &session->map_text, err);
    if (status == TSR_OK) status = tsr_mapping_parse(session->map_text, cli_host(program), session->map_arena, rules, err);
    if (status == TSR_OK && map->inverse) status = tsr_mapping_invert(*rules, session->map_arena, rules, err);
    if (status != TSR_OK) tsr_error_context(err, "--map %s", map->map);
    return status;
}

/* What is left of scaled numbers is of a kind that cannot be multiplied: nothing of it is passed over. */
static tsr_status dequantize(cli_session *session, const cli_map_options *map, tsr_error *err)
{
    tsr_convert_options all = {.raw_cast = false};
    tsr_dtype dtype;
    tsr_status status = tsr_cast_parse(tsr_str_from(map->dtype), false, &dtype, err);
    if (status == TSR_OK) status = tsr_mapping_dequantize(session->source, dtype, &all.dtype, &session->dequantized, err);
    if (status == TSR_OK) status = tsr_check_casts(session->dequantized, &all, err);
    session->dequantized_to = tsr_dtype_describe(all.dtype)->name;
    session->checkpoint = session->dequantized;
    return status;
}

static tsr_status apply_map(cli *program, const cli_map_options *map, cli_session *session, tsr_error *err)
{
    const tsr_mapping_rules *rules;
    tsr_checkpoint *below = session->dequantized ? session->dequantized : session->source;
    session->map_arena = tsr_arena_new(cli_host(program)->allocator, 0, err);
    tsr_status status = session->map_arena ? parse_map(program, map, session, &rules, err) : TSR_E_NOMEM;
    session->checkpoint = NULL;
    return status == TSR_OK ? tsr_mapping_open(below, rules, &session->checkpoint, err) : status;
}

tsr_status cli_open_mapped(cli *program, const char *path, const tsr_open_options *options, const cli_map_options *map,
                           cli_session *out, tsr_error *err)
{
    tsr_open_options all = options ? *options : (tsr_open_options){.selects = NULL};
    if (!map->map && map->inverse) return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--inverse needs --map MAP");
    if (!map->map && !map->dequantize) return cli_open(program, path, options, out, err);
    all.selects = NULL;
    tsr_status status = cli_open(program, path, &all, out, err);
    if (status != TSR_OK) return status;
    out->source = out->checkpoint;
    out->checkpoint = NULL;
    if (map->dequantize) status = dequantize(out, map, err);
    if (status == TSR_OK && map->map) status = apply_map(program, map, out, err);
    if (status == TSR_OK) out->catalog = tsr_checkpoint_catalog(out->checkpoint);
    if (status != TSR_OK) cli_close(out);
    return status;
}

tsr_status cli_put_map_table(const cli *program, const cli_session *session, tsr_error *err)
{
    if (!session->source || !cli_speaks(program)) return TSR_OK;
    return tsr_mapping_write_table(session->checkpoint, cli_write_file, stderr, err);
}
