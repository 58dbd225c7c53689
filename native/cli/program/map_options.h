/* --map, --inverse, --dequantize, --lora and --quantize: opens PATH with the layers of tessera/sys/commands.h. */
#ifndef TSR_CLI_PROGRAM_MAP_OPTIONS_H
#define TSR_CLI_PROGRAM_MAP_OPTIONS_H

#include "cli/program/cli.h"
#include "cli/program/session.h"
#include "tessera/shards.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/document.h"

typedef struct cli_map_options {
    const tsr_command_options *options;
    bool lists, *plain; /* as in tsr_layering */
} cli_map_options;

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

/* ---- policy ---- */

/* --rule and --baseline of `validate` and `diff`. */

/* Opens the policy that the options describe; without options, it changes nothing. On failure *out is NULL. */
tsr_status cli_policy_open(cli *program, tsr_policy_scope scope, const tsr_command_options *options, tsr_policy **out,
                           tsr_error *err);

/* Prints "; 5 left out by the baseline, 2 turned off" on stdout; nothing if nothing was left out. */
void cli_put_left_out(const tsr_policy_result *result);
/* The same as a note on stderr, for formats that cannot contain it. */
void cli_note_left_out(const cli *program, const tsr_policy_result *result);

/* ---- target ---- */

/* --target, --mesh and --placements, --dtype and --raw-cast, which several commands share. */

/* Reads a tessera.storage/1 document into `arena`. It has no servers if `path` is NULL. */
tsr_status cli_read_storage(cli *program, const char *path, tsr_arena *arena, tsr_storage_text *out, tsr_error *err);

/* Reads the target that the options describe into `arena`. TSR_E_USAGE unless there is either --target or both of the
 * others. */
tsr_status cli_read_target(cli *program, const tsr_command_options *options, tsr_arena *arena, tsr_target_texts *texts,
                           tsr_target *out, tsr_error *err);

/* ---- shards ---- */

/* --shards MAP, an option of every command that opens PATH. */

/* Reads the map of --shards, which lives as long as the program. *out is NULL without the option. A built-in map takes
 * precedence over a file of the same name ("./vllm" is the file). */
tsr_status cli_read_shards(cli *program, const tsr_shards **out, tsr_error *err);
void cli_free_shards(cli *program);

#endif
