/* Carries out a writing command whose destination is in an object store. There are no journals: uploads are not visible
 * before they are published, and a failed run removes its own. --resume produces all bytes again, but sends only those that
 * are missing.
 *
 *   decide what is replaced → open the output → do all units, file by file → finish → publish
 *
 * If there are several ranks, each uploads the files of its own share. Rank 0 decides, writes what surrounds the tensors,
 * and creates the marker. Parts of a plan, which may run on machines that share nothing but the bucket, are in
 * writing_remote.c. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/program/signals.h"
#include "cli/writing/ranked_output.h"
#include "cli/writing/resumed.h"
#include "cli/writing/writing_parts.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/map.h"
#include "tessera/sys/object_output.h"

/* ---- remote end ---- */

/* The last steps of a writing command whose destination is in an object store, whichever process did the units. */

/* Writes what surrounds the units, all of which must be done, and publishes. */
static tsr_status cli_publish_remote(cli_writing *w, tsr_error *err)
{
    w->conversion = *tsr_work_conversion(w->work);
    tsr_status status = cli_write_sidecar(w, err); /* must precede the marker */
    if (status == TSR_OK) status = tsr_work_finish(w->work, err);
    w->conversion = *tsr_work_conversion(w->work);
    if (status == TSR_OK) status = cli_unchanged(&w->source, err);
    if (status == TSR_OK) status = w->output->publish(w->output, w->conversion.marker, err);
    w->published = status == TSR_OK;
    if (w->published) w->resumed = tsr_object_output_resumed(w->output);
    return status;
}

/* ---- remote parts ---- */

/* The parts of a plan whose destination is in an object store (exec --share, --finish).
 *
 *   part      does the units of its files, and what surrounds them; uploads all of it, but completes nothing; leaves a note
 *   the end   takes over what the notes describe; does what is left (--finish: refuses it); publishes; removes the notes
 *
 * A note is the object .tessera-TAG-2-of-8 below the destination. It holds the records of its units (tessera/sys/work.h)
 * and the text of tsr_object_output_hand_over. TAG is derived from the plan, the source and the options. While a
 * checkpoint is replaced, .tessera-TAG-replacing lists the files of the old one, which the next run needs if this one is
 * killed. */

/* An output that ignores writes to files of other processes. */
typedef struct part_output {
    tsr_output base; /* must be first */
    tsr_output *inner;
    bool *written; /* of a part: the files that it has written units of */
    uint32_t count, created;
    bool surrounds; /* of a part: what is written into other files is not ignored now */
} part_output;

static tsr_status create(tsr_output *base, tsr_str name, uint64_t size, uint32_t *file, tsr_error *err)
{
    part_output *o = (part_output *)base;
    const tsr_status status = o->inner->create(o->inner, name, size, file, err);
    if (status == TSR_OK) o->created++;
    return status;
}

static tsr_status write_at(tsr_output *base, uint32_t file, uint64_t offset, const void *data, size_t size, tsr_error *err)
{
    part_output *o = (part_output *)base;
    if (tsr_object_output_is_taken(o->inner, file)) return TSR_OK;
    if (o->written && file < o->count) {
        if (o->surrounds && !o->written[file]) return TSR_OK;
        __atomic_store_n(&o->written[file], true, __ATOMIC_RELAXED);
    }
    return o->inner->write_at(o->inner, file, offset, data, size, err);
}

static tsr_status sync(tsr_output *base, tsr_error *err)
{
    part_output *o = (part_output *)base;
    return o->inner->sync(o->inner, err);
}

static part_output open_part(const cli_writing *w)
{
    return (part_output){.base = {.create = create, .write_at = write_at, .sync = sync, .generation = w->output->generation},
                         .inner = w->output};
}

/* ---- what was found ---- */

/* Chooses the common beginning of the names of the notes. Parts must find each other's, so it is derived from the job's
 * text. */
static tsr_status cli_choose_notes(cli_writing *w, tsr_error *err)
{
    tsr_str text;
    const tsr_status status = cli_describe_work(w, &text, err);
    if (status != TSR_OK) return status;
    tsr_journal_tag(text, w->tag);
    w->notes = tsr_arena_format(w->arena, err, ".tessera-%s-", w->tag);
    return w->notes.data ? TSR_OK : TSR_E_NOMEM;
}

