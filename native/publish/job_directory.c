/* A job whose destination is on this machine: the journals next to it, the units of work, the publication.
 *
 *   look for journals → decide what is replaced → begin the journal → open the output → take over what is done →
 *   do and record the rest → finish → publish
 *
 * Leftovers of the same job are continued; those of others are removed or left alone. If a run that does not resume fails, it
 * removes what it began. A killed run leaves it for the next one. */
#include <inttypes.h>
#include <string.h>

#include "publish/file_sums.h"
#include "publish/job_state.h"
#include "publish/record.h"
#include "publish/text.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/try.h"

/* ---- leftovers ---- */

static bool is_own(const job_state *s, const tsr_leftover *l)
{
    return strcmp(l->tag, s->tag) == 0;
}

/* The first line of `lines` that `others` do not have; data NULL if they have all. */
static tsr_str line_without_equal(tsr_str lines, tsr_str others)
{
    while (lines.size) {
        const tsr_str line = tsr_str_take(&lines, '\n');
        tsr_str rest = others;
        bool found = false;
        while (rest.size && !found) found = tsr_str_equal(tsr_str_take(&rest, '\n'), line);
        if (!found) return line;
    }
    return (tsr_str){NULL, 0};
}

/* The lines in the text of a journal that describe its job. */
static tsr_str job_of(tsr_str text)
{
    for (tsr_str rest = text; rest.size;) {
        const size_t before = text.size - rest.size;
        if (tsr_str_starts(tsr_str_take(&rest, '\n'), TSR_STR("generation "))) return (tsr_str){text.data, before};
    }
    return text;
}

/* Refuses to resume, quoting in what two runs differ. */
static tsr_status refuse_other(const job_state *s, tsr_str theirs, tsr_str ours, tsr_error *err)
{
    theirs = job_of(theirs);
    const tsr_str had = line_without_equal(theirs, ours), has = line_without_equal(ours, theirs);
    tsr_str differing = has.data ? has : had;
    if (had.data && has.data)
        differing = tsr_arena_format(s->job->arena, err, "%.*s' in place of '%.*s", TSR_STR_ARG(had), TSR_STR_ARG(has));
    if (!differing.data) return TSR_E_NOMEM;
    return tsr_fail(tsr_naming(err), TSR_E_CHANGED,
                    "cannot resume: the interrupted run for '%s' %s '%.*s'; run without --resume to start over",
                    s->job->destination, had.data ? "had" : "did not have", TSR_STR_ARG(differing));
}

/* Handles everything that was found under one other tag. */
static tsr_status clear_one(job_state *s, const tsr_leftover *l, const tsr_left_job *left, tsr_error *err)
{
    const uint64_t shares = left->shares;
    if (left->is_busy && shares && s->job->discards_parts)
        tsr_job_warn(&s->job->environment,
                     "shares of another plan for '%s' are being written by another process; they are kept",
                     s->job->destination);
    if (left->is_busy || !left->has_journal || (s->is_shared && !shares)) return TSR_OK;
    if (shares && !s->job->discards_parts) {
        tsr_job_warn(&s->job->environment,
                     "'%s' has an unfinished job of %" PRIu64
                     " shares of another plan; its files '.%s.tessera-%s…' are kept; "
                     "--discard-parts removes them",
                     s->job->destination, shares, s->journals.name, l->tag);
        return TSR_OK;
    }
    if (!shares && s->job->resumes && left->run && left->run->text.size && !s->start.resumed)
        return refuse_other(s, left->run->text, s->start.text, err);
    tsr_job_warn(&s->job->environment, "removing the remains of an interrupted run for '%s'", s->job->destination);
    return tsr_journals_discard(&s->journals, l->tag, err);
}

/* Removes runs of other jobs, unless a process is writing them or they can still be continued. They prevent --resume. */
static tsr_status clear_other(job_state *s, tsr_error *err)
{
    const bool clears = !s->is_shared || s->job->discards_parts;
    tsr_status status = TSR_OK;
    for (size_t i = 0, size; i < s->start.count && status == TSR_OK && clears; i += size) {
        const tsr_left_job left = tsr_journals_group(s->start.found + i, s->start.count - i);
        size = left.size;
        if (!is_own(s, &s->start.found[i])) status = clear_one(s, &s->start.found[i], &left, err);
    }
    return status;
}

