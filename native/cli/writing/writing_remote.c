/* Carries out a writing command whose destination is in an object store. There are no journals: uploads are not visible
 * before they are published, and a failed run removes its own. --resume produces all bytes again, but sends only those that
 * are missing.
 *
 *   decide what is replaced → open the output → do all units, file by file → finish → publish
 *
 * If there are several ranks, each uploads the files of its own share. Rank 0 decides, writes what surrounds the tensors,
 * and creates the marker. Parts of a plan, which may run on machines that share nothing but the bucket, are in
 * writing_remote_parts.c. */
#include "cli/program/signals.h"
#include "cli/writing/ranked_output.h"
#include "cli/writing/resumed.h"
#include "cli/writing/writing_parts.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/object_output.h"

static tsr_status refuse_sidecar(const cli_writing *w, tsr_error *err)
{
    if (w->is_folder || !tsr_work_conversion(w->work)->sidecar.size) return TSR_OK;
    return tsr_raise(
        err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
        "cannot write '%s': a file of objects next to a single object is not supported; pass --max-shard-size, or --objects drop",
        w->destination);
}

static tsr_status open_output(cli_writing *w, tsr_error *err)
{
    const tsr_replacement *r = &w->replacement;
    const tsr_str single = TSR_STR("");
    const tsr_str *names = &single;
    size_t count = 1;
    tsr_status status = w->is_folder ? cli_list_files(w, &names, &count, err) : TSR_OK;
    const tsr_object_output_options options = {.is_folder = w->is_folder,
                                               .overwrite = w->options->overwrite,
                                               .generation = w->generation,
                                               .obsolete = r->obsolete,
                                               .obsolete_count = r->obsolete_count,
                                               .marker_count = r->marker_count,
                                               .is_unlike = r->swap,
                                               .resume = w->options->resume,
                                               .names = names,
                                               .name_count = count,
                                               .notes = w->notes,
                                               .takes_over = w->is_exec && !w->part,
                                               .discard_parts = w->options->discard_parts};
    if (status == TSR_OK) status = tsr_object_output_open(cli_host(w->program), w->destination, &options, &w->output, err);
    if (status == TSR_OK && cli_speaks(w->program)) cli_note_other_parts(w->program, w->output, w->destination);
    return status;
}

/* If a killed --finish was replacing a checkpoint, what it was replacing must be taken from its record: the files that are
 * there now do not show it. */
static tsr_status decide(cli_writing *w, bool *continues, tsr_error *err)
{
    const tsr_status status = w->is_exec && w->options->overwrite ? cli_find_replacement(w, continues, err) : TSR_OK;
    return status == TSR_OK && !*continues ? cli_decide_replacement(w, NULL, 0, err) : status;
}

static tsr_status open_all(cli_writing *w, const tsr_convert_options *options, tsr_error *err)
{
    const bool first = cli_speaks(w->program);
    bool continues = false;
    tsr_status status = cli_refuse_overlap(w->sources, w->destination, err);
    if (status == TSR_OK && w->is_exec) status = cli_choose_notes(w, err);
    if (status == TSR_OK && first) status = decide(w, &continues, err);
    if (first) w->generation = w->replacement.generation;
    if (status == TSR_OK) status = tsr_work_new(w->source.checkpoint, options, w->generation, w->arena, &w->work, err);
    if (status == TSR_OK) status = refuse_sidecar(w, err);
    if (status == TSR_OK && continues) status = cli_keep_others(w, err);
    if (status == TSR_OK && first) status = cli_check_names(w, err);
    return status == TSR_OK ? open_output(w, err) : status;
}

/* Opens the output on rank 0 first, which refuses an existing destination. */
static tsr_status open_on_ranks(cli_writing *w, const tsr_convert_options *options, cli_ranked_output *output,
                                tsr_error *err)
{
    tsr_comm *ranks = w->program->ranks;
    char sum[TSR_JOURNAL_TAG_SIZE + 1];
    tsr_str text = TSR_STR("");
    tsr_status status = cli_agree(w->program, cli_describe_work(w, &text, err), err);
    if (status != TSR_OK) return status;
    tsr_journal_tag(text, sum);
    status = tsr_comm_same(ranks, tsr_str_from(sum), "the source as the ranks see it", err);
    if (status == TSR_OK) status = cli_agree(w->program, ranks->rank == 0 ? open_all(w, options, err) : TSR_OK, err);
    if (status == TSR_OK) status = ranks->broadcast(ranks, &w->generation, sizeof w->generation, 0, err);
    if (status == TSR_OK) status = cli_agree(w->program, ranks->rank == 0 ? TSR_OK : open_all(w, options, err), err);
    if (status != TSR_OK) return status;
    cli_ranked_output_open(w->output, ranks, cli_host(w->program)->allocator, output);
    return cli_agree(w->program, tsr_work_open(w->work, &output->base, err), err);
}

