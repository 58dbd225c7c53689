/* A training run on this machine, for prune.c. Everything is opened from the descriptor of the run, and symbolic links are never
 * followed. See tessera/sys/prune_run.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/sys.h"
#include "publish/text.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/prune_run.h"
#include "tessera/sys/try.h"

enum { LEVELS = 64, TRIES = 16 };

typedef struct directory_run {
    tsr_run_place base; /* must be first */
    const tsr_allocator *allocator;
    const tsr_sys *sys;
    char *root; /* the run's path without symbolic links */
    bool dry_run;
    int fd;
    int record; /* the open record, which is locked; -1: none */
    char record_name[sizeof TSR_PRUNE_RECORD + 16];
    bool has_text;
} directory_run;

/* ---- names below the run ---- */

static bool is_missing(int error)
{
    return error == ENOENT || error == ENOTDIR || error == ELOOP;
}

/* Opens the directory that contains `name`, one component after the other. *last is the last component. -1 with errno. */
static int open_parent(const directory_run *run, tsr_str name, char *text, const char **last)
{
    memcpy(text, name.data, name.size);
    text[name.size] = '\0';
    int at = tsr_sys_open(run->sys, run->fd, ".", O_RDONLY | O_DIRECTORY, 0);
    for (char *slash; at >= 0 && (slash = strchr(text, '/')); text = slash + 1) {
        *slash = '\0';
        const int next = tsr_sys_open(run->sys, at, text, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0), error = errno;
        run->sys->close(run->sys, at);
        errno = error;
        at = next;
    }
    *last = text;
    return at;
}

static tsr_status parent_of(const directory_run *run, tsr_str name, char text[PATH_MAX], const char **last, int *fd,
                            tsr_error *err)
{
    TSR_FAIL_IF(name.size >= PATH_MAX, err, TSR_E_LIMIT, "the path '%.*s' is too long", TSR_STR_ARG(name));
    *fd = open_parent(run, name, text, last);
    return *fd >= 0 || is_missing(errno) ? TSR_OK : tsr_sys_raise(err, "open the directory of", text);
}

/* ---- listing ---- */

static bool mounts(int directory, const char *name, const struct stat *around, const struct stat *info)
{
#ifdef STATX_ATTR_MOUNT_ROOT
    struct statx extended;
    if (statx(directory, name, AT_SYMLINK_NOFOLLOW, 0, &extended) == 0 &&
        (extended.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT))
        return extended.stx_attributes & STATX_ATTR_MOUNT_ROOT;
#endif
    (void)directory;
    (void)name;
    return info->st_dev != around->st_dev;
}

