/* Identifies the source of a job, for plans and journals. */
#ifndef TSR_CLI_WRITING_SOURCE_H
#define TSR_CLI_WRITING_SOURCE_H

#include "cli/program/session.h"
#include "tessera/sys/document.h"
#include "tessera/sys/plan_job.h"

/* Sets everything in *out, which lives in `arena`. A digest_algorithm that is already set is used. */
tsr_status cli_describe_source(cli *program, const cli_session *session, tsr_arena *arena, tsr_plan_source *out,
                               tsr_error *err);
/* The options of a command with the texts of its documents in place of their paths, but for the target and the storage. Borrows
 * `session` and `program`. */
tsr_status cli_options_with_texts(cli *program, const cli_session *session, const tsr_command_options *options,
                                  tsr_command_options *out, tsr_error *err);

#endif