static bool remove_unfinished(void *ctx)
{
    const cli_writing *w = ctx;
    if (w->output) tsr_object_output_abandon(w->output);
    return w->options->resume || w->is_exec;
}

static tsr_status write_all(cli_writing *w, tsr_error *err)
{
    tsr_status status = tsr_work_open(w->work, w->output, err);
    if (status == TSR_OK) status = tsr_work_run(w->work, 0, 1, NULL, err);
    return status == TSR_OK ? cli_publish_remote(w, err) : status;
}

/* Sends what surrounds the units to the ranks that upload the files it belongs to. */
static tsr_status finish_on_ranks(cli_writing *w, cli_ranked_output *output, tsr_error *err)
{
    tsr_status status = TSR_OK;
    if (w->program->ranks->rank == 0) {
        w->conversion = *tsr_work_conversion(w->work);
        status = cli_write_sidecar(w, err);
        if (status == TSR_OK) status = tsr_work_finish(w->work, err);
    }
    status = cli_ranked_output_hand_out(output, status, err);
    w->conversion = *tsr_work_conversion(w->work);
    return status == TSR_OK ? cli_agree(w->program, cli_unchanged(&w->source, err), err) : status;
}

static tsr_status write_on_ranks(cli_writing *w, cli_ranked_output *output, tsr_error *err)
{
    const tsr_comm *ranks = w->program->ranks;
    tsr_status status = cli_agree(w->program, tsr_work_run_files(w->work, ranks->rank, ranks->size, err), err);
    if (status == TSR_OK) status = cli_agree(w->program, cli_exchange_records(w, err), err);
    if (status == TSR_OK) status = cli_ranked_output_divide(output, err);
    if (status == TSR_OK) status = finish_on_ranks(w, output, err);
    if (status == TSR_OK) status = cli_ranked_output_publish(output, w->conversion.marker, err);
    w->published = status == TSR_OK;
    return w->published ? cli_ranked_output_resumed(output, &w->resumed, err) : status;
}

/* Also called if opening failed. */
static void close_output(cli_writing *w, cli_cleanup *cleanup)
{
    cli_signals_hold();
    if (w->output) w->output->close(w->output);
    w->output = NULL;
    cli_signals_release();
    cli_cleanup_drop(cleanup);
}

static tsr_status carry_out_on_ranks(cli_writing *w, const tsr_convert_options *options, tsr_error *err)
{
    cli_cleanup cleanup = {.remove = remove_unfinished, .ctx = w};
    cli_ranked_output output = {0};
    cli_cleanup_add(&cleanup);
    tsr_status status = open_on_ranks(w, options, &output, err);
    if (status == TSR_OK) status = write_on_ranks(w, &output, err);
    close_output(w, &cleanup);
    cli_ranked_output_free(&output);
    return status;
}

static tsr_status carry_out_alone(cli_writing *w, const tsr_convert_options *options,
                                  tsr_status (*write)(cli_writing *w, tsr_error *err), tsr_error *err)
{
    cli_cleanup cleanup = {.remove = remove_unfinished, .ctx = w};
    tsr_status status = open_all(w, options, err);
    if (status != TSR_OK) return status;
    cli_cleanup_add(&cleanup);
    status = write(w, err);
    close_output(w, &cleanup);
    return status;
}

/* Does a part and then, if requested, what follows all parts. */
static tsr_status carry_out_plan(cli_writing *w, const tsr_convert_options *options, tsr_error *err)
{
    const uint64_t part = w->part;
    tsr_status status = part ? carry_out_alone(w, options, cli_carry_out_remote_part, err) : TSR_OK;
    if (status != TSR_OK || (part && !w->finish)) return status;
    tsr_work_free(w->work);
    w->work = NULL;
    w->replacement = (tsr_replacement){0};
    w->part = 0; /* from here on, all parts are meant */
    status = carry_out_alone(w, options, cli_finish_remote_parts, err);
    w->part = part;
    return status;
}

tsr_status cli_carry_out_remote(cli_writing *w, const tsr_convert_options *given, tsr_error *err)
{
    tsr_convert_options options = *given;
    tsr_error why = {0};
    const tsr_status status = w->options->resume ? cli_find_completed(w, given, &why, err) : TSR_OK;
    if (status != TSR_OK || w->is_complete) return status;
    options.unit_bytes = UINT64_MAX; /* do not divide units: files are written from front to back, one after the other */
    if (w->is_exec) return carry_out_plan(w, &options, err);
    if (w->program->ranks && w->program->ranks->size > 1) return carry_out_on_ranks(w, &options, err);
    return carry_out_alone(w, &options, write_all, err);
}