static tsr_status clear_completed(job_state *s, tsr_error *err)
{
    tsr_status status = tsr_journals_discard(&s->journals, s->tag, err);
    for (size_t i = 0, end; i < s->start.count && status == TSR_OK; i = end) {
        bool only_record = true;
        for (end = i; end < s->start.count && strcmp(s->start.found[end].tag, s->start.found[i].tag) == 0; end++)
            only_record &= s->start.found[end].publishing && !s->start.found[end].busy;
        if (only_record) status = tsr_journals_discard(&s->journals, s->start.found[i].tag, err);
    }
    return status;
}

/* Looks for an earlier run of this job, to continue it under its tag. */
static bool finds_tag(job_state *s)
{
    uint32_t generation;
    for (size_t i = 0; i < s->start.count; i++) {
        const tsr_leftover *l = &s->start.found[i];
        if (!l->share || !tsr_journal_is_of(l->text, s->start.text, &generation)) continue;
        memcpy(s->tag, l->tag, sizeof s->tag);
        return true;
    }
    return false;
}

/* Parts of a plan may run anywhere and must find each other's files, so their tag is derived from the job. Other jobs get a
 * random tag. */
static tsr_status choose_tag(job_state *s, tsr_error *err)
{
    if (finds_tag(s)) return TSR_OK;
    if (!s->is_shared) return tsr_journal_new_tag(s->tag, err);
    tsr_journal_tag(s->start.text, s->tag);
    return TSR_OK;
}

static tsr_status note_record(job_state *s, tsr_str text, tsr_error *err)
{
    tsr_record record;
    s->start.publishing = true;
    s->start.note_lost = !tsr_record_parse(text, s->job->arena, &record);
    if (s->start.note_lost) return TSR_OK;
    s->start.complete = tsr_record_is_published(&record, &s->journals);
    return tsr_record_written(&record, &s->journals, s->job->arena, &s->start.written, &s->start.written_count, err);
}

static tsr_status note_own(job_state *s, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < s->start.count && status == TSR_OK; i++) {
        const tsr_leftover *l = &s->start.found[i];
        if (!is_own(s, l)) continue;
        if (l->publishing) status = note_record(s, l->text, err);
        else if (l->share) s->start.resumed |= tsr_journal_is_of(l->text, s->start.text, &s->start.generation);
        else s->start.has_output = true;
        s->start.has_records |= l->share && l->records.size;
    }
    return status;
}

static tsr_status refuse_busy(const job_state *s, tsr_error *err)
{
    for (size_t i = 0; i < s->start.count; i++) {
        const tsr_leftover *l = &s->start.found[i];
        const bool in_the_way = !s->shares || (l->share == s->share && l->shares == s->shares);
        if (!is_own(s, l) || !l->busy || !in_the_way) continue;
        return tsr_fail(tsr_naming(err), TSR_E_EXISTS, "another process is writing share %" PRIu64 " of %" PRIu64 " of '%s'",
                        l->share, l->shares, s->job->destination);
    }
    return TSR_OK;
}

static tsr_status start_over(job_state *s, tsr_error *err)
{
    tsr_status status = tsr_journals_discard(&s->journals, s->tag, err);
    s->start = (job_start){.text = s->start.text};
    return status == TSR_OK ? tsr_journal_new_tag(s->tag, err) : status;
}

static tsr_status look_around(job_state *s, tsr_error *err)
{
    tsr_status status = tsr_job_describe(s, &s->start.text, err);
    if (status == TSR_OK) status = tsr_journals_open(NULL, s->job->host->allocator, s->job->destination, &s->journals, err);
    if (status != TSR_OK || !s->is_first) return status; /* rank 0 does it for all ranks */
    status = tsr_journals_list(&s->journals, s->job->arena, &s->start.found, &s->start.count, err);
    if (status == TSR_OK) status = choose_tag(s, err);
    if (status == TSR_OK) status = note_own(s, err);
    return status == TSR_OK ? refuse_busy(s, err) : status;
}

