/* See writing.h. */
#include "cli/writing/writing.h"

#include <string.h>
#include <sys/stat.h>

#include "cli/writing/out_file.h"
#include "tessera/path.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/config_text.h"
#include "tessera/sys/object_store.h"

static tsr_status make_text(cli_writing *w, tsr_str from, tsr_str *out, tsr_error *err)
{
    tsr_config_changes changes = {.unquantized = w->options->dequantize, .quantization = w->source.quantization};
    tsr_vec text = tsr_vec_of(cli_host(w->program)->allocator, 1);
    tsr_status status = tsr_cast_parse(tsr_str_from(w->options->dtype), w->options->raw_cast, &changes.dtype, err);
    if (status == TSR_OK) status = tsr_config_rewrite(from, &changes, cli_host(w->program), &text, err);
    if (status != TSR_OK) tsr_error_context(err, "config.json");
    if (status == TSR_OK) *out = tsr_arena_str(w->arena, (tsr_str){text.items, text.count}, err);
    tsr_vec_free(&text);
    return status == TSR_OK && !out->data ? TSR_E_NOMEM : status;
}

/* The path of config.json in the output's directory, or next to its only file. */
static const char *find_place(const cli_writing *w, tsr_error *err)
{
    const char *slash = strrchr(w->destination, '/');
    const int folder = slash ? (int)(slash + 1 - w->destination) : 0;
    const bool inside = w->form.is_folder;
    const tsr_str path =
        inside ? tsr_arena_format(w->arena, err, "%s%sconfig.json", w->destination, slash && !slash[1] ? "" : "/")
               : tsr_arena_format(w->arena, err, "%.*sconfig.json", folder, w->destination);
    return path.data;
}

/* A config.json that is there stays: it may be of another model. */
static tsr_status check_place(cli_writing *w, cli_config_copy *copy, tsr_error *err)
{
    struct stat info;
    tsr_str there;
    if (lstat(copy->path, &info) != 0) return TSR_OK;
    tsr_error ignored = {0};
    const bool same = S_ISREG(info.st_mode) && (uint64_t)info.st_size == copy->text.size &&
                      tsr_path_load(copy->path, cli_host(w->program), w->arena, &there, &ignored) == TSR_OK &&
                      tsr_str_equal(there, copy->text);
    if (same) copy->text = TSR_STR("");
    if (same) return TSR_OK;
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                     "--config: '%s' already exists and is not what would be written; remove it, or choose another "
                     "destination",
                     copy->path);
}

tsr_status cli_config_plan(cli_writing *w, cli_config_copy *copy, tsr_error *err)
{
    tsr_bytes from;
    *copy = (cli_config_copy){.text = TSR_STR("")};
    if (!w->options->config) return TSR_OK;
    if (tsr_is_url(w->destination))
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--config cannot write to '%s'; write to a local directory",
                         w->destination);
    tsr_status status = tsr_config_load(cli_source_checkpoint(&w->source), &from, err);
    if (status != TSR_OK) return status;
    if (from.data.size) status = make_text(w, from.data, &copy->text, err);
    else status = tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "--config: there is no config.json with the checkpoint");
    tsr_bytes_free(&from);
    if (status == TSR_OK && !(copy->path = find_place(w, err))) status = TSR_E_NOMEM;
    return status == TSR_OK ? check_place(w, copy, err) : status;
}

tsr_status cli_config_write(cli_writing *w, const cli_config_copy *copy, tsr_error *err)
{
    cli_out_file out;
    if (!copy->text.size || w->options->dry_run || !cli_speaks(w->program)) return TSR_OK;
    tsr_status status = cli_out_open(w->program, copy->path, &w->source, &out, err);
    if (status != TSR_OK) return status;
    if (fwrite(copy->text.data, 1, copy->text.size, out.to) != copy->text.size)
        status = tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot write '%s'", copy->path);
    status = cli_out_close(&out, status, err);
    if (status == TSR_OK && !w->options->quiet)
        cli_note(w->program, "wrote %s%s", copy->path, w->options->dequantize ? " without quantization_config" : "");
    return status;
}
