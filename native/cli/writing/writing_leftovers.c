/* Examines what earlier runs left next to the destination. Leftovers of the same job are continued; those of others are
 * removed or left alone. */
#include <inttypes.h>

#include "cli/writing/writing_parts.h"
#include "publish/file_sums.h"
#include "publish/text.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/folder.h"

bool cli_is_own(const cli_writing *w, const tsr_leftover *l)
{
    return strcmp(l->tag, w->tag) == 0;
}

/* The first line of `lines` that `others` do not have; data NULL if they have all. */
static tsr_str line_without_equal(tsr_str lines, tsr_str others)
{
    while (lines.size) {
        const tsr_str line = tsr_text_line(&lines);
        tsr_str rest = others;
        bool found = false;
        while (rest.size && !found) found = tsr_str_equal(tsr_text_line(&rest), line);
        if (!found) return line;
    }
    return (tsr_str){NULL, 0};
}

/* Refuses to resume, quoting in what two runs differ. */
static tsr_status refuse_other(const cli_writing *w, tsr_str theirs, tsr_str ours, tsr_error *err)
{
    theirs = tsr_journal_job(theirs);
    const tsr_str had = line_without_equal(theirs, ours), has = line_without_equal(ours, theirs);
    tsr_str differing = has.data ? has : had;
    if (had.data && has.data)
        differing = tsr_arena_format(w->arena, err, "%.*s' in place of '%.*s", TSR_STR_ARG(had), TSR_STR_ARG(has));
    if (!differing.data) return TSR_E_NOMEM;
    return tsr_raise(err, TSR_E_CHANGED, TSR_NO_POSITION,
                     "cannot resume: the interrupted run for '%s' %s '%.*s'; run without --resume to start over",
                     w->destination, had.data ? "had" : "did not have", TSR_STR_ARG(differing));
}

/* Handles everything that was found under one other tag: [l, l + count). */
static tsr_status clear_one(cli_writing *w, const cli_start *b, const tsr_leftover *l, size_t count, tsr_error *err)
{
    const tsr_leftover *run = NULL; /* the journal of a run that has ended, of one process or of ranks */
    bool busy = false, any = false;
    uint64_t parts = 0; /* the number of parts of a plan; further parts may be written at any time */
    for (size_t i = 0; i < count; i++) {
        busy |= l[i].busy;
        any |= l[i].part || l[i].publishing;
        if (l[i].by_ranks || l[i].parts == 1) run = l[i].text.size || !run ? &l[i] : run;
        else if (l[i].parts > parts) parts = l[i].parts;
    }
    if (busy && parts && w->options->discard_parts)
        cli_warn(w->program, "parts of another plan for '%s' are being written by another process; they are kept",
                 w->destination);
    if (busy || !any || (w->is_exec && !parts)) return TSR_OK; /* without a journal, nothing shows whose it is */
    if (parts && !w->options->discard_parts) {
        cli_warn(w->program,
                 "'%s' has an unfinished job of %" PRIu64 " parts from another plan; its files '.%s.tessera-%s…' are kept; "
                 "--discard-parts removes them",
                 w->destination, parts, w->journals.name, l->tag);
        return TSR_OK;
    }
    if (!parts && w->options->resume && run && run->text.size && !b->resumed)
        return refuse_other(w, run->text, b->text, err);
    cli_warn(w->program, "removing the remains of an interrupted run for '%s'", w->destination);
    return tsr_journals_discard(&w->journals, l->tag, err);
}

/* Removes runs of other jobs, unless a process is writing them or they can still be continued. They prevent --resume. */
static tsr_status clear_other(cli_writing *w, const cli_start *b, tsr_error *err)
{
    const bool clears = !w->is_exec || w->options->discard_parts;
    tsr_status status = TSR_OK;
    for (size_t i = 0, end; i < b->count && status == TSR_OK && clears; i = end) {
        for (end = i + 1; end < b->count && strcmp(b->found[end].tag, b->found[i].tag) == 0;) end++;
        if (!cli_is_own(w, &b->found[i])) status = clear_one(w, b, &b->found[i], end - i, err);
    }
    return status;
}

