/* A pipe as a store with one file, for documents that another program writes: `--map <(…)`. All of it is read when it is opened. */
#include "tessera/sys/path.h"

#include "io/sys.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
        TSR_TRY(grow(store, path, err));
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

/* Several directories as one store. */

enum { PART_BYTES = 256 << 10 };

typedef struct joined_file {
    tsr_store_file file;
    uint32_t member, number; /* index of the store that has the file, and the file's number there */
} joined_file;

typedef struct joined_store {
    tsr_store base; /* must be first */
    const tsr_allocator *allocator;
    tsr_store **members;
    uint32_t member_count;
    joined_file *files; /* sorted by name; of files with the same name, the first is kept */
    size_t room;        /* capacity of `files` */
    tsr_store_file *listing;
} joined_store;

static tsr_status read_joined(tsr_store *base, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const joined_file *from = &((joined_store *)base)->files[file];
    tsr_store *member = ((joined_store *)base)->members[from->member];
    return member->read_at(member, from->number, offset, buffer, size, err);
}

static tsr_status map_joined(tsr_store *base, uint32_t file, tsr_str *out, tsr_error *err)
{
    const joined_file *from = &((joined_store *)base)->files[file];
    tsr_store *member = ((joined_store *)base)->members[from->member];
    return member->map ? member->map(member, from->number, out, err) : TSR_E_UNSUPPORTED;
}

static void unmap_joined(tsr_store *base, uint32_t file, tsr_str mapped)
{
    const joined_file *from = &((joined_store *)base)->files[file];
    tsr_store *member = ((joined_store *)base)->members[from->member];
    member->unmap(member, from->number, mapped);
}

static tsr_store *origin_of_joined(const tsr_store *base, uint32_t *file)
{
    const joined_store *store = (const joined_store *)base;
    if (*file == TSR_NO_FILE) return store->members[0];
    const joined_file *from = &store->files[*file];
    *file = from->number;
    return store->members[from->member];
}

static void close_joined(tsr_store *base)
{
    joined_store *store = (joined_store *)base;
    const tsr_allocator *allocator = store->allocator;
    for (uint32_t i = 0; store->members && i < store->member_count; i++)
        if (store->members[i]) store->members[i]->close(store->members[i]);
    tsr_free(allocator, store->members, store->member_count, sizeof *store->members);
    tsr_free(allocator, store->files, store->room, sizeof *store->files);
    tsr_free(allocator, store->listing, store->room, sizeof *store->listing);
    tsr_free(allocator, store, 1, sizeof *store);
}

static tsr_status open_members(joined_store *store, const tsr_store_opener *opener, const char *const *paths, tsr_error *err)
{
    for (uint32_t i = 0; i < store->member_count; i++) {
        tsr_store *member;
        if (tsr_is_address(paths[i]))
            return tsr_raise(tsr_naming(err), TSR_E_USAGE, TSR_NO_POSITION,
                             "'%s' is a URL; only directories can be combined into one checkpoint", paths[i]);
        const tsr_status status = opener->open(opener, paths[i], &member, err);
        if (status != TSR_OK) {
            tsr_error_subject(err, "%s", paths[i]);
            return status;
        }
        store->members[i] = member;
        if (member->primary != TSR_NO_FILE)
            return tsr_raise(tsr_naming(err), TSR_E_USAGE, TSR_NO_POSITION,
                             "'%s' is a file; only directories can be combined into one checkpoint", paths[i]);
        store->room += member->file_count;
    }
    return TSR_OK;
}

static int by_name(const void *a, const void *b)
{
    const joined_file *x = a, *y = b;
    const int order = tsr_str_compare(x->file.name, y->file.name);
    return order ? order : (x->member > y->member) - (x->member < y->member);
}

