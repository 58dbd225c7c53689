/* An opened PATH, and the progress line of long operations. */
#ifndef TSR_CLI_PROGRAM_SESSION_H
#define TSR_CLI_PROGRAM_SESSION_H

#include "cli/program/cli.h"
#include "tessera/checkpoint.h"
#include "tessera/read.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/store.h"

#define CLI_SETTINGS_UNREAD \
    "config.json is not read, because PATH is a single file; give its directory to use these settings"

typedef struct cli_session {
    const char *path;
    tsr_store *store;
    bool is_remote;       /* PATH is a URL */
    bool ignores_shards;  /* --shards has no effect, because there are no ranks whose tensors it could join */
    bool leaves_settings; /* config.json is next to PATH, and not read (CLI_SETTINGS_UNREAD) */
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

#endif
