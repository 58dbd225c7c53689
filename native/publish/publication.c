/* See tessera/sys/publication.h. */
#include "tessera/sys/publication.h"

#include <string.h>

#include "publish/destination.h"
#include "publish/job_state.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

/* The decisions of rank 0 that all ranks need. */
typedef struct place {
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    uint32_t generation;
    bool swap; /* the old directory is replaced as a whole */
} place;

struct tsr_publishing {
    tsr_publication *job;
    bool is_first; /* the only process, or rank 0 */
    bool is_remote;
    place place;
    /* only on the first */
    tsr_replacement replacement;
    tsr_journals journals;
    tsr_journal *journal;     /* NULL: its directory is not writable */
    bool continues;           /* the tag belongs to an interrupted run, whose journal and output are kept */
    tsr_ranked_output ranked; /* of ranks that write to an object store: over the output, which it hides */
};

typedef struct tsr_publishing publishing;

static tsr_status agree(const tsr_publication *p, tsr_status status, tsr_error *err)
{
    return p->environment.ranks ? tsr_comm_agree(p->environment.ranks, status, err) : status;
}

/* ---- the journal ---- */

static tsr_status journal_text(const publishing *s, tsr_arena *arena, uint32_t generation, tsr_str *lines, tsr_str *whole,
                               tsr_error *err)
{
    const tsr_publication *p = s->job;
    const tsr_journal_files files = {p->is_directory ? p->names : NULL, p->is_directory ? p->name_count : 0};
    *lines = tsr_arena_format(arena, err, "%s%.*s", TSR_JOURNAL_MAGIC, TSR_STR_ARG(p->line));
    return lines->data ? tsr_journal_text(arena, *lines, generation, files, whole, err) : TSR_E_NOMEM;
}

/* Takes the tag of an interrupted run whose journal has this text. A run that was already publishing is completed or undone
 * instead. */
static void find_interrupted(publishing *s, tsr_str text, const tsr_leftover *found, size_t count)
{
    for (size_t i = 0; i < count && !s->continues; i++) {
        const tsr_leftover *l = &found[i];
        s->continues = l->share == 1 && l->shares == 1 && !l->busy && tsr_str_equal(l->text, text);
        for (size_t k = 0; k < count; k++) s->continues &= !(found[k].publishing && strcmp(found[k].tag, l->tag) == 0);
        if (s->continues) memcpy(s->place.tag, l->tag, sizeof s->place.tag);
    }
}

static tsr_status remove_leftovers(publishing *s, tsr_arena *arena, tsr_error *err)
{
    tsr_leftover *found;
    size_t count;
    tsr_str lines, whole;
    uint32_t generation;
    TSR_TRY(journal_text(s, arena, 0, &lines, &whole, err));
    TSR_TRY(tsr_journals_list(&s->journals, arena, &found, &count, err));
    if (s->job->resumes && s->job->continuation && !s->job->is_complete) find_interrupted(s, whole, found, count);
    for (size_t i = 0; i < count; i++) {
        const tsr_leftover *l = &found[i];
        const bool ours = !l->text.size || tsr_journal_is_of(l->text, lines, &generation);
        if (s->continues && strcmp(l->tag, s->place.tag) == 0) continue;
        if (l->share == 1 && l->shares == 1 && !l->busy && ours) TSR_TRY(tsr_journals_discard(&s->journals, l->tag, err));
    }
    return TSR_OK;
}

/* Opens the directory of the destination, and removes what killed runs of the same kind left there. Uses libc's allocator, so that
 * files can be removed even if the caller's allocator has run out of memory. */
static tsr_status open_journals(publishing *s, tsr_error *err)
{
    TSR_TRY(tsr_journals_open(NULL, &tsr_allocator_libc, s->job->destination, &s->journals, err));
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    const tsr_status status = arena ? remove_leftovers(s, arena, err) : TSR_E_NOMEM;
    tsr_arena_free(arena);
    return status;
}

/* If no journal can be written, opening the output will report why. */
static tsr_status begin_journal(publishing *s, tsr_error *err)
{
    tsr_error unable = {0};
    tsr_str lines, text;
    if (!s->continues) TSR_TRY(tsr_journal_new_tag(s->place.tag, err));
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = journal_text(s, arena, s->place.generation, &lines, &text, err);
    const tsr_journal_share whole = {1, 1, false};
    if (status == TSR_OK && tsr_journal_begin(&s->journals, s->place.tag, whole, text, &s->journal, &unable) == TSR_E_NOMEM)
        status = tsr_raise_again(err, TSR_E_NOMEM, &unable);
    tsr_arena_free(arena);
    return status;
}

