/* Publishes an output that is written in one run, by one process or by rank 0 of several. Keeps the journal next to the
 * output, removes what killed runs left, and records the last steps. Conversions, which can be resumed, are jobs
 * (job.h). */
#ifndef TSR_NATIVE_PUBLICATION_H
#define TSR_NATIVE_PUBLICATION_H

#include "publish/journal.h"
#include "publish/replacement.h"

typedef struct tsr_publication {
    tsr_journals journals;
    tsr_journal *journal; /* NULL: its directory is not writable */
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    bool continues; /* the tag belongs to an interrupted run, whose journal and output are kept */
} tsr_publication;

/* How a journal describes a job: one line, including its newline, and the names that will be created. */
typedef struct tsr_publication_job {
    tsr_str line;
    const tsr_str *names;
    size_t count;
} tsr_publication_job;

/* Opens the directory of the destination and removes what killed runs of the same kind of job left there. `job` is one line,
 * including its newline. */
tsr_status tsr_publication_open(const tsr_allocator *allocator, const char *path, tsr_str job, tsr_publication *out,
                                tsr_error *err);
/* The same, but keeps what an interrupted run with the same line and names left, unless it was interrupted while publishing.
 * `continues` is then set, and tsr_publication_begin, with generation 0, opens the journal of that run. */
tsr_status tsr_publication_reopen(const tsr_allocator *allocator, const char *path, const tsr_publication_job *job,
                                  tsr_publication *out, tsr_error *err);
/* Begins a journal that lists the names that will be created. The output must be opened with `tag`. */
tsr_status tsr_publication_begin(tsr_publication *publication, tsr_str job, uint32_t generation, const tsr_str *names,
                                 size_t count, tsr_error *err);
/* Publishes an output that was opened with the tag. */
tsr_status tsr_publication_publish(tsr_publication *publication, tsr_output *output, uint32_t marker, bool swap,
                                   tsr_error *err);
/* Removes the journal, and what it lists and was not published. What cannot be removed stays, without an error. Accepts a
 * zeroed one. */
void tsr_publication_discard(const tsr_publication *publication);
/* Removes what the interrupted run left after all. Must be called before its output is opened; tsr_publication_begin then
 * starts over. */
tsr_status tsr_publication_start_over(tsr_publication *publication, tsr_error *err);
/* Closes it without removing anything, so that a later run can continue. */
void tsr_publication_leave(tsr_publication *publication);
/* Discards what was not published and frees everything. Must be called after the output was closed. Accepts a zeroed
 * one. */
void tsr_publication_close(tsr_publication *publication);

#endif
