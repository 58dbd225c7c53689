/* See job_text.h. */
#include "publish/job_text.h"

#include <inttypes.h>

#include "tessera/sys/folder.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/try.h"

tsr_status tsr_job_add_line(tsr_arena *arena, tsr_str *text, const char *key, tsr_str value, tsr_error *err)
{
    *text = tsr_arena_format(arena, err, "%.*s%s %.*s\n", TSR_STR_ARG(*text), key, TSR_STR_ARG(value));
    return text->data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_job_add_hash(tsr_arena *arena, tsr_str *text, const char *key, tsr_str value, tsr_error *err)
{
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    tsr_journal_tag(value, tag);
    return tsr_job_add_line(arena, text, key, tsr_str_from(tag + 1), err);
}

static tsr_str version_of(tsr_store *store, bool is_remote, uint32_t file, tsr_arena *arena, tsr_error *err)
{
    int64_t seconds, nanoseconds;
    if (is_remote) return tsr_arena_str(arena, tsr_str_from(tsr_path_store_version(store, file)), err);
    tsr_folder_store_modified(store, file, &seconds, &nanoseconds);
    return tsr_arena_format(arena, err, "%" PRId64 ".%09" PRId64, seconds, nanoseconds);
}

tsr_status tsr_job_date_source(tsr_store *store, bool is_remote, tsr_plan_source *source, tsr_arena *arena, tsr_error *err)
{
    for (uint64_t i = 0; i < source->file_count; i++) {
        tsr_plan_file *file = &source->files[i];
        file->modified = version_of(store, is_remote, tsr_store_find(store, file->name), arena, err);
        if (!file->modified.data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

/* A checksum of the names, sizes and modification times of the source's files. */
static tsr_str files_sum(tsr_arena *arena, const tsr_plan_source *source, tsr_error *err)
{
    uint32_t sum = 0;
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    for (uint64_t i = 0; i < source->file_count; i++) {
        const tsr_plan_file *file = &source->files[i];
        sum = tsr_crc32(NULL, sum, file->name.data, file->name.size);
        sum = tsr_crc32(NULL, sum, &file->bytes, sizeof file->bytes);
        sum = tsr_crc32(NULL, sum, file->modified.data, file->modified.size);
    }
    tsr_journal_tag((tsr_str){(const char *)&sum, sizeof sum}, tag);
    return tsr_arena_format(arena, err, "%" PRIu64 " with sizes and times %s", source->file_count, tag + 1);
}

tsr_status tsr_job_add_source(tsr_arena *arena, tsr_str *text, const tsr_plan_source *source, tsr_error *err)
{
    const tsr_str sum = files_sum(arena, source, err);
    if (!sum.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_job_add_line(arena, text, "source", source->format, err));
    TSR_TRY(tsr_job_add_line(arena, text, "metadata", source->digest, err));
    return tsr_job_add_line(arena, text, "files", sum, err);
}
