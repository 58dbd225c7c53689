/* A pipe as a store with one file, for documents that another program writes: `--map <(…)`. All of it is read when it is opened. */
#include "tessera/sys/path.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/sys.h"
#include "tessera/sys/containers.h"

#define MOST_BYTES ((size_t)1 << 30) /* of a document; a manifest has some hundred bytes per tensor */
#define FIRST_ROOM ((size_t)64 << 10)

typedef struct pipe_store {
    tsr_store base; /* must be first */
    tsr_store_file file;
    const tsr_allocator *allocator;
    char *bytes;
    size_t room;
} pipe_store;

bool tsr_is_pipe(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode));
}

static tsr_status read_pipe_at(tsr_store *base, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const pipe_store *store = (const pipe_store *)base;
    (void)file;
    if (offset > store->file.size || size > store->file.size - offset)
        return tsr_raise(err, TSR_E_IO, offset, "the document ends before");
    if (size) memcpy(buffer, store->bytes + offset, size);
    return TSR_OK;
}

static void close_pipe(tsr_store *base)
{
    pipe_store *store = (pipe_store *)base;
    tsr_free(store->allocator, store->bytes, store->room, 1);
    tsr_free(store->allocator, store, 1, sizeof *store);
}

static tsr_status grow(pipe_store *store, const char *path, tsr_error *err)
{
    const size_t size = (size_t)store->file.size, room = store->room ? 2 * store->room : FIRST_ROOM;
    if (size < store->room) return TSR_OK;
    if (room > MOST_BYTES)
        return tsr_raise(err, TSR_E_LIMIT, TSR_NO_POSITION, "'%s' is not a file, and more than 1 GiB came from it", path);
    char *bytes = tsr_alloc(store->allocator, room, 1, err);
    if (!bytes) return TSR_E_NOMEM;
    if (size) memcpy(bytes, store->bytes, size);
    tsr_free(store->allocator, store->bytes, store->room, 1);
    store->bytes = bytes;
    store->room = room;
    return TSR_OK;
}

static tsr_status read_all(pipe_store *store, int fd, const char *path, tsr_error *err)
{
    for (;;) {
        const tsr_status status = grow(store, path, err);
        if (status != TSR_OK) return status;
        const ssize_t n = read(fd, store->bytes + store->file.size, store->room - (size_t)store->file.size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return tsr_sys_raise(err, "read", path);
        if (n == 0) return TSR_OK;
        store->file.size += (uint64_t)n;
    }
}

tsr_status tsr_pipe_store_open(const tsr_allocator *allocator, const char *path, tsr_store **out, tsr_error *err)
{
    pipe_store *store = tsr_alloc(allocator, 1, sizeof *store, err);
    int fd;
    if (!store) return TSR_E_NOMEM;
    *store = (pipe_store){.base = {.file_count = 1, .primary = 0, .read_at = read_pipe_at, .close = close_pipe},
                          .file = {tsr_str_from(path), 0},
                          .allocator = allocator};
    store->base.files = &store->file;
    do fd = open(path, O_RDONLY | O_NOCTTY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    const tsr_status status = fd < 0 ? tsr_sys_raise(err, "open", path) : read_all(store, fd, path, err);
    if (fd >= 0) close(fd);
    if (status == TSR_OK) *out = &store->base;
    else close_pipe(&store->base);
    return status;
}
