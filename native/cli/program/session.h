/* An opened PATH, and the progress line of long operations. */
#ifndef TSR_CLI_PROGRAM_SESSION_H
#define TSR_CLI_PROGRAM_SESSION_H

#include "cli/program/cli.h"
#include "tessera/checkpoint.h"
#include "tessera/document_read.h"
#include "tessera/read.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/publication.h"
#include "tessera/sys/store.h"

#include <stdbool.h>

typedef struct cli_session {
    const char *path;
    tsr_store *store;
    bool is_remote;      /* PATH is a URL */
    bool ignores_shards; /* --shards has no effect, because there are no ranks whose tensors it could join */
    tsr_checkpoint *checkpoint;
    const tsr_catalog *catalog;
    /* The checkpoint of `store`, if `checkpoint` is a layer over it (--map, --dequantize, --lora, --quantize, a merge);
     * otherwise NULL. */
    tsr_checkpoint *source;
    tsr_layers layers;          /* over the source; the top is `checkpoint` */
    tsr_str quantization;       /* with --quantize: the quantization_config that config.json has to have; empty: not used */
    struct cli_session *others; /* further checkpoints that are read, in calloc memory; closed with this session */
    size_t other_count;
    tsr_str recipe;       /* what else affects the values, in one line; data NULL: nothing */
    tsr_arena *arena;     /* of the texts here, and of the map's rules */
    tsr_str map_text;     /* the document of --map; data NULL: none */
    tsr_str flat_text;    /* that of --flat-params */
    tsr_str modules_text; /* the document of --modules, with --canonical; data NULL: none */
} cli_session;

/* The checkpoint that reads the files of the store. */
static inline tsr_checkpoint *cli_source_checkpoint(const cli_session *session)
{
    return session->source ? session->source : session->checkpoint;
}

/* Adds a layer over the session's checkpoint, which takes ownership of it. */
void cli_add_layer(cli_session *session, tsr_checkpoint *layer);

/* Opens PATH. On failure nothing is open. `options` may be NULL. */
tsr_status cli_open(cli *program, const char *path, const tsr_open_options *options, cli_session *out, tsr_error *err);
/* The same for the checkpoint to compare with: --also does not apply to it, and --part and --step apply only if it has parts
 * and steps (tsr_path_open_compared). */
tsr_status cli_open_compared(cli *program, const char *path, const tsr_open_options *options, cli_session *out,
                             tsr_error *err);
/* The same for a checkpoint that is neither of the two, such as an adapter: --part, --step, --also and --shards do not apply
 * to it. */
tsr_status cli_open_apart(cli *program, const char *path, const tsr_open_options *options, cli_session *out, tsr_error *err);
/* Accepts a zeroed one. */
void cli_close(cli_session *session);
/* All paths that a command reads: PATH, those of --also, and the session's other checkpoints (NULL: none). */
tsr_status cli_list_sources(const cli *program, const char *path, const cli_session *session, tsr_arena *arena,
                            tsr_texts *out, tsr_error *err);
/* TSR_E_CHANGED if a file of the source, or of the other checkpoints, has changed since it was opened. */
tsr_status cli_unchanged(const cli_session *session, tsr_error *err);

/* The files of PATH, for commands that do not open them as one checkpoint: including those of --also, and below the
 * directory that --step or a `latest` file names. */
typedef struct cli_files {
    tsr_store *store;
    tsr_store *all;       /* the store of PATH itself */
    tsr_checkpoint *step; /* owns `store` */
} cli_files;

/* On failure nothing is open. */
tsr_status cli_files_open(cli *program, const char *path, cli_files *out, tsr_error *err);
/* Accepts a zeroed one. */
void cli_files_close(cli_files *files);

/* Loads a whole file that is not a checkpoint (a layout, a module tree). The caller frees the bytes, then closes the store;
 * both are zeroed or valid on failure. */
tsr_status cli_load_file(cli *program, const char *path, tsr_store **store, tsr_bytes *bytes, tsr_error *err);
/* Adds to an error about a document which option gives it: ", in --modules FILE". Returns `status`. */
tsr_status cli_in_option(tsr_status status, const char *option, const char *given, tsr_error *err);

/* Warns of each option that has no effect, and appends the warnings to `warnings`, a vec of tsr_str in `arena`. */
tsr_status cli_warn_name_choice(const cli *program, const tsr_name_choice *choice, tsr_arena *arena, tsr_vec *warnings,
                                tsr_error *err);
/* Does that for --include, --exclude and the target's rules (may be NULL) and the names of an open checkpoint. With `needs_names`, it
 * is an error if no --include matches. */
tsr_status cli_check_selection(cli *program, const cli_session *session, const tsr_command_options *options,
                               const tsr_target_texts *target, bool needs_names, tsr_error *err);

/* A line on stderr with the amount done, the speed and the time left. It is drawn at most ten times a second, and only on a
 * terminal. */
