/* The state of a running job. It is shared by its course (job.c), what it does on this machine (job_directory.c) and in an object store
 * (job_objects.c), and what both do (job_state.c). */
#ifndef TSR_NATIVE_JOB_STATE_H
#define TSR_NATIVE_JOB_STATE_H

#include "publish/journal.h"
#include "publish/replacement.h"
#include "tessera/comm.h"
#include "tessera/output.h"
#include "tessera/store.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/publication.h"
#include "tessera/sys/work.h"

/* Writes a checkpoint to a destination, from the decision what is replaced to the publication:
 *
 *   begin     finds what earlier runs of the job left, and whether one of them has completed it
 *   open      decides what is replaced, refuses what cannot be, and creates the output under temporary names
 *   run       takes over what is done, and does the rest of what this run is for
 *   publish   writes what surrounds the units, and gives the output its names
 *   end       closes everything; after a failure, removes what nobody can continue
 *
 * A destination on this machine has journals (job_directory.c), one in an object store has unfinished uploads and notes
 * (job_objects.c). Nothing here prints: messages go to the environment.
 *
 * Example:
 *
 *     tsr_job job = {.host = host, .arena = arena, .destination = "model.safetensors", .source = checkpoint, ...};
 *     status = tsr_job_run(&job, &err);
 *     if (status == TSR_OK && !job.is_complete) printf("%u files\n", (unsigned)job.conversion.file_count); */

/* How much of a job one run does. */
typedef enum tsr_job_extent {
    TSR_JOB_WHOLE,           /* all of it. What runs of other jobs left next to the destination is removed */
    TSR_JOB_SHARE,           /* one of the shares, which may run anywhere at any time. Publishes nothing */
    TSR_JOB_REST,            /* everything that no share has done, and the publication */
    TSR_JOB_FINISH,          /* the publication of what shares have done; refused if one of them is missing */
    TSR_JOB_SHARE_AND_FINISH /* a share, then TSR_JOB_FINISH */
} tsr_job_extent;

typedef struct tsr_job {
    tsr_job_environment environment;
    const tsr_host *host;
    tsr_arena *arena;        /* has the results */
    const char *destination; /* a path, or the URL of an object store */
    bool is_directory;       /* it becomes a directory; otherwise one file */
    tsr_str file_name;       /* of a single file in the directory; empty: not one */
    const char *marker;      /* as tsr_marker_of, or TSR_INDEX_MARKER; NULL: the format has none */
    tsr_checkpoint *source;
    const tsr_convert_options *options;
    bool has_holes;             /* the source's files have holes, and so will the new ones */
    const char *const *sources; /* paths that are read; the destination must not be one of them, or in one */
    size_t source_count;
    bool replaces; /* a checkpoint at the destination is replaced */
    /* What an interrupted run of the job has done is continued, and what this one does is kept if it fails. A destination that is
     * already complete is a success. */
    bool resumes;
    bool discards_parts; /* unfinished shares of other jobs are removed, too */
    bool is_trusting;    /* what other runs wrote is not checked again */
    tsr_job_extent extent;
    uint64_t share, shares; /* the share, counted from 1 */
    /* Describes the job in lines of text: two jobs with the same lines write the same bytes. The first line is TSR_JOURNAL_MAGIC. */
    tsr_status (*describe)(void *ctx, tsr_str *text, tsr_error *err);
    bool describes_plan; /* `describe` reads `conversion`, planned for a new destination */
    /* Adds all files that are read; none of them is replaced. */
    tsr_status (*list_inputs)(void *ctx, tsr_inputs *inputs, tsr_error *err);
    /* TSR_E_CHANGED if the source has changed since it was opened. */
    tsr_status (*unchanged)(void *ctx, tsr_error *err);
    void *ctx;

    /* Results. `conversion` is also set if the run fails after its plan was made. */
    tsr_conversion conversion;
    bool is_complete;           /* an earlier run has written the destination; this one wrote nothing */
    bool published;             /* the destination has all of the output */
    bool is_planned;            /* the counts are known: */
    uint64_t units;             /* of the whole job */
    uint64_t units_left;        /* not done by anybody yet */
    uint64_t units_found;       /* done by earlier runs and other processes */
    tsr_object_resumed resumed; /* what was continued in an object store, or is complete at any destination */
} tsr_job;

/* What a destination becomes. */
typedef struct tsr_job_form {
    bool is_directory; /* as in tsr_job, like the others */
    const char *marker;
    tsr_str file_name;
} tsr_job_form;
/* The form that `options` give to the destination; a single file gets a directory if that ends in '/'. */
tsr_job_form tsr_job_form_of(const tsr_convert_options *options, const char *destination);