/* Sets w->replacement to what a killed run of this plan was replacing, and *found to whether there was one. All files that do
 * not belong to the old checkpoint then count as kept. */
static tsr_status cli_find_replacement(cli_writing *w, bool *found, tsr_error *err)
{
    tsr_object_replacing was;
    const tsr_status status = tsr_object_replacing_read(cli_host(w->program), w->destination, w->notes, w->arena, &was, err);
    *found = status == TSR_OK && was.is_found;
    if (!*found) return status;
    tsr_kept *kept = tsr_arena_array(w->arena, was.other_count + 1, sizeof *kept, err);
    tsr_str *obsolete = tsr_arena_array(w->arena, was.obsolete_count + was.other_count + 1, sizeof *obsolete, err);
    if (!kept || !obsolete) return TSR_E_NOMEM;
    for (size_t i = 0; i < was.other_count; i++) kept[i] = (tsr_kept){.name = was.others[i], .is_file = true};
    for (size_t i = 0; i < was.obsolete_count; i++) obsolete[i] = was.obsolete[i];
    w->replacement = (tsr_replacement){.exists = true,
                                       .swap = was.is_unlike,
                                       .obsolete = obsolete,
                                       .obsolete_count = was.obsolete_count,
                                       .marker_count = was.marker_count,
                                       .generation = was.generation,
                                       .kept = kept,
                                       .kept_count = was.other_count};
    return TSR_OK;
}

/* Leaves out of the kept files those that belong to the new checkpoint. To be called once w->work is made. */
static tsr_status cli_keep_others(cli_writing *w, tsr_error *err)
{
    tsr_replacement *r = &w->replacement;
    const tsr_str *names;
    size_t count, kept = 0;
    tsr_status status = cli_list_files(w, &names, &count, err);
    tsr_map *of_new = status == TSR_OK ? tsr_map_new(cli_host(w->program)->allocator, count, err) : NULL;
    if (!of_new) return status == TSR_OK ? TSR_E_NOMEM : status;
    for (size_t n = 0; n < count && status == TSR_OK; n++)
        status = tsr_map_put(of_new, names[n], (uint32_t)n, NULL, NULL, err);
    for (size_t i = 0; status == TSR_OK && i < r->kept_count; i++)
        if (tsr_map_get(of_new, r->kept[i].name, UINT32_MAX) == UINT32_MAX) r->kept[kept++] = r->kept[i];
    if (status == TSR_OK) r->kept_count = kept;
    tsr_map_free(of_new);
    return status;
}

/* ---- a part ---- */

/* Does the units of a part. The part's output is new, so its files have the numbers 0, 1, …. */
static tsr_status do_part(cli_writing *w, part_output *o, tsr_error *err)
{
    o->count = tsr_work_conversion(w->work)->file_count;
    o->written = tsr_arena_array(w->arena, (size_t)o->count + 1, sizeof *o->written, err);
    if (!o->written) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < o->count; f++) o->written[f] = false;
    tsr_status status = tsr_work_open(w->work, &o->base, err);
    o->count = o->created;
    if (status == TSR_OK) status = tsr_work_run_files(w->work, w->part - 1, w->parts, err);
    o->surrounds = true;
    return status == TSR_OK ? tsr_work_surround(w->work, err) : status;
}

static tsr_status make_note(cli_writing *w, const part_output *o, tsr_vec *note, tsr_error *err)
{
    tsr_vec records = tsr_vec_of(note->allocator, 1);
    tsr_status status = tsr_work_records(w->work, &records, err);
    if (status == TSR_OK)
        status =
            tsr_object_output_hand_over(w->output, o->written, o->count, (tsr_str){records.items, records.count}, note, err);
    tsr_vec_free(&records);
    return status;
}

