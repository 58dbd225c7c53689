/* A tsr_store that uses openat and pread. Files are opened on first use; when too many are open, idle ones are closed in
 * turn. directory.h describes which files are listed. */
#include "io/locked.h"
#include "io/sys.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAP_FROM_BYTES (1u << 20)
/* Smaller differences do not count: on some file systems, tiny files take less space than they have bytes. */
#define WORTH_HOLES (1u << 20)

typedef struct identity {
    uint64_t size;
    uint64_t device, inode;
    int64_t seconds;
    int64_t nanoseconds;
    uint64_t holes; /* bytes that take no space on the disk */
} identity;

typedef struct listed {
    tsr_store_file file; /* its name is in the arena and NUL-terminated */
    identity then;
} listed;

typedef struct slot {
    int fd; /* -1: closed */
    uint32_t users;
    bool was_read;
    identity then;
} slot;

typedef struct directory_store {
    tsr_store base; /* must be first */
    const tsr_sys *sys;
    const tsr_allocator *allocator;
    tsr_arena *arena; /* holds names, files and slots */
    int directory;
    const char *primary; /* borrowed while opening: name of the file that was given as the path; NULL for a directory */
    slot *slots;
    pthread_mutex_t lock; /* protects slots, open_files and hand */
    uint32_t open_files;
    uint32_t hand;
    bool bounded;          /* for a listing of several levels, which may be cut */
    uint64_t listed_bytes; /* what the listing takes in memory so far */
    tsr_hidden_names hidden;
    tsr_unlisted unlisted;
    tsr_vec gaps;  /* of tsr_store_gap, for a listing of several levels */
    tsr_vec links; /* of tsr_store_link, likewise */
    tsr_str path;  /* of a directory, as it was given; empty for one below another store */
    char *root;    /* while several levels are listed: the path without symbolic links; otherwise NULL */
    bool cut;      /* the limit was reached */
    bool deeper;   /* there are directories below the last level */
} directory_store;

static identity identity_of(const struct stat *info)
{
    const uint64_t size = (uint64_t)info->st_size, room = (uint64_t)info->st_blocks * 512;
    return (identity){.size = size,
                      .device = (uint64_t)info->st_dev,
                      .inode = (uint64_t)info->st_ino,
                      .seconds = info->st_mtim.tv_sec,
                      .nanoseconds = info->st_mtim.tv_nsec,
                      .holes = size > room ? size - room : 0};
}

static bool identity_equal(identity a, identity b)
{
    return a.size == b.size && a.device == b.device && a.inode == b.inode && a.seconds == b.seconds &&
           a.nanoseconds == b.nanoseconds;
}

/* ---- listing ---- */

/* The name where the listing is cut becomes the last gap. */
static tsr_status cut_at(directory_store *store, const char *prefix, const char *name, tsr_error *err)
{
    const tsr_str path = tsr_arena_format(store->arena, err, "%s%s", prefix, name);
    tsr_store_gap *gap = path.data ? tsr_vec_push(&store->gaps, err) : NULL;
    if (!gap) return TSR_E_NOMEM;
    *gap = (tsr_store_gap){.name = path, .why = "the listing would take too much memory"};
    store->cut = true;
    return TSR_OK;
}

/* Counts the memory of one more item of the listing. Only a listing of several levels may be cut: all files of others may belong to
 * one checkpoint. */
static tsr_status count_bytes(directory_store *store, size_t item, const char *prefix, const char *name, tsr_error *err)
{
    store->listed_bytes += item + strlen(prefix) + strlen(name) + 1;
    if (store->listed_bytes <= TSR_MOST_LISTING) return TSR_OK;
    TSR_FAIL_IF(!store->bounded, err, TSR_E_LIMIT,
                "the directory contains more files than can be listed; the listing ended at '%s%s'", prefix, name);
    return cut_at(store, prefix, name, err);
}

