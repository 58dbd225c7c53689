/* A job whose destination is in an object store. There are no journals: uploads are not visible before they are published, and a
 * failed run removes its own. One that resumes produces all bytes again, but sends only those that are missing.
 *
 *   decide what is replaced → open the output → do all units, file by file → finish → publish
 *
 * If there are several ranks, each uploads the files of its own share. The first decides, writes what surrounds the tensors,
 * and creates the marker.
 *
 * Shares may run on machines that have nothing but the bucket in common:
 *
 *   a share   does the units of its files, and what surrounds them; uploads all of it, but completes nothing; leaves a note
 *   the end   takes over what the notes describe; does what is left (TSR_JOB_FINISH: refuses it); publishes; removes the notes
 *
 * A note is the object .tessera-TAG-2-of-8 below the destination. It holds the records of its units (tessera/sys/work.h)
 * and the text of tsr_object_output_hand_over. TAG is derived from the plan, the source and the options. While a
 * checkpoint is replaced, .tessera-TAG-replacing lists the files of the old one, which the next run needs if this one is
 * killed. */
#include <inttypes.h>
#include <stdio.h>

#include "publish/job_state.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

void tsr_job_warn_of_other_parts(const tsr_job_environment *environment, const tsr_output *output, const char *destination)
{
    tsr_str first;
    char more[48] = "";
    const size_t count = tsr_object_output_other_parts(output, &first);
    if (!count) return;
    if (count > 1) snprintf(more, sizeof more, " and %zu more", count - 1);
    tsr_job_warn(
        environment,
        "'%s' has unfinished shares of another plan ('%.*s'%s); they are kept; --discard-parts of exec, convert or reshard removes them",
        destination, TSR_STR_ARG(first), more);
}

/* ---- what was found ---- */

/* Chooses the common beginning of the names of the notes. Parts must find each other's, so it is derived from the job's
 * text. */
static tsr_status choose_notes(job_state *s, tsr_error *err)
{
    tsr_str text;
    TSR_TRY(tsr_job_describe(s, &text, err));
    tsr_journal_tag(text, s->tag);
    s->notes = tsr_arena_format(s->job->arena, err, ".tessera-%s-", s->tag);
    return s->notes.data ? TSR_OK : TSR_E_NOMEM;
}

/* Sets s->replacement to what a killed run of this plan was replacing, and *found to whether there was one. All files that do
 * not belong to the old checkpoint then count as kept. */
static tsr_status find_replacement(job_state *s, bool *found, tsr_error *err)
{
    tsr_object_replacing was;
    const tsr_status status =
        tsr_object_replacing_read(s->job->host, s->job->destination, s->notes, s->job->arena, &was, err);
    *found = status == TSR_OK && was.is_found;
    if (!*found) return status;
    tsr_kept *kept = tsr_arena_array(s->job->arena, was.other_count + 1, sizeof *kept, err);
    tsr_str *obsolete = tsr_arena_array(s->job->arena, was.obsolete_count + was.other_count + 1, sizeof *obsolete, err);
    if (!kept || !obsolete) return TSR_E_NOMEM;
    for (size_t i = 0; i < was.other_count; i++) kept[i] = (tsr_kept){.name = was.others[i], .is_file = true};
    for (size_t i = 0; i < was.obsolete_count; i++) obsolete[i] = was.obsolete[i];
    s->replacement = (tsr_replacement){.exists = true,
                                       .swap = was.is_unlike,
                                       .obsolete = obsolete,
                                       .obsolete_count = was.obsolete_count,
                                       .marker_count = was.marker_count,
                                       .generation = was.generation,
                                       .kept = kept,
                                       .kept_count = was.other_count};
    return TSR_OK;
}

/* Leaves out of the kept files those that belong to the new checkpoint. To be called once s->work is made. */
static tsr_status keep_others(job_state *s, tsr_error *err)
{
    tsr_replacement *r = &s->replacement;
    const tsr_str *names;
    size_t count, kept = 0;
    tsr_status status = tsr_job_list_files(s, &names, &count, err);
    tsr_map *of_new = status == TSR_OK ? tsr_map_new(s->job->host->allocator, count, err) : NULL;
    if (!of_new) return status == TSR_OK ? TSR_E_NOMEM : status;
    for (size_t n = 0; n < count && status == TSR_OK; n++)
        status = tsr_map_put(of_new, names[n], (uint32_t)n, NULL, NULL, err);
    for (size_t i = 0; status == TSR_OK && i < r->kept_count; i++)
        if (tsr_map_get(of_new, r->kept[i].name, UINT32_MAX) == UINT32_MAX) r->kept[kept++] = r->kept[i];
    if (status == TSR_OK) r->kept_count = kept;
    tsr_map_free(of_new);
    return status;
}