/* Whether the output keeps sums of what is written. */
static bool is_summed(const tsr_publication *p)
{
    return p->reads_back || (p->resumes && p->continuation);
}

/* Continues the records of an interrupted run, or begins them. */
static tsr_status begin_records(publishing *s, tsr_error *err)
{
    const tsr_publication *p = s->job;
    bool fits = true;
    if (!p->continuation || !is_summed(p) || !s->journal) return TSR_OK;
    TSR_TRY(p->continuation->begin(p->ctx, s->journal, s->continues, &fits, err));
    if (fits) return TSR_OK;
    s->continues = false;
    TSR_TRY(tsr_journals_discard(&s->journals, s->place.tag, err));
    tsr_journal_close(s->journal);
    s->journal = NULL;
    TSR_TRY(begin_journal(s, err));
    return s->journal ? p->continuation->begin(p->ctx, s->journal, false, &fits, err) : TSR_OK;
}

/* Returns whether all of it is gone. */
static bool discard(const publishing *s)
{
    tsr_error ignored = {0};
    return !s->journal || tsr_journals_discard(&s->journals, s->place.tag, &ignored) == TSR_OK;
}

static void close_journals(publishing *s)
{
    tsr_journal_close(s->journal);
    tsr_journals_close(&s->journals);
    s->journal = NULL;
}

/* ---- opening ---- */

static tsr_status list_inputs(const tsr_publication *p, tsr_inputs *inputs, tsr_error *err)
{
    if (!p->replaces) return TSR_OK;
    if (p->source) TSR_TRY(tsr_inputs_add(inputs, p->source, NULL, err));
    for (size_t i = 0; i < p->document_count; i++) TSR_TRY(tsr_inputs_add_path(inputs, p->documents[i], err));
    return TSR_OK;
}

/* Decides what is replaced: only files that the old checkpoint lists, and those that the caller adds. */
static tsr_status decide_replacement(publishing *s, tsr_error *err)
{
    const tsr_publication *p = s->job;
    tsr_inputs inputs = tsr_inputs_new();
    const tsr_replacement_request request = {.host = p->host,
                                             .path = p->destination,
                                             .is_directory = p->is_directory,
                                             .overwrite = p->replaces,
                                             .marker = p->marker,
                                             .inputs = &inputs};
    tsr_status status = list_inputs(p, &inputs, err);
    if (status == TSR_OK) status = tsr_replacement_decide(&request, p->arena, &s->replacement, err);
    if (status == TSR_OK && p->adjust) status = p->adjust(p->ctx, &s->replacement, err);
    if (status == TSR_OK) status = tsr_replacement_check_readers(&request, &s->replacement, err);
    tsr_inputs_free(&inputs);
    return status;
}

static tsr_status check_names(publishing *s, tsr_error *err)
{
    const tsr_publication *p = s->job;
    for (size_t i = 0; i < p->name_count && p->is_directory; i++)
        TSR_TRY(tsr_replacement_check_name(&s->replacement, p->destination, p->names[i], err));
    return tsr_job_note_kept(&p->environment, &s->replacement, p->destination, p->arena, err);
}

static tsr_status plan(tsr_publication *p, tsr_error *err)
{
    return p->plan ? p->plan(p->ctx, p, err) : TSR_OK;
}

/* Everything that the first process decides, and the journal. */
static tsr_status choose_place(publishing *s, tsr_error *err)
{
    tsr_publication *p = s->job;
    if (p->replaces) TSR_TRY(tsr_job_hold_destination(&p->environment, &s->journals, p->destination, err));
    TSR_TRY(decide_replacement(s, err));
    if (p->replaces && p->plan) TSR_TRY(tsr_directory_next_generation(NULL, p->destination, &p->generation, err));
    TSR_TRY(plan(p, err));
    TSR_TRY(check_names(s, err));
    s->place.generation = p->generation;
    s->place.swap = s->replacement.swap;
    TSR_TRY(begin_journal(s, err));
    return begin_records(s, err);
}

