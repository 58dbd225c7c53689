/* Writing a checkpoint. Order: decide and refuse, write under temporary names, check that the source did not change,
 * publish. */
#include "cli/writing/writing.h"

#include <unistd.h>

#include "cli/program/target_options.h"
#include "io/clock.h"
#include "tessera/sys/folder.h"

#define MOST_KEPT_NAMED 100u

/* ---- options ---- */

static bool want(void *ctx, tsr_str fqn)
{
    return cli_selects(&((const cli_writing *)ctx)->options->selection, fqn);
}

static tsr_status rename_entry(void *ctx, tsr_str fqn, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const cli_writing *w = ctx;
    return tsr_rename_apply(w->renames, w->rename_count, fqn, arena, out, err);
}

static tsr_status make_options(cli_writing *w, const tsr_progress *progress, tsr_convert_options *out, tsr_error *err)
{
    tsr_dtype dtype;
    const tsr_status status = tsr_cast_parse(tsr_str_from(w->options->dtype), w->options->raw_cast, &dtype, err);
    if (status != TSR_OK) return status;
    *out = (tsr_convert_options){
        .to = w->to,
        .objects = (tsr_objects)w->options->objects,
        .want = want,
        .want_ctx = w,
        .rename = w->rename_count ? rename_entry : NULL,
        .rename_ctx = w,
        .dtype = dtype,
        .raw_cast = w->options->raw_cast,
        .max_shard_size = w->max_shard_size,
        .per_part = w->per_part,
        .max_memory = (size_t)w->options->max_memory,
        .shards = w->shards,
        .world_size = w->world_size,
        .ignore_crc = w->options->ignore_crc,
        .dry_run = w->options->dry_run,
        .progress = progress,
    };
    return TSR_OK;
}

const char *const cli_containers[] = {"safetensors", "torch", "dcp", "megatron-dist", "deepspeed-universal", "ranks"};
const char *const cli_objects[] = {"", "keep", "drop", "sidecar", "refuse"};

/* ---- destination ---- */

static tsr_status list_inputs(const cli_writing *w, tsr_inputs *inputs, tsr_error *err)
{
    tsr_status status = tsr_inputs_add(inputs, w->source.store, cli_source_checkpoint(&w->source), err);
    for (size_t i = 0; i < sizeof w->documents / sizeof *w->documents && status == TSR_OK; i++)
        status = tsr_inputs_add_path(inputs, w->documents[i], err);
    return status;
}

/* A warning that the document repeats. */
static tsr_status note(cli_writing *w, tsr_str text, tsr_error *err)
{
    tsr_str *item = text.data ? tsr_vec_push(&w->warnings, err) : NULL;
    if (!item) return TSR_E_NOMEM;
    *item = text;
    cli_warn(w->program, "%.*s", TSR_STR_ARG(text));
    return TSR_OK;
}

tsr_status cli_note_kept(cli_writing *w, tsr_error *err)
{
    const tsr_replacement *r = &w->replacement;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < r->kept_count && i < MOST_KEPT_NAMED && status == TSR_OK; i++)
        status = note(w, tsr_arena_format(w->arena, err, "'%.*s' in '%s' is not listed by the replaced checkpoint; it stays",
                                          TSR_STR_ARG(r->kept[i].name), w->destination), err);
    if (status == TSR_OK && r->kept_count > MOST_KEPT_NAMED)
        status = note(w, tsr_arena_format(w->arena, err, "%zu more files in '%s' stay", r->kept_count - MOST_KEPT_NAMED,
                                          w->destination), err);
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
                                             .inputs = &inputs,
                                             .written = written,
                                             .written_count = count};
    tsr_status status = w->options->overwrite ? list_inputs(w, &inputs, err) : TSR_OK;
    if (status == TSR_OK) status = tsr_replacement_decide(&request, w->arena, &w->replacement, err);
    tsr_inputs_free(&inputs);
    return status;
}

/* Beside one file: only a sidecar is ever replaced by a sidecar. */
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

tsr_status cli_check_names(cli_writing *w, tsr_error *err)
{
    const tsr_conversion *c = tsr_work_conversion(w->work);
    tsr_status status = TSR_OK;
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

/* In the folder, or beside the one file. */
tsr_status cli_write_sidecar(cli_writing *w, tsr_error *err)
{
    tsr_str text = w->conversion.sidecar;
    tsr_output *to = w->output;
    tsr_str name = cli_sidecar_name(w);
    uint32_t file;
    if (text.size == 0 || w->options->dry_run) return TSR_OK;
    if (!w->is_folder) {
        tsr_str path = tsr_arena_format(w->arena, err, "%s.objects.json", w->destination);
        const tsr_folder_output_options options = {.overwrite = w->options->overwrite, .tag = w->tag, .join = w->joins};
        if (!path.data) return TSR_E_NOMEM;
        tsr_status status =
            tsr_folder_output_open(NULL, cli_host(w->program)->allocator, path.data, &options, &w->sidecar, err);
        if (status != TSR_OK) return status;
        to = w->sidecar;
        name = TSR_STR("");
    }
    if (!name.data) return TSR_E_NOMEM;
    tsr_status status = to->create(to, name, text.size, &file, err);
    return status == TSR_OK ? to->write_at(to, file, 0, text.data, text.size, err) : status;
}

/* Decides everything, for a look. */
static tsr_status decide(cli_writing *w, const tsr_convert_options *options, tsr_error *err)
{
    if (w->plan) return tsr_reshard(w->source.checkpoint, w->plan, NULL, options, w->arena, &w->conversion, err);
    return tsr_convert(w->source.checkpoint, NULL, options, w->arena, &w->conversion, err);
}

static tsr_status write_all(cli_writing *w, const tsr_progress *progress, tsr_error *err)
{
    tsr_convert_options options;
    tsr_status status = make_options(w, progress, &options, err);
    if (status == TSR_OK && w->options->dry_run) {
        status = decide(w, &options, err);
        if (status == TSR_OK && cli_speaks(w->program)) status = cli_decide_replacement(w, NULL, 0, err);
        if (status == TSR_OK && cli_speaks(w->program)) status = cli_note_kept(w, err);
        return cli_agree(w->program, status, err);
    }
    status = cli_agree(w->program, status, err);
    return status == TSR_OK ? cli_carry_out(w, &options, err) : status;
}

tsr_status cli_write(cli_writing *w, tsr_error *err)
{
    cli_progress progress;
    double start = tsr_seconds();
    w->warnings = tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_str));
    cli_allow_expansion(w->program, w->options->allow_expansion);
    cli_progress_start(&progress, w->program, w->what);
    tsr_status status = write_all(w, &progress.base, err);
    cli_progress_end(&progress);
    w->seconds = tsr_seconds() - start;
    return status == TSR_OK && cli_speaks(w->program) ? cli_report_writing(w, err) : status;
}

void cli_writing_close(cli_writing *w)
{
    if (w->output) w->output->close(w->output);
    if (w->sidecar) w->sidecar->close(w->sidecar);
    tsr_work_free(w->work);
    tsr_journal_close(w->journal);
    tsr_journals_close(&w->journals);
    tsr_vec_free(&w->warnings);
}
