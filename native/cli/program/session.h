/* An opened PATH, and the progress line of long jobs. */
#ifndef TSR_CLI_PROGRAM_SESSION_H
#define TSR_CLI_PROGRAM_SESSION_H

#include "cli/program/cli.h"
#include "tessera/checkpoint.h"
#include "tessera/read.h"
#include "tessera/sys/store_read.h"

enum { CLI_LAYERS = 4 };

typedef struct cli_session {
    const char *path;
    tsr_store *store;
    bool is_remote; /* PATH is an address */
    tsr_checkpoint *checkpoint;
    const tsr_catalog *catalog;
    tsr_checkpoint *source; /* of the store, where `checkpoint` is opened over it (--map, --dequantize, --lora, --quantize, a merge); otherwise NULL */
    tsr_checkpoint *layers[CLI_LAYERS]; /* opened over the source, each over the one before; the last is `checkpoint` */
    unsigned layer_count;
    const char *dequantized_to;  /* with --dequantize: the dtype */
    tsr_str quantized;           /* with --quantize: what it does, in one line; NULL data: nothing */
    struct cli_session *others;  /* further checkpoints that are read, in calloc memory; closed with this one */
    size_t other_count;
    tsr_str recipe; /* what else decides the values, in one line; NULL data: nothing */
    tsr_arena *map_arena;
    tsr_str map_text; /* the document, and whether it is applied backwards: they decide what is written */
    const char *map_path; /* of the document; NULL: a built-in map, or none */
    bool map_inverse;
} cli_session;

/* The checkpoint whose files are the store's. */
static inline tsr_checkpoint *cli_source_checkpoint(const cli_session *session)
{
    return session->source ? session->source : session->checkpoint;
}

/* Makes a checkpoint that was opened over the session's the session's own. */
void cli_add_layer(cli_session *session, tsr_checkpoint *layer);

/* On failure nothing is open and `err` tells. `options` may be NULL. */
tsr_status cli_open(cli *program, const char *path, const tsr_open_options *options, cli_session *out, tsr_error *err);
/* The same for what the command compares its checkpoint with: --also is not about it, and --part and --step count where it has
 * parts and steps (tsr_path_open_compared). */
tsr_status cli_open_compared(cli *program, const char *path, const tsr_open_options *options, cli_session *out, tsr_error *err);
/* The same for a checkpoint that is neither, such as an adapter: --part, --step, --also and --shards are not about it. */
tsr_status cli_open_apart(cli *program, const char *path, const tsr_open_options *options, cli_session *out, tsr_error *err);
/* Takes a zeroed one. */
void cli_close(cli_session *session);
/* TSR_E_CHANGED when a file of the source, or of the others, changed since it was opened. */
tsr_status cli_unchanged(const cli_session *session, tsr_error *err);

/* The files of PATH, for commands that do not open them as one checkpoint: with those of --also, below the directory that --step, or
 * a `latest` file, names. */
typedef struct cli_files {
    tsr_store *store;
    tsr_store *all;       /* of PATH itself */
    tsr_checkpoint *step; /* has `store` open */
} cli_files;

/* On failure nothing is open. */
tsr_status cli_files_open(cli *program, const char *path, cli_files *out, tsr_error *err);
/* Takes a zeroed one. */
void cli_files_close(cli_files *files);

/* A whole file that is no checkpoint (a layout, a module tree): the caller frees the bytes, then closes the store; both
 * are zeroed or valid on failure. */
tsr_status cli_load_file(cli *program, const char *path, tsr_store **store, tsr_bytes *bytes, tsr_error *err);

/* The selection of --include and --exclude. */
typedef struct cli_selection {
    cli_list include, exclude;
} cli_selection;
bool cli_selects(const void *selection, tsr_str fqn);

/* A line on stderr: what, how much, how fast, how long yet; drawn at most ten times a second, only on a terminal. */
typedef struct cli_progress {
    tsr_progress base; /* first */
    const cli *program;
    const char *what;
    double started, drawn; /* seconds */
    bool visible;
} cli_progress;
void cli_progress_start(cli_progress *progress, const cli *program, const char *what);
void cli_progress_end(cli_progress *progress);

#endif
