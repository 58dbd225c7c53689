/* A publication in one go, by one process or by rank 0 of several: the journal beside the output, what killed ones left, the
 * record of the last steps. Commands whose work can be resumed keep their own journals (native/cli/writing/writing_work.c). */
#ifndef TSR_NATIVE_PUBLICATION_H
#define TSR_NATIVE_PUBLICATION_H

#include "publish/journal.h"
#include "publish/replacement.h"

typedef struct tsr_publication {
    tsr_journals journals;
    tsr_journal *journal; /* NULL: the place for it is not writable */
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    bool continues; /* the tag is that of an interrupted run, whose journal and output are kept */
} tsr_publication;

/* What a journal says of a job: one line, with its end, and the names that will be created. */
typedef struct tsr_publication_job {
    tsr_str line;
    const tsr_str *names;
    size_t count;
} tsr_publication_job;

/* Finds the place and removes what killed runs of the same kind of job left there. `job` is one line, with its end. */
tsr_status tsr_publication_open(const tsr_allocator *allocator, const char *path, tsr_str job, tsr_publication *out, tsr_error *err);
/* The same, but keeps what an interrupted run of the same line and names left, unless it was killed while it published. Then
 * `continues` is set, and tsr_publication_begin, with generation 0, opens the journal of that run. */
tsr_status tsr_publication_reopen(const tsr_allocator *allocator, const char *path, const tsr_publication_job *job,
                                  tsr_publication *out, tsr_error *err);
/* Begins a journal that lists the names that will be created; the output's tag is then `tag`. */
tsr_status tsr_publication_begin(tsr_publication *publication, tsr_str job, uint32_t generation, const tsr_str *names,
                                 size_t count, tsr_error *err);
/* Publishes an output that was opened with the tag. */
tsr_status tsr_publication_publish(tsr_publication *publication, tsr_output *output, uint32_t marker, bool swap, tsr_error *err);
/* Removes what the journal lists and was not published, and the journal. Errors leave what they are about. Takes a zeroed one. */
void tsr_publication_discard(const tsr_publication *publication);
/* Removes what the interrupted run left after all, before its output is opened; tsr_publication_begin then starts over. */
tsr_status tsr_publication_start_over(tsr_publication *publication, tsr_error *err);
/* Closes it without removing anything, so that a later run can continue. */
void tsr_publication_leave(tsr_publication *publication);
/* After the output was closed: without one the journal is nobody's. Takes a zeroed one. */
void tsr_publication_close(tsr_publication *publication);

#endif