static tsr_status clear_around(job_state *s, tsr_error *err)
{
    const tsr_status status = clear_other(s, err);
    if (status != TSR_OK || s->is_shared || s->job->resumes || !(s->start.resumed || s->start.publishing)) return status;
    tsr_job_warn(&s->job->environment, "starting '%s' over; --resume would have continued the interrupted run",
                 s->job->destination);
    return start_over(s, err);
}

static tsr_status finds_others(job_state *s, bool *found, tsr_error *err)
{
    tsr_leftover *list;
    size_t count;
    uint32_t generation;
    *found = false;
    tsr_status status = tsr_journals_list(&s->journals, s->job->arena, &list, &count, err);
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        const bool mine = list[i].share == (s->shares ? s->share : 1) && list[i].shares == (s->shares ? s->shares : 1);
        *found |=
            is_own(s, &list[i]) && list[i].share && !mine && tsr_journal_is_of(list[i].text, s->start.text, &generation);
    }
    return status;
}

/* ---- beginning ---- */

/* Whether the previous run was interrupted after its output got the destination's name; its leftovers are then removed. If
 * the record was lost in a power failure, the publication was a single rename: there is no temporary output any more, but
 * there is a destination. */
static bool was_published(const job_state *s)
{
    struct stat info;
    if (!s->start.note_lost) return s->start.publishing && s->start.complete;
    return !s->start.has_output &&
           s->journals.sys->stat_at(s->journals.sys, s->journals.directory, s->journals.name, &info) == 0;
}

/* Tells the other ranks what rank 0 has found and decided. */
static tsr_status share_start(job_state *s, tsr_error *err)
{
    tsr_comm *ranks = s->ranks;
    uint32_t told[] = {s->start.generation, s->start.resumed, s->start.publishing, s->replacement.swap};
    char sum[TSR_JOURNAL_TAG_SIZE + 1];
    if (!ranks) return TSR_OK;
    tsr_journal_tag(s->start.text, sum);
    tsr_status status = tsr_comm_same(ranks, tsr_str_from(sum), "the source as the ranks see it", err);
    if (status == TSR_OK) status = ranks->broadcast(ranks, told, sizeof told, 0, err);
    if (status == TSR_OK) status = ranks->broadcast(ranks, s->tag, sizeof s->tag, 0, err);
    s->start.generation = told[0];
    s->start.resumed = told[1];
    s->start.publishing = told[2];
    s->replacement.swap = told[3];
    return status;
}

/* Whether an earlier run has written DEST completely. Journals can only give a hint: the contents of DEST decide. */
static tsr_status find_completed(job_state *s, tsr_error *err)
{
    tsr_error why = {0};
    tsr_comm *ranks = s->ranks;
    const bool published = (s->job->resumes || s->is_shared) && was_published(s);
    const bool continues = s->start.publishing || (s->start.resumed && s->job->replaces);
    bool looks = published || (s->job->resumes && !continues);
    tsr_status status = ranks ? ranks->broadcast(ranks, &looks, sizeof looks, 0, err) : TSR_OK;
    if (status == TSR_OK && looks) status = tsr_job_find_completed(s, &why, err);
    if (status != TSR_OK || s->job->is_complete || !looks) return status;
    if (published && s->is_first) status = start_over(s, err);
    if (status == TSR_OK && why.status != TSR_OK && !s->job->replaces) status = tsr_raise_again(err, why.status, &why);
    return tsr_job_agree(s, status, err);
}

/* Determines what is left to do, as rank 0 sees it. */
static tsr_status begin(job_state *s, tsr_error *err)
{
    tsr_status status = tsr_job_agree(s, look_around(s, err), err);
    if (status == TSR_OK) status = find_completed(s, err);
    if (status != TSR_OK) return status;
    if (s->job->is_complete) return s->is_first ? clear_completed(s, err) : TSR_OK;
    status = tsr_job_agree(s, s->is_first ? clear_around(s, err) : TSR_OK, err);
    if (status != TSR_OK) return status;
    /* A share continues what there is of it in any case. */
    if (s->job->resumes && !s->start.resumed && !s->share)
        tsr_job_warn(&s->job->environment, "nothing to resume for '%s'; starting over", s->job->destination);
    return share_start(s, err);
}

