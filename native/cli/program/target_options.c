/* See target_options.h. */
#include "cli/program/target_options.h"

#include "cli/program/session.h"
#include "tessera/glob.h"

/* Loads a JSON document and parses it with `read`, which stores the result in `out`. */
static tsr_status read_file(cli *program, const char *path, tsr_arena *arena,
                            tsr_status (*read)(tsr_str, const tsr_host *, tsr_arena *, void *, tsr_error *), void *out,
                            tsr_error *err)
{
    tsr_store *store = NULL;
    tsr_bytes bytes = {0};
    tsr_status status = cli_load_file(program, path, &store, &bytes, err);
    if (status == TSR_OK) status = read(bytes.data, cli_host(program), arena, out, err);
    tsr_bytes_free(&bytes);
    if (store) store->close(store);
    if (status != TSR_OK) tsr_error_context(err, "%s", path);
    return status;
}

static tsr_status read_target(tsr_str text, const tsr_host *host, tsr_arena *arena, void *out, tsr_error *err)
{
    return tsr_target_texts_read(text, host, arena, out, err);
}

static tsr_status read_storage(tsr_str text, const tsr_host *host, tsr_arena *arena, void *out, tsr_error *err)
{
    return tsr_storage_read(text, host, arena, out, err);
}

tsr_status cli_read_storage(cli *program, const char *path, tsr_arena *arena, tsr_storage_text *out, tsr_error *err)
{
    *out = (tsr_storage_text){.servers = NULL};
    return path ? read_file(program, path, arena, read_storage, out, err) : TSR_OK;
}

tsr_status cli_read_target(cli *program, const tsr_command_options *options, tsr_arena *arena, tsr_target_texts *texts,
                           tsr_target *out, tsr_error *err)
{
    if (options->target ? options->mesh || options->placements : !options->mesh || !options->placements) {
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "pass either --target FILE or --mesh with --placements");
    }
    *texts =
        (tsr_target_texts){.mesh = tsr_str_from(options->mesh), .default_placements = tsr_str_from(options->placements)};
    tsr_status status = options->target ? read_file(program, options->target, arena, read_target, texts, err) : TSR_OK;
    return status == TSR_OK ? tsr_target_from_texts(texts, tsr_glob_match, arena, out, err) : status;
}
