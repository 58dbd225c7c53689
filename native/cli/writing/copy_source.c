/* See copy_source.h. */
#include "cli/writing/copy_source.h"

#include <inttypes.h>
#include <stdio.h>

#include "publish/text.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/path_store.h"

static bool describe(tsr_store *store, uint32_t file, char *line, size_t room)
{
    tsr_file_id id;
    int64_t seconds, nanoseconds;
    const uint64_t size = store->files[file].size;
    if (tsr_folder_store_identify(store, file, &id)) {
        tsr_folder_store_modified(store, file, &seconds, &nanoseconds);
        snprintf(line, room, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 "\n", size, id.device, id.inode,
                 seconds, nanoseconds);
        return true;
    }
    const char *version = tsr_path_store_version(store, file);
    const int length = snprintf(line, room, "%" PRIu64 " %s\n", size, version);
    return *version && length > 0 && (size_t)length < room;
}

tsr_status cli_copy_source(const cli_copy_files *files, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    char line[512];
    bool is_known = true;
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_status status = tsr_text_add(&text, TSR_STR("source\n"), err);
    for (uint32_t i = 0; i < files->count && status == TSR_OK && is_known; i++) {
        is_known = describe(files->from, files->numbers[i], line, sizeof line);
        status = tsr_text_add(&text, tsr_str_from(line), err);
    }
    *out = (tsr_str){"", 0};
    if (status == TSR_OK && is_known) *out = tsr_arena_str(arena, (tsr_str){text.items, text.count}, err);
    tsr_vec_free(&text);
    return status == TSR_OK && !out->data ? TSR_E_NOMEM : status;
}
