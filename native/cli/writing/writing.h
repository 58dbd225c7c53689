/* What the writing commands share: the destination, its publication, and the report of what was written. */
#ifndef TSR_CLI_WRITING_WRITING_H
#define TSR_CLI_WRITING_WRITING_H

#include "cli/program/cli.h"
#include "cli/program/session.h"
#include "publish/job_state.h"
#include "tessera/convert.h"
#include "tessera/glob.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/document.h"
#include "tessera/sys/object_store.h"

#include <stdio.h>

/* What is written by a command, for signals and warnings. Must not move until it is closed. */
typedef struct cli_guard {
    cli *program;
    struct cli_writing *writing; /* whose document repeats the warnings that last; or NULL */
    cli_cleanup cleanup;
} cli_guard;
/* The environment of what a command writes (tessera/sys/publication.h). It has no ranks. */
tsr_job_environment cli_environment(cli_guard *guard);

typedef struct cli_writing {
    cli *program;
    const tsr_command_options *options;
    const char *what; /* shown in the progress line */
    const char *destination;
    cli_session source; /* open during the whole job */
    tsr_texts sources;  /* the paths that are read */
    tsr_container to;
    tsr_job_form form; /* of the destination */
    uint64_t max_shard_size;
    bool per_part;
    const tsr_shards *shards; /* with TSR_TO_RANKS: how tensors are sharded, and for how many ranks */
    uint32_t world_size;
    const tsr_plan *plan;   /* NULL: convert; otherwise reshard */
    tsr_plan_job plan_job;  /* what the plan was made for; a conversion has no `target` */
    tsr_storage storage;    /* parsed from plan_job.storage; only if that lists servers */
    uint64_t share, shares; /* exec: the share, counted from 1; 0 of 0: all that is left */
    bool is_exec;
    bool is_reported; /* by the caller, who reads `job` and `seconds` */
    bool finish;      /* all shares must be done: write what surrounds their units, and publish */
    tsr_arena *arena;
    const char *against;   /* path of what the result must fit; NULL: none */
    const char *plan_path; /* of exec; NULL: none */
    tsr_vec warnings;      /* of tsr_str in `arena`: warnings to be repeated in the document */
    tsr_job job;
    cli_guard guard;
    double seconds;
} cli_writing;

/* Sets *out to the format whose files have the extension of `path`. Returns false if none does. */
bool cli_container_of_name(const char *path, tsr_container *out);
/* Sets the format of DEST. `to` is the value of --to; 0: decided by the extension. The sizes are as in
 * cli_writing. */
tsr_status cli_choose_container(cli_writing *writing, unsigned to, uint64_t max_shard_size, tsr_error *err);
/* To be called when the source is open: writes one file per part if the source has parts. */
void cli_choose_parts(cli_writing *writing);
/* Where a command writes its only file. */
typedef struct cli_file_place {
    const char *path;
    tsr_str name; /* of the file in the directory `path`, which does not exist yet; empty: `path` is the file */
} cli_file_place;
/* A destination that ends in '/' is a directory, which the file `name` is added to. A new directory is published together
 * with its file. In `arena`. */
tsr_status cli_place_file(const char *destination, tsr_str name, tsr_arena *arena, cli_file_place *out, tsr_error *err);
/* Open PATH for convert and for reshard, with the layers that the options ask for, and decide how DEST is written. For the second,
 * `w->plan_job.target` must be set to the texts of `target`. *plan is the caller's, also on failure, and borrows `target`. */
tsr_status cli_open_conversion(cli_writing *writing, const char *path, tsr_error *err);
tsr_status cli_open_reshard(cli_writing *writing, const char *path, const tsr_target *target, tsr_plan **plan,
                            tsr_error *err);
/* Writes the destination, checks that the source did not change, publishes and reports. */
tsr_status cli_write(cli_writing *writing, tsr_error *err);
/* Closes everything except the source. */
void cli_writing_close(cli_writing *writing);

/* ---- what was continued ---- */

/* Reports what a run has continued of an interrupted one. */

/* Prints it on stderr, for people; not with --quiet. */
void cli_report_resumed(const cli *program, const tsr_object_resumed *resumed);
/* Writes "resumed": {…}. */
void cli_put_resumed(tsr_json *json, const tsr_object_resumed *resumed);

/* ---- sources ---- */

/* Identifies the source of a job, for plans and journals. */

/* Sets everything in *out, which lives in `arena`. A digest_algorithm that is already set is used. */
tsr_status cli_describe_source(cli *program, const cli_session *session, tsr_arena *arena, tsr_plan_source *out,
                               tsr_error *err);
/* The options of a command with the texts of its documents in place of their paths, but for the target and the storage. Borrows
 * `session` and `program`. */
tsr_status cli_options_with_texts(cli *program, const cli_session *session, const tsr_command_options *options,
                                  tsr_command_options *out, tsr_error *err);

/* ---- config.json ---- */

/* --config: the config.json of the source next to the output, with what the conversion changed. */

typedef struct cli_config_copy {
    tsr_str text;     /* what it will hold; empty: there is nothing to write */
    const char *path; /* where */
} cli_config_copy;

/* Makes the text, and refuses a destination that has another config.json, before anything is written. The source must be
 * open. Does nothing without --config. */
tsr_status cli_config_plan(cli_writing *writing, cli_config_copy *out, tsr_error *err);
/* Writes it, after the output was published. */
tsr_status cli_config_write(cli_writing *writing, const cli_config_copy *copy, tsr_error *err);

/* The output file of -o. It is written under a temporary name and then renamed, so that a failed or interrupted run leaves
 * an earlier file as it was. "-" is standard output; a device or a pipe is written directly. */

typedef struct cli_out_file {
    FILE *to; /* anonymous: it has no descriptor */
    const char *path;
    tsr_arena *arena; /* NULL: it is written directly */
    cli_guard guard;
    tsr_publication publication;
    uint32_t file; /* its number in the output */
    uint64_t size; /* bytes written so far */
    tsr_error failed;
} cli_out_file;

/* Creates the output of a command that reads `source`. TSR_E_USAGE, before anything is created, if `path` is a file of the
 * source under any spelling or link. Files that an earlier command wrote into the checkpoint's directory (layouts,
 * manifests, .npy) may be replaced. `out` must not move until cli_out_close, because a signal's cleanup uses it. */
tsr_status cli_out_open(cli *program, const char *path, const cli_session *source, cli_out_file *out, tsr_error *err);
/* Finishes the file that cli_out_open opened: gives it its name if `status` is TSR_OK, otherwise removes it. Returns
 * `status`, or the error that occurred here. */
tsr_status cli_out_close(cli_out_file *out, tsr_status status, tsr_error *err);

#endif