static tsr_status compare_bytes(joined_store *store, const joined_file *a, const joined_file *b, char *buffers, bool *equal,
                                tsr_error *err)
{
    *equal = a->file.size == b->file.size;
    for (uint64_t at = 0; *equal && at < a->file.size; at += PART_BYTES) {
        const uint64_t left = a->file.size - at;
        const size_t size = left < PART_BYTES ? (size_t)left : PART_BYTES;
        TSR_TRY(tsr_store_read(store->members[a->member], a->number, at, buffers, size, err));
        TSR_TRY(tsr_store_read(store->members[b->member], b->number, at, buffers + PART_BYTES, size, err));
        *equal = memcmp(buffers, buffers + PART_BYTES, size) == 0;
    }
    return TSR_OK;
}

/* Keeps the first of several files with the same name. They must all have equal bytes. */
static tsr_status keep_first(joined_store *store, const char *const *paths, char *buffers, tsr_error *err)
{
    uint32_t kept = 0;
    for (size_t i = 0; i < store->room; i++) {
        const joined_file *file = &store->files[i], *last = kept ? &store->files[kept - 1] : NULL;
        bool equal = false;
        if (!last || !tsr_str_equal(last->file.name, file->file.name)) {
            store->files[kept++] = *file;
            continue;
        }
        TSR_TRY(compare_bytes(store, last, file, buffers, &equal, err));
        if (!equal)
            return tsr_raise(
                err, TSR_E_FORMAT, TSR_NO_POSITION,
                "'%.*s' has different bytes in '%s' and in '%s': the directories do not belong to one checkpoint",
                TSR_STR_ARG(file->file.name), paths[last->member], paths[file->member]);
    }
    store->base.file_count = kept;
    return TSR_OK;
}

static tsr_status list_files(joined_store *store, const char *const *paths, tsr_error *err)
{
    size_t at = 0;
    store->files = tsr_alloc(store->allocator, store->room, sizeof *store->files, err);
    store->listing = tsr_alloc(store->allocator, store->room, sizeof *store->listing, err);
    char *buffers = tsr_alloc(store->allocator, 2, PART_BYTES, err);
    tsr_status status = store->files && store->listing && buffers ? TSR_OK : TSR_E_NOMEM;
    for (uint32_t m = 0; m < store->member_count && status == TSR_OK; m++)
        for (uint32_t f = 0; f < store->members[m]->file_count; f++)
            store->files[at++] = (joined_file){store->members[m]->files[f], m, f};
    if (status == TSR_OK && at) qsort(store->files, at, sizeof *store->files, by_name);
    if (status == TSR_OK) status = keep_first(store, paths, buffers, err);
    for (uint32_t f = 0; status == TSR_OK && f < store->base.file_count; f++) store->listing[f] = store->files[f].file;
    store->base.files = store->listing;
    tsr_free(store->allocator, buffers, 2, PART_BYTES);
    return status;
}

tsr_status tsr_joined_store_open(const tsr_store_opener *opener, const char *const *paths, size_t count, tsr_store **out,
                                 tsr_error *err)
{
    const tsr_allocator *allocator = opener->host->allocator;
    joined_store *store = tsr_alloc(allocator, 1, sizeof *store, err);
    if (!store) return TSR_E_NOMEM;
    *store = (joined_store){.base = {.primary = TSR_NO_FILE,
                                     .read_at = read_joined,
                                     .map = map_joined,
                                     .unmap = unmap_joined,
                                     .close = close_joined,
                                     .origin = origin_of_joined},
                            .allocator = allocator,
                            .member_count = (uint32_t)count};
    store->members = tsr_alloc(allocator, count, sizeof *store->members, err);
    tsr_status status = store->members ? TSR_OK : TSR_E_NOMEM;
    if (store->members) memset(store->members, 0, count * sizeof *store->members);
    if (status == TSR_OK) status = open_members(store, opener, paths, err);
    if (status == TSR_OK) status = list_files(store, paths, err);
    if (status == TSR_OK) *out = &store->base;
    else close_joined(&store->base);
    return status;
}
