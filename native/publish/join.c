/* See join.h. */
#include "publish/join.h"

#include <inttypes.h>

#include "tessera/convert.h"
#include "tessera/native_host.h"
#include "tessera/path.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

typedef struct joining {
    const tsr_join *join;
    tsr_checkpoint *shards;
    tsr_map *file_of; /* by name */
    uint32_t file;    /* the one that is written */
} joining;

static bool is_in_file(void *ctx, tsr_str name)
{
    const joining *j = ctx;
    return tsr_map_get(j->file_of, name, UINT32_MAX) == j->file;
}

static tsr_status write_file(joining *j, tsr_output *output, tsr_arena *arena, tsr_error *err)
{
    const tsr_joined_file *file = &j->join->files[j->file];
    tsr_conversion written;
    tsr_convert_options options = TSR_OPTIONS(tsr_convert_options);
    options.to = TSR_TO_SAFETENSORS;
    options.want = is_in_file;
    options.want_ctx = j;
    options.file_name = file->name;
    options.no_checksums = j->join->unsummed;
    options.progress = j->join->progress;
    TSR_TRY(tsr_convert(j->shards, output, &options, arena, &written, err));
    TSR_FAIL_IF(written.byte_total != file->bytes, err, TSR_E_FORMAT,
                "the shards of '%s' have %" PRIu64 " bytes of tensors instead of %" PRIu64, file->name.data,
                written.byte_total, file->bytes);
    return TSR_OK;
}

static tsr_status write_files(joining *j, tsr_output *output, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (j->file = 0; j->file < j->join->file_count && status == TSR_OK; j->file++) {
        tsr_arena *arena = tsr_arena_new(allocator, 0, err);
        status = arena ? write_file(j, output, arena, err) : TSR_E_NOMEM;
        tsr_arena_free(arena);
    }
    return status;
}

static tsr_status list_tensors(joining *j, const tsr_allocator *allocator, tsr_error *err)
{
    const tsr_join *join = j->join;
    j->file_of = tsr_map_new(allocator, join->tensor_count, err);
    if (!j->file_of) return TSR_E_NOMEM;
    for (size_t i = 0; i < join->tensor_count; i++)
        TSR_TRY(tsr_map_put(j->file_of, join->tensors[i], join->file_of[i], NULL, NULL, err));
    return TSR_OK;
}

tsr_status tsr_join_shards(const tsr_join *join, tsr_output *output, tsr_error *err)
{
    tsr_native_host native;
    joining j = {.join = join};
    tsr_native_host_open(&native, join->threads);
    tsr_status status = list_tensors(&j, native.host.allocator, err);
    if (status == TSR_OK) status = tsr_path_open(join->shards, &native.host, NULL, &j.shards, err);
    if (status == TSR_OK) status = write_files(&j, output, native.host.allocator, err);
    tsr_path_close(j.shards);
    tsr_map_free(j.file_of);
    tsr_native_host_close(&native);
    return status;
}
