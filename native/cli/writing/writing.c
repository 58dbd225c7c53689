/* Writes a checkpoint in this order: decide what is replaced, refuse what cannot be done, write under temporary names, check
 * that the source did not change, publish. */
#include "cli/writing/writing.h"

#include <unistd.h>

#include "cli/program/map_options.h"
#include "cli/program/shards_option.h"
#include "cli/program/target_options.h"
#include "cli/writing/writing_parts.h"
#include "io/clock.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path_store.h"

/* ---- source ---- */

/* Opens PATH with the layers that the options ask for. */
static tsr_status open_source(cli_writing *w, const char *path, tsr_error *err)
{
    const tsr_open_options used = {
        .selects = tsr_globs_select, .selects_ctx = &w->options->selection, .salvage = w->salvages};
    const cli_map_options map = {.options = w->options, .lists = w->options->dry_run};
    return cli_open_mapped(w->program, path, &used, &map, &w->source, err);
}

tsr_status cli_open_conversion(cli_writing *w, const char *path, tsr_error *err)
{
    tsr_convert_options ranks;
    tsr_status status = cli_choose_container(w, w->options->to, w->options->max_shard_size, err);
    w->program->writes_ranks = w->to == TSR_TO_RANKS;
    if (status == TSR_OK) status = open_source(w, path, err);
    if (status == TSR_OK && w->to == TSR_TO_RANKS) status = cli_read_shards(w->program, &w->shards, err);
    ranks = (tsr_convert_options){.to = w->to};
    if (status == TSR_OK) status = tsr_conversion_ranks(w->options, w->shards, w->source.checkpoint, &ranks, err);
    w->world_size = ranks.world_size;
    if (status == TSR_OK) cli_choose_parts(w);
    return status;
}

tsr_status cli_open_reshard(cli_writing *w, const char *path, const tsr_target *target, tsr_plan **plan, tsr_error *err)
{
    tsr_status status = open_source(w, path, err);
    if (status != TSR_OK) return status;
    w->to = w->options->to ? (tsr_container)(w->options->to - 1) : tsr_container_for(w->source.catalog->format);
    w->is_folder = true;
    w->marker = tsr_marker_of(w->to);
    const tsr_plan_options options = {.want = tsr_globs_want, .want_ctx = (void *)(uintptr_t)&w->options->selection};
    status = tsr_plan_for_texts(w->source.catalog, &(tsr_planning){&w->job.target, target, &options}, cli_host(w->program),
                                w->arena, plan, err);
    w->plan = *plan;
    return status;
}

/* ---- options ---- */

static tsr_status make_options(cli_writing *w, const tsr_progress *progress, tsr_convert_options *out, tsr_error *err)
{
    const bool has_storage = w->plan && w->job.storage.servers;
    tsr_status status = tsr_conversion_options(w->options, w->to, w->arena, out, err);
    if (status == TSR_OK && has_storage)
        status = tsr_storage_of(&w->job.storage, w->source.catalog->store, cli_host(w->program), w->arena, &w->storage, err);
    out->max_shard_size = w->max_shard_size;
    out->per_part = w->per_part;
    out->shards = w->shards;
    out->world_size = w->world_size;
    out->progress = progress;
    out->plan = w->plan;
    out->storage = has_storage ? &w->storage : NULL;
    out->file_name = w->file_name;
    return status;
}

/* A plan's names were checked when the plan was made; all that can still be wrong is that it has none. */
static tsr_status check_names(cli_writing *w, tsr_error *err)
{
    tsr_name_choice choice;
    tsr_status status =
        tsr_choice_of(w->source.catalog, w->options, w->plan ? &w->job.target : NULL, w->arena, &choice, err);
    if (status == TSR_OK) status = tsr_name_choice_check(&choice, w->arena, err);
    return status == TSR_OK && !w->is_exec ? cli_warn_name_choice(w->program, &choice, w->arena, &w->warnings, err) : status;
}

/* For --dry-run and --against: plans the whole conversion before the destination is touched. */
static tsr_status decide(cli_writing *w, const tsr_convert_options *options, tsr_error *err)
{
    tsr_convert_options look = *options;
    if (!w->options->dry_run && !w->against) return TSR_OK;
    look.dry_run = true;
    const tsr_status status = tsr_convert(w->source.checkpoint, NULL, &look, w->arena, &w->conversion, err);
    return status == TSR_OK && w->against ? cli_check_against(w, err) : status;
}

/* For --dry-run: refuses the destination where the run itself would. */
static tsr_status check_destination(cli_writing *w, tsr_error *err)
{
    if (!cli_speaks(w->program)) return TSR_OK;
    tsr_status status = cli_decide_replacement(w, NULL, 0, err);
    const tsr_folder_output_options options = {.is_folder = w->is_folder,
                                               .overwrite = w->options->overwrite,
                                               .swap = w->replacement.swap,
                                               .sources = w->sources.items,
                                               .source_count = w->sources.count};
    if (status == TSR_OK && !tsr_is_url(w->destination))
        status = tsr_folder_output_check(cli_host(w->program)->allocator, w->destination, &options, err);
    return status == TSR_OK ? cli_note_kept(w, err) : status;
}

static tsr_status dry_run(cli_writing *w, const tsr_convert_options *options, tsr_error *err)
{
    tsr_error why = {0};
    const tsr_conversion planned = w->conversion;
    const tsr_status status = w->options->resume ? cli_find_completed(w, options, &why, err) : TSR_OK;
    if (status != TSR_OK || w->is_complete) return status;
    w->conversion = planned;
    return cli_agree(w->program, check_destination(w, err), err);
}

static tsr_status write_all(cli_writing *w, const tsr_progress *progress, tsr_error *err)
{
    tsr_convert_options options;
    tsr_status status = cli_list_sources(w->program, w->source.path, &w->source, w->arena, &w->sources, err);
    if (status == TSR_OK) status = check_names(w, err);
    if (status == TSR_OK) status = make_options(w, progress, &options, err);
    if (status == TSR_OK) status = decide(w, &options, err);
    status = cli_agree(w->program, status, err);
    if (status == TSR_OK && w->options->dry_run) return dry_run(w, &options, err);
    if (status != TSR_OK) return status;
    if (tsr_is_object_url(w->destination)) return cli_agree(w->program, cli_carry_out_remote(w, &options, err), err);
    return cli_carry_out(w, &options, err);
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
