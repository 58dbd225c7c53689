/* The course of every writing command: the destination, the journals next to it, the units of work, the publication.
 *
 *   look for journals → decide what is replaced → begin the journal → open the output → take over what is done →
 *   do and record the rest → finish → publish
 *
 * If a run without --resume fails, it removes what it began. A killed run leaves it for --resume or the next run. */
#include <inttypes.h>

#include "cli/program/signals.h"
#include "cli/writing/writing_parts.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/folder.h"

enum { MOST_NAMED = 8 };

/* ---- opening ---- */

static tsr_status open_output(cli_writing *w, const cli_start *b, bool join, tsr_error *err)
{
    const tsr_folder_output_options options = {
        .is_folder = w->is_folder,
        .overwrite = w->options->overwrite,
        .absent = w->is_folder && w->options->overwrite && cli_speaks(w->program) && !w->replacement.exists,
        .tag = w->tag,
        .join = join,
        /* Rank 0 has created all files. If they are missing, it is removing them, and they must not be created again. */
        .whole = join && !b->publishing && ((w->is_exec && b->has_records) || !cli_speaks(w->program)),
        .sums = true,
        .keep = true,
        .publishing = b->publishing,
        .chosen = true,
        .swap = w->replacement.swap,
        .generation = b->generation,
        .holes = tsr_folder_store_has_holes(w->source.store),
        .sources = w->sources.items,
        .source_count = w->sources.count,
        .obsolete = w->replacement.obsolete,
        .obsolete_count = w->replacement.obsolete_count,
        .parent = tsr_journals_parent(&w->journals),
    };
    return tsr_folder_output_open(NULL, cli_host(w->program)->allocator, w->destination, &options, &w->output, err);
}

/* This process's share of the work. */
static tsr_journal_share own_share(const cli_writing *w)
{
    const tsr_comm *ranks = w->program->ranks;
    if (ranks) return (tsr_journal_share){(uint64_t)ranks->rank + 1, ranks->size, true};
    return w->parts ? (tsr_journal_share){w->part, w->parts, false} : (tsr_journal_share){1, 1, false};
}

/* Lists the files that the job creates, to distinguish them from files of others if the run is killed. */
tsr_status cli_list_files(cli_writing *w, const tsr_str **files, size_t *count, tsr_error *err)
{
    const tsr_conversion *c = tsr_work_conversion(w->work);
    const char *beside = tsr_beside_marker(w->marker);
    tsr_str *list = tsr_arena_array(w->arena, (size_t)c->file_count + 3, sizeof *list, err);
    if (!list) return TSR_E_NOMEM;
    *count = 0;
    for (uint32_t f = 0; f < c->file_count; f++)
        if (c->files[f].size) list[(*count)++] = c->files[f];
    if (beside) list[(*count)++] = tsr_str_from(beside);
    if (w->marker) list[(*count)++] = tsr_str_from(w->marker);
    if (c->sidecar.size) list[(*count)++] = cli_sidecar_name(w);
    *files = list;
    return *count && !list[*count - 1].data ? TSR_E_NOMEM : TSR_OK;
}

static tsr_status begin_journal(cli_writing *w, const cli_start *b, tsr_error *err)
{
    tsr_journal_files files;
    tsr_str text;
    tsr_status status = cli_list_files(w, &files.names, &files.count, err);
    if (status == TSR_OK) status = tsr_journal_text(w->arena, b->text, b->generation, files, &text, err);
    if (status != TSR_OK) return status;
    return tsr_journal_begin(&w->journals, w->tag, own_share(w), text, &w->journal, err);
}

/* Marks what this part and others have already done. */
static tsr_status take_records(cli_writing *w, tsr_error *err)
{
    tsr_status status = cli_take_steps(w, false, err);
    if (status == TSR_OK) status = cli_take_steps(w, true, err);
    w->units_found = tsr_work_units(w->work) - tsr_work_left(w->work, 0, 1);
    return status;
}

/* If files with tensors stay, only an index can distinguish the new shards from them, and every generation after the first
 * has one. */
