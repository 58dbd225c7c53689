/* An opened PATH, and the progress line of long operations. */
#ifndef TSR_CLI_PROGRAM_SESSION_H
#define TSR_CLI_PROGRAM_SESSION_H

#include "cli/program/cli.h"
#include "tessera/checkpoint.h"
#include "tessera/read.h"
#include "tessera/sys/name_choice.h"
#include "tessera/sys/plan_job.h"
#include "tessera/sys/store_read.h"

enum { CLI_LAYERS = 4 };

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
    tsr_checkpoint *layers[CLI_LAYERS]; /* layers over the source, each on top of the one before; the last is `checkpoint` */
    unsigned layer_count;
    const char *dequantized_to; /* with --dequantize: the resulting dtype */
    tsr_str quantized;          /* with --quantize: what it does, in one line; data NULL: not used */
    struct cli_session *others; /* further checkpoints that are read, in calloc memory; closed with this session */
    size_t other_count;
    tsr_str recipe; /* other options that affect the values, in one line; data NULL: none */
    tsr_arena *map_arena;
    tsr_str map_text;     /* the map, and whether it is applied backwards; both affect what is written */
    const char *map_path; /* path of the map; NULL: a built-in map, or none */
    bool map_inverse;
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
/* TSR_E_USAGE if a destination in an object store is, contains or is inside one of the sources. */
tsr_status cli_refuse_overlap(tsr_texts sources, const char *destination, tsr_error *err);
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

/* selection_options.c: --include and --exclude. `selection` is a tsr_name_globs. */
bool cli_selects(const void *selection, tsr_str fqn);
/* Lists patterns in `arena`. */
tsr_status cli_list_globs(const tsr_texts *globs, tsr_arena *arena, const tsr_str **out, size_t *count, tsr_error *err);
/* Sets the catalog and the patterns of a selection. */
tsr_status cli_name_choice(const tsr_catalog *catalog, const tsr_name_globs *selection, tsr_arena *arena,
                           tsr_name_choice *out, tsr_error *err);
/* Warns of each option that has no effect, and appends the warnings to `warnings`, a vec of tsr_str in `arena`. */
tsr_status cli_warn_name_choice(const cli *program, const tsr_name_choice *choice, tsr_arena *arena, tsr_vec *warnings,
                                tsr_error *err);
/* Does both for the names of an open checkpoint. With `needs_names`, it is an error if no --include matches. `target` may be NULL. */
tsr_status cli_check_selection(cli *program, const cli_session *session, const tsr_name_globs *selection,
                               const tsr_target_texts *target, bool needs_names, tsr_error *err);
/* Sets the patterns of a target's rules. */
tsr_status cli_list_rules(const tsr_target_texts *target, tsr_arena *arena, tsr_name_choice *out, tsr_error *err);

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

#endif
