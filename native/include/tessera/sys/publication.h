/* Writes files that are not a conversion, and publishes them all or none: copies, optimizer state, repaired files, value trees, single
 * files of -o, and what the ranks of a communicator save together. Conversions, whose units can be divided and continued, are jobs
 * (native/publish/job_state.h).
 *
 *   open      refuses an existing destination, or decides what of it is replaced; removes what killed runs of the same kind left there,
 *             or continues it; begins the journal; opens the output, whose files have temporary names
 *   publish   gives the files their names
 *   close     after a failure, removes what no later run can continue
 *
 * On ranks, open and close are collective. Rank 0 decides, creates the files and publishes; the others open the same files:
 *
 *     rank 0    decide ──▶ plan ──▶ journal ──▶ create ──▶ write, sync ──▶ finish ──▶ publish
 *     others               plan                        ──▶ create ──▶ write, sync
 *
 * To an object store each rank uploads the files that it writes, and a file may be written by one rank only. The ranks publish together,
 * the marker last, so they must call tsr_publication_run.
 *
 * Example:
 *
 *     tsr_publication p = {.host = host, .arena = arena, .destination = "note.txt", .line = TSR_STR("a note\n")};
 *     uint32_t number;
 *     status = tsr_publication_open(&p, &err);
 *     if (status == TSR_OK) status = p.output->create(p.output, TSR_STR(""), text.size, &number, &err);
 *     if (status == TSR_OK) status = p.output->write_at(p.output, number, 0, text.data, text.size, &err);
 *     if (status == TSR_OK) status = tsr_publication_publish(&p, number, &err);
 *     tsr_publication_close(&p, status); */
#ifndef TESSERA_SYS_PUBLICATION_H
#define TESSERA_SYS_PUBLICATION_H

#include "tessera/comm.h"
#include "tessera/host.h"
#include "tessera/output.h"
#include "tessera/sys/object_store.h"

TSR_API_BEGIN

/* What is left of an unfinished output after its removal. */
typedef enum tsr_remains {
    TSR_REMAINS_NOTHING,
    TSR_REMAINS_WORK,   /* what a later run can continue */
    TSR_REMAINS_UNKNOWN /* something could not be removed */
} tsr_remains;

/* What writing needs from its caller. Every function may be NULL. */
typedef struct tsr_job_environment {
    tsr_comm *ranks; /* NULL: this process works alone. Otherwise the calls are collective */
    /* Receives a warning. `lasts`: it is about what is written, so it belongs into the report of the job, too. */
    tsr_status (*warn)(void *ctx, tsr_str text, bool lasts, tsr_error *err);
    /* From `guard` to `unguard`, a signal that ends the program must first call `remove`, which removes what is unfinished. It may
     * be called by another thread. */
    void (*guard)(void *ctx, tsr_remains (*remove)(void *state), void *state);
    void (*unguard)(void *ctx); /* also without guard before it */
    void (*hold)(void *ctx);    /* from here to `release` such a signal waits */
    void (*release)(void *ctx);
    void *ctx;
} tsr_job_environment;

struct tsr_journal;
struct tsr_replacement;

/* How an interrupted run is continued: what it has done is recorded in its journal. */
typedef struct tsr_continuation {
    /* Called with the open journal. `continued`: it is that of an interrupted run. If its records do not fit this run, sets *fits to
     * false; the run then starts over, and `begin` is called again. */
    tsr_status (*begin)(void *ctx, struct tsr_journal *journal, bool continued, bool *fits, tsr_error *err);
    /* Whether the journal has records that a later run can continue. Read when this run fails, and by a signal's thread. */
    const bool *has_records;
} tsr_continuation;

typedef struct tsr_publication {
    tsr_job_environment environment;
    const tsr_host *host;
    tsr_arena *arena;
    const char *destination; /* a path, or the URL of an object store */
    tsr_str line;            /* what journals call this kind of run: one line, including its newline */
    bool is_directory;       /* it becomes a directory; otherwise one file, which is created under the name "" */
    const char *marker;      /* the file that makes the output complete; NULL: there is none */
    const tsr_str
        *names; /* the files that a directory will have. The journal lists them, so that they are recognized as ours */
    size_t name_count;
    tsr_store *source;          /* what is read: it must not change meanwhile, and none of its files is replaced; or NULL */
    const char *const *sources; /* the paths of that: the destination must not be one of them, or in one */
    size_t source_count;
    const char *const *documents; /* further files that are not replaced; each may be NULL */
    size_t document_count;
    bool replaces; /* what is at the destination is replaced */
    /* A destination that already has what would be written is a success. Uploads of an interrupted run are continued, and on this
     * machine what `continuation` says. */
    bool resumes;
    bool
        reads_back; /* what was written is read again: by `write` on this machine, with the output's sums; by an object store's output */
    const tsr_continuation *continuation; /* NULL: a failed run leaves nothing on this machine */

    /* Changes the decision what is replaced. May be NULL. */
    tsr_status (*adjust)(void *ctx, struct tsr_replacement *replacement, tsr_error *err);
    /* Sets `names` by `generation`, which it may increase on rank 0. May be NULL: then the generation is not looked up. */
    tsr_status (*plan)(void *ctx, struct tsr_publication *publication, tsr_error *err);
    /* Creates files, on all ranks the same in the same order, before any rank writes. May be NULL. */
    tsr_status (*create)(void *ctx, tsr_output *output, tsr_error *err);
    /* For tsr_publication_run: writes this process's share. *marker is the number of the file that is published last; it is TSR_NO_FILE
     * before the call. With `resumes`, it is first called with an output that compares. */
    tsr_status (*write)(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err);
    /* For ranks: called on all of them when each has written and synced its share. May be NULL. */
    tsr_status (*finish)(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err);
    void *ctx;

    /* Set by open: */
    tsr_output *output;
    uint32_t generation; /* of the output's files (tsr_output.generation) */
    bool replaced; /* an older checkpoint is. Known on rank 0; on the others only if a directory is replaced as a whole */
    /* Set by run: */
    bool compares;    /* during `write`: the output compares */
    bool is_complete; /* an earlier run has written the same; this one wrote nothing */
    tsr_object_resumed resumed;
    struct tsr_publishing *state; /* private */
} tsr_publication;

/* Opens, writes, publishes and closes. On failure the destination stays as it was. Errors, the same on all ranks: TSR_E_EXISTS;
 * TSR_E_USAGE if a source would be replaced; TSR_E_UNSUPPORTED if what is there cannot be replaced; TSR_E_CHANGED if the source
 * changed; those of the callbacks; TSR_E_IO; TSR_E_NOMEM. */
tsr_status tsr_publication_run(tsr_publication *publication, tsr_error *err);

/* The steps, for callers that write in between by themselves. Open must be followed by close, after a failure, too. */
tsr_status tsr_publication_open(tsr_publication *publication, tsr_error *err);
/* Called by rank 0, when all ranks have synced what they wrote. Not for ranks that write to an object store. */
tsr_status tsr_publication_publish(tsr_publication *publication, uint32_t marker, tsr_error *err);
/* `status` is the outcome, the same on all ranks. Accepts one that was not opened. */
void tsr_publication_close(tsr_publication *publication, tsr_status status);

TSR_API_END

#endif
