/* See map_options.h. */
#include "cli/program/map_options.h"

#include <stdio.h>

#include "tessera/mapping.h"
#include "tessera/path.h"

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

tsr_status cli_open_mapped(cli *program, const char *path, const tsr_open_options *options, const cli_map_options *map,
                           cli_session *out, tsr_error *err)
{
    const tsr_mapping_rules *rules;
    tsr_open_options all = options ? *options : (tsr_open_options){.selects = NULL};
    if (!map->map) {
        if (map->inverse) return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--inverse needs --map MAP");
        return cli_open(program, path, options, out, err);
    }
    all.selects = NULL;
    tsr_status status = cli_open(program, path, &all, out, err);
    if (status != TSR_OK) return status;
    out->source = out->checkpoint;
    out->checkpoint = NULL;
    out->map_arena = tsr_arena_new(cli_host(program)->allocator, 0, err);
    status = out->map_arena ? parse_map(program, map, out, &rules, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_mapping_open(out->source, rules, &out->checkpoint, err);
    if (status == TSR_OK) out->catalog = tsr_checkpoint_catalog(out->checkpoint);
    if (status != TSR_OK) cli_close(out);
    return status;
}

tsr_status cli_put_map_table(const cli *program, const cli_session *session, tsr_error *err)
{
    if (!session->source || !cli_speaks(program)) return TSR_OK;
    return tsr_mapping_write_table(session->checkpoint, cli_write_file, stderr, err);
}