static tsr_status list_file(directory_store *store, tsr_vec *list, const char *prefix, const char *name,
                            const struct stat *info, tsr_error *err)
{
    TSR_TRY(count_bytes(store, sizeof(listed) + sizeof(tsr_store_file) + sizeof(slot), prefix, name, err));
    if (store->cut) return TSR_OK;
    tsr_str copy = tsr_arena_format(store->arena, err, "%s%s", prefix, name);
    listed *item = copy.data ? tsr_vec_push(list, err) : NULL;
    if (!item) return TSR_E_NOMEM;
    *item = (listed){{copy, (uint64_t)info->st_size}, identity_of(info)};
    return TSR_OK;
}

static bool is_dots(const char *name)
{
    return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

/* Whether a name is like those of outputs that a writer has not published, or not removed yet. These are never part of a checkpoint.
 * But a file that the user names is read whatever its name. */
static bool is_temporary(const directory_store *store, const char *name)
{
    return name[0] == '.' && strstr(name, ".tessera-") && !(store->primary && strcmp(store->primary, name) == 0);
}

static void count_name(tsr_hidden_names *names, const char *prefix, const char *name)
{
    if (names->count++ == 0) snprintf(names->first, sizeof names->first, "%s%s", prefix, name);
}

/* Not listed: a dangling link, a file that is gone by now, or one that this user cannot access. Other errors (a failing
 * disk) must not make a checkpoint look as if it had fewer files. */
static bool is_passed_over(int error)
{
    return error == ENOENT || error == ELOOP || error == ENOTDIR || error == EACCES;
}

static tsr_status add_gap(directory_store *store, const char *prefix, const char *name, const char *why, bool is_link,
                          tsr_error *err)
{
    if (!store->bounded) return TSR_OK;
    TSR_TRY(count_bytes(store, sizeof(tsr_store_gap), prefix, name, err));
    if (store->cut) return TSR_OK;
    const tsr_str path = tsr_arena_format(store->arena, err, "%s%s", prefix, name);
    const tsr_str reason = why ? tsr_arena_format(store->arena, err, "%s", why) : TSR_STR("");
    tsr_store_gap *gap = path.data && reason.data ? tsr_vec_push(&store->gaps, err) : NULL;
    if (!gap) return TSR_E_NOMEM;
    *gap = (tsr_store_gap){path, why ? reason.data : NULL, is_link};
    return TSR_OK;
}

static bool is_link(const directory_store *store, int fd, const struct dirent *item)
{
    struct stat info;
    if (item->d_type != DT_UNKNOWN) return item->d_type == DT_LNK;
    return store->sys->link_stat_at(store->sys, fd, item->d_name, &info) == 0 && S_ISLNK(info.st_mode);
}

/* Notes a symbolic link if what it leads to is below the root. */
static tsr_status add_link(directory_store *store, const char *prefix, const char *name, tsr_error *err)
{
    char path[PATH_MAX];
    const size_t size = strlen(store->root);
    if ((size_t)snprintf(path, sizeof path, "%s/%s%s", store->root, prefix, name) >= sizeof path) return TSR_OK;
    char *real = realpath(path, NULL);
    const bool is_below = real && strncmp(real, store->root, size) == 0 && real[size] == '/';
    tsr_status status = is_below ? count_bytes(store, sizeof(tsr_store_link) + strlen(real), prefix, name, err) : TSR_OK;
    if (is_below && status == TSR_OK && !store->cut) {
        const tsr_store_link link = {tsr_arena_format(store->arena, err, "%s%s", prefix, name),
                                     tsr_arena_format(store->arena, err, "%s", real + size + 1)};
        status = link.name.data && link.target.data ? tsr_vec_append(&store->links, &link, 1, err) : TSR_E_NOMEM;
    }
    free(real);
    return status;
}

static int by_link_name(const void *a, const void *b)
{
    return tsr_str_compare(((const tsr_store_link *)a)->name, ((const tsr_store_link *)b)->name);
}

static void count_passed_over(directory_store *store, const char *prefix, const char *name, int error)
{
    count_name(error == EACCES ? &store->unlisted.unreadable : &store->unlisted.special, prefix, name);
}

/* A directory that is being listed. */
typedef struct open_directory {
    int fd;
    const char *prefix; /* precedes the names in it */
    unsigned levels;    /* how many levels below it to list */
} open_directory;

static tsr_status list_directory(directory_store *store, tsr_vec *list, open_directory directory, tsr_error *err);

/* Whether an open directory is the root, or contains it. */
static bool is_around(const directory_store *store, int fd)
{
    const tsr_sys *sys = store->sys;
    struct stat info, at = {0}, below;
    int up = sys->open_at(sys, store->directory, ".", O_RDONLY | O_DIRECTORY, 0);
    bool found = false, is_top = up < 0 || sys->stat(sys, fd, &info) != 0 || sys->stat(sys, up, &at) != 0;
    while (!found && !is_top) {
        found = at.st_dev == info.st_dev && at.st_ino == info.st_ino;
        below = at;
        const int next = sys->open_at(sys, up, "..", O_RDONLY | O_DIRECTORY, 0);
        sys->close(sys, up);
        up = next;
        is_top = up < 0 || sys->stat(sys, up, &at) != 0 || (at.st_dev == below.st_dev && at.st_ino == below.st_ino);
    }
    if (up >= 0) sys->close(sys, up);
    return found;
}

/* Lists a directory below the root. A symbolic link to a directory is followed only from the root and only one level down,
 * so that neither a cycle nor another tree is walked. Of one to the root, everything is listed already. */
static tsr_status list_below(directory_store *store, tsr_vec *list, open_directory in, const char *name, tsr_error *err)
{
    char below[PATH_MAX];
    const tsr_sys *sys = store->sys;
    const int flags = O_RDONLY | O_DIRECTORY;
    if ((size_t)snprintf(below, sizeof below, "%s%s/", in.prefix, name) >= sizeof below) {
        count_name(&store->unlisted.unreadable, in.prefix, name);
        return TSR_OK;
    }
    int sub = sys->open_at(sys, in.fd, name, flags | O_NOFOLLOW, 0);
    if (sub < 0 && (errno == ELOOP || errno == ENOTDIR) && !*in.prefix) {
        in.levels = 1;
        sub = sys->open_at(sys, in.fd, name, flags, 0);
        if (sub >= 0 && is_around(store, sub)) {
            sys->close(sys, sub);
            return add_gap(store, in.prefix, name, NULL, true, err);
        }
    }
    if (sub >= 0) {
        const size_t before = list->count, gaps = store->gaps.count;
        const bool deeper = store->deeper;
        store->deeper = false;
        TSR_TRY(list_directory(store, list, (open_directory){sub, below, in.levels - 1}, err));
        const bool is_empty = list->count == before && store->gaps.count == gaps && !store->deeper && !store->cut;
        store->deeper = store->deeper || deeper;
        return is_empty ? add_gap(store, in.prefix, name, NULL, false, err) : TSR_OK;
    }
    const int error = errno;
    if (!is_passed_over(error)) return tsr_sys_raise(err, "open", name);
    count_passed_over(store, in.prefix, name, error);
    if (error == ENOENT) return TSR_OK; /* it was removed since */
    return add_gap(store, in.prefix, name, strerror(error), error != EACCES, err);
}

/* Takes ownership of `directory.fd`. */
static tsr_status list_directory(directory_store *store, tsr_vec *list, open_directory directory, tsr_error *err)
{
    const tsr_sys *sys = store->sys;
    const int fd = directory.fd;
    const char *prefix = directory.prefix;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        sys->close(sys, fd);
        return tsr_sys_raise(err, "list", *prefix ? prefix : ".");
    }
    tsr_status status = TSR_OK;
    for (struct dirent *item; status == TSR_OK && !store->cut && (errno = 0, item = readdir(dir));) {
        struct stat info;
        if (is_dots(item->d_name)) continue;
        if (is_temporary(store, item->d_name)) {
            count_name(&store->hidden, prefix, item->d_name);
            continue;
        }
        if (store->root && is_link(store, fd, item)) status = add_link(store, prefix, item->d_name, err);
        if (status != TSR_OK || store->cut) break;
        if (sys->stat_at(sys, fd, item->d_name, &info) != 0) {
            const int error = errno;
            if (!is_passed_over(error)) status = tsr_sys_raise(err, "look at", item->d_name);
            else count_passed_over(store, prefix, item->d_name, error);
            /* Otherwise the file was removed since. */
            const bool leads_nowhere = (error == ENOENT || error == ELOOP) && item->d_type == DT_LNK;
            if (error == EACCES || leads_nowhere)
                status = add_gap(store, prefix, item->d_name, strerror(error), leads_nowhere, err);
        } else if (S_ISREG(info.st_mode)) {
            status = list_file(store, list, prefix, item->d_name, &info, err);
        } else if (S_ISDIR(info.st_mode) && directory.levels) {
            status = list_below(store, list, directory, item->d_name, err);
        } else if (S_ISDIR(info.st_mode) && store->bounded) {
            store->deeper = true;
        } else if (!S_ISDIR(info.st_mode)) {
            count_name(&store->unlisted.special, prefix, item->d_name);
        }
    }
    if (status == TSR_OK && errno != 0 && !store->cut) status = tsr_sys_raise(err, "list", *prefix ? prefix : ".");
    closedir(dir);
    return status;
}

