/* Writes a checkpoint to a destination, from the decision what is replaced to the publication:
 *
 *   begin     finds what earlier runs of the job left, and whether one of them has completed it
 *   open      decides what is replaced, refuses what cannot be, and creates the output under temporary names
 *   run       takes over what is done, and does the rest of what this run is for
 *   publish   writes what surrounds the units, and gives the output its names
 *   end       closes everything; after a failure, removes what nobody can continue
 *
 * A destination on this machine has journals (job_folder.c), one in an object store has unfinished uploads and notes
 * (job_objects.c). Nothing here prints: messages go to the environment.
 *
 * Example:
 *
 *     tsr_job job = {.host = host, .arena = arena, .destination = "model.safetensors", .source = checkpoint, ...};
 *     status = tsr_job_run(&job, &err);
 *     if (status == TSR_OK && !job.is_complete) printf("%u files\n", (unsigned)job.conversion.file_count); */
#ifndef TSR_NATIVE_JOB_H
#define TSR_NATIVE_JOB_H

#include "publish/journal.h"
#include "publish/replacement.h"
#include "tessera/store.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/publication.h"

/* How much of a job one run does. */
typedef enum tsr_job_extent {
    TSR_JOB_WHOLE,           /* all of it. What runs of other jobs left next to the destination is removed */
    TSR_JOB_SHARE,           /* one of `parts` shares, which may run anywhere at any time. Publishes nothing */
    TSR_JOB_REST,            /* everything that no share has done, and the publication */
    TSR_JOB_FINISH,          /* the publication of what shares have done; refused if one of them is missing */
    TSR_JOB_SHARE_AND_FINISH /* a share, then TSR_JOB_FINISH */
} tsr_job_extent;

typedef struct tsr_job {
    tsr_job_environment environment;
    const tsr_host *host;
    tsr_arena *arena;        /* has the results */
    const char *destination; /* a path, or the URL of an object store */
    bool is_folder;          /* it becomes a directory; otherwise one file */
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
    uint64_t part, parts; /* the share, counted from 1 */
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
    bool is_folder; /* as in tsr_job, like the others */
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

#endif
