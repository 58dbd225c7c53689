/* See source.h. */
#include "cli/source.h"

#include <inttypes.h>

#include "tessera/folder.h"

static void mark_chunks(const tsr_chunk *chunks, uint64_t count, bool *used, uint32_t file_count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (chunks[i].file < file_count) used[chunks[i].file] = true;
    }
}

/* A single file counts whatever it holds. */
static void mark_files(const cli_session *session, bool *used)
{
    const tsr_catalog *catalog = session->catalog;
    const uint32_t count = session->store->file_count;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        mark_chunks(catalog->entries[i].chunks, catalog->entries[i].chunk_count, used, count);
        mark_chunks(catalog->entries[i].replicas, catalog->entries[i].replica_count, used, count);
    }
    if (count == 1) used[0] = true;
}

tsr_status cli_describe_source(cli *program, const cli_session *session, tsr_arena *arena, tsr_plan_job *job, tsr_error *err)
{
    tsr_store *store = session->store;
    bool *used = tsr_arena_array(arena, store->file_count, sizeof *used, err);
    tsr_plan_file *files = tsr_arena_array(arena, store->file_count, sizeof *files, err);
    if (!used || !files) return TSR_E_NOMEM;
    mark_files(session, used);
    job->source_path = tsr_str_from(session->path);
    job->files = files;
    job->file_count = 0;
    for (uint32_t f = 0; f < store->file_count; f++) {
        int64_t seconds, nanoseconds;
        if (!used[f]) continue;
        tsr_folder_store_modified(store, f, &seconds, &nanoseconds);
        tsr_plan_file *file = &files[job->file_count++];
        *file = (tsr_plan_file){store->files[f].name, store->files[f].size,
                                tsr_arena_format(arena, err, "%" PRId64 ".%09" PRId64, seconds, nanoseconds)};
        if (!file->modified.data) return TSR_E_NOMEM;
    }
    return tsr_plan_job_source(session->catalog, cli_host(program), arena, job, err);
}