/* Does what job->extent says. Errors, the same on all ranks: those of tsr_work_new and of the source; TSR_E_EXISTS if there is
 * something at the destination, or another process is writing there; TSR_E_UNSUPPORTED if it cannot be replaced; TSR_E_CHANGED if the
 * source changed, or an interrupted run was of another job; TSR_E_USAGE if shares are missing, or the source would be overwritten;
 * TSR_E_IO; TSR_E_NOMEM. */
tsr_status tsr_job_run(tsr_job *job, tsr_error *err);
/* Refuses the destination where tsr_job_run would, and warns of the files that stay there; with `resumes`, finds out whether it is
 * complete. Writes nothing. */
tsr_status tsr_job_check(tsr_job *job, tsr_error *err);

/* ---- the text of a job ---- */

/* Describes jobs in lines of text, for their journals: two jobs with the same lines write the same bytes. Texts begin with
 * TSR_JOURNAL_MAGIC and live in an arena. */

tsr_status tsr_job_add_line(tsr_arena *arena, tsr_str *text, const char *key, tsr_str value, tsr_error *err);
/* Adds the hash of a value, in place of a document or of numbers. */
tsr_status tsr_job_add_hash(tsr_arena *arena, tsr_str *text, const char *key, tsr_str value, tsr_error *err);
/* Sets when the files of a source were changed: their modification times, or what a server reports. */
tsr_status tsr_job_date_source(tsr_store *store, bool is_remote, tsr_plan_source *source, tsr_arena *arena, tsr_error *err);
/* Describes a checkpoint that is read, but not where it is: it may be moved between two runs. */
tsr_status tsr_job_add_source(tsr_arena *arena, tsr_str *text, const tsr_plan_source *source, tsr_error *err);

/* ---- the output of a rank ---- */

/* One process's view of an output to an object store that several ranks write. It records which files this rank has written,
 * which then belong to it. What rank 0 writes into files of other ranks (headers, directories of archives) is sent to the
 * ranks that upload them, in rounds of TSR_MOST_KEPT bytes. */

/* How many bytes rank 0 keeps before it sends them. A single write may be larger. */
enum { TSR_MOST_KEPT = 4 << 20 };

typedef struct tsr_ranked_output {
    tsr_output base; /* must be first */
    tsr_output *inner;
    tsr_comm *ranks;
    const tsr_allocator *allocator;
    tsr_vec written; /* of char: 1 if this rank wrote the file */
    uint32_t count;  /* number of files that all ranks have created */
    bool keeps;      /* bytes that are written are kept */
    tsr_vec kept;    /* of char: file u32, offset u64, size u64, the bytes; in native byte order */
} tsr_ranked_output;

/* Borrows `inner`, which the caller closes. */
void tsr_ranked_output_open(tsr_output *inner, tsr_comm *ranks, const tsr_allocator *allocator, tsr_ranked_output *out);
void tsr_ranked_output_free(tsr_ranked_output *output);
/* To be called when all ranks have done their units: decides which rank each file belongs to. Files that nobody wrote belong
 * to rank 0. From now on, what rank 0 writes into these files is sent to their owners, which must be in
 * tsr_ranked_output_hand_out. */
tsr_status tsr_ranked_output_divide(tsr_ranked_output *output, tsr_error *err);
/* Ends the rounds. Rank 0, which has written what surrounds the tensors, sends the rest of it; the others receive all rounds
 * and write what belongs to their own files. `status` is that of this rank so far. Every rank returns the same status. */
tsr_status tsr_ranked_output_hand_out(tsr_ranked_output *output, tsr_status status, tsr_error *err);
/* Publishes on all ranks, step by step. Only rank 0's `marker` matters. Every rank returns the same status. */
tsr_status tsr_ranked_output_publish(tsr_ranked_output *output, uint32_t marker, tsr_error *err);
/* Adds up what all ranks have continued. */
tsr_status tsr_ranked_output_resumed(tsr_ranked_output *output, tsr_object_resumed *out, tsr_error *err);

/* ---- job state ---- */

/* How a run begins: from scratch, or with what an earlier run of the same job, or another share of it, has done. */
typedef struct job_start {
    tsr_str text; /* the text of this job */
    tsr_leftover *found;
    size_t count;
    uint32_t generation;    /* of the files that were begun earlier */
    bool resumed;           /* there are journals of this job */
    bool has_records;       /* these journals record units that are done */
    bool publishing;        /* the earlier run had begun to publish */
    bool note_lost;         /* the record of that publication was lost in a power failure */
    bool has_output;        /* there is an unpublished output next to the destination */
    bool complete;          /* the output was published: nothing is left to do */
    const tsr_str *written; /* names in the destination that the earlier run has created */
    size_t written_count;
} job_start;

