/* --target, --mesh and --placements, --dtype and --raw-cast, which several commands share. */
#ifndef TSR_CLI_PROGRAM_TARGET_OPTIONS_H
#define TSR_CLI_PROGRAM_TARGET_OPTIONS_H

#include "cli/program/cli.h"
#include "tessera/sys/document.h"
#include "tessera/sys/plan_job.h"

/* Reads a tessera.storage/1 document into `arena`. It has no servers if `path` is NULL. */
tsr_status cli_read_storage(cli *program, const char *path, tsr_arena *arena, tsr_storage_text *out, tsr_error *err);

/* Reads the target that the options describe into `arena`. TSR_E_USAGE unless there is either --target or both of the
 * others. */
tsr_status cli_read_target(cli *program, const tsr_command_options *options, tsr_arena *arena, tsr_target_texts *texts,
                           tsr_target *out, tsr_error *err);

#endif
