/* See source.h. */
#include "cli/writing/source.h"

#include <inttypes.h>

#include "tessera/sys/folder.h"
#include "tessera/sys/path_store.h"

/* The modification time of a file, or the version that a server reports. */
static tsr_str version_of(const cli_session *session, uint32_t file, tsr_arena *arena, tsr_error *err)
{
    int64_t seconds, nanoseconds;
    if (session->is_remote) return tsr_arena_str(arena, tsr_str_from(tsr_path_store_version(session->store, file)), err);
    tsr_folder_store_modified(session->store, file, &seconds, &nanoseconds);
    return tsr_arena_format(arena, err, "%" PRId64 ".%09" PRId64, seconds, nanoseconds);
}

tsr_status cli_describe_source(cli *program, const cli_session *session, tsr_arena *arena, tsr_plan_job *job, tsr_error *err)
{
    job->source_path = tsr_str_from(session->path);
    if (program->options.source.part) job->source_part = tsr_str_from(program->options.source.part);
    if (program->options.source.step) job->source_step = tsr_str_from(program->options.source.step);
    if (session->map_text.size) job->source_map = session->map_text;
    job->source_inverse = session->map_inverse;
    tsr_status status =
        tsr_plan_job_source(tsr_checkpoint_catalog(cli_source_checkpoint(session)), cli_host(program), arena, job, err);
    for (uint64_t i = 0; i < job->file_count && status == TSR_OK; i++) {
        tsr_plan_file *file = &job->files[i];
        file->modified = version_of(session, tsr_store_find(session->store, file->name), arena, err);
        if (!file->modified.data) status = TSR_E_NOMEM;
    }
    return status;
}
