/* --map, --inverse, --dequantize, --lora and --quantize: opens PATH with the layers of tessera/sys/layers.h. */
#ifndef TSR_CLI_PROGRAM_MAP_OPTIONS_H
#define TSR_CLI_PROGRAM_MAP_OPTIONS_H

#include "cli/program/session.h"

typedef struct cli_map_options {
    const tsr_command_options *options;
    bool lists; /* as in tsr_layering */
} cli_map_options;

/* Whether PATH is a single file with config.json next to it, of which only the file is read. The settings would have shown
 * what it lacks, which output layer is the embedding, and what its numbers are multiplied to, so the user must know. */
bool cli_leaves_settings(const char *path, const tsr_store *store);

/* Like cli_open. With layers, the session's checkpoint and catalog are the topmost one, and `used->selects` is not used while PATH is
 * opened, because the selection refers to its names. */
tsr_status cli_open_mapped(cli *program, const char *path, const tsr_open_options *used, const cli_map_options *map,
                           cli_session *out, tsr_error *err);
/* Replaces the session's checkpoint by one with quantized weights, if --quantize was given. */
tsr_status cli_quantize(cli *program, const tsr_command_options *options, const tsr_open_options *used, cli_session *session,
                        tsr_error *err);
/* Whether PATH is read through layers, so that a table can show what each name becomes. */
bool cli_has_map_table(const cli_session *session);
/* If there is such a table, prints it on stderr, because stdout belongs to --json. */
tsr_status cli_put_map_table(const cli *program, const cli_session *session, tsr_error *err);

#endif