tsr_status cli_clear_completed(cli_writing *w, const cli_start *b, tsr_error *err)
{
    tsr_status status = tsr_journals_discard(&w->journals, w->tag, err);
    for (size_t i = 0, end; i < b->count && status == TSR_OK; i = end) {
        bool only_record = true;
        for (end = i; end < b->count && strcmp(b->found[end].tag, b->found[i].tag) == 0; end++)
            only_record &= b->found[end].publishing && !b->found[end].busy;
        if (only_record) status = tsr_journals_discard(&w->journals, b->found[i].tag, err);
    }
    return status;
}

/* Looks for an earlier run of this job, to continue it under its tag. */
static bool finds_tag(cli_writing *w, const cli_start *b)
{
    uint32_t generation;
    for (size_t i = 0; i < b->count; i++) {
        const tsr_leftover *l = &b->found[i];
        if (!l->part || !tsr_journal_is_of(l->text, b->text, &generation)) continue;
        memcpy(w->tag, l->tag, sizeof w->tag);
        return true;
    }
    return false;
}

/* Parts of a plan may run anywhere and must find each other's files, so their tag is derived from the job. Other jobs get a
 * random tag. */
static tsr_status choose_tag(cli_writing *w, const cli_start *b, tsr_error *err)
{
    if (finds_tag(w, b)) return TSR_OK;
    if (!w->is_exec) return tsr_journal_new_tag(w->tag, err);
    tsr_journal_tag(b->text, w->tag);
    return TSR_OK;
}

static tsr_status note_record(const cli_writing *w, cli_start *b, tsr_str text, tsr_error *err)
{
    tsr_record record;
    b->publishing = true;
    b->note_lost = !tsr_record_parse(text, w->arena, &record);
    if (b->note_lost) return TSR_OK;
    b->complete = tsr_record_is_published(&record, &w->journals);
    return tsr_record_written(&record, &w->journals, w->arena, &b->written, &b->written_count, err);
}

static tsr_status note_own(const cli_writing *w, cli_start *b, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < b->count && status == TSR_OK; i++) {
        const tsr_leftover *l = &b->found[i];
        if (!cli_is_own(w, l)) continue;
        if (l->publishing) status = note_record(w, b, l->text, err);
        else if (l->part) b->resumed |= tsr_journal_is_of(l->text, b->text, &b->generation);
        else b->has_output = true;
        b->has_records |= l->part && l->records.size;
    }
    return status;
}

static tsr_status refuse_busy(const cli_writing *w, const cli_start *b, tsr_error *err)
{
    for (size_t i = 0; i < b->count; i++) {
        const tsr_leftover *l = &b->found[i];
        const bool in_the_way = !w->parts || (l->part == w->part && l->parts == w->parts);
        if (!cli_is_own(w, l) || !l->busy || !in_the_way) continue;
        return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                         "another process is writing part %" PRIu64 " of %" PRIu64 " of '%s'", l->part, l->parts,
                         w->destination);
    }
    return TSR_OK;
}

tsr_status cli_start_over(cli_writing *w, cli_start *b, tsr_error *err)
{
    tsr_status status = tsr_journals_discard(&w->journals, w->tag, err);
    *b = (cli_start){.text = b->text};
    return status == TSR_OK ? tsr_journal_new_tag(w->tag, err) : status;
}

tsr_status cli_look_around(cli_writing *w, cli_start *b, tsr_error *err)
{
    tsr_status status = cli_describe_work(w, &b->text, err);
    if (status == TSR_OK)
        status = tsr_journals_open(NULL, cli_host(w->program)->allocator, w->destination, &w->journals, err);
    if (status != TSR_OK || !cli_speaks(w->program)) return status; /* rank 0 does it for all ranks */
    status = tsr_journals_list(&w->journals, w->arena, &b->found, &b->count, err);
    if (status == TSR_OK) status = choose_tag(w, b, err);
    if (status == TSR_OK) status = note_own(w, b, err);
    return status == TSR_OK ? refuse_busy(w, b, err) : status;
}

tsr_status cli_clear_around(cli_writing *w, cli_start *b, tsr_error *err)
{
    const tsr_status status = clear_other(w, b, err);
    if (status != TSR_OK || w->is_exec || w->options->resume || !(b->resumed || b->publishing)) return status;
    cli_warn(w->program, "starting '%s' over; --resume would have continued the interrupted run", w->destination);
    return cli_start_over(w, b, err);
}