static tsr_status choose_generation(const cli_writing *w, cli_start *b, tsr_error *err)
{
    tsr_status status = tsr_folder_next_generation(NULL, w->destination, &b->generation, err);
    if (b->generation == 0 && w->replacement.has_stray) b->generation = 1;
    return status;
}

static tsr_status open_files(cli_writing *w, const cli_start *b, bool join, tsr_error *err)
{
    w->joins = join;
    tsr_status status = open_output(w, b, join, err);
    if (status == TSR_OK) status = tsr_work_open(w->work, w->output, err);
    if (status == TSR_OK) tsr_folder_output_has_all(w->output);
    return status;
}

/* The files of a run that shares them with nobody are new. But parts of a plan may begin at the same time. Existing files
 * then belong to the job if there is also a journal of another part, because a part creates its journal before its files. */
static tsr_status open_files_safely(cli_writing *w, const cli_start *b, tsr_error *err)
{
    bool others = b->resumed;
    tsr_status status = w->is_exec && !others ? cli_finds_others(w, b, &others, err) : TSR_OK;
    if (status == TSR_OK) status = open_files(w, b, others, err);
    if (status != TSR_E_EXISTS || others || !w->is_exec) return status;
    tsr_error ignored = {0};
    const bool shared = cli_finds_others(w, b, &others, &ignored) == TSR_OK && others;
    /* Removes what was created just now; the files that are in the way are not ours. */
    if (w->output && !shared) tsr_folder_output_drop(w->output);
    if (w->output) w->output->close(w->output);
    w->output = NULL;
    if (!shared) return status;
    *err = (tsr_error){0};
    return open_files(w, b, true, err);
}

static tsr_status plan_work(cli_writing *w, const cli_start *b, const tsr_convert_options *options, tsr_error *err)
{
    w->generation = b->generation;
    return tsr_work_new(w->source.checkpoint, options, b->generation, w->arena, &w->work, err);
}

/* Keeps other jobs from replacing the destination. A part that does not publish need not do that, and parts run at the same
 * time. */
static tsr_status hold_destination(cli_writing *w, tsr_error *err)
{
    if (!w->options->overwrite || (w->part && !w->finish)) return TSR_OK;
    return tsr_journals_hold(&w->journals, err);
}

/* Begins the journal before the output, because an output without a journal belongs to nobody. */
static tsr_status open_all(cli_writing *w, cli_start *b, const tsr_convert_options *options, tsr_error *err)
{
    tsr_status status = hold_destination(w, err);
    if (status == TSR_OK) status = cli_decide_replacement(w, b->written, b->written_count, err);
    if (status == TSR_OK && !b->resumed && w->is_folder && w->options->overwrite) status = choose_generation(w, b, err);
    if (status == TSR_OK) status = plan_work(w, b, options, err);
    if (status == TSR_OK) status = cli_check_names(w, err);
    if (status == TSR_OK) status = begin_journal(w, b, err);
    if (status == TSR_OK) status = open_files_safely(w, b, err);
    /* The records were written when the files were complete. If the files are not complete now, the records no longer
     * count. */
    if (status == TSR_OK && b->has_records && !tsr_folder_output_continues(w->output)) {
        status = tsr_journals_remove(&w->journals, w->tag, tsr_journal_name(w->journal), err);
        if (status == TSR_OK) status = tsr_journal_cut(w->journal, 0, err);
    }
    return status == TSR_OK ? take_records(w, err) : status;
}

/* ---- several ranks ---- */

/* Tells the other ranks what rank 0 has found and decided. */
static tsr_status share_start(cli_writing *w, cli_start *b, tsr_error *err)
{
    tsr_comm *ranks = w->program->ranks;
    uint32_t told[] = {b->generation, b->resumed, b->publishing, w->replacement.swap};
    char sum[TSR_JOURNAL_TAG_SIZE + 1];
    if (!ranks) return TSR_OK;
    tsr_journal_tag(b->text, sum);
    tsr_status status = tsr_comm_same(ranks, tsr_str_from(sum), "the source as the ranks see it", err);
    if (status == TSR_OK) status = ranks->broadcast(ranks, told, sizeof told, 0, err);
    if (status == TSR_OK) status = ranks->broadcast(ranks, w->tag, sizeof w->tag, 0, err);
    b->generation = told[0];
    b->resumed = told[1];
    b->publishing = told[2];
    w->replacement.swap = told[3];
    return status;
}