static tsr_status leave_note(cli_writing *w, const part_output *o, tsr_error *err)
{
    char name[64];
    tsr_vec note = tsr_vec_of(cli_host(w->program)->allocator, 1);
    snprintf(name, sizeof name, "%" PRIu64 "-of-%" PRIu64, w->part, w->parts);
    tsr_status status = make_note(w, o, &note, err);
    if (status == TSR_OK) status = cli_unchanged(&w->source, err);
    if (status == TSR_OK)
        status = tsr_object_output_put_note(w->output, tsr_str_from(name), (tsr_str){note.items, note.count}, err);
    if (status == TSR_OK) tsr_object_output_keep_uploads(w->output);
    tsr_vec_free(&note);
    return status;
}

static tsr_status cli_carry_out_remote_part(cli_writing *w, tsr_error *err)
{
    part_output o = open_part(w);
    tsr_status status = do_part(w, &o, err);
    w->conversion = *tsr_work_conversion(w->work);
    return status == TSR_OK ? leave_note(w, &o, err) : status;
}

/* ---- the end ---- */

typedef struct note_taker {
    cli_writing *writing;
    uint64_t parts;    /* the largest number of parts in any note */
    bool is_published; /* by a run that was killed while it removed the notes */
    tsr_vec done;      /* of uint64_t pairs: part, parts */
} note_taker;

static tsr_status take_text(cli_writing *w, tsr_str text, tsr_error *err)
{
    tsr_str records;
    const tsr_status status = tsr_object_output_take_over(w->output, text, &records, err);
    return status == TSR_OK ? tsr_work_take(w->work, records, NULL, err) : status;
}

static tsr_status take_note(void *ctx, tsr_str name, tsr_str text, tsr_error *err)
{
    note_taker *t = ctx;
    if (t->is_published || tsr_str_equal(name, TSR_STR(TSR_NOTE_PUBLISHED))) {
        t->is_published = true;
        return TSR_OK;
    }
    uint64_t *done = tsr_vec_push(&t->done, err);
    if (!done) return TSR_E_NOMEM;
    char shown[64];
    snprintf(shown, sizeof shown, "%.*s", TSR_STR_ARG(name));
    if (sscanf(shown, "%" SCNu64 "-of-%" SCNu64, &done[0], &done[1]) != 2) done[0] = done[1] = 0;
    if (done[1] > t->parts) t->parts = done[1];
    const tsr_status status = take_text(t->writing, text, err);
    if (status != TSR_OK) tsr_error_context(err, "part %" PRIu64 " of %" PRIu64, done[0], done[1]);
    return status;
}

static bool is_done(const note_taker *t, uint64_t part)
{
    const uint64_t *done = t->done.items;
    for (size_t i = 0; i < t->done.count; i++)
        if (done[2 * i] == part && done[2 * i + 1] == t->parts) return true;
    return false;
}

static bool is_missing(const void *ctx, uint64_t part)
{
    return !is_done(ctx, part);
}

/* Does what is left, or refuses it with --finish; then publishes. */
static tsr_status complete(cli_writing *w, const note_taker *t, tsr_error *err)
{
    const uint64_t left = tsr_work_left(w->work, 0, 1);
    w->units_found = tsr_work_units(w->work) - left;
    if (w->finish && left) return cli_refuse_missing(w, t->parts ? t->parts : 1, is_missing, t, err);
    const tsr_status status = tsr_work_run_files(w->work, 0, 1, err);
    return status == TSR_OK ? cli_publish_remote(w, err) : status;
}

static tsr_status end_published(cli_writing *w, tsr_error *err)
{
    cli_warn(w->program, "'%s' is already complete", w->destination);
    tsr_object_output_keep_uploads(w->output);
    return tsr_object_output_remove_notes(w->output, err);
}

static tsr_status cli_finish_remote_parts(cli_writing *w, tsr_error *err)
{
    part_output o = open_part(w);
    note_taker t = {.writing = w, .done = tsr_vec_of(cli_host(w->program)->allocator, 2 * sizeof(uint64_t))};
    tsr_status status = tsr_work_open(w->work, &o.base, err);
    if (status == TSR_OK) status = tsr_object_output_notes(w->output, take_note, &t, err);
    if (status == TSR_OK) status = t.is_published ? end_published(w, err) : complete(w, &t, err);
    w->published = status == TSR_OK;
    tsr_vec_free(&t.done);
    return status;
}

/* ---- remote ---- */

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
