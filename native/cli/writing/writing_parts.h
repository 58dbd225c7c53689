/* What these files share: writing_work.c (the course of a job), writing_job.c (the description of a job) and
 * writing_leftovers.c (what earlier runs left of it). */
#ifndef TSR_CLI_WRITING_WRITING_PARTS_H
#define TSR_CLI_WRITING_WRITING_PARTS_H

#include "cli/writing/writing.h"
#include "publish/record.h"

/* How a run begins: from scratch, or with what an earlier run of the same job, or another part of it, has done. */
typedef struct cli_start {
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
} cli_start;

/* writing_report.c: refuses a planned conversion whose names, shapes and dtypes do not fit those of --against. */
tsr_status cli_check_against(const cli_writing *writing, tsr_error *err);

/* Describes the job in lines: everything that affects the output. */
tsr_status cli_describe_work(cli_writing *writing, tsr_str *text, tsr_error *err);

/* On the rank that prints messages: opens the journals, and finds what earlier runs of this job left. The second removes
 * what runs of other jobs left and, without --resume, what those of this job did. */
tsr_status cli_look_around(cli_writing *writing, cli_start *start, tsr_error *err);
tsr_status cli_clear_around(cli_writing *writing, cli_start *start, tsr_error *err);
/* Removes what runs left that were killed when DEST was complete: the job's own, and records of publications whose journals are
 * gone. */
tsr_status cli_clear_completed(cli_writing *writing, const cli_start *start, tsr_error *err);
/* Removes what an earlier run of the same job left, to start over. */
tsr_status cli_start_over(cli_writing *writing, cli_start *start, tsr_error *err);
/* writing_destination.c: compares DEST, if it exists, with all that the job would write. If it is the same, sets
 * w->is_complete, and w->work and w->conversion to the job; otherwise *why is the error that refuses DEST. Collective. */
tsr_status cli_find_completed(cli_writing *writing, const tsr_convert_options *options, tsr_error *why, tsr_error *err);
/* Whether other parts or ranks of this job have journals. */
tsr_status cli_finds_others(cli_writing *writing, const cli_start *start, bool *found, tsr_error *err);
/* writing_leftovers.c: records in the journal what is done, with the sums of what was written. */
tsr_status cli_append_step(cli_writing *writing, tsr_str records, tsr_error *err);
/* Marks the units as done that this process's journal records; with `others`, those in the journals of all parts and
 * ranks. */
tsr_status cli_take_steps(cli_writing *writing, bool others, tsr_error *err);
/* To be called when everything is written: compares the files with the sums that the journals and this process have
 * recorded. */
tsr_status cli_verify_written(cli_writing *writing, tsr_error *err);

/* Tells all ranks which units each of them has done. */
tsr_status cli_exchange_records(const cli_writing *writing, tsr_error *err);

/* Lists the files that the job will create. */
tsr_status cli_list_files(cli_writing *writing, const tsr_str **files, size_t *count, tsr_error *err);

/* writing_remote.c: cli_carry_out for the URL of an object store. */
tsr_status cli_carry_out_remote(cli_writing *writing, const tsr_convert_options *options, tsr_error *err);

/* writing_remote.c: executes a plan without MPI (exec) on machines that may share nothing but the bucket. w->work
 * and w->output must be open. Does one part, whose uploads stay incomplete; or all that is left, and then publishes
 * everything. */
/* writing_work.c: TSR_E_USAGE that lists which of the parts 1 to `parts` are not done. */
tsr_status cli_refuse_missing(const cli_writing *writing, uint64_t parts, bool (*is_missing)(const void *ctx, uint64_t part),
                              const void *ctx, tsr_error *err);

/* Whether a journal or record that was found has this run's tag. */
bool cli_is_own(const cli_writing *writing, const tsr_leftover *leftover);

#endif