/* ---- steps ---- */

/* Journals record what is done: records of units, and the sums of what they wrote. */

static tsr_status take_sums(job_state *s, uint64_t **sums, uint32_t *count, tsr_error *err)
{
    *count = tsr_directory_output_count(s->output);
    *sums = tsr_arena_array(s->job->arena, *count, sizeof **sums, err);
    if (!*sums) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < *count; f++) (*sums)[f] = tsr_directory_output_take_sum(s->output, f);
    return TSR_OK;
}

static tsr_status append_step(void *ctx, tsr_str records, tsr_error *err)
{
    job_state *s = ctx;
    uint64_t *sums;
    uint32_t count;
    tsr_vec text = tsr_vec_of(s->job->host->allocator, 1);
    tsr_status status = take_sums(s, &sums, &count, err);
    if (status == TSR_OK) status = tsr_step_put(records, sums, count, &text, err);
    if (status == TSR_OK) status = tsr_journal_append(s->journal, (tsr_str){text.items, text.count}, err);
    tsr_vec_free(&text);
    return status;
}

/* Marks the units in complete steps as done. *left is the text after them. */
static tsr_status take_steps(const job_state *s, tsr_str text, tsr_str *left, tsr_error *err)
{
    tsr_journal_step step;
    tsr_status status = TSR_OK;
    while (status == TSR_OK && tsr_journal_step_next(&text, &step)) status = tsr_work_take(s->work, step.records, NULL, err);
    *left = text;
    return status;
}

static tsr_status take_others(const job_state *s, tsr_error *err)
{
    tsr_leftover *found;
    size_t count;
    tsr_str left;
    tsr_status status = tsr_journals_list(&s->journals, s->job->arena, &found, &count, err);
    for (size_t i = 0; i < count && status == TSR_OK; i++)
        if (is_own(s, &found[i]) && found[i].share) status = take_steps(s, found[i].records, &left, err);
    return status;
}

static tsr_status take_own(const job_state *s, tsr_error *err)
{
    tsr_str left;
    const tsr_str own = tsr_journal_records(s->journal);
    const tsr_status status = take_steps(s, own, &left, err);
    return status == TSR_OK ? tsr_journal_cut(s->journal, own.size - left.size, err) : status;
}

/* To be called when everything is written: compares the files with the sums that the journals and this process have recorded. */
static tsr_status verify_written(job_state *s, tsr_error *err)
{
    tsr_leftover *found;
    tsr_journal_step step;
    uint64_t *sums;
    uint32_t files;
    size_t count;
    tsr_status status = take_sums(s, &sums, &files, err);
    if (status == TSR_OK) status = tsr_journals_list(&s->journals, s->job->arena, &found, &count, err);
    for (size_t i = 0; status == TSR_OK && i < count; i++) {
        tsr_str text = is_own(s, &found[i]) && found[i].share ? found[i].records : TSR_STR("");
        while (tsr_journal_step_next(&text, &step)) tsr_journal_step_sum(&step, sums, files);
    }
    return status == TSR_OK ? tsr_directory_output_verify(s->output, sums, files, err) : status;
}

/* ---- opening ---- */

static tsr_status open_output(job_state *s, bool join, tsr_error *err)
{
    const tsr_directory_output_options options = {
        .is_directory = s->job->is_directory,
        .existing = tsr_replacement_mode(&s->replacement, s->job->replaces, s->job->is_directory && s->is_first),
        .tag = s->tag,
        /* Rank 0 has created all files. If they are missing, it is removing them, and they must not be created again. */
        .begun = !join                                                    ? TSR_BEGUN_REFUSED
                 : s->start.publishing                                    ? TSR_BEGUN_PUBLISHING
                 : (s->is_shared && s->start.has_records) || !s->is_first ? TSR_BEGUN_WHOLE
                                                                          : TSR_BEGUN_JOINED,
        .unfinished = TSR_UNFINISHED_KEPT,
        .sums = true,
        .generation = s->start.generation,
        .holes = s->job->has_holes,
        .sources = s->job->sources,
        .source_count = s->job->source_count,
        .obsolete = s->replacement.obsolete,
        .obsolete_count = s->replacement.obsolete_count,
        .parent = tsr_journals_parent(&s->journals),
    };
    return tsr_directory_output_open(NULL, s->job->host->allocator, s->job->destination, &options, &s->output, err);
}