/* Creates or opens the same files in the same order on every rank, so that their numbers are the same everywhere. */
static tsr_status open_output(publishing *s, tsr_error *err)
{
    tsr_publication *p = s->job;
    const bool joins = !s->is_first || s->continues;
    const bool stays = !s->is_first || (p->resumes && p->continuation);
    const tsr_directory_output_options options = {
        .is_directory = p->is_directory,
        .existing = tsr_replacement_mode(&s->replacement, p->replaces, p->is_directory && s->is_first),
        .tag = s->place.tag,
        .begun = joins ? TSR_BEGUN_JOINED : TSR_BEGUN_REFUSED,
        .unfinished = stays ? TSR_UNFINISHED_KEPT : TSR_UNFINISHED_REMOVED,
        .sums = is_summed(p),
        .holes = !joins && p->source && tsr_directory_store_has_holes(p->source),
        .generation = s->place.generation,
        .sources = p->sources,
        .source_count = p->source_count,
        .obsolete = s->replacement.obsolete,
        .obsolete_count = s->replacement.obsolete_count,
        .parent = tsr_journals_parent(&s->journals)};
    TSR_TRY(tsr_directory_output_open(NULL, p->host->allocator, p->destination, &options, &p->output, err));
    return p->create ? p->create(p->ctx, p->output, err) : TSR_OK;
}

static bool is_left(const publishing *s)
{
    const tsr_publication *p = s->job;
    return p->resumes && (s->is_remote || (p->continuation && *p->continuation->has_records));
}

/* The output below the one that the caller writes to. */
static tsr_output *output_of(const publishing *s)
{
    return s->ranked.inner ? s->ranked.inner : s->job->output;
}

/* Removes unfinished files when a signal ends the program. The output comes first: a thread that creates a file has the output's
 * lock, and keeps it if it may not create names any more. */
static tsr_remains remove_unfinished(void *state)
{
    const publishing *s = state;
    tsr_output *output = output_of(s);
    if (s->is_remote) {
        if (output && !tsr_object_output_abandon(output)) return TSR_REMAINS_UNKNOWN;
        return is_left(s) ? TSR_REMAINS_WORK : TSR_REMAINS_NOTHING;
    }
    const bool left = is_left(s);
    bool is_gone = true;
    if (!left && output) {
        tsr_directory_output_drop(output);
        is_gone = tsr_directory_output_abandon(output);
    }
    tsr_sys_stop_naming();
    if (left) return TSR_REMAINS_WORK;
    is_gone &= discard(s);
    return is_gone ? TSR_REMAINS_NOTHING : TSR_REMAINS_UNKNOWN;
}

/* Refuses an existing destination before anything is removed that a run which replaces it could continue. */
static tsr_status refuse_existing(const tsr_publication *p, tsr_error *err)
{
    const tsr_directory_output_options options = {
        .is_directory = p->is_directory, .sources = p->sources, .source_count = p->source_count};
    return p->replaces ? TSR_OK : tsr_directory_output_check(p->host->allocator, p->destination, &options, err);
}

/* A signal can arrive before anything exists, or when all of it is recorded, but not in between. */
static tsr_status open_first(publishing *s, tsr_error *err)
{
    const tsr_publication *p = s->job;
    TSR_TRY(tsr_path_must_be_local(p->destination, err));
    TSR_TRY(refuse_existing(p, err));
    TSR_TRY(open_journals(s, err));
    tsr_job_guard(&p->environment, remove_unfinished, s);
    tsr_job_hold(&p->environment);
    tsr_status status = choose_place(s, err);
    if (status == TSR_OK) status = open_output(s, err);
    tsr_job_release(&p->environment);
    return status;
}

static tsr_status decide_remote(publishing *s, tsr_error *err)
{
    tsr_publication *p = s->job;
    TSR_TRY(tsr_urls_refuse_overlap(p->sources, p->source_count, p->destination, err));
    TSR_TRY(decide_replacement(s, err));
    if (p->plan) p->generation = s->place.generation = s->replacement.generation;
    TSR_TRY(plan(p, err));
    return check_names(s, err);
}

static tsr_status open_remote_output(publishing *s, tsr_error *err)
{
    tsr_publication *p = s->job;
    const tsr_replacement *r = &s->replacement;
    const tsr_str single = TSR_STR("");
    const tsr_object_output_options options = {.is_directory = p->is_directory,
                                               .overwrite = p->replaces,
                                               .verify = p->reads_back,
                                               .generation = p->generation,
                                               .obsolete = r->obsolete,
                                               .obsolete_count = r->obsolete_count,
                                               .marker_count = r->marker_count,
                                               .is_unlike = r->swap,
                                               .resume = p->resumes,
                                               .names = p->is_directory ? p->names : &single,
                                               .name_count = p->is_directory ? p->name_count : 1};
    tsr_job_guard(&p->environment, remove_unfinished, s);
    TSR_TRY(tsr_object_output_open(p->host, p->destination, &options, &p->output, err));
    if (s->is_first) tsr_job_warn_of_other_parts(&p->environment, p->output, p->destination);
    if (p->environment.ranks) {
        tsr_ranked_output_open(p->output, p->environment.ranks, p->host->allocator, &s->ranked);
        p->output = &s->ranked.base;
    }
    return p->create ? p->create(p->ctx, p->output, err) : TSR_OK;
}