/* Called when a signal ends the program. Keeps what --resume and the parts of a plan need. */
static bool remove_unfinished(void *ctx)
{
    const cli_writing *w = ctx;
    tsr_error ignored = {0};
    if (w->options->resume || w->is_exec) return true;
    tsr_sys_stop_naming();
    tsr_journals_discard(&w->journals, w->tag, &ignored);
    return false;
}

/* When a signal ends rank 0, it removes all journals, and looks for further ones when its own is gone. A rank that creates a
 * journal after that sees that rank 0 has none. */
static tsr_status begin_behind_rank_0(cli_writing *w, const cli_start *b, tsr_error *err)
{
    tsr_leftover *found;
    size_t count;
    tsr_status status = begin_journal(w, b, err);
    if (status == TSR_OK) status = tsr_journals_list(&w->journals, w->arena, &found, &count, err);
    for (size_t i = 0; i < count && status == TSR_OK; i++)
        if (cli_is_own(w, &found[i]) && found[i].part == 1) return TSR_OK;
    if (status != TSR_OK) return status;
    w->journals.sys->unlink(w->journals.sys, w->journals.folder, tsr_journal_name(w->journal), false);
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "rank 0 exited while the other ranks were opening '%s'",
                     w->destination);
}

/* The launcher ends the other ranks together with rank 0. A rank that has not yet seen that rank 0 is gone removes its
 * journal, too. */
static tsr_status begin_journal_beside_rank_0(cli_writing *w, const cli_start *b, tsr_error *err)
{
    cli_cleanup cleanup = {.remove = remove_unfinished, .ctx = w};
    cli_cleanup_add(&cleanup);
    const tsr_status status = begin_behind_rank_0(w, b, err);
    cli_cleanup_drop(&cleanup);
    return status;
}

/* Opens the files that rank 0 has created, and takes over what is done. */
static tsr_status join_rank_0(cli_writing *w, cli_start *b, const tsr_convert_options *options, tsr_error *err)
{
    tsr_status status = plan_work(w, b, options, err);
    if (status == TSR_OK) status = begin_journal_beside_rank_0(w, b, err);
    if (status == TSR_OK) status = open_files(w, b, true, err);
    return status == TSR_OK ? take_records(w, err) : status;
}

static tsr_status open_on_ranks(cli_writing *w, cli_start *b, const tsr_convert_options *options, tsr_error *err)
{
    const bool first = cli_speaks(w->program);
    tsr_status status = cli_agree(w->program, first ? open_all(w, b, options, err) : TSR_OK, err);
    if (status == TSR_OK) status = share_start(w, b, err);
    return status == TSR_OK ? cli_agree(w->program, first ? TSR_OK : join_rank_0(w, b, options, err), err) : status;
}

/* ---- work ---- */

static tsr_status append(void *ctx, tsr_str records, tsr_error *err)
{
    return cli_append_step(ctx, records, err);
}

tsr_status cli_refuse_missing(const cli_writing *w, uint64_t parts, bool (*is_missing)(const void *ctx, uint64_t part),
                              const void *ctx, tsr_error *err)
{
    tsr_str names = TSR_STR("");
    uint64_t missing = 0;
    for (uint64_t p = 1; p <= parts; p++) {
        if (!is_missing(ctx, p) || missing++ >= MOST_NAMED) continue;
        names = tsr_arena_format(w->arena, err, "%.*s%s%" PRIu64, TSR_STR_ARG(names), names.size ? ", " : "", p);
        if (!names.data) return TSR_E_NOMEM;
    }
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                     "cannot finish '%s': of %" PRIu64 " part%s, %.*s%s not done (%" PRIu64 " of %" PRIu64 " units)",
                     w->destination, parts, parts == 1 ? "" : "s", TSR_STR_ARG(names),
                     missing > MOST_NAMED ? " and more are"
                     : missing == 1       ? " is"
                                          : " are",
                     tsr_work_left(w->work, 0, 1), tsr_work_units(w->work));
}