/* ---- a share ---- */

/* An output that ignores writes to files of other processes. */
typedef struct part_output {
    tsr_output base; /* must be first */
    tsr_output *inner;
    bool *written; /* of a share: the files that it has written units of */
    uint32_t count, created;
    bool surrounds; /* of a share: what is written into other files is not ignored now */
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

static tsr_status open_part(job_state *s, tsr_error *err)
{
    part_output *o = tsr_arena_array(s->job->arena, 1, sizeof *o, err);
    if (!o) return TSR_E_NOMEM;
    *o = (part_output){.base = {.create = create, .write_at = write_at, .sync = sync, .generation = s->output->generation},
                       .inner = s->output};
    s->taken = o;
    return TSR_OK;
}

static tsr_status make_note(job_state *s, const part_output *o, tsr_vec *note, tsr_error *err)
{
    tsr_vec records = tsr_vec_of(note->allocator, 1);
    tsr_status status = tsr_work_records(s->work, &records, err);
    if (status == TSR_OK)
        status =
            tsr_object_output_hand_over(s->output, o->written, o->count, (tsr_str){records.items, records.count}, note, err);
    tsr_vec_free(&records);
    return status;
}

static tsr_status leave_note(job_state *s, const part_output *o, tsr_error *err)
{
    char name[64];
    tsr_vec note = tsr_vec_of(s->job->host->allocator, 1);
    snprintf(name, sizeof name, "%" PRIu64 "-of-%" PRIu64, s->share, s->shares);
    tsr_status status = make_note(s, o, &note, err);
    if (status == TSR_OK) status = s->job->unchanged(s->job->ctx, err);
    if (status == TSR_OK)
        status = tsr_object_output_put_note(s->output, tsr_str_from(name), (tsr_str){note.items, note.count}, err);
    if (status == TSR_OK) tsr_object_output_keep_uploads(s->output);
    tsr_vec_free(&note);
    return status;
}

/* Does the units of a share. The share's output is new, so its files have the numbers 0, 1, …. */
static tsr_status do_share(job_state *s, tsr_error *err)
{
    part_output *o = s->taken;
    o->count = tsr_work_conversion(s->work)->file_count;
    o->written = tsr_arena_array(s->job->arena, (size_t)o->count + 1, sizeof *o->written, err);
    if (!o->written) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < o->count; f++) o->written[f] = false;
    tsr_status status = tsr_work_open(s->work, &o->base, err);
    o->count = o->created;
    if (status == TSR_OK) status = tsr_work_run_files(s->work, s->share - 1, s->shares, err);
    o->surrounds = true;
    if (status == TSR_OK) status = tsr_work_surround(s->work, err);
    s->job->conversion = *tsr_work_conversion(s->work);
    return status == TSR_OK ? leave_note(s, o, err) : status;
}

/* ---- all that is left ---- */

typedef struct note_taker {
    job_state *state;
    uint64_t shares;   /* the largest number of shares in any note */
    bool is_published; /* by a run that was killed while it removed the notes */
    tsr_vec done;      /* of uint64_t pairs: share, shares */
} note_taker;

static tsr_status take_text(job_state *s, tsr_str text, tsr_error *err)
{
    tsr_str records;
    const tsr_status status = tsr_object_output_take_over(s->output, text, &records, err);
    return status == TSR_OK ? tsr_work_take(s->work, records, NULL, err) : status;
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
    if (done[1] > t->shares) t->shares = done[1];
    const tsr_status status = take_text(t->state, text, err);
    if (status != TSR_OK) tsr_error_context(err, "share %" PRIu64 " of %" PRIu64, done[0], done[1]);
    return status;
}

static bool is_done(const note_taker *t, uint64_t share)
{
    const uint64_t *done = t->done.items;
    for (size_t i = 0; i < t->done.count; i++)
        if (done[2 * i] == share && done[2 * i + 1] == t->shares) return true;
    return false;
}

static bool is_missing(const void *ctx, uint64_t share)
{
    return !is_done(ctx, share);
}

static tsr_status end_published(job_state *s, tsr_error *err)
{
    tsr_job_warn(&s->job->environment, "'%s' is already complete", s->job->destination);
    tsr_object_output_keep_uploads(s->output);
    s->job->published = true;
    return tsr_object_output_remove_notes(s->output, err);
}