static tsr_status open_remote(publishing *s, tsr_error *err)
{
    TSR_TRY(decide_remote(s, err));
    return open_remote_output(s, err);
}

static tsr_status open_alone(publishing *s, tsr_error *err)
{
    return s->is_remote ? open_remote(s, err) : open_first(s, err);
}

/* Rank 0 opens the output first: it refuses an existing destination, and in a directory it creates the files that the others open. In an
 * object store each rank uploads the files that it writes. */
static tsr_status open_on_ranks(publishing *s, tsr_error *err)
{
    tsr_publication *p = s->job;
    tsr_comm *ranks = p->environment.ranks;
    TSR_TRY(tsr_comm_agree(ranks, s->is_first ? open_alone(s, err) : TSR_OK, err));
    TSR_TRY(ranks->broadcast(ranks, &s->place, sizeof s->place, 0, err));
    p->generation = s->place.generation;
    TSR_TRY(tsr_comm_agree(ranks, s->is_first ? TSR_OK : plan(p, err), err));
    tsr_status status = TSR_OK;
    if (!s->is_first) {
        s->replacement.swap = s->place.swap;
        status = s->is_remote ? open_remote_output(s, err) : open_output(s, err);
    }
    return tsr_comm_agree(ranks, status, err);
}

tsr_status tsr_publication_open(tsr_publication *p, tsr_error *err)
{
    tsr_comm *ranks = p->environment.ranks;
    publishing *s = TSR_ARENA_NEW(p->arena, publishing, err);
    const tsr_status made = agree(p, s ? TSR_OK : TSR_E_NOMEM, err);
    p->state = NULL; /* on all ranks after a failure, because closing is collective */
    if (made != TSR_OK) return made;
    *s = (publishing){.job = p,
                      .is_first = !ranks || ranks->rank == 0,
                      .is_remote = tsr_is_object_url(p->destination),
                      .journals = {.directory = -1, .held = -1}};
    p->state = s;
    p->generation = 0;
    const tsr_status status = ranks ? open_on_ranks(s, err) : open_alone(s, err);
    p->replaced = s->replacement.swap || s->replacement.obsolete_count > 0;
    return status;
}

/* ---- publishing ---- */

/* One rename needs no record. */
static tsr_status note_publishing(const publishing *s, uint32_t marker, tsr_error *err)
{
    const tsr_publication *p = s->job;
    if (!s->journal || !(s->place.swap || tsr_directory_output_replaces(p->output))) return TSR_OK;
    return tsr_journals_publishing_output(&s->journals, s->place.tag, p->output, marker, NULL, true, err);
}

static tsr_status give_names(publishing *s, uint32_t marker, tsr_error *err)
{
    tsr_error ignored = {0};
    tsr_output *output = s->job->output;
    TSR_TRY(note_publishing(s, marker, err));
    TSR_TRY(output->publish(output, marker, err));
    tsr_journals_remove(&s->journals, s->place.tag, NULL, &ignored); /* it is published, so leftovers are not an error */
    return TSR_OK;
}

/* A signal waits for the renames. It does not wait for the disk, because the files were synced before. */
tsr_status tsr_publication_publish(tsr_publication *p, uint32_t marker, tsr_error *err)
{
    publishing *s = p->state;
    if (s->is_remote) {
        TSR_TRY(p->output->publish(p->output, marker, err));
        p->resumed = tsr_object_output_resumed(p->output);
        return TSR_OK;
    }
    TSR_TRY(p->output->sync(p->output, err));
    tsr_job_hold(&p->environment);
    const tsr_status status = give_names(s, marker, err);
    tsr_job_release(&p->environment);
    return status;
}

/* ---- the end ---- */

static void close_output(publishing *s, bool left)
{
    tsr_output *output = output_of(s);
    s->job->output = NULL;
    tsr_ranked_output_free(&s->ranked);
    s->ranked.inner = NULL;
    if (output && s->is_first && !s->is_remote && !left) tsr_directory_output_drop(output);
    if (output) output->close(output);
}

