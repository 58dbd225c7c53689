/* Writing a checkpoint. Order: decide and refuse, write under temporary names, check that the source did not change,
 * publish. */
#include "cli/writing.h"

#include "tessera/folder.h"

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
    tsr_dtype dtype = w->options->dtype ? tsr_dtype_from_name(tsr_str_from(w->options->dtype)) : TSR_DTYPE_NONE;
    if (w->options->dtype && dtype == TSR_DTYPE_NONE) {
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                         "there is no dtype '%s'; float32, bfloat16, float16, float8_e4m3fn, …", w->options->dtype);
    }
    *out = (tsr_convert_options){
        .to = w->to,
        .objects = (tsr_objects)w->options->objects,
        .want = want,
        .want_ctx = w,
        .rename = w->rename_count ? rename_entry : NULL,
        .rename_ctx = w,
        .dtype = dtype,
        .max_shard_size = w->max_shard_size,
        .max_memory = (size_t)w->options->max_memory,
        .ignore_crc = w->options->ignore_crc,
        .dry_run = w->options->dry_run,
        .progress = progress,
    };
    return TSR_OK;
}

const char *const cli_containers[] = {"safetensors", "torch", "dcp"};
const char *const cli_objects[] = {"", "keep", "drop", "sidecar", "refuse"};

/* ---- destination ---- */

static tsr_status add_obsolete(cli_writing *w, tsr_str name, tsr_error *err)
{
    tsr_str *item = tsr_vec_push(&w->obsolete, err);
    tsr_str copy = tsr_arena_str(w->arena, name, err);
    if (!item || !copy.data) return TSR_E_NOMEM;
    *item = copy;
    return TSR_OK;
}

/* The files of the checkpoint that DEST holds now: its data files and its marker. A folder that holds none has none. */
static tsr_status list_obsolete(cli_writing *w, tsr_error *err)
{
    tsr_error ignored = {0};
    cli_session old;
    w->obsolete = tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_str));
    if (!w->is_folder || !w->options->overwrite || w->options->dry_run) return TSR_OK;
    if (cli_open(w->program, w->destination, &(tsr_open_options){.skip_objects = true}, &old, &ignored) != TSR_OK)
        return TSR_OK;
    tsr_status status = TSR_OK;
    for (uint32_t f = 0; f < old.store->file_count && status == TSR_OK; f++) {
        tsr_str name = old.store->files[f].name;
        bool is_marker = tsr_str_equal(name, TSR_STR(".metadata")) || tsr_str_ends(name, TSR_STR(".index.json"));
        bool is_data = tsr_str_ends(name, TSR_STR(".distcp")) || tsr_str_ends(name, TSR_STR(".safetensors")) ||
                       (tsr_str_starts(name, TSR_STR("rank")) && tsr_str_ends(name, TSR_STR(".pt"))) ||
                       (tsr_str_starts(name, TSR_STR("objects")) && tsr_str_ends(name, TSR_STR(".json")));
        if ((is_marker || is_data) && !memchr(name.data, '/', name.size)) status = add_obsolete(w, name, err);
    }
    cli_close(&old);
    return status;
}

/* In the folder, or beside the one file. */
tsr_status cli_write_sidecar(cli_writing *w, bool again, tsr_error *err)
{
    tsr_str text = w->conversion.sidecar;
    tsr_output *to = w->output;
    tsr_str name =
        to && to->generation ? tsr_arena_format(w->arena, err, "objects-g%u.json", to->generation) : TSR_STR("objects.json");
    uint32_t file;
    if (text.size == 0 || w->options->dry_run) return TSR_OK;
    if (!w->is_folder) {
        tsr_str path = tsr_arena_format(w->arena, err, "%s.objects.json", w->destination);
        const tsr_folder_output_options options = {.overwrite = w->options->overwrite || again, .tag = w->tag};
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
    if (status == TSR_OK && w->options->dry_run) return cli_agree(w->program, decide(w, &options, err), err);
    if (status == TSR_OK) status = list_obsolete(w, err);
    status = cli_agree(w->program, status, err);
    return status == TSR_OK ? cli_carry_out(w, &options, err) : status;
}

tsr_status cli_write(cli_writing *w, tsr_error *err)
{
    cli_progress progress;
    double start = cli_seconds();
    cli_progress_start(&progress, w->program, w->what);
    tsr_status status = write_all(w, &progress.base, err);
    cli_progress_end(&progress);
    w->seconds = cli_seconds() - start;
    return status == TSR_OK && cli_speaks(w->program) ? cli_report_writing(w, err) : status;
}

void cli_writing_close(cli_writing *w)
{
    if (w->output) w->output->close(w->output);
    if (w->sidecar) w->sidecar->close(w->sidecar);
    tsr_work_free(w->work);
    tsr_journal_close(w->journal);
    tsr_journals_close(&w->journals);
    tsr_vec_free(&w->obsolete);
}