tsr_status cli_finds_others(cli_writing *w, const cli_start *b, bool *found, tsr_error *err)
{
    tsr_leftover *list;
    size_t count;
    uint32_t generation;
    *found = false;
    tsr_status status = tsr_journals_list(&w->journals, w->arena, &list, &count, err);
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        const bool mine = list[i].part == (w->parts ? w->part : 1) && list[i].parts == (w->parts ? w->parts : 1);
        *found |= cli_is_own(w, &list[i]) && list[i].part && !mine && tsr_journal_is_of(list[i].text, b->text, &generation);
    }
    return status;
}

/* ---- steps ---- */

/* Records in journals what is done: records of units, and the sums of what they wrote. Ranks also exchange these records. */

static tsr_status take_sums(cli_writing *w, uint64_t **sums, uint32_t *count, tsr_error *err)
{
    *count = tsr_folder_output_count(w->output);
    *sums = tsr_arena_array(w->arena, *count, sizeof **sums, err);
    if (!*sums) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < *count; f++) (*sums)[f] = tsr_folder_output_take_sum(w->output, f);
    return TSR_OK;
}

tsr_status cli_append_step(cli_writing *w, tsr_str records, tsr_error *err)
{
    uint64_t *sums;
    uint32_t count;
    tsr_vec text = tsr_vec_of(cli_host(w->program)->allocator, 1);
    tsr_status status = take_sums(w, &sums, &count, err);
    if (status == TSR_OK) status = tsr_step_put(records, sums, count, &text, err);
    if (status == TSR_OK) status = tsr_journal_append(w->journal, (tsr_str){text.items, text.count}, err);
    tsr_vec_free(&text);
    return status;
}

/* Marks the units in complete steps as done. *left is the text after them. */
static tsr_status take_steps(const cli_writing *w, tsr_str text, tsr_str *left, tsr_error *err)
{
    tsr_journal_step step;
    tsr_status status = TSR_OK;
    while (status == TSR_OK && tsr_journal_step_next(&text, &step)) status = tsr_work_take(w->work, step.records, NULL, err);
    *left = text;
    return status;
}

static tsr_status take_others(const cli_writing *w, tsr_error *err)
{
    tsr_leftover *found;
    size_t count;
    tsr_str left;
    tsr_status status = tsr_journals_list(&w->journals, w->arena, &found, &count, err);
    for (size_t i = 0; i < count && status == TSR_OK; i++)
        if (cli_is_own(w, &found[i]) && found[i].part) status = take_steps(w, found[i].records, &left, err);
    return status;
}

tsr_status cli_take_steps(cli_writing *w, bool others, tsr_error *err)
{
    tsr_str left;
    if (others) return take_others(w, err);
    const tsr_str own = tsr_journal_records(w->journal);
    tsr_status status = take_steps(w, own, &left, err);
    return status == TSR_OK ? tsr_journal_cut(w->journal, own.size - left.size, err) : status;
}

tsr_status cli_verify_written(cli_writing *w, tsr_error *err)
{
    tsr_leftover *found;
    tsr_journal_step step;
    uint64_t *sums;
    uint32_t files;
    size_t count;
    tsr_status status = take_sums(w, &sums, &files, err);
    if (status == TSR_OK) status = tsr_journals_list(&w->journals, w->arena, &found, &count, err);
    for (size_t i = 0; status == TSR_OK && i < count; i++) {
        tsr_str text = cli_is_own(w, &found[i]) && found[i].part ? found[i].records : TSR_STR("");
        while (tsr_journal_step_next(&text, &step)) tsr_journal_step_sum(&step, sums, files);
    }
    return status == TSR_OK ? tsr_folder_output_verify(w->output, sums, files, err) : status;
}

tsr_status cli_exchange_records(const cli_writing *w, tsr_error *err)
{
    tsr_comm *ranks = w->program->ranks;
    tsr_comm_blobs all = {0};
    tsr_vec own = tsr_vec_of(cli_host(w->program)->allocator, 1);
    if (!ranks) return TSR_OK;
    tsr_status status = cli_agree(w->program, tsr_work_records(w->work, &own, err), err);
    if (status == TSR_OK)
        status = tsr_comm_gather_blobs((tsr_ranks){ranks, own.allocator}, (tsr_str){own.items, own.count}, &all, err);
    for (uint32_t r = 0; r < all.count && status == TSR_OK; r++) status = tsr_work_take(w->work, all.blobs[r], NULL, err);
    tsr_comm_blobs_free(&all);
    tsr_vec_free(&own);
    return status;
}