/* This process's share of the work. */
static tsr_journal_share own_share(const job_state *s)
{
    const tsr_comm *ranks = s->ranks;
    if (ranks) return (tsr_journal_share){(uint64_t)ranks->rank + 1, ranks->size, true};
    return s->shares ? (tsr_journal_share){s->share, s->shares, false} : (tsr_journal_share){1, 1, false};
}

static tsr_status begin_journal(job_state *s, tsr_error *err)
{
    tsr_journal_files files;
    tsr_str text;
    tsr_status status = tsr_job_list_files(s, &files.names, &files.count, err);
    if (status == TSR_OK) status = tsr_journal_text(s->job->arena, s->start.text, s->start.generation, files, &text, err);
    if (status != TSR_OK) return status;
    return tsr_journal_begin(&s->journals, s->tag, own_share(s), text, &s->journal, err);
}

/* Marks what this share and others have already done. */
static tsr_status take_records(job_state *s, tsr_error *err)
{
    tsr_status status = take_own(s, err);
    if (status == TSR_OK) status = take_others(s, err);
    s->job->units_found = tsr_work_units(s->work) - tsr_work_left(s->work, 0, 1);
    return status;
}

/* If files with tensors stay, only an index can distinguish the new shards from them, and every generation after the first
 * has one. */
static tsr_status choose_generation(job_state *s, tsr_error *err)
{
    tsr_status status = tsr_directory_next_generation(NULL, s->job->destination, &s->start.generation, err);
    if (s->start.generation == 0 && s->replacement.has_stray) s->start.generation = 1;
    return status;
}

static tsr_status open_files(job_state *s, bool join, tsr_error *err)
{
    s->joins = join;
    tsr_status status = open_output(s, join, err);
    if (status == TSR_OK) status = tsr_work_open(s->work, s->output, err);
    if (status == TSR_OK) tsr_directory_output_has_all(s->output);
    return status;
}

/* The files of a run that shares them with nobody are new. But shares of a plan may begin at the same time. Existing files
 * then belong to the job if there is also a journal of another share, because a share creates its journal before its files. */
static tsr_status open_files_safely(job_state *s, tsr_error *err)
{
    bool others = s->start.resumed;
    tsr_status status = s->is_shared && !others ? finds_others(s, &others, err) : TSR_OK;
    if (status == TSR_OK) status = open_files(s, others, err);
    if (status != TSR_E_EXISTS || others || !s->is_shared) return status;
    tsr_error ignored = {0};
    const bool shared = finds_others(s, &others, &ignored) == TSR_OK && others;
    /* Removes what was created just now; the files that are in the way are not ours. */
    if (s->output && !shared) tsr_directory_output_drop(s->output);
    if (s->output) s->output->close(s->output);
    s->output = NULL;
    if (!shared) return status;
    *err = (tsr_error){0};
    return open_files(s, true, err);
}

static tsr_status plan_work(job_state *s, tsr_error *err)
{
    s->generation = s->start.generation;
    return tsr_job_plan(s, err);
}

/* Keeps other jobs from replacing the destination. A share that does not publish need not do that, and shares run at the same
 * time. */
static tsr_status hold_destination(job_state *s, tsr_error *err)
{
    if (!s->job->replaces || (s->share && !s->finish)) return TSR_OK;
    return tsr_job_hold_destination(&s->job->environment, &s->journals, s->job->destination, err);
}

