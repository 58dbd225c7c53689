/* See copy_published.h. */
#include "cli/writing/copy_published.h"

#include <string.h>

#include "publish/file_sums.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/store_read.h"

enum { LEVELS = 64 };

/* Finds the copy's files, in the order of the source's; false unless they are exactly these files with the same sizes. */
static bool find_files(const cli_published_copy *c, const tsr_store *at, uint32_t *found)
{
    const bool is_single = c->files->count == 1 && !c->files->names[0].size;
    if (is_single != (at->primary != TSR_NO_FILE) || (!is_single && at->file_count != c->files->count)) return false;
    for (uint32_t i = 0; i < c->files->count; i++) {
        found[i] = is_single ? at->primary : tsr_store_find(at, c->files->names[i]);
        if (found[i] == TSR_NO_FILE || at->files[found[i]].size != c->files->sizes[i]) return false;
    }
    return true;
}

typedef struct chunk {
    uint32_t index; /* number of the file in the copy */
    uint64_t offset, size;
} chunk;

static tsr_status is_recorded_chunk(const cli_published_copy *c, tsr_store *at, uint32_t file, chunk of, bool *equal,
                                    tsr_error *err)
{
    const tsr_sum_key key = tsr_sum_key_of(c->tag);
    uint64_t sum = 0;
    for (uint64_t done = 0; done < of.size;) {
        const size_t some = of.size - done < c->buffer_size ? (size_t)(of.size - done) : c->buffer_size;
        const tsr_status status = tsr_store_read(at, file, of.offset + done, c->buffer, some, err);
        if (status != TSR_OK) return status;
        sum = tsr_sum_add(sum, tsr_sum_bytes(&key, of.offset + done, c->buffer, some));
        done += some;
    }
    *equal = sum == c->log->sums[cli_copy_log_chunk(c->log, of.index, of.offset)];
    return TSR_OK;
}

static tsr_status is_source_chunk(const cli_published_copy *c, tsr_store *at, uint32_t file, chunk of, bool *equal,
                                  tsr_error *err)
{
    char *other = c->buffer + c->buffer_size;
    *equal = true;
    for (uint64_t done = 0; done < of.size && *equal;) {
        const size_t some = of.size - done < c->buffer_size ? (size_t)(of.size - done) : c->buffer_size;
        tsr_status status = tsr_store_read(at, file, of.offset + done, c->buffer, some, err);
        if (status == TSR_OK)
            status = tsr_store_read(c->files->from, c->files->numbers[of.index], of.offset + done, other, some, err);
        if (status != TSR_OK) return status;
        *equal = memcmp(c->buffer, other, some) == 0;
        done += some;
    }
    return TSR_OK;
}

static tsr_status compare_file(const cli_published_copy *c, tsr_store *at, uint32_t index, uint32_t file, bool *equal,
                               tsr_error *err)
{
    const uint64_t size = c->files->sizes[index];
    *equal = true;
    for (uint64_t offset = 0; offset < size && *equal; offset += CLI_COPY_CHUNK) {
        const chunk of = {index, offset, size - offset < CLI_COPY_CHUNK ? size - offset : CLI_COPY_CHUNK};
        const bool is_recorded = c->log->is_recorded[cli_copy_log_chunk(c->log, index, offset)];
        const tsr_status status =
            is_recorded ? is_recorded_chunk(c, at, file, of, equal, err) : is_source_chunk(c, at, file, of, equal, err);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

static tsr_status compare_files(const cli_published_copy *c, tsr_store *at, uint32_t *found, bool *equal, tsr_error *err)
{
    bool cut = false, deeper = false;
    tsr_status status = at->primary == TSR_NO_FILE && at->deepen ? at->deepen(at, LEVELS, &cut, &deeper, err) : TSR_OK;
    *equal = status == TSR_OK && !cut && !deeper && find_files(c, at, found);
    for (uint32_t i = 0; i < c->files->count && status == TSR_OK && *equal; i++)
        status = compare_file(c, at, i, found[i], equal, err);
    return status;
}

tsr_status cli_copy_is_published(const cli_published_copy *c, const tsr_host *host, const char *to, bool *is_whole,
                                 tsr_error *err)
{
    tsr_store *at = NULL;
    *is_whole = false;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    uint32_t *found = arena ? tsr_arena_array(arena, c->files->count, sizeof *found, err) : NULL;
    tsr_status status = found ? tsr_path_store_open(host, to, &at, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = compare_files(c, at, found, is_whole, err);
    if (at) at->close(at);
    tsr_arena_free(arena);
    return status;
}