static int listed_order(const void *a, const void *b)
{
    return tsr_str_compare(((const listed *)a)->file.name, ((const listed *)b)->file.name);
}

static tsr_status take_list(directory_store *store, tsr_vec *list, tsr_error *err)
{
    listed *items = list->items;
    if (list->count) qsort(items, list->count, sizeof *items, listed_order);
    tsr_store_file *files = tsr_arena_array(store->arena, list->count, sizeof *files, err);
    store->slots = tsr_arena_array(store->arena, list->count, sizeof *store->slots, err);
    if (!files || !store->slots) return TSR_E_NOMEM;
    for (size_t i = 0; i < list->count; i++) {
        files[i] = items[i].file;
        store->slots[i] = (slot){-1, 0, false, items[i].then};
    }
    store->base.files = files;
    store->base.file_count = (uint32_t)list->count;
    return TSR_OK;
}

/* ---- reading ---- */

/* Closes one idle descriptor. Returns false if there is none. The caller must hold the lock. */
static bool close_idle(directory_store *store)
{
    assert(tsr_is_locked(&store->lock));
    for (uint32_t step = 0; step < store->base.file_count; step++) {
        slot *s = &store->slots[store->hand];
        store->hand = (store->hand + 1) % store->base.file_count;
        if (s->fd < 0 || s->users > 0) continue;
        store->sys->close(store->sys, s->fd);
        s->fd = -1;
        store->open_files--;
        tsr_sys_keep(-1);
        return true;
    }
    return false;
}