void tsr_publication_close(tsr_publication *p, tsr_status status)
{
    tsr_error ignored = {0};
    publishing *s = p->state;
    if (!s) return;
    const bool left = status != TSR_OK && is_left(s);
    tsr_job_hold(&p->environment);
    if (!s->is_first) close_output(s, left);
    if (p->environment.ranks && status != TSR_OK) tsr_comm_barrier(p->environment.ranks, &ignored);
    if (s->is_first) close_output(s, left);
    if (!left) discard(s); /* also ends or undoes a publication that failed */
    close_journals(s);
    p->state = NULL;
    tsr_job_release(&p->environment);
    tsr_job_unguard(&p->environment);
}

/* ---- the whole run ---- */

/* Removes the journal of an earlier run that was killed after it had published the same. */
static tsr_status clear_completed(tsr_publication *p, tsr_error *err)
{
    publishing s = {.job = p, .is_first = true};
    if (tsr_is_object_url(p->destination)) return TSR_OK;
    const tsr_status status = open_journals(&s, err);
    close_journals(&s);
    return status;
}

static tsr_status unchanged(const tsr_publication *p, tsr_error *err)
{
    return p->source ? tsr_directory_store_unchanged(p->source, err) : TSR_OK;
}

static tsr_status compare(tsr_publication *p, tsr_error *err)
{
    uint32_t marker = TSR_NO_FILE;
    TSR_TRY(tsr_completed_open(p->host, p->destination, &p->output, err));
    tsr_status status = p->write(p->ctx, p->output, &marker, err);
    if (status == TSR_OK) status = p->output->publish(p->output, marker, err);
    if (status == TSR_OK) status = unchanged(p, err);
    if (status == TSR_OK) p->resumed.objects = tsr_completed_count(p->output, &p->resumed.bytes);
    p->output->close(p->output);
    p->output = NULL;
    return status;
}

/* Compares the destination with what would be written. What differs is refused, or replaced. Journals of interrupted runs do not
 * matter: they are removed if the destination is complete; otherwise they stay, because the user may remove it and resume. */
static tsr_status find_completed(tsr_publication *p, tsr_error *err)
{
    tsr_error why = {0};
    tsr_store *there = NULL;
    tsr_status status = tsr_path_store_open(p->host, p->destination, &there, &why);
    if (there) there->close(there);
    if (status == TSR_E_NOT_FOUND) return TSR_OK;
    p->compares = true;
    if (status == TSR_OK) status = compare(p, &why);
    p->compares = false;
    p->is_complete = status == TSR_OK;
    if (p->is_complete) return clear_completed(p, err);
    if (status == TSR_E_EXISTS && (p->replaces || tsr_is_object_url(p->destination))) return TSR_OK;
    return tsr_raise_again(err, status, &why);
}

/* What a rank has written of the files is its own to upload, and to publish. */
static tsr_status publish_on_ranks(tsr_publication *p, uint32_t marker, tsr_status status, tsr_error *err)
{
    tsr_ranked_output *ranked = &p->state->ranked;
    TSR_TRY(tsr_ranked_output_hand_out(ranked, status, err));
    TSR_TRY(tsr_ranked_output_publish(ranked, marker, err));
    return tsr_ranked_output_resumed(ranked, &p->resumed, err);
}

static tsr_status write_and_publish(tsr_publication *p, tsr_error *err)
{
    uint32_t marker = TSR_NO_FILE;
    const bool on_ranks = p->state->ranked.inner != NULL;
    tsr_status status = p->write(p->ctx, p->output, &marker, err);
    if (status == TSR_OK) status = p->output->sync(p->output, err);
    TSR_TRY(agree(p, status, err));
    if (on_ranks) TSR_TRY(tsr_ranked_output_divide(&p->state->ranked, err));
    if (p->finish) TSR_TRY(agree(p, p->finish(p->ctx, p->output, &marker, err), err));
    status = p->state->is_first ? unchanged(p, err) : TSR_OK;
    if (on_ranks) return publish_on_ranks(p, marker, status, err);
    if (status == TSR_OK && p->state->is_first) status = tsr_publication_publish(p, marker, err);
    return agree(p, status, err);
}

tsr_status tsr_publication_run(tsr_publication *p, tsr_error *err)
{
    tsr_status status = p->resumes ? find_completed(p, err) : TSR_OK;
    if (status != TSR_OK || p->is_complete) return status;
    status = tsr_publication_open(p, err);
    if (status == TSR_OK) status = write_and_publish(p, err);
    tsr_publication_close(p, status);
    return status;
}