/* The path below the run that a link leads to; empty if that is outside, or nothing. */
static tsr_status follow(const directory_run *run, tsr_str name, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const tsr_str path = tsr_arena_format(arena, err, "%s/%.*s", run->root, TSR_STR_ARG(name));
    if (!path.data) return TSR_E_NOMEM;
    char *real = realpath(path.data, NULL);
    const size_t size = strlen(run->root);
    const bool is_below = real && strncmp(real, run->root, size) == 0 && real[size] == '/';
    *out = is_below ? tsr_arena_str(arena, tsr_str_from(real + size + 1), err) : TSR_STR("");
    free(real);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

typedef struct listing {
    const directory_run *run;
    tsr_arena *arena;
    tsr_vec *files;
    uint64_t *bytes; /* that the listing takes in memory so far */
} listing;

static tsr_status list_directory(const listing *l, int directory, tsr_str path, const struct stat *own, unsigned level,
                                 tsr_error *err);

static tsr_status enter(const listing *l, int directory, const char *name, tsr_str path, size_t at, unsigned level,
                        tsr_error *err)
{
    struct stat info;
    const tsr_sys *sys = l->run->sys;
    const int fd = tsr_sys_open(sys, directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (fd < 0 && errno == ENOENT) return TSR_OK;
    if (fd < 0 || level > LEVELS || sys->stat(sys, fd, &info) != 0) {
        ((tsr_run_file *)l->files->items)[at].is_unreadable = true;
        if (fd >= 0) sys->close(sys, fd);
        return TSR_OK;
    }
    return list_directory(l, fd, path, &info, level, err);
}

static tsr_status add_name(const listing *l, int directory, const char *name, tsr_str path, const struct stat *around,
                           unsigned level, tsr_error *err)
{
    struct stat info;
    const tsr_sys *sys = l->run->sys;
    if (sys->link_stat_at(sys, directory, name, &info) != 0)
        return errno == ENOENT ? TSR_OK : tsr_sys_raise(err, "examine", name);
    *l->bytes += sizeof(tsr_run_file) + path.size + strlen(name) + 2;
    TSR_FAIL_IF(*l->bytes > TSR_MOST_LISTING, err, TSR_E_LIMIT,
                "the run has more files than can be listed; the listing ended at '%.*s%s%s'; name a directory further down",
                TSR_STR_ARG(path), path.size ? "/" : "", name);
    const size_t at = l->files->count;
    tsr_run_file *file = tsr_vec_push(l->files, err);
    if (!file) return TSR_E_NOMEM;
    *file =
        (tsr_run_file){.name = tsr_arena_format(l->arena, err, "%.*s%s%s", TSR_STR_ARG(path), path.size ? "/" : "", name),
                       .kind = S_ISREG(info.st_mode)   ? TSR_RUN_FILE
                               : S_ISDIR(info.st_mode) ? TSR_RUN_DIRECTORY
                               : S_ISLNK(info.st_mode) ? TSR_RUN_LINK
                                                       : TSR_RUN_OTHER,
                       .size = (uint64_t)info.st_size,
                       .seconds = (int64_t)info.st_mtim.tv_sec,
                       .nanoseconds = (int64_t)info.st_mtim.tv_nsec,
                       .version = TSR_STR(""),
                       .target = TSR_STR(""),
                       .is_mount = !S_ISLNK(info.st_mode) && mounts(directory, name, around, &info)};
    if (!file->name.data) return TSR_E_NOMEM;
    if (file->kind == TSR_RUN_LINK) return follow(l->run, file->name, l->arena, &file->target, err);
    return file->kind == TSR_RUN_DIRECTORY ? enter(l, directory, name, file->name, at, level + 1, err) : TSR_OK;
}

/* Takes over `directory`. */
static tsr_status list_directory(const listing *l, int directory, tsr_str path, const struct stat *own, unsigned level,
                                 tsr_error *err)
{
    tsr_status status = TSR_OK;
    DIR *names = fdopendir(directory);
    if (!names) {
        l->run->sys->close(l->run->sys, directory);
        return tsr_sys_raise(err, "list", path.size ? path.data : l->run->root);
    }
    for (struct dirent *item; status == TSR_OK && (errno = 0, item = readdir(names));)
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            status = add_name(l, directory, item->d_name, path, own, level, err);
    if (status == TSR_OK && errno && errno != ENOENT)
        status = tsr_sys_raise(err, "list", path.size ? path.data : l->run->root);
    closedir(names);
    return status;
}

/* ---- the record, and the clock ---- */

/* Another run removes an abandoned record, so the lock has to be on a file that still has its name. It gets its head immediately: a
 * file without it is not taken for a record. */
static tsr_status create_record(directory_run *run, tsr_error *err)
{
    const tsr_sys *sys = run->sys;
    struct stat info = {0};
    for (unsigned i = 0; i < TRIES; i++) {
        uint64_t random;
        TSR_FAIL_IF(getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random, err, TSR_E_IO,
                    "cannot get random numbers for the name of a record");
        snprintf(run->record_name, sizeof run->record_name, TSR_PRUNE_RECORD "%016" PRIx64, random);
        run->record = tsr_sys_open(sys, run->fd, run->record_name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
        if (run->record < 0 && errno == EEXIST) continue;
        if (run->record < 0) return tsr_sys_raise(err, "create a record in", run->root);
        (void)sys->lock(sys, run->record); /* if the file system has no locks, the record never counts as abandoned */
        if (sys->stat(sys, run->record, &info) == 0 && info.st_nlink)
            return tsr_sys_write((tsr_sys_file){sys, run->record, run->record_name}, 0, TSR_PRUNE_RECORD_HEAD,
                                 sizeof TSR_PRUNE_RECORD_HEAD - 1, err);
        sys->close(sys, run->record);
        run->record = -1;
    }
    return tsr_fail(err, TSR_E_IO, "cannot create a record in '%s'", run->root);
}

/* The time of the file system, which may be that of a server. */
static tsr_status read_clock(directory_run *run, int64_t *now, tsr_error *err)
{
    struct stat info;
    int fd = run->record;
    *now = (int64_t)time(NULL);
    if (!run->dry_run) TSR_TRY(create_record(run, err));
    fd = run->record;
#ifdef O_TMPFILE
    if (run->dry_run) fd = tsr_sys_open(run->sys, run->fd, ".", O_TMPFILE | O_RDWR, 0600);
#endif
    if (fd >= 0 && run->sys->stat(run->sys, fd, &info) == 0) *now = (int64_t)info.st_mtim.tv_sec;
    if (fd >= 0 && fd != run->record) run->sys->close(run->sys, fd);
    return TSR_OK;
}

static tsr_status list(tsr_run_place *base, tsr_arena *arena, tsr_vec *files, int64_t *now, tsr_error *err)
{
    directory_run *run = (directory_run *)base;
    struct stat info;
    uint64_t bytes = 0;
    const listing l = {run, arena, files, &bytes};
    TSR_TRY(read_clock(run, now, err));
    const int fd = tsr_sys_open(run->sys, run->fd, ".", O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0 || run->sys->stat(run->sys, fd, &info) != 0) {
        if (fd >= 0) run->sys->close(run->sys, fd);
        return tsr_sys_raise(err, "list", run->root);
    }
    TSR_TRY(list_directory(&l, fd, TSR_STR(""), &info, 0, err));
    tsr_run_file *items = files->items;
    for (size_t i = 0; i < files->count && run->record >= 0; i++) {
        if (!tsr_str_equal(items[i].name, tsr_str_from(run->record_name))) continue;
        items[i] = items[--files->count];
        break;
    }
    return TSR_OK;
}

static tsr_status write_record(tsr_run_place *base, tsr_str text, tsr_error *err)
{
    directory_run *run = (directory_run *)base;
    const tsr_sys_file file = {run->sys, run->record, run->record_name};
    run->has_text = true;
    TSR_TRY(tsr_sys_write(file, 0, text.data, text.size, err));
    TSR_TRY(tsr_sys_sync(run->sys, run->record, run->record_name, err));
    return tsr_sys_sync(run->sys, run->fd, run->root, err);
}

static tsr_status drop_record(tsr_run_place *base, tsr_error *err)
{
    directory_run *run = (directory_run *)base;
    if (run->record < 0) return TSR_OK;
    const bool failed = run->sys->unlink(run->sys, run->fd, run->record_name, false) != 0 && errno != ENOENT;
    if (failed) return tsr_sys_raise(err, "remove", run->record_name);
    run->sys->close(run->sys, run->record);
    run->record = -1;
    return TSR_OK;
}

static bool is_abandoned(tsr_run_place *base, const tsr_run_file *record)
{
    const directory_run *run = (const directory_run *)base;
    char text[PATH_MAX];
    if (record->name.size >= sizeof text) return false;
    snprintf(text, sizeof text, "%.*s", TSR_STR_ARG(record->name));
    const int fd = tsr_sys_open(run->sys, run->fd, text, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0) return false;
    const bool is = run->sys->lock(run->sys, fd) == 0;
    run->sys->close(run->sys, fd);
    return is;
}

/* ---- reading and removing ---- */

static tsr_status read_file(tsr_run_place *base, const tsr_run_file *file, size_t most, tsr_arena *arena, tsr_str *text,
                            tsr_error *err)
{
    const directory_run *run = (const directory_run *)base;
    char path[PATH_MAX];
    const char *last;
    int directory;
    *text = TSR_STR("");
    if (file->kind != TSR_RUN_FILE || file->size > most) return TSR_OK;
    TSR_TRY(parent_of(run, file->name, path, &last, &directory, err));
    if (directory < 0) return TSR_OK;
    const int fd = tsr_sys_open(run->sys, directory, last, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0), error = errno;
    run->sys->close(run->sys, directory);
    if (fd < 0 && is_missing(error)) return TSR_OK;
    if (fd < 0) {
        errno = error;
        return tsr_sys_raise(err, "open", file->name.data);
    }
    char *buffer = tsr_arena_array(arena, (size_t)file->size + 1, 1, err);
    struct stat info;
    tsr_status status = buffer ? TSR_OK : TSR_E_NOMEM;
    const bool is_same = run->sys->stat(run->sys, fd, &info) == 0 && (uint64_t)info.st_size == file->size;
    if (status == TSR_OK && is_same)
        status = tsr_sys_read((tsr_sys_file){run->sys, fd, file->name.data}, 0, buffer, (size_t)file->size, err);
    run->sys->close(run->sys, fd);
    if (status == TSR_OK && is_same) *text = (tsr_str){buffer, (size_t)file->size};
    return status;
}

static tsr_status remove_file(tsr_run_place *base, const tsr_run_file *file, tsr_run_removal *out, tsr_error *err)
{
    const directory_run *run = (const directory_run *)base;
    char path[PATH_MAX];
    const char *last;
    struct stat info;
    int directory, error = 0;
    *out = TSR_RUN_ABSENT;
    TSR_TRY(parent_of(run, file->name, path, &last, &directory, err));
    if (directory < 0) return TSR_OK;
    if (run->sys->link_stat_at(run->sys, directory, last, &info) != 0) {
        error = errno;
    } else if ((uint64_t)info.st_size != file->size || (int64_t)info.st_mtim.tv_sec != file->seconds ||
               (int64_t)info.st_mtim.tv_nsec != file->nanoseconds || S_ISDIR(info.st_mode)) {
        *out = TSR_RUN_CHANGED;
    } else if (run->sys->unlink(run->sys, directory, last, false) != 0) {
        error = errno;
    } else {
        *out = TSR_RUN_REMOVED;
    }
    run->sys->close(run->sys, directory);
    errno = error;
    return !error || error == ENOENT ? TSR_OK : tsr_sys_raise(err, "remove", file->name.data);
}

static tsr_status remove_directory(tsr_run_place *base, tsr_str name, tsr_error *err)
{
    const directory_run *run = (const directory_run *)base;
    char path[PATH_MAX];
    const char *last;
    int directory;
    TSR_TRY(parent_of(run, name, path, &last, &directory, err));
    if (directory < 0) return TSR_OK;
    const int error = run->sys->unlink(run->sys, directory, last, true) == 0 ? 0 : errno;
    run->sys->close(run->sys, directory);
    errno = error;
    const bool stays = error == ENOTEMPTY || error == EEXIST || error == EBUSY || is_missing(error);
    return !error || stays ? TSR_OK : tsr_sys_raise(err, "remove the directory", name.data);
}

static tsr_status settle(tsr_run_place *base, tsr_str name, tsr_error *err)
{
    const directory_run *run = (const directory_run *)base;
    char path[PATH_MAX];
    const char *last;
    int directory;
    TSR_TRY(parent_of(run, name, path, &last, &directory, err));
    if (directory < 0) return TSR_OK;
    const tsr_status status = tsr_sys_sync(run->sys, directory, name.data, err);
    run->sys->close(run->sys, directory);
    return status;
}

static void close_run(tsr_run_place *base)
{
    directory_run *run = (directory_run *)base;
    tsr_error unused = {0};
    if (run->record >= 0 && !run->has_text) (void)drop_record(base, &unused);
    if (run->record >= 0) run->sys->close(run->sys, run->record);
    if (run->fd >= 0) run->sys->close(run->sys, run->fd);
    free(run->root);
    tsr_free(run->allocator, run, 1, sizeof *run);
}

tsr_status tsr_directory_run_open(const tsr_host *host, const char *path, bool dry_run, tsr_run_place **out, tsr_error *err)
{
    directory_run *run = tsr_alloc(host->allocator, 1, sizeof *run, err);
    if (!run) return TSR_E_NOMEM;
    *run = (directory_run){.base = {.list = list,
                                    .read = read_file,
                                    .write_record = write_record,
                                    .drop_record = drop_record,
                                    .is_abandoned = is_abandoned,
                                    .remove = remove_file,
                                    .remove_directory = remove_directory,
                                    .settle = settle,
                                    .close = close_run},
                           .allocator = host->allocator,
                           .sys = &tsr_sys_posix,
                           .root = realpath(path, NULL),
                           .dry_run = dry_run,
                           .record = -1,
                           .fd = -1};
    if (run->root) run->fd = tsr_sys_open(run->sys, AT_FDCWD, run->root, O_RDONLY | O_DIRECTORY, 0);
    if (run->fd >= 0) {
        *out = &run->base;
        return TSR_OK;
    }
    const tsr_status status = tsr_sys_raise(err, "open", path);
    close_run(&run->base);
    return status;
}
