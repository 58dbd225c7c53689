/* See publication.h. */
#include "publish/publication.h"

#include <string.h>

#include "tessera/sys/folder.h"
#include "tessera/sys/try.h"

static tsr_status describe(tsr_arena *arena, tsr_str job, tsr_str *text, tsr_error *err)
{
    *text = tsr_arena_format(arena, err, "%s%.*s", TSR_JOURNAL_MAGIC, TSR_STR_ARG(job));
    return text->data ? TSR_OK : TSR_E_NOMEM;
}

/* Takes the tag of an interrupted run whose journal has this text. A run that was already publishing is completed or undone
 * instead. */
static void find_interrupted(tsr_publication *p, tsr_str text, const tsr_leftover *found, size_t count)
{
    for (size_t i = 0; i < count && !p->continues; i++) {
        const tsr_leftover *l = &found[i];
        p->continues = l->part == 1 && l->parts == 1 && !l->busy && tsr_str_equal(l->text, text);
        for (size_t k = 0; k < count; k++) p->continues &= !(found[k].publishing && strcmp(found[k].tag, l->tag) == 0);
        if (p->continues) memcpy(p->tag, l->tag, sizeof p->tag);
    }
}

/* `kept` NULL: no interrupted run is continued. */
static tsr_status remove_leftovers(tsr_publication *p, tsr_str job, const tsr_publication_job *kept, tsr_arena *arena,
                                   tsr_error *err)
{
    tsr_leftover *found;
    size_t count;
    tsr_str text, whole;
    uint32_t generation;
    TSR_TRY(describe(arena, job, &text, err));
    TSR_TRY(tsr_journals_list(&p->journals, arena, &found, &count, err));
    if (kept) TSR_TRY(tsr_journal_text(arena, text, 0, (tsr_journal_files){kept->names, kept->count}, &whole, err));
    if (kept) find_interrupted(p, whole, found, count);
    for (size_t i = 0; i < count; i++) {
        const tsr_leftover *l = &found[i];
        const bool ours = !l->text.size || tsr_journal_is_of(l->text, text, &generation);
        if (p->continues && strcmp(l->tag, p->tag) == 0) continue;
        if (l->part == 1 && l->parts == 1 && !l->busy && ours) TSR_TRY(tsr_journals_discard(&p->journals, l->tag, err));
    }
    return TSR_OK;
}

static tsr_status open_place(tsr_publication *p, const char *path, tsr_str job, const tsr_publication_job *kept,
                             tsr_error *err)
{
    TSR_TRY(tsr_journals_open(NULL, p->journals.allocator, path, &p->journals, err));
    tsr_arena *arena = tsr_arena_new(p->journals.allocator, 0, err);
    tsr_status status = arena ? remove_leftovers(p, job, kept, arena, err) : TSR_E_NOMEM;
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_publication_open(const tsr_allocator *allocator, const char *path, tsr_str job, tsr_publication *out,
                                tsr_error *err)
{
    *out = (tsr_publication){.journals = {.allocator = allocator}};
    return open_place(out, path, job, NULL, err);
}

tsr_status tsr_publication_reopen(const tsr_allocator *allocator, const char *path, const tsr_publication_job *job,
                                  tsr_publication *out, tsr_error *err)
{
    *out = (tsr_publication){.journals = {.allocator = allocator}};
    return open_place(out, path, job->line, job, err);
}

tsr_status tsr_publication_start_over(tsr_publication *p, tsr_error *err)
{
    p->continues = false;
    TSR_TRY(tsr_journals_discard(&p->journals, p->tag, err));
    tsr_journal_close(p->journal);
    p->journal = NULL;
    return TSR_OK;
}

tsr_status tsr_publication_begin(tsr_publication *p, tsr_str job, uint32_t generation, const tsr_str *names, size_t count,
                                 tsr_error *err)
{
    tsr_error unable = {0};
    tsr_str lines, text;
    if (!p->continues) TSR_TRY(tsr_journal_new_tag(p->tag, err));
    tsr_arena *arena = tsr_arena_new(p->journals.allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = describe(arena, job, &lines, err);
    if (status == TSR_OK) status = tsr_journal_text(arena, lines, generation, (tsr_journal_files){names, count}, &text, err);
    if (status == TSR_OK &&
        tsr_journal_begin(&p->journals, p->tag, (tsr_journal_share){1, 1, false}, text, &p->journal, &unable) == TSR_E_NOMEM)
        status = tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "%s", unable.message);
    tsr_arena_free(arena); /* if no journal can be written, opening the output will report why */
    return status;
}

/* Records what publishing is about to do, so that an interrupted publication can be completed or undone. */
static tsr_status note_publishing(tsr_publication *p, tsr_output *output, uint32_t marker, bool swap, tsr_error *err)
{
    tsr_vec record = tsr_vec_of(p->journals.allocator, 1);
    if (!p->journal || !(swap || tsr_folder_output_replaces(output))) return TSR_OK; /* one rename needs no record */
    tsr_status status = output->sync(output, err);
    if (status == TSR_OK) status = tsr_folder_output_record(output, marker, NULL, &record, err);
    if (status == TSR_OK)
        status = tsr_journals_publishing(&p->journals, p->tag, (tsr_str){record.items, record.count}, true, err);
    tsr_vec_free(&record);
    return status;
}

tsr_status tsr_publication_publish(tsr_publication *p, tsr_output *output, uint32_t marker, bool swap, tsr_error *err)
{
    TSR_TRY(note_publishing(p, output, marker, swap, err));
    TSR_TRY(output->publish(output, marker, err));
    tsr_error ignored = {0}; /* it is published, so leftovers are not an error */
    tsr_journals_remove(&p->journals, p->tag, NULL, &ignored);
    return TSR_OK;
}

void tsr_publication_discard(const tsr_publication *p)
{
    tsr_error ignored = {0};
    if (p->journal) tsr_journals_discard(&p->journals, p->tag, &ignored);
}

void tsr_publication_leave(tsr_publication *p)
{
    tsr_journal_close(p->journal);
    tsr_journals_close(&p->journals);
    *p = (tsr_publication){0};
}

void tsr_publication_close(tsr_publication *p)
{
    tsr_publication_discard(p); /* also ends or undoes a publication that failed */
    tsr_publication_leave(p);
}