static tsr_status acquire(directory_store *store, uint32_t file, int *fd, tsr_error *err)
{
    const char *name = store->base.files[file].name.data;
    tsr_status status = TSR_OK;
    pthread_mutex_lock(&store->lock);
    slot *s = &store->slots[file];
    if (s->fd < 0) {
        if (tsr_sys_keeps_many(store->open_files)) close_idle(store);
        /* O_NONBLOCK, because opening a file that has become a pipe since it was listed must not block. */
        do s->fd = store->sys->open_at(store->sys, store->directory, name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
        while (s->fd < 0 && (errno == EINTR || (errno == EMFILE && close_idle(store))));
        if (s->fd < 0) {
            status = tsr_sys_raise(err, "open", name);
        } else {
            store->open_files++;
            tsr_sys_keep(1);
        }
    }
    if (status == TSR_OK) {
        s->users++;
        s->was_read = true;
        *fd = s->fd;
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

static void release(directory_store *store, uint32_t file)
{
    pthread_mutex_lock(&store->lock);
    store->slots[file].users--;
    pthread_mutex_unlock(&store->lock);
}

/* Whether a range lies in a hole of the file in its current state. */
static bool is_hole(const directory_store *store, int fd, uint64_t offset, size_t size)
{
    struct stat info;
    const uint64_t data = store->sys->next_data(store->sys, fd, offset);
    if (data < offset + size || offset + size < offset) return false;
    return store->sys->stat(store->sys, fd, &info) == 0 && offset + size <= (uint64_t)info.st_size;
}

static tsr_status directory_read_at(tsr_store *base, uint32_t file, uint64_t offset, void *buffer, size_t size,
                                    tsr_error *err)
{
    directory_store *store = (directory_store *)base;
    int fd;
    tsr_status status = acquire(store, file, &fd, err);
    if (status != TSR_OK) return status;
    if (store->slots[file].then.holes && is_hole(store, fd, offset, size)) memset(buffer, 0, size);
    else status = tsr_sys_read((tsr_sys_file){store->sys, fd, base->files[file].name.data}, offset, buffer, size, err);
    release(store, file);
    return status;
}

static tsr_status directory_map(tsr_store *base, uint32_t file, tsr_str *out, tsr_error *err)
{
    directory_store *store = (directory_store *)base;
    const tsr_store_file *listed_file = &base->files[file];
    if (listed_file->size < MAP_FROM_BYTES || listed_file->size > SIZE_MAX / 2) return TSR_E_UNSUPPORTED;
    int fd;
    TSR_TRY(acquire(store, file, &fd, err));
    struct stat info;
    void *memory = MAP_FAILED;
    /* Accessing a mapping beyond the end of the file would cause SIGBUS. */
    if (store->sys->stat(store->sys, fd, &info) == 0 && (uint64_t)info.st_size >= listed_file->size) {
        memory = mmap(NULL, (size_t)listed_file->size, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    release(store, file);
    if (memory == MAP_FAILED) return TSR_E_UNSUPPORTED;
    *out = (tsr_str){memory, (size_t)listed_file->size};
    return TSR_OK;
}

static void directory_unmap(tsr_store *base, uint32_t file, tsr_str mapped)
{
    (void)base, (void)file;
    munmap((void *)(uintptr_t)mapped.data, mapped.size);
}

static void close_slots(directory_store *store)
{
    for (uint32_t i = 0; i < store->base.file_count; i++) {
        if (store->slots[i].fd >= 0) store->sys->close(store->sys, store->slots[i].fd);
    }
    tsr_sys_keep(-(int32_t)store->open_files);
    store->open_files = store->hand = 0;
}

static tsr_status directory_deepen(tsr_store *base, unsigned levels, bool *cut, bool *deeper, tsr_error *err)
{
    directory_store *store = (directory_store *)base;
    if (base->primary != TSR_NO_FILE) return TSR_OK; /* PATH is a file, not a directory */
    int again = store->sys->open_at(store->sys, store->directory, ".", O_RDONLY | O_DIRECTORY, 0);
    if (again < 0) return tsr_sys_raise(err, "list", ".");
    tsr_vec list = tsr_vec_of(store->allocator, sizeof(listed));
    store->bounded = true;
    store->deeper = false;
    store->gaps.count = store->links.count = 0;
    store->root = store->path.size ? realpath(store->path.data, NULL) : NULL;
    store->hidden.count = 0;
    store->unlisted = (tsr_unlisted){0};
    store->listed_bytes = 0;
    store->cut = false;
    tsr_status status = list_directory(store, &list, (open_directory){again, "", levels}, err);
    if (status == TSR_OK) {
        close_slots(store);
        base->file_count = 0;
        base->gaps = store->gaps.items;
        base->gap_count = (uint32_t)store->gaps.count;
        if (store->links.count) qsort(store->links.items, store->links.count, sizeof(tsr_store_link), by_link_name);
        base->links = store->links.items;
        base->link_count = (uint32_t)store->links.count;
        status = take_list(store, &list, err);
    }
    tsr_vec_free(&list);
    free(store->root);
    store->root = NULL;
    *cut = store->cut;
    *deeper = store->deeper;
    return status;
}

static bool directory_is_same(const tsr_store *base, uint32_t file, uint32_t other)
{
    const slot *slots = ((const directory_store *)base)->slots;
    return slots[file].then.device == slots[other].then.device && slots[file].then.inode == slots[other].then.inode;
}

static tsr_status directory_below(tsr_store *base, tsr_str name, tsr_store **out, tsr_error *err);

static void directory_close(tsr_store *base)
{
    directory_store *store = (directory_store *)base;
    close_slots(store);
    if (store->directory >= 0) store->sys->close(store->sys, store->directory);
    pthread_mutex_destroy(&store->lock);
    tsr_vec_free(&store->gaps);
    tsr_vec_free(&store->links);
    tsr_arena_free(store->arena);
    tsr_free(store->allocator, store, 1, sizeof *store);
}

/* Finds the directory store that contains a file which this store only forwards; NULL if there is none. */
static directory_store *store_of(const tsr_store *store, uint32_t *file)
{
    while (store->origin) store = store->origin(store, file);
    return store->close == directory_close ? (directory_store *)(uintptr_t)store : NULL;
}

tsr_status tsr_directory_store_take_fd(tsr_store *base, uint32_t file, int *fd, tsr_error *err)
{
    directory_store *store = store_of(base, &file);
    return store ? acquire(store, file, fd, err) : TSR_E_UNSUPPORTED;
}

void tsr_directory_store_give_fd(tsr_store *base, uint32_t file)
{
    directory_store *store = store_of(base, &file);
    if (store) release(store, file);
}

/* ---- opening ---- */

/* Whether an open file begins like a JSON object: '{' after white space, and no NUL among the first bytes, which the header
 * length of a safetensors file always has. */
static bool looks_like_json(directory_store *store, int fd, uint64_t size)
{
    char head[16] = {0};
    size_t n = size < sizeof head ? (size_t)size : sizeof head;
    if (tsr_sys_read((tsr_sys_file){store->sys, fd, ""}, 0, head, n, NULL) != TSR_OK || memchr(head, 0, n)) return false;
    size_t at = 0;
    while (at < n && (head[at] == ' ' || head[at] == '\n' || head[at] == '\r' || head[at] == '\t')) at++;
    return at < n && head[at] == '{';
}

/* PATH is a regular file, opened as `fd`. Its directory becomes the root. */
static tsr_status open_file(directory_store *store, tsr_vec *list, int fd, const char *path, tsr_error *err)
{
    const tsr_sys *sys = store->sys;
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    struct stat info;
    if (sys->stat(sys, fd, &info) != 0) return tsr_sys_raise(err, "read", path);
    tsr_str directory = slash ? tsr_arena_str(store->arena, (tsr_str){path, (size_t)(slash - path) + 1}, err) : TSR_STR(".");
    if (!directory.data) return TSR_E_NOMEM;
    store->directory = sys->open_at(sys, AT_FDCWD, directory.data, O_RDONLY | O_DIRECTORY, 0);
    if (store->directory < 0) return tsr_sys_raise(err, "open", directory.data);
    bool is_set = strcmp(name, ".metadata") == 0 || looks_like_json(store, fd, (uint64_t)info.st_size);
    store->primary = name;
    if (!is_set) return list_file(store, list, "", name, &info, err);
    int again = sys->open_at(sys, store->directory, ".", O_RDONLY | O_DIRECTORY, 0);
    if (again < 0) return tsr_sys_raise(err, "list", directory.data);
    return list_directory(store, list, (open_directory){again, "", 0}, err);
}

static tsr_status open_path(directory_store *store, tsr_vec *list, const char *path, tsr_error *err)
{
    const tsr_sys *sys = store->sys;
    struct stat info;
    int fd = sys->open_at(sys, AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    TSR_FAIL_IF(fd < 0 && errno == ENOENT && strcmp(path, "-") == 0, err, TSR_E_NOT_FOUND,
                "there is no file '-', and standard input is not read; give a path");
    if (fd < 0) return tsr_sys_raise(err, "open", path);
    tsr_status status;
    if (sys->stat(sys, fd, &info) != 0) {
        status = tsr_sys_raise(err, "read", path);
    } else if (S_ISDIR(info.st_mode)) {
        store->directory = fd;
        store->path = tsr_arena_str(store->arena, tsr_str_from(path), err);
        if (!store->path.data) return TSR_E_NOMEM;
        fd = sys->open_at(sys, store->directory, ".", O_RDONLY | O_DIRECTORY, 0);
        if (fd < 0) return tsr_sys_raise(err, "list", path);
        return list_directory(store, list, (open_directory){fd, "", 1}, err);
    } else if (!S_ISREG(info.st_mode)) {
        status = tsr_raise(
            err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "'%s' is neither a file nor a directory%s", path,
            S_ISFIFO(info.st_mode) ? "; a checkpoint is not read from start to end, so it cannot come from a pipe" : "");
    } else {
        status = open_file(store, list, fd, path, err);
    }
    sys->close(sys, fd);
    return status;
}

/* Opens the directory `name` below another store's root as a new root. */
static tsr_status open_below(directory_store *store, tsr_vec *list, directory_store *above, const char *name, tsr_error *err)
{
    const tsr_sys *sys = store->sys;
    store->directory = sys->open_at(sys, above->directory, name, O_RDONLY | O_DIRECTORY, 0);
    if (store->directory < 0) return tsr_sys_raise(err, "open", name);
    const int again = sys->open_at(sys, store->directory, ".", O_RDONLY | O_DIRECTORY, 0);
    return again < 0 ? tsr_sys_raise(err, "list", name) : list_directory(store, list, (open_directory){again, "", 1}, err);
}

/* Opens the file `name` in the root of another store. */
static tsr_status open_neighbor(directory_store *store, tsr_vec *list, directory_store *above, const char *name,
                                tsr_error *err)
{
    const tsr_sys *sys = store->sys;
    struct stat info;
    const bool is_there = sys->stat_at(sys, above->directory, name, &info) == 0;
    if (!is_there && !is_passed_over(errno)) return tsr_sys_raise(err, "look at", name);
    TSR_FAIL_IF(!is_there || !S_ISREG(info.st_mode), err, TSR_E_NOT_FOUND, "there is no file '%s'", name);
    store->directory = sys->open_at(sys, above->directory, ".", O_RDONLY | O_DIRECTORY, 0);
    if (store->directory < 0) return tsr_sys_raise(err, "open", ".");
    store->primary = name;
    return list_file(store, list, "", name, &info, err);
}

static tsr_status directory_neighbor(tsr_store *base, const tsr_host *host, tsr_str name, tsr_store **out, tsr_error *err);

typedef tsr_status opening(directory_store *store, tsr_vec *list, directory_store *above, const char *name, tsr_error *err);

/* `above` NULL: `path` is an ordinary path. Otherwise it is a name in that store, which `open` opens. */
static tsr_status open_store(const tsr_sys *sys, const tsr_allocator *allocator, directory_store *above, opening *open,
                             const char *path, tsr_store **out, tsr_error *err)
{
    directory_store *store = tsr_alloc(allocator, 1, sizeof *store, err);
    if (!store) return TSR_E_NOMEM;
    *store = (directory_store){
        .base = {.primary = TSR_NO_FILE,
                 .read_at = directory_read_at,
                 .map = directory_map,
                 .unmap = directory_unmap,
                 .close = directory_close,
                 .deepen = directory_deepen,
                 .below = directory_below,
                 .neighbor = directory_neighbor,
                 .is_same = directory_is_same},
        .sys = sys,
        .allocator = allocator,
        .directory = -1,
        .gaps = tsr_vec_of(allocator, sizeof(tsr_store_gap)),
        .links = tsr_vec_of(allocator, sizeof(tsr_store_link)),
    };
    pthread_mutex_init(&store->lock, NULL);
    tsr_vec list = tsr_vec_of(allocator, sizeof(listed));
    store->arena = tsr_arena_new(allocator, 0, err);
    tsr_status status = store->arena ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK) status = above ? open(store, &list, above, path, err) : open_path(store, &list, path, err);
    if (status == TSR_OK) status = take_list(store, &list, err);
    tsr_vec_free(&list);
    if (status != TSR_OK) {
        directory_close(&store->base);
        return status;
    }
    if (store->primary) store->base.primary = tsr_store_find(&store->base, tsr_str_from(store->primary));
    *out = &store->base;
    return TSR_OK;
}

tsr_status tsr_directory_store_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *path, tsr_store **out,
                                    tsr_error *err)
{
    return open_store(sys ? sys : &tsr_sys_posix, allocator, NULL, NULL, path, out, err);
}

static tsr_status open_in(directory_store *above, opening *open, tsr_str name, tsr_store **out, tsr_error *err)
{
    const tsr_str path = tsr_arena_str(above->arena, name, err); /* for the terminating NUL */
    if (!path.data) return TSR_E_NOMEM;
    return open_store(above->sys, above->allocator, above, open, path.data, out, err);
}

static tsr_status directory_below(tsr_store *base, tsr_str name, tsr_store **out, tsr_error *err)
{
    return open_in((directory_store *)base, open_below, name, out, err);
}

static tsr_status directory_neighbor(tsr_store *base, const tsr_host *host, tsr_str name, tsr_store **out, tsr_error *err)
{
    (void)host;
    return open_in((directory_store *)base, open_neighbor, name, out, err);
}

tsr_hidden_names tsr_directory_store_hidden(const tsr_store *base)
{
    return base->read_at == directory_read_at ? ((const directory_store *)base)->hidden : (tsr_hidden_names){.count = 0};
}

tsr_unlisted tsr_directory_store_unlisted(const tsr_store *base)
{
    return base->read_at == directory_read_at ? ((const directory_store *)base)->unlisted : (tsr_unlisted){0};
}

bool tsr_directory_store_has_holes(const tsr_store *base)
{
    uint64_t holes = 0;
    for (uint32_t i = 0; i < base->file_count; i++) {
        uint32_t file = i;
        const directory_store *store = store_of(base, &file);
        if (store) holes += store->slots[file].then.holes;
    }
    return holes >= WORTH_HOLES;
}

void tsr_directory_store_modified(tsr_store *base, uint32_t file, int64_t *seconds, int64_t *nanoseconds)
{
    const directory_store *store = store_of(base, &file);
    *seconds = *nanoseconds = 0;
    if (!store) return;
    const identity *then = &store->slots[file].then;
    *seconds = then->seconds;
    *nanoseconds = then->nanoseconds;
}

bool tsr_directory_store_identify(const tsr_store *base, uint32_t file, tsr_file_id *out)
{
    const directory_store *store = store_of(base, &file);
    struct stat info;
    if (!store) return false;
    if (file != TSR_NO_FILE) {
        const slot *s = &store->slots[file];
        *out = (tsr_file_id){s->then.device, s->then.inode, s->was_read};
        return true;
    }
    if (store->directory < 0 || store->sys->stat(store->sys, store->directory, &info) != 0) return false;
    *out = (tsr_file_id){(uint64_t)info.st_dev, (uint64_t)info.st_ino, true};
    return true;
}

static tsr_status file_unchanged(const directory_store *store, uint32_t file, tsr_error *err)
{
    const slot *s = &store->slots[file];
    const char *name = store->base.files[file].name.data;
    struct stat now;
    if (!s->was_read) return TSR_OK;
    if (store->sys->stat_at(store->sys, store->directory, name, &now) != 0) return tsr_sys_raise(err, "look at", name);
    if (identity_equal(s->then, identity_of(&now))) return TSR_OK;
    if (s->then.size == (uint64_t)now.st_size)
        return tsr_raise(err, TSR_E_CHANGED, TSR_NO_POSITION, "'%s' changed while it was being read", name);
    return tsr_raise(err, TSR_E_CHANGED, TSR_NO_POSITION,
                     "'%s' changed while it was being read (from %" PRIu64 " to %" PRIu64 " bytes)", name, s->then.size,
                     (uint64_t)now.st_size);
}

tsr_status tsr_directory_store_unchanged(tsr_store *base, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < base->file_count && status == TSR_OK; i++) {
        uint32_t file = i;
        const directory_store *store = store_of(base, &file);
        if (store) status = file_unchanged(store, file, err);
    }
    return status;
}