typedef struct cli_progress {
    tsr_progress base; /* must be first */
    const cli *program;
    const char *what;
    double started, drawn; /* seconds */
    bool visible;
} cli_progress;
void cli_progress_start(cli_progress *progress, const cli *program, const char *what);
void cli_progress_end(cli_progress *progress);

/* What cli_check_deep, the check of tsr_latest_options for --deep, works with. The ring is made on first use; the caller frees it. */
typedef struct cli_deep_check {
    cli *program;
    tsr_ring *ring;
} cli_deep_check;
tsr_status cli_check_deep(void *deep, tsr_checkpoint *checkpoint, tsr_error *err);

/* ---- What an MPI launcher has set in the environment of its processes, read without calling MPI. ---- */

typedef struct cli_launch {
    const char *sign;   /* the environment variable by which it was recognized; NULL: no launcher */
    uint64_t processes; /* 1 without a launcher */
    bool first;         /* this is the process that prints messages */
    bool is_srun;
    bool has_pmi;  /* the launcher serves PMI or PMIx, without which processes cannot find each other */
    bool has_pmix; /* the launcher serves PMIx, or is Open MPI's own; Open MPI cannot use older PMI alone */
} cli_launch;

cli_launch cli_launch_seen(void);

/* Finds the installed tessera-mpi, next to this program or in libexec; false if there is none. */
bool cli_find_mpi(char *path, size_t capacity);

/* Whether the command in the command line can be shared by several processes. */
bool cli_is_shared(int argc, char **argv);
/* Whether `word` is one of the arguments after the command. */
bool cli_has_word(int argc, char **argv, const char *word);

/* Prints a message and refuses to run, for processes that a launcher started together. The first one prints it, and all of
 * them wait a moment, so that a launcher that ends the job at the first failure reports this exit status. Returns the exit
 * status. */
int cli_refuse(const cli_launch *launch, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* Refuses to run processes that cannot find each other and would all write the same output. The message names the launcher
 * that works. */
int cli_refuse_unconnected(const cli_launch *launch);

/* Runs the command line, for `tessera` and `tessera-mpi`. `ranks` NULL: one process. `threads` 0: as many as allowed;
 * --threads overrides it. Returns the exit status. */
int cli_main(int argc, char **argv, tsr_comm *ranks, uint32_t threads);

/* The contract that a checkpoint is checked against: a document (tessera/document_read.h), or another checkpoint of any
 * format. */

typedef struct cli_contract {
    tsr_contract contract;
    tsr_store *store;
    tsr_bytes text;
    tsr_arena *arena;
    cli_session session;
} cli_contract;

/* After a failure, cli_contract_free must be called, too. */
tsr_status cli_contract_open(cli *program, const char *path, cli_contract *out, tsr_error *err);
void cli_contract_free(cli_contract *contract); /* accepts a zeroed one */

/* What happens when a signal ends a command.
 *
 * A command without unfinished output has no handler: SIGINT, SIGTERM, SIGHUP and SIGPIPE end it as they end any program.
 * A command with unfinished output registers a function that removes it. A signal then wakes a separate thread, which
 * cleans up, says on stderr what became of the output, and ends the process by that signal. It does not wait for the other threads, which may be in the middle of a
 * tensor of gigabytes or waiting for a server. */

typedef struct cli_cleanup cli_cleanup;
struct cli_cleanup {
    /* Removes what is unfinished. Runs in another thread, once, while the command's own threads continue until the process
     * ends. It may only read data that no longer changes, must not take a lock that they hold for long, and has to keep them
     * from creating files again (tsr_sys_stop_naming, tsr_directory_output_abandon). */
    tsr_remains (*remove)(void *ctx);
    void *ctx;
    cli_cleanup *next; /* set by cli_cleanup_add */
};

/* From now on, `cleanup` runs before a signal ends the process. The caller keeps it until cli_cleanup_drop. */
void cli_cleanup_add(cli_cleanup *cleanup);
/* Removes `cleanup` when nothing is left to clean up. Does not return if a signal has already arrived. Accepts one that
 * was not added. */
void cli_cleanup_drop(cli_cleanup *cleanup);

/* Removes what is unfinished for all of a list of cleanups, and returns what is to be said about it. */
const char *cli_cleanup_run(const cli_cleanup *list);

/* A signal waits between these two calls. They protect steps that must not be separated, such as creating a file and
 * recording its name, or the renames of a publication. */
void cli_signals_hold(void);
void cli_signals_release(void);

/* For a process of another program, which handles its signals itself: no handlers are installed. Must precede all other calls. */
void cli_signals_leave(void);

/* For a rank under an MPI launcher; must precede all other calls. SIGCONT sent to a process that was not stopped then ends
 * the program like SIGTERM. Open MPI announces in this way that it ends the job, a second before it sends SIGTERM; SIGKILL
 * follows SIGTERM after a few milliseconds, which is too short for cleaning up. */
void cli_signals_heed_launcher(void);

#endif
