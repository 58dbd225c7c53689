/* --target, --mesh and --placements, --dtype and --raw-cast, which several commands share. */
#ifndef TSR_CLI_PROGRAM_TARGET_OPTIONS_H
#define TSR_CLI_PROGRAM_TARGET_OPTIONS_H

#include "cli/program/cli.h"
#include "tessera/sys/document.h"
#include "tessera/sys/plan_job.h"

typedef struct cli_target_options {
    const char *target, *mesh, *placements;
} cli_target_options;

#define CLI_TARGET_OPTIONS(type, field) \
    {"target", \
     0, \
     CLI_TEXT, \
     "FILE", \
     "Read mesh and placements from a tessera.target/1 document", \
     offsetof(type, field.target)}, \
        {"mesh", 0, CLI_TEXT, "MESH", "Use this device mesh, such as dp=4,tp=2", offsetof(type, field.mesh)}, \
    { \
        "placements", 0, CLI_TEXT, "LIST", \
            "Place every tensor this way, with one placement per mesh dimension: shard(0),replicate", \
            offsetof(type, field.placements) \
    }

/* Reads a tessera.storage/1 document into `arena`. It has no servers if `path` is NULL. */
tsr_status cli_read_storage(cli *program, const char *path, tsr_arena *arena, tsr_storage_text *out, tsr_error *err);

/* Reads the target that the options describe into `arena`. TSR_E_USAGE unless there is either --target or both of the
 * others. */
tsr_status cli_read_target(cli *program, const cli_target_options *options, tsr_arena *arena, tsr_target_texts *texts,
                           tsr_target *out, tsr_error *err);

#endif
