/* See writing.h. */
#include "cli/writing/writing.h"

#include <string.h>
#include <sys/stat.h>

#include "tessera/path.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/path.h"
#include "tessera/sys/publication.h"
#include "tessera/sys/try.h"

static tsr_status make_text(cli_writing *w, tsr_str from, tsr_str *out, tsr_error *err)
{
    tsr_config_changes changes = {.unquantized = w->options->dequantize, .quantization = w->source.quantization};
    tsr_vec text = tsr_vec_of(cli_host(w->program)->allocator, 1);
    tsr_mapping_change_config(w->source.checkpoint, &changes);
    tsr_status status = tsr_cast_parse(tsr_str_from(w->options->dtype), w->options->raw_cast, &changes.dtype, err);
    if (status == TSR_OK) status = tsr_config_rewrite(from, &changes, cli_host(w->program), &text, err);
    if (status != TSR_OK) tsr_error_context(err, "--config");
    if (status == TSR_OK) *out = tsr_arena_str(w->arena, (tsr_str){text.items, text.count}, err);
    tsr_vec_free(&text);
    return status == TSR_OK && !out->data ? TSR_E_NOMEM : status;
}

/* The path of config.json in the output's directory, or next to its only file. */
static const char *find_place(const cli_writing *w, tsr_error *err)
{
    const char *slash = strrchr(w->destination, '/');
    const int directory = slash ? (int)(slash + 1 - w->destination) : 0;
    const bool inside = w->form.is_directory;
    const tsr_str path =
        inside ? tsr_arena_format(w->arena, err, "%s%sconfig.json", w->destination, slash && !slash[1] ? "" : "/")
               : tsr_arena_format(w->arena, err, "%.*sconfig.json", directory, w->destination);
    return path.data;
}

/* A config.json that is there stays: it may be of another model. */
static tsr_status check_place(cli_writing *w, cli_config_copy *copy, tsr_error *err)
{
    struct stat info;
    tsr_str there;
    tsr_error failure = {0};
    const tsr_status status = tsr_path_load(copy->path, cli_host(w->program), w->arena, &there, &failure);
    const bool is_url = tsr_is_url(copy->path);
    if (status == TSR_E_NOT_FOUND && (is_url || lstat(copy->path, &info) != 0)) return TSR_OK;
    if (status != TSR_OK && is_url) *err = failure;
    if (status != TSR_OK && is_url) return status;
    if (status == TSR_OK && tsr_str_equal(there, copy->text)) {
        copy->text = TSR_STR("");
        return TSR_OK;
    }
    return tsr_raise(tsr_naming(err), TSR_E_EXISTS, TSR_NO_POSITION,
                     "--config: '%s' already exists and is not what would be written; remove it, or choose another "
                     "destination",
                     copy->path);
}

tsr_status cli_config_plan(cli_writing *w, cli_config_copy *copy, tsr_error *err)
{
    tsr_bytes from;
    *copy = (cli_config_copy){.text = TSR_STR("")};
    if (!w->options->config) return TSR_OK;
    tsr_status status = tsr_config_load(cli_source_checkpoint(&w->source), &from, err);
    if (status != TSR_OK) return status;
    if (from.data.size) status = make_text(w, from.data, &copy->text, err);
    else status = tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "--config: there is no config.json with the checkpoint");
    tsr_bytes_free(&from);
    if (status == TSR_OK && !(copy->path = find_place(w, err))) status = TSR_E_NOMEM;
    return status == TSR_OK ? check_place(w, copy, err) : status;
}

static tsr_status put_text(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err)
{
    const cli_config_copy *copy = ctx;
    TSR_TRY(output->create(output, TSR_STR(""), copy->text.size, marker, err));
    return output->write_at(output, *marker, 0, copy->text.data, copy->text.size, err);
}

tsr_status cli_config_write(cli_writing *w, const cli_config_copy *copy, tsr_error *err)
{
    if (!copy->text.size || w->options->dry_run || !cli_speaks(w->program)) return TSR_OK;
    cli_guard guard = {.program = w->program};
    tsr_publication p = {.environment = cli_environment(&guard),
                         .host = cli_host(w->program),
                         .arena = w->arena,
                         .destination = copy->path,
                         .line = TSR_STR("config.json of a conversion\n"),
                         .write = put_text,
                         .ctx = (void *)(uintptr_t)copy};
    TSR_TRY(tsr_publication_run(&p, err));
    if (w->options->quiet) return TSR_OK;
    /* A map may just as well lead away from the names of transformers, and come back with the numbers in config.json. */
    cli_note(w->program, "wrote %s%s%s", copy->path, w->options->dequantize ? " without quantization_config" : "",
             w->options->map ? "; transformers loads the model if --map makes the names that it knows" : "");
    return TSR_OK;
}