/* Begins the journal before the output, because an output without a journal belongs to nobody. */
static tsr_status open_all(job_state *s, tsr_error *err)
{
    tsr_status status = hold_destination(s, err);
    if (status == TSR_OK) status = tsr_job_decide(s, s->start.written, s->start.written_count, err);
    if (status == TSR_OK && !s->start.resumed && s->job->is_directory && s->job->replaces)
        status = choose_generation(s, err);
    if (status == TSR_OK) status = plan_work(s, err);
    if (status == TSR_OK) status = tsr_job_check_names(s, err);
    if (status == TSR_OK) status = begin_journal(s, err);
    if (status == TSR_OK) status = open_files_safely(s, err);
    /* The records were written when the files were complete. If the files are not complete now, the records no longer
     * count. */
    if (status == TSR_OK && s->start.has_records && !tsr_directory_output_continues(s->output)) {
        status = tsr_journals_remove(&s->journals, s->tag, tsr_journal_name(s->journal), err);
        if (status == TSR_OK) status = tsr_journal_cut(s->journal, 0, err);
    }
    return status == TSR_OK ? take_records(s, err) : status;
}

/* ---- several ranks ---- */

/* Called when a signal ends the program. Keeps what --resume and the shares of a plan need. */
static tsr_remains remove_unfinished(void *ctx)
{
    const job_state *s = ctx;
    tsr_error ignored = {0};
    if (s->job->resumes || s->is_shared) return TSR_REMAINS_WORK;
    tsr_sys_stop_naming();
    return tsr_journals_discard(&s->journals, s->tag, &ignored) == TSR_OK ? TSR_REMAINS_NOTHING : TSR_REMAINS_UNKNOWN;
}

/* When a signal ends rank 0, it removes all journals, and looks for further ones when its own is gone. A rank that creates a
 * journal after that sees that rank 0 has none. */
static tsr_status begin_behind_rank_0(job_state *s, tsr_error *err)
{
    tsr_leftover *found;
    size_t count = 0;
    tsr_status status = begin_journal(s, err);
    if (status == TSR_OK) status = tsr_journals_list(&s->journals, s->job->arena, &found, &count, err);
    for (size_t i = 0; i < count && status == TSR_OK; i++)
        if (is_own(s, &found[i]) && found[i].share == 1) return TSR_OK;
    if (status != TSR_OK) return status;
    s->journals.sys->unlink(s->journals.sys, s->journals.directory, tsr_journal_name(s->journal), false);
    return tsr_fail(tsr_naming(err), TSR_E_IO, "rank 0 exited while the other ranks were opening '%s'", s->job->destination);
}

/* The launcher ends the other ranks together with rank 0. A rank that has not yet seen that rank 0 is gone removes its
 * journal, too. */
static tsr_status begin_journal_beside_rank_0(job_state *s, tsr_error *err)
{
    tsr_job_guard(&s->job->environment, remove_unfinished, s);
    const tsr_status status = begin_behind_rank_0(s, err);
    tsr_job_unguard(&s->job->environment);
    return status;
}

/* Opens the files that rank 0 has created, and takes over what is done. */
static tsr_status join_rank_0(job_state *s, tsr_error *err)
{
    tsr_status status = plan_work(s, err);
    if (status == TSR_OK) status = begin_journal_beside_rank_0(s, err);
    if (status == TSR_OK) status = open_files(s, true, err);
    return status == TSR_OK ? take_records(s, err) : status;
}

static tsr_status open_destination(job_state *s, tsr_error *err)
{
    const bool first = s->is_first;
    if (first) tsr_job_guard(&s->job->environment, remove_unfinished, s);
    tsr_status status = tsr_job_agree(s, first ? open_all(s, err) : TSR_OK, err);
    if (status == TSR_OK) status = share_start(s, err);
    return status == TSR_OK ? tsr_job_agree(s, first ? TSR_OK : join_rank_0(s, err), err) : status;
}

/* ---- work ---- */

typedef struct missing_units {
    const job_state *state;
    uint64_t shares;
} missing_units;

static bool has_units_left(const void *ctx, uint64_t share)
{
    const missing_units *m = ctx;
    return tsr_work_left(m->state->work, share - 1, m->shares) != 0;
}

