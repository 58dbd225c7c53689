/* Decides what happens to the destination's files: which stay, which are removed, and which names are free. Also writes the
 * sidecar of objects. */
#include "cli/writing/writing.h"

#include <unistd.h>

#include "publish/completed.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/try.h"

#define MOST_KEPT_NAMED 100u

static tsr_status list_inputs(const cli_writing *w, tsr_inputs *inputs, tsr_error *err)
{
    tsr_status status = tsr_inputs_add(inputs, w->source.store, cli_source_checkpoint(&w->source), err);
    for (size_t i = 0; i < w->source.other_count && status == TSR_OK; i++)
        status = tsr_inputs_add(inputs, w->source.others[i].store, cli_source_checkpoint(&w->source.others[i]), err);
    for (size_t i = 0; i < sizeof w->documents / sizeof *w->documents && status == TSR_OK; i++)
        status = tsr_inputs_add_path(inputs, w->documents[i], err);
    return status;
}

/* Prints a warning, and keeps it for the document. */
static tsr_status note(cli_writing *w, tsr_str text, tsr_error *err)
{
    TSR_TRY(cli_keep_warning(w, text, err));
    cli_warn(w->program, "%.*s", TSR_STR_ARG(text));
    return TSR_OK;
}

tsr_status cli_note_kept(cli_writing *w, tsr_error *err)
{
    const tsr_replacement *r = &w->replacement;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < r->kept_count && i < MOST_KEPT_NAMED && status == TSR_OK; i++)
        status = note(w,
                      tsr_arena_format(w->arena, err, "'%.*s' in '%s' is not listed by the replaced checkpoint; it is kept",
                                       TSR_STR_ARG(r->kept[i].name), w->destination),
                      err);
    if (status == TSR_OK && r->kept_count > MOST_KEPT_NAMED)
        status = note(w,
                      tsr_arena_format(w->arena, err, "%zu more files in '%s' are kept", r->kept_count - MOST_KEPT_NAMED,
                                       w->destination),
                      err);
    return status;
}

tsr_status cli_decide_replacement(cli_writing *w, const tsr_str *written, size_t count, tsr_error *err)
{
    tsr_inputs inputs = tsr_inputs_of(&tsr_allocator_libc);
    const tsr_replacement_request request = {.host = cli_host(w->program),
                                             .path = w->destination,
                                             .is_folder = w->is_folder,
                                             .overwrite = w->options->overwrite,
                                             .marker = w->marker,
                                             .file_name = w->file_name,
                                             .inputs = &inputs,
                                             .written = written,
                                             .written_count = count};
    tsr_status status = w->options->overwrite ? list_inputs(w, &inputs, err) : TSR_OK;
    if (status == TSR_OK) status = tsr_replacement_decide(&request, w->arena, &w->replacement, err);
    if (status == TSR_OK) status = tsr_replacement_check_readers(&request, &w->replacement, err);
    tsr_inputs_free(&inputs);
    return status;
}

/* For a single file: a sidecar may replace only another sidecar. */
static tsr_status check_sidecar_file(cli_writing *w, tsr_error *err)
{
    const tsr_str path = tsr_arena_format(w->arena, err, "%s.objects.json", w->destination);
    if (!path.data) return TSR_E_NOMEM;
    if (access(path.data, F_OK) != 0 || (w->options->overwrite && tsr_is_sidecar(path.data))) return TSR_OK;
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                     w->options->overwrite ? "'%s' exists and was not written by a conversion; move it away"
                                           : "'%s' exists; --overwrite replaces it",
                     path.data);
}

static tsr_status check_name(const cli_writing *w, tsr_str name, tsr_error *err)
{
    return tsr_replacement_check_name(&w->replacement, w->destination, name, err);
}

/* For a single file: warns if transformers would load another file of its directory. Both may belong to one model, so it is
 * written. */
static tsr_status note_preferred_file(cli_writing *w, tsr_error *err)
{
    static const char *const preferred[] = {TSR_MODEL_FILE, TSR_INDEX_MARKER};
    const tsr_str dest = tsr_str_from(w->destination), name = TSR_STR(TSR_TORCH_FILE);
    const tsr_str folder = {dest.data, tsr_str_ends(dest, name) ? dest.size - name.size : 0};
    if (!tsr_str_ends(dest, name) || (folder.size && folder.data[folder.size - 1] != '/')) return TSR_OK;
    for (size_t i = 0; i < sizeof preferred / sizeof *preferred; i++) {
        const tsr_str path = tsr_arena_format(w->arena, err, "%.*s%s", TSR_STR_ARG(folder), preferred[i]);
        if (!path.data) return TSR_E_NOMEM;
        if (access(path.data, F_OK) != 0) continue;
        return note(w,
                    tsr_arena_format(w->arena, err,
                                     "transformers loads '%s' instead of the new '%.*s' in the same directory", preferred[i],
                                     TSR_STR_ARG(name)),
                    err);
    }
    return TSR_OK;
}

tsr_status cli_check_names(cli_writing *w, tsr_error *err)
{
    const tsr_conversion *c = tsr_work_conversion(w->work);
    tsr_status status = w->is_folder ? TSR_OK : note_preferred_file(w, err);
    if (status != TSR_OK) return status;
    if (!w->is_folder) return c->sidecar.size ? check_sidecar_file(w, err) : TSR_OK;
    if (c->sidecar.size)
        status = tsr_replacement_take_sidecar(&w->replacement, w->destination, cli_sidecar_name(w), w->arena, err);
    for (uint32_t f = 0; f < c->file_count && status == TSR_OK; f++) status = check_name(w, c->files[f], err);
    if (status == TSR_OK && w->marker) status = check_name(w, tsr_str_from(w->marker), err);
    if (status == TSR_OK && c->sidecar.size) status = check_name(w, cli_sidecar_name(w), err);
    return status == TSR_OK ? cli_note_kept(w, err) : status;
}

tsr_str cli_sidecar_name(const cli_writing *w)
{
    const uint32_t generation = w->generation;
    return generation ? tsr_arena_format(w->arena, NULL, "objects-g%u.json", (unsigned)generation) : TSR_STR("objects.json");
}

static tsr_status open_sidecar(cli_writing *w, const char *path, tsr_error *err)
{
    const tsr_folder_output_options options = {
        .overwrite = w->options->overwrite, .tag = w->tag, .join = w->joins, .parent = tsr_journals_parent(&w->journals)};
    if (!w->compares) return tsr_folder_output_open(NULL, cli_host(w->program)->allocator, path, &options, &w->sidecar, err);
    return tsr_completed_open(cli_host(w->program), path, &w->sidecar, err);
}

/* Writes the sidecar into the directory, or next to the single file. */
tsr_status cli_write_sidecar(cli_writing *w, tsr_error *err)
{
    tsr_str text = w->conversion.sidecar;
    tsr_output *to = w->output;
    tsr_str name = cli_sidecar_name(w);
    uint32_t file;
    if (text.size == 0 || w->options->dry_run) return TSR_OK;
    if (!w->is_folder) {
        tsr_str path = tsr_arena_format(w->arena, err, "%s.objects.json", w->destination);
        if (!path.data) return TSR_E_NOMEM;
        const tsr_status status = open_sidecar(w, path.data, err);
        if (status != TSR_OK) return status;
        to = w->sidecar;
        name = TSR_STR("");
    }
    if (!name.data) return TSR_E_NOMEM;
    tsr_status status = to->create(to, name, text.size, &file, err);
    return status == TSR_OK ? to->write_at(to, file, 0, text.data, text.size, err) : status;
}