typedef struct job_backend job_backend;

typedef struct job_state {
    tsr_job *job;
    const job_backend *backend;
    tsr_comm *ranks;
    bool is_first;          /* the only process, or rank 0, which decides for all */
    bool is_shared;         /* shares of the job may run anywhere at any time */
    uint64_t share, shares; /* the share, counted from 1; 0 of 0: all that is left */
    bool finish;            /* all shares must be done: write what surrounds their units, and publish */
    tsr_convert_options options;
    tsr_work *work;
    uint32_t planned;            /* the generation that it was planned for */
    uint32_t generation;         /* of the output, once it is decided */
    tsr_replacement replacement; /* set on the first rank; `swap` on all */
    tsr_output *output, *sidecar;
    bool compares; /* `output` compares the destination with what would be written (publish/destination.h) */
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    /* job_directory.c */
    job_start start;
    tsr_journals journals;
    tsr_journal *journal;
    bool joins; /* the files of an earlier run or another share are continued */
    /* job_objects.c */
    tsr_str notes; /* the common beginning of the names of its shares' notes */
    tsr_ranked_output ranked;
    struct part_output *taken; /* the output of a share, or of what takes them over */
} job_state;

/* What differs between destinations: the steps of job_state.h. A step may set job->is_complete or job->published, after which only `end`
 * follows. All are collective. */
struct job_backend {
    tsr_status (*begin)(job_state *s, tsr_error *err);
    tsr_status (*open)(job_state *s, tsr_error *err);
    tsr_status (*run)(job_state *s, tsr_error *err);
    tsr_status (*publish)(job_state *s, tsr_error *err);
    void (*end)(job_state *s, tsr_status status); /* also after a failure of `open` or a later step */
};
extern const job_backend tsr_job_directory, tsr_job_objects;

/* Agrees with the other ranks on a common status. */
tsr_status tsr_job_agree(const job_state *s, tsr_status status, tsr_error *err);
/* The functions of an environment, which may lack them. */
void tsr_job_guard(const tsr_job_environment *environment, tsr_remains (*remove)(void *state), void *state);
void tsr_job_unguard(const tsr_job_environment *environment);
void tsr_job_hold(const tsr_job_environment *environment);
void tsr_job_release(const tsr_job_environment *environment);
/* Warns of a thing that happens during the run. */
__attribute__((format(printf, 2, 3))) void tsr_job_warn(const tsr_job_environment *environment, const char *format, ...);

/* Warns which files of the destination stay. */
tsr_status tsr_job_note_kept(const tsr_job_environment *environment, const tsr_replacement *replacement,
                             const char *destination, tsr_arena *arena, tsr_error *err);
/* Warns of leftovers of unfinished shares of other plans in an object store. They stay there. */
void tsr_job_warn_of_other_parts(const tsr_job_environment *environment, const tsr_output *output, const char *destination);
/* tsr_journals_hold, with a warning of what it removed. */
tsr_status tsr_job_hold_destination(const tsr_job_environment *environment, tsr_journals *journals, const char *destination,
                                    tsr_error *err);

/* Decides what happens to the destination's files. `written` are names that an unfinished run of the same job has created there. */
tsr_status tsr_job_decide(job_state *s, const tsr_str *written, size_t count, tsr_error *err);
/* Refuses new files that have the name of a file that stays, and warns which files stay. */
tsr_status tsr_job_check_names(job_state *s, tsr_error *err);
/* Lists the files that the job will create. */
tsr_status tsr_job_list_files(job_state *s, const tsr_str **files, size_t *count, tsr_error *err);
/* job->describe, after the plan if it reads that. */
tsr_status tsr_job_describe(job_state *s, tsr_str *text, tsr_error *err);
/* Makes the plan of the work for s->generation, if it is not made yet. */
tsr_status tsr_job_plan(job_state *s, tsr_error *err);
/* Writes the sidecar, in the directory or next to the single file. */
tsr_status tsr_job_write_sidecar(job_state *s, tsr_error *err);
/* Compares the destination, if it exists, with all that the job would write. If it is the same, sets job->is_complete, s->work and
 * job->conversion; otherwise *why is the error that refuses it. */
tsr_status tsr_job_find_completed(job_state *s, tsr_error *why, tsr_error *err);
void tsr_job_close_outputs(job_state *s);
/* Tells all ranks which units each of them has done. */
tsr_status tsr_job_exchange_records(const job_state *s, tsr_error *err);
/* TSR_E_USAGE that lists which of the shares 1 to `shares` are not done. */
tsr_status tsr_job_refuse_missing(const job_state *s, uint64_t shares, bool (*is_missing)(const void *ctx, uint64_t share),
                                  const void *ctx, tsr_error *err);

#endif
