/* Identifies the source of a job, for plans and journals. */
#ifndef TSR_CLI_WRITING_SOURCE_H
#define TSR_CLI_WRITING_SOURCE_H

#include "cli/program/session.h"
#include "tessera/sys/document.h"
#include "tessera/sys/plan_job.h"

/* Sets the path, the format, the digest and the files with tensors in a job. They live in `arena`. */
tsr_status cli_describe_source(cli *program, const cli_session *session, tsr_arena *arena, tsr_plan_job *job,
                               tsr_error *err);

#endif
