/* See source.h. */
#include "cli/source.h"

#include <inttypes.h>

#include "tessera/folder.h"

tsr_status cli_describe_source(cli *program, const cli_session *session, tsr_arena *arena, tsr_plan_job *job, tsr_error *err)
{
    job->source_path = tsr_str_from(session->path);
    tsr_status status = tsr_plan_job_source(session->catalog, cli_host(program), arena, job, err);
    for (uint64_t i = 0; i < job->file_count && status == TSR_OK; i++) {
        int64_t seconds, nanoseconds;
        tsr_folder_store_modified(session->store, tsr_store_find(session->store, job->files[i].name), &seconds,
                                  &nanoseconds);
        job->files[i].modified = tsr_arena_format(arena, err, "%" PRId64 ".%09" PRId64, seconds, nanoseconds);
        if (!job->files[i].modified.data) status = TSR_E_NOMEM;
    }
    return status;
}
