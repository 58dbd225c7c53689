/* What the writing commands share: the destination, its publication, and the report of what was written. */
#ifndef TSR_CLI_WRITING_WRITING_H
#define TSR_CLI_WRITING_WRITING_H

#include "cli/program/session.h"
#include "publish/journal.h"
#include "publish/replacement.h"
#include "tessera/convert.h"
#include "tessera/glob.h"
#include "tessera/sys/conversion_options.h"
#include "tessera/sys/document.h"
#include "tessera/sys/object_output.h"
#include "tessera/sys/plan_job.h"
#include "tessera/sys/work.h"

typedef struct cli_writing {
    cli *program;
    const tsr_command_options *options;
    const char *what; /* shown in the progress line */
    const char *destination;
    cli_session source; /* open during the whole job */
    tsr_texts sources;  /* the paths that are read */
    tsr_container to;
    bool is_folder;
    tsr_str file_name;  /* of a single file, if DEST is a directory all the same, because it ends in '/'; otherwise empty */
    const char *marker; /* of a directory: as tsr_marker_of, or TSR_INDEX_MARKER; NULL if the format has none */
    uint64_t max_shard_size;
    bool per_part;
    const tsr_shards *shards; /* with TSR_TO_RANKS: how tensors are sharded, and for how many ranks */
    uint32_t world_size;
    const tsr_plan *plan; /* NULL: convert; otherwise reshard */
    tsr_plan_job job;     /* what the plan was made for; a conversion has no `target` */
    tsr_storage storage;  /* parsed from job.storage; only if that lists servers */
    uint64_t part, parts; /* exec: the part, counted from 1; 0 of 0: all that is left */
    uint32_t generation;  /* of the output, once it is decided */
    bool joins;           /* the files of an earlier run or another part are continued */
    bool is_exec;
    bool salvages; /* the source is a torch.save file that has lost its end (tsr_open_options.salvage) */
    bool finish;   /* all parts must be done: write what surrounds their units, and publish */
    tsr_arena *arena;
    const char *against;         /* path of what the result must fit; NULL: none */
    const char *plan_path;       /* of exec; NULL: none */
    tsr_str notes;               /* exec to an object store: the common beginning of the names of its parts' notes */
    tsr_replacement replacement; /* set on the rank that prints messages; `swap` on all */
    tsr_vec warnings;            /* of tsr_str in `arena`: warnings to be repeated in the document */
    tsr_output *output, *sidecar;
    tsr_journals journals;
    tsr_journal *journal;
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    uint64_t units_found;       /* units that earlier runs and other processes have done */
    tsr_object_resumed resumed; /* what was continued in an object store, with --resume */
    bool published;
    bool compares;    /* `output` compares DEST with what would be written (publish/completed.h) */
    bool is_complete; /* with --resume: an earlier run of this job has written DEST */
    tsr_work *work;
    tsr_conversion conversion;
    double seconds;
} cli_writing;

/* writing_destination.c: sets *out to the format whose files have the extension of `path`. Returns false if none does. */
bool cli_container_of_name(const char *path, tsr_container *out);
/* writing_destination.c: sets the format of DEST. `to` is the value of --to; 0: decided by the extension. The sizes are as in
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
 * `w->job.target` must be set to the texts of `target`. *plan is the caller's, also on failure, and borrows `target`. */
tsr_status cli_open_conversion(cli_writing *writing, const char *path, tsr_error *err);
tsr_status cli_open_reshard(cli_writing *writing, const char *path, const tsr_target *target, tsr_plan **plan,
                            tsr_error *err);
/* Writes the destination, checks that the source did not change, publishes and reports. */
tsr_status cli_write(cli_writing *writing, tsr_error *err);
/* Closes everything except the source. Removes what was not published. */
void cli_writing_close(cli_writing *writing);

/* writing_work.c: opens the destination and its journal, and does the requested units: those of a part, none if there is
 * only `finish`, otherwise all that are left. Publishes unless there was a part without `finish`. */
tsr_status cli_carry_out(cli_writing *writing, const tsr_convert_options *options, tsr_error *err);
/* writing_destination.c: decides what happens to DEST's files. `written` are names that an unfinished run of the same job
 * has created there. */
tsr_status cli_decide_replacement(cli_writing *writing, const tsr_str *written, size_t count, tsr_error *err);
/* The first refuses new files that have the name of a file that stays; the second warns which files stay. */
tsr_status cli_check_names(cli_writing *writing, tsr_error *err);
tsr_status cli_note_kept(cli_writing *writing, tsr_error *err);
/* The name of the sidecar of objects in a directory. */
tsr_str cli_sidecar_name(const cli_writing *writing);
/* Writes the sidecar, in the directory or next to the single file. */
tsr_status cli_write_sidecar(cli_writing *writing, tsr_error *err);

/* Keeps a warning for the document. TSR_E_NOMEM if it has no data, too. */
tsr_status cli_keep_warning(cli_writing *writing, tsr_str text, tsr_error *err);
/* Reports on stderr what was written; with --json, prints the document on stdout. */
tsr_status cli_report_writing(cli_writing *writing, tsr_error *err);

#endif