/* Does what is left, or refuses it with TSR_JOB_FINISH. */
static tsr_status complete(job_state *s, const note_taker *t, tsr_error *err)
{
    const uint64_t left = tsr_work_left(s->work, 0, 1);
    s->job->units_found = tsr_work_units(s->work) - left;
    if (s->finish && left) return tsr_job_refuse_missing(s, t->shares ? t->shares : 1, is_missing, t, err);
    return tsr_work_run_files(s->work, 0, 1, err);
}

/* Does what no share has done. Sets job->published if a run was killed after it had published everything. */
static tsr_status do_rest(job_state *s, tsr_error *err)
{
    note_taker t = {.state = s, .done = tsr_vec_of(s->job->host->allocator, 2 * sizeof(uint64_t))};
    tsr_status status = tsr_work_open(s->work, &s->taken->base, err);
    if (status == TSR_OK) status = tsr_object_output_notes(s->output, take_note, &t, err);
    if (status == TSR_OK) status = t.is_published ? end_published(s, err) : complete(s, &t, err);
    tsr_vec_free(&t.done);
    return status;
}

/* ---- opening ---- */

static tsr_status refuse_sidecar(const job_state *s, tsr_error *err)
{
    if (s->job->is_directory || !tsr_work_conversion(s->work)->sidecar.size) return TSR_OK;
    return tsr_fail(
        tsr_naming(err), TSR_E_UNSUPPORTED,
        "cannot write '%s': a file of objects next to a single object is not supported; pass --max-shard-size, or --objects drop",
        s->job->destination);
}

static tsr_status open_output(job_state *s, tsr_error *err)
{
    const tsr_replacement *r = &s->replacement;
    const tsr_str single = TSR_STR("");
    const tsr_str *names = &single;
    size_t count = 1;
    tsr_status status = s->job->is_directory ? tsr_job_list_files(s, &names, &count, err) : TSR_OK;
    const tsr_object_output_options options = {.is_directory = s->job->is_directory,
                                               .overwrite = s->job->replaces,
                                               .generation = s->generation,
                                               .obsolete = r->obsolete,
                                               .obsolete_count = r->obsolete_count,
                                               .marker_count = r->marker_count,
                                               .is_unlike = r->swap,
                                               .resume = s->job->resumes,
                                               .names = names,
                                               .name_count = count,
                                               .notes = s->notes,
                                               .takes_over = s->is_shared && !s->share,
                                               .discard_parts = s->job->discards_parts};
    if (status == TSR_OK) status = tsr_object_output_open(s->job->host, s->job->destination, &options, &s->output, err);
    if (status == TSR_OK && s->is_first) tsr_job_warn_of_other_parts(&s->job->environment, s->output, s->job->destination);
    return status;
}

/* If a killed --finish was replacing a checkpoint, what it was replacing must be taken from its record: the files that are
 * there now do not show it. */
static tsr_status decide(job_state *s, bool *continues, tsr_error *err)
{
    const tsr_status status = s->is_shared && s->job->replaces ? find_replacement(s, continues, err) : TSR_OK;
    return status == TSR_OK && !*continues ? tsr_job_decide(s, NULL, 0, err) : status;
}

static tsr_status open_all(job_state *s, tsr_error *err)
{
    const bool first = s->is_first;
    bool continues = false;
    tsr_status status = tsr_urls_refuse_overlap(s->job->sources, s->job->source_count, s->job->destination, err);
    if (status == TSR_OK && s->is_shared) status = choose_notes(s, err);
    if (status == TSR_OK && first) status = decide(s, &continues, err);
    if (first) s->generation = s->replacement.generation;
    if (status == TSR_OK) status = tsr_job_plan(s, err);
    if (status == TSR_OK) status = refuse_sidecar(s, err);
    if (status == TSR_OK && continues) status = keep_others(s, err);
    if (status == TSR_OK && first) status = tsr_job_check_names(s, err);
    return status == TSR_OK ? open_output(s, err) : status;
}

/* Opens the output on rank 0 first, which refuses an existing destination. */
static tsr_status open_on_ranks(job_state *s, tsr_error *err)
{
    tsr_comm *ranks = s->ranks;
    char sum[TSR_JOURNAL_TAG_SIZE + 1];
    tsr_str text = TSR_STR("");
    tsr_status status = tsr_job_agree(s, tsr_job_describe(s, &text, err), err);
    if (status != TSR_OK) return status;
    tsr_journal_tag(text, sum);
    status = tsr_comm_same(ranks, tsr_str_from(sum), "the source as the ranks see it", err);
    if (status == TSR_OK) status = tsr_job_agree(s, ranks->rank == 0 ? open_all(s, err) : TSR_OK, err);
    if (status == TSR_OK) status = ranks->broadcast(ranks, &s->generation, sizeof s->generation, 0, err);
    if (status == TSR_OK) status = tsr_job_agree(s, ranks->rank == 0 ? TSR_OK : open_all(s, err), err);
    if (status != TSR_OK) return status;
    tsr_ranked_output_open(s->output, ranks, s->job->host->allocator, &s->ranked);
    return tsr_job_agree(s, tsr_work_open(s->work, &s->ranked.base, err), err);
}