typedef struct missing_units {
    const cli_writing *writing;
    uint64_t parts;
} missing_units;

static bool has_units_left(const void *ctx, uint64_t part)
{
    const missing_units *m = ctx;
    return tsr_work_left(m->writing->work, part - 1, m->parts) != 0;
}

/* Refuses to publish, listing the parts that are not done. The parts are those of the largest division that was begun. */
static tsr_status refuse_missing(const cli_writing *w, tsr_error *err)
{
    missing_units m = {w, 1};
    tsr_leftover *found;
    size_t count;
    const tsr_status status = tsr_journals_list(&w->journals, w->arena, &found, &count, err);
    if (status != TSR_OK) return status;
    for (size_t i = 0; i < count; i++) {
        if (cli_is_own(w, &found[i]) && found[i].parts > m.parts) m.parts = found[i].parts;
    }
    return cli_refuse_missing(w, m.parts, has_units_left, &m, err);
}

/* Records what publishing is about to do, so that an interrupted publication can be completed or undone. */
static tsr_status note_publishing(cli_writing *w, uint32_t marker, tsr_error *err)
{
    const bool durable = tsr_folder_output_replaces(w->output) || w->replacement.swap || w->sidecar;
    tsr_vec record = tsr_vec_of(cli_host(w->program)->allocator, 1);
    tsr_status status = tsr_folder_output_record(w->output, marker, w->sidecar, &record, err);
    if (status == TSR_OK)
        status = tsr_journals_publishing(&w->journals, w->tag, (tsr_str){record.items, record.count}, durable, err);
    tsr_vec_free(&record);
    return status;
}

static tsr_status give_names(cli_writing *w, tsr_error *err)
{
    const uint32_t marker = tsr_work_conversion(w->work)->marker;
    tsr_status status = note_publishing(w, marker, err);
    if (status == TSR_OK) status = w->output->publish(w->output, marker, err);
    w->published = status == TSR_OK;
    if (status == TSR_OK && w->sidecar) status = w->sidecar->publish(w->sidecar, 0, err);
    return status == TSR_OK ? tsr_journals_remove(&w->journals, w->tag, NULL, err) : status;
}

/* A signal waits for the renames. It does not wait for the disk, because the files were synced before. */
static tsr_status publish(cli_writing *w, tsr_error *err)
{
    tsr_status status = w->output->sync(w->output, err);
    if (status == TSR_OK && w->sidecar) status = w->sidecar->sync(w->sidecar, err);
    if (status != TSR_OK) return status;
    cli_signals_hold();
    status = give_names(w, err);
    cli_signals_release();
    return status;
}

/* Writes what surrounds the units. All units must be done. */
static tsr_status finish(cli_writing *w, tsr_error *err)
{
    if (tsr_work_left(w->work, 0, 1)) return refuse_missing(w, err);
    tsr_status status = tsr_work_finish(w->work, err);
    w->conversion = *tsr_work_conversion(w->work);
    /* Whether files contain data that this process did not write, or wrote in an earlier run. */
    const bool believes = w->units_found || w->part || w->finish;
    if (status == TSR_OK && believes && !w->options->no_verify) status = cli_verify_written(w, err);
    return status == TSR_OK ? cli_write_sidecar(w, err) : status;
}

static tsr_status do_units(cli_writing *w, tsr_error *err)
{
    const tsr_journal_share own = own_share(w);
    const bool first = cli_speaks(w->program);
    const tsr_work_journal journal = {append, w, first && !w->part};
    const bool runs = !w->finish || w->part;
    tsr_status status = TSR_OK;
    if (runs) status = tsr_work_run(w->work, own.part - 1, own.parts, &journal, err);
    status = cli_agree(w->program, status, err);
    if (status != TSR_OK || (w->part && !w->finish)) return status;
    status = w->part ? cli_take_steps(w, true, err) : cli_exchange_records(w, err);
    if (status == TSR_OK && first) status = finish(w, err);
    if (status == TSR_OK) status = cli_unchanged(&w->source, err);
    status = cli_agree(w->program, status, err);
    return status == TSR_OK ? cli_agree(w->program, first ? publish(w, err) : TSR_OK, err) : status;
}

