/* An opened PATH, and the progress line of long jobs. */
#ifndef TSR_CLI_PROGRAM_SESSION_H
#define TSR_CLI_PROGRAM_SESSION_H

#include "cli/program/cli.h"
#include "tessera/checkpoint.h"
#include "tessera/read.h"
#include "tessera/sys/store_read.h"

typedef struct cli_session {
    const char *path;
    tsr_store *store;
    bool is_remote; /* PATH is an address */
    tsr_checkpoint *checkpoint;
    const tsr_catalog *catalog;
    tsr_checkpoint *source; /* with --map or --dequantize: the checkpoint of the store, over which `checkpoint` is opened; otherwise NULL */
    tsr_checkpoint *dequantized; /* with --dequantize: between the two, or `checkpoint` itself */
    const char *dequantized_to;  /* the dtype */
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

/* On failure nothing is open and `err` tells. `options` may be NULL. */
tsr_status cli_open(cli *program, const char *path, const tsr_open_options *options, cli_session *out, tsr_error *err);
/* Takes a zeroed one. */
void cli_close(cli_session *session);
/* TSR_E_CHANGED when a source file changed since it was opened. */
tsr_status cli_unchanged(const cli_session *session, tsr_error *err);

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