/* Refuses to publish, listing the shares that are not done. The shares are those of the largest division that was begun. */
static tsr_status refuse_missing(const job_state *s, tsr_error *err)
{
    missing_units m = {s, 1};
    tsr_leftover *found;
    size_t count;
    TSR_TRY(tsr_journals_list(&s->journals, s->job->arena, &found, &count, err));
    for (size_t i = 0; i < count; i++) {
        if (is_own(s, &found[i]) && found[i].shares > m.shares) m.shares = found[i].shares;
    }
    return tsr_job_refuse_missing(s, m.shares, has_units_left, &m, err);
}

static tsr_status give_names(job_state *s, tsr_error *err)
{
    const uint32_t marker = tsr_work_conversion(s->work)->marker;
    const bool durable = tsr_directory_output_replaces(s->output) || s->replacement.swap || s->sidecar;
    tsr_status status = tsr_journals_publishing_output(&s->journals, s->tag, s->output, marker, s->sidecar, durable, err);
    if (status == TSR_OK) status = s->output->publish(s->output, marker, err);
    s->job->published = status == TSR_OK;
    if (status == TSR_OK && s->sidecar) status = s->sidecar->publish(s->sidecar, 0, err);
    return status == TSR_OK ? tsr_journals_remove(&s->journals, s->tag, NULL, err) : status;
}

/* A signal waits for the renames. It does not wait for the disk, because the files were synced before. */
static tsr_status publish_files(job_state *s, tsr_error *err)
{
    tsr_status status = s->output->sync(s->output, err);
    if (status == TSR_OK && s->sidecar) status = s->sidecar->sync(s->sidecar, err);
    if (status != TSR_OK) return status;
    tsr_job_hold(&s->job->environment);
    status = give_names(s, err);
    tsr_job_release(&s->job->environment);
    return status;
}

/* Writes what surrounds the units. All units must be done. */
static tsr_status finish(job_state *s, tsr_error *err)
{
    if (tsr_work_left(s->work, 0, 1)) return refuse_missing(s, err);
    tsr_status status = tsr_work_finish(s->work, err);
    s->job->conversion = *tsr_work_conversion(s->work);
    /* Whether files contain data that this process did not write, or wrote in an earlier run. */
    const bool believes = s->job->units_found || s->share || s->finish;
    if (status == TSR_OK && believes && !s->job->is_trusting) status = verify_written(s, err);
    return status == TSR_OK ? tsr_job_write_sidecar(s, err) : status;
}

static tsr_status do_units(job_state *s, tsr_error *err)
{
    const tsr_journal_share own = own_share(s);
    const tsr_work_journal journal = {append_step, s, s->is_first && !s->share};
    const bool runs = !s->finish || s->share;
    return tsr_job_agree(s, runs ? tsr_work_run(s->work, own.share - 1, own.shares, &journal, err) : TSR_OK, err);
}

static tsr_status publish_all(job_state *s, tsr_error *err)
{
    tsr_status status = s->share ? take_others(s, err) : tsr_job_exchange_records(s, err);
    if (status == TSR_OK && s->is_first) status = finish(s, err);
    if (status == TSR_OK) status = s->job->unchanged(s->job->ctx, err);
    status = tsr_job_agree(s, status, err);
    return status == TSR_OK ? tsr_job_agree(s, s->is_first ? publish_files(s, err) : TSR_OK, err) : status;
}

/* ---- the end ---- */

/* After a failure: removes what nobody can continue. */
static void clean_up(job_state *s)
{
    tsr_error ignored = {0};
    const bool stays = s->job->resumes || s->is_shared;
    if (!stays && s->is_first) tsr_journals_discard(&s->journals, s->tag, &ignored);
    else if (stays && !s->output && tsr_journal_is_empty(s->journal))
        s->journals.sys->unlink(s->journals.sys, s->journals.directory, tsr_journal_name(s->journal), false);
}

static void end(job_state *s, tsr_status status)
{
    if (s->work) s->job->conversion = *tsr_work_conversion(s->work);
    if (status != TSR_OK && s->journal) clean_up(s);
    tsr_job_unguard(&s->job->environment);
}

const job_backend tsr_job_directory = {begin, open_destination, do_units, publish_all, end};