/* Whether the previous run was interrupted after its output got the destination's name; its leftovers are then removed. If
 * the record was lost in a power failure, the publication was a single rename: there is no temporary output any more, but
 * there is a destination. */
static bool was_published(const cli_writing *w, const cli_start *b)
{
    struct stat info;
    if (!b->note_lost) return b->publishing && b->complete;
    return !b->has_output && w->journals.sys->stat_at(w->journals.sys, w->journals.folder, w->journals.name, &info) == 0;
}

/* After a failure: removes what nobody can continue. */
static void clean_up(cli_writing *w)
{
    tsr_error ignored = {0};
    const bool stays = w->options->resume || w->is_exec;
    if (!stays && cli_speaks(w->program)) tsr_journals_discard(&w->journals, w->tag, &ignored);
    else if (stays && !w->output && tsr_journal_is_empty(w->journal))
        w->journals.sys->unlink(w->journals.sys, w->journals.folder, tsr_journal_name(w->journal), false);
}

/* Whether an earlier run has written DEST completely. Journals can only give a hint: the contents of DEST decide. */
static tsr_status find_completed(cli_writing *w, cli_start *b, const tsr_convert_options *options, tsr_error *err)
{
    tsr_error why = {0};
    tsr_comm *ranks = w->program->ranks;
    const bool published = (w->options->resume || w->is_exec) && was_published(w, b);
    const bool continues = b->publishing || (b->resumed && w->options->overwrite);
    bool looks = published || (w->options->resume && !continues);
    tsr_status status = ranks ? ranks->broadcast(ranks, &looks, sizeof looks, 0, err) : TSR_OK;
    if (status == TSR_OK && looks) status = cli_find_completed(w, options, &why, err);
    if (status != TSR_OK || w->is_complete || !looks) return status;
    if (published && cli_speaks(w->program)) status = cli_start_over(w, b, err);
    if (status == TSR_OK && why.status != TSR_OK && !w->options->overwrite)
        status = tsr_raise(err, why.status, TSR_NO_POSITION, "%s", why.message);
    return cli_agree(w->program, status, err);
}

/* Determines what is left to do, as rank 0 sees it. */
static tsr_status begin(cli_writing *w, cli_start *b, const tsr_convert_options *options, tsr_error *err)
{
    tsr_status status = cli_agree(w->program, cli_look_around(w, b, err), err);
    if (status == TSR_OK) status = find_completed(w, b, options, err);
    if (status != TSR_OK || w->is_complete) return status;
    status = cli_agree(w->program, cli_speaks(w->program) ? cli_clear_around(w, b, err) : TSR_OK, err);
    if (status != TSR_OK) return status;
    /* A share continues what there is of it in any case. */
    if (w->options->resume && !b->resumed && !w->part)
        cli_warn(w->program, "nothing to resume for '%s'; starting over", w->destination);
    return share_start(w, b, err);
}

tsr_status cli_carry_out(cli_writing *w, const tsr_convert_options *options, tsr_error *err)
{
    cli_start b = {0};
    cli_cleanup cleanup = {.remove = remove_unfinished, .ctx = w};
    tsr_status status = begin(w, &b, options, err);
    if (status != TSR_OK) return status;
    if (w->is_complete) return cli_speaks(w->program) ? cli_clear_completed(w, &b, err) : TSR_OK;
    if (cli_speaks(w->program)) cli_cleanup_add(&cleanup);
    status = open_on_ranks(w, &b, options, err);
    if (status == TSR_OK) status = do_units(w, err);
    if (w->work) w->conversion = *tsr_work_conversion(w->work);
    if (status != TSR_OK && w->journal) clean_up(w);
    cli_cleanup_drop(&cleanup);
    return status;
}
