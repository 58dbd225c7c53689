/* What writing_work.c (the job's course), writing_job.c (what the job is) and writing_leftovers.c (what earlier runs left of
 * it) share. */
#ifndef TSR_CLI_WRITING_WRITING_PARTS_H
#define TSR_CLI_WRITING_WRITING_PARTS_H

#include "cli/writing/writing.h"
#include "publish/record.h"

/* How a run begins: with nothing, or with what an earlier run of the same job, or another part of it, has done. */
typedef struct cli_start {
    tsr_str text; /* of this job */
    tsr_leftover *found;
    size_t count;
    uint32_t generation;    /* of the files begun before */
    bool resumed;           /* there are journals of this job */
    bool has_records;       /* and they say that something is done */
    bool publishing;        /* its renaming had begun */
    bool note_lost;         /* the record of that, by a power loss */
    bool has_output;        /* beside the destination */
    bool complete;          /* and published: nothing is left to do */
    const tsr_str *written; /* names in the destination that it has put there */
    size_t written_count;
} cli_start;

/* writing_against.c: refuses a conversion, which is decided, whose names, shapes and dtypes are not those of --against. */
tsr_status cli_check_against(const cli_writing *writing, tsr_error *err);

/* The lines that describe the job: of everything that makes another output. */
tsr_status cli_describe_work(cli_writing *writing, tsr_str *text, tsr_error *err);

/* Opens the journals, chooses the tag, and removes what runs of other jobs left; on the rank that speaks. */
tsr_status cli_look_around(cli_writing *writing, cli_start *start, tsr_error *err);
/* Whether journals of this job are there, of other parts than this process's own. */
tsr_status cli_finds_others(cli_writing *writing, const cli_start *start, bool *found, tsr_error *err);
/* writing_steps.c: keeps in the journal what is done, with the sums of what was written. */
tsr_status cli_append_step(cli_writing *writing, tsr_str records, tsr_error *err);
/* Marks what this process's journal, and with `others` those of all parts and ranks, say is done. */
tsr_status cli_take_steps(cli_writing *writing, bool others, tsr_error *err);
/* When all is written: compares the files with all that journals, and this process, say was written to them. */
tsr_status cli_verify_written(cli_writing *writing, tsr_error *err);

/* All ranks learn what each has done. */
tsr_status cli_exchange_records(const cli_writing *writing, tsr_error *err);

/* What the job will create. */
tsr_status cli_list_files(cli_writing *writing, const tsr_str **files, size_t *count, tsr_error *err);

/* writing_remote.c: cli_carry_out for the URL of an object store. */
tsr_status cli_carry_out_remote(cli_writing *writing, const tsr_convert_options *options, tsr_error *err);

/* writing_remote_parts.c: of a plan without MPI (exec), which may run on machines that share nothing but the bucket, once w->work and
 * w->output are open. One part, whose uploads stay open; or all that is left, with which everything is published. */
/* Chooses how the names of the notes begin. */
tsr_status cli_choose_notes(cli_writing *writing, tsr_error *err);
/* Sets w->replacement to what a killed run of this plan was replacing, if there was one; all that is not of the old checkpoint counts
 * as kept until, once w->work is made, cli_keep_others leaves out what the new one has. */
tsr_status cli_find_replacement(cli_writing *writing, bool *found, tsr_error *err);
tsr_status cli_keep_others(cli_writing *writing, tsr_error *err);
tsr_status cli_carry_out_remote_part(cli_writing *writing, tsr_error *err);
/* writing_remote_end.c: what surrounds the units, all of which are done, and the publication. */
tsr_status cli_publish_remote(cli_writing *writing, tsr_error *err);
/* writing_work.c: TSR_E_USAGE with the parts, from 1 to `parts`, that are not done. */
tsr_status cli_refuse_missing(const cli_writing *writing, uint64_t parts, bool (*is_missing)(const void *ctx, uint64_t part),
                              const void *ctx, tsr_error *err);
tsr_status cli_finish_remote_parts(cli_writing *writing, tsr_error *err);

/* Whether a journal or record that was found is of this run's tag. */
bool cli_is_own(const cli_writing *writing, const tsr_leftover *leftover);

#endif