static tsr_remains remove_unfinished(void *ctx)
{
    const job_state *s = ctx;
    if (s->output && !tsr_object_output_abandon(s->output)) return TSR_REMAINS_UNKNOWN;
    return s->job->resumes || s->is_shared ? TSR_REMAINS_WORK : TSR_REMAINS_NOTHING;
}

static bool is_on_ranks(const job_state *s)
{
    return !s->is_shared && s->ranks && s->ranks->size > 1;
}

static tsr_status begin(job_state *s, tsr_error *err)
{
    tsr_error why = {0};
    const tsr_status status = s->job->resumes ? tsr_job_find_completed(s, &why, err) : TSR_OK;
    s->options.unit_bytes = UINT64_MAX; /* do not divide units: files are written from front to back, one after the other */
    return status;
}

static tsr_status open_destination(job_state *s, tsr_error *err)
{
    if (is_on_ranks(s)) tsr_job_guard(&s->job->environment, remove_unfinished, s);
    if (is_on_ranks(s)) return open_on_ranks(s, err);
    TSR_TRY(open_all(s, err));
    tsr_job_guard(&s->job->environment, remove_unfinished, s);
    return s->is_shared ? open_part(s, err) : tsr_work_open(s->work, s->output, err);
}

/* ---- the units ---- */

static tsr_status do_on_ranks(job_state *s, tsr_error *err)
{
    const tsr_comm *ranks = s->ranks;
    tsr_status status = tsr_job_agree(s, tsr_work_run_files(s->work, ranks->rank, ranks->size, err), err);
    if (status == TSR_OK) status = tsr_job_agree(s, tsr_job_exchange_records(s, err), err);
    return status == TSR_OK ? tsr_ranked_output_divide(&s->ranked, err) : status;
}

static tsr_status do_units(job_state *s, tsr_error *err)
{
    if (s->is_shared) return s->share ? do_share(s, err) : do_rest(s, err);
    return is_on_ranks(s) ? do_on_ranks(s, err) : tsr_work_run(s->work, 0, 1, NULL, err);
}

/* ---- the end ---- */

/* Sends what surrounds the units to the ranks that upload the files it belongs to, and publishes. */
static tsr_status publish_on_ranks(job_state *s, tsr_error *err)
{
    tsr_status status = TSR_OK;
    if (s->is_first) {
        s->job->conversion = *tsr_work_conversion(s->work);
        status = tsr_job_write_sidecar(s, err);
        if (status == TSR_OK) status = tsr_work_finish(s->work, err);
    }
    status = tsr_ranked_output_hand_out(&s->ranked, status, err);
    s->job->conversion = *tsr_work_conversion(s->work);
    if (status == TSR_OK) status = tsr_job_agree(s, s->job->unchanged(s->job->ctx, err), err);
    if (status == TSR_OK) status = tsr_ranked_output_publish(&s->ranked, s->job->conversion.marker, err);
    s->job->published = status == TSR_OK;
    return s->job->published ? tsr_ranked_output_resumed(&s->ranked, &s->job->resumed, err) : status;
}

/* Writes what surrounds the units, all of which must be done, and publishes. */
static tsr_status publish_all(job_state *s, tsr_error *err)
{
    if (is_on_ranks(s)) return publish_on_ranks(s, err);
    s->job->conversion = *tsr_work_conversion(s->work);
    tsr_status status = tsr_job_write_sidecar(s, err); /* must precede the marker */
    if (status == TSR_OK) status = tsr_work_finish(s->work, err);
    s->job->conversion = *tsr_work_conversion(s->work);
    if (status == TSR_OK) status = s->job->unchanged(s->job->ctx, err);
    if (status == TSR_OK) status = s->output->publish(s->output, s->job->conversion.marker, err);
    s->job->published = status == TSR_OK;
    if (s->job->published) s->job->resumed = tsr_object_output_resumed(s->output);
    return status;
}

static void end(job_state *s, tsr_status status)
{
    (void)status; /* closing an output removes what it has not published */
    tsr_job_hold(&s->job->environment);
    if (s->output) s->output->close(s->output);
    s->output = NULL;
    tsr_job_release(&s->job->environment);
    tsr_job_unguard(&s->job->environment);
    tsr_ranked_output_free(&s->ranked);
}

const job_backend tsr_job_objects = {begin, open_destination, do_units, publish_all, end};
