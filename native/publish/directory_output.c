/* An output to a directory or a single file: opens it, creates and writes its files, or opens those that other processes of the job
 * or an earlier run created, and closes it. Everything in it has a temporary name until it is published. */
#include "publish/directory_output.h"
#include "publish/destination.h"

#include "tessera/sys/try.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- create ---- */

/* Gives the output the next tag that this process has not tried yet. The first tag is the process id. */
static void next_tag(directory_output *output)
{
    snprintf(output->tag, sizeof output->tag, "%u", output->number++);
}

/* TSR_E_EXISTS: something that no run of this job created has a name that the output needs. `directory` is where it is; NULL: where the
 * destination is, or in it. */
static tsr_status refuse_foreign(const directory_output *output, const char *directory, const char *name, tsr_error *err)
{
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                    "'%s%s%s' prevents '%s' from being written, and no run of this job created it; move it away",
                    directory ? directory : "", directory ? "/" : "", name, output->name);
}

/* New files follow the umask, but private data must not become readable. A file that replaces another gets its permissions
 * only when it is published. A file with a new name can be opened only by users who could open some file of the old
 * checkpoint. */
static int create_file(directory_output *output, const output_file *file)
{
    const unsigned mode = !output->exists  ? 0666
                          : file->replaces ? TSR_PRIVATE_FILE
                                           : (0666 & output->widest) | TSR_PRIVATE_FILE;
    return tsr_sys_open(output->sys, output->work, file->temporary, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CREAT | O_EXCL,
                        mode);
}

static bool stat_replaced(const directory_output *output, const char *name, struct stat *old)
{
    if (output->mode == OUTPUT_FILE) return output->sys->stat_at(output->sys, output->parent, name, old) == 0;
    return tsr_output_stat_old(output, name, old);
}

static tsr_status name_file(directory_output *output, tsr_str name, output_file *file, tsr_error *err)
{
    struct stat old;
    if (output->mode == OUTPUT_FILE) {
        if (name.size || output->files.count)
            return tsr_fail(err, TSR_E_USAGE, "the output is a single file, which has no name of its own");
        file->name = output->name;
    } else {
        if (!tsr_is_name_below(name, NAME_MAX))
            return tsr_fail(tsr_naming(err), TSR_E_USAGE, "'%.*s' is not a valid file name", TSR_STR_ARG(name));
        file->name = tsr_arena_str(output->arena, name, err).data;
    }
    if (!file->name) return TSR_E_NOMEM;
    file->replaces = output->exists && stat_replaced(output, file->name, &old);
    return TSR_OK;
}

static const char *temporary_name(directory_output *output, const output_file *file, tsr_error *err)
{
    const char *tag = output->tag;
    char stem[TSR_STEM_SIZE + 1];
    switch (output->mode) {
    case OUTPUT_NEW_DIRECTORY:
    case OUTPUT_MOVE:
    case OUTPUT_SWAP_DIRECTORY: return file->name;
    case OUTPUT_FILE: return tsr_arena_format(output->arena, err, ".%s.tessera-%s", tsr_stem_of(file->name, stem), tag).data;
    default: return tsr_arena_format(output->arena, err, ".tessera-%s-%zu", tag, output->files.count).data;
    }
}

/* Creates the file under a temporary name. If a killed run left a file of that name, tries the next tag. */
static tsr_status create_temporary(directory_output *output, output_file *file, tsr_error *err)
{
    for (unsigned tries = 0;; tries++) {
        file->temporary = temporary_name(output, file, err);
        if (!file->temporary) return TSR_E_NOMEM;
        file->fd = create_file(output, file);
        if (file->fd >= 0) return TSR_OK;
        const bool own_directory = output->mode == OUTPUT_NEW_DIRECTORY || output->mode == OUTPUT_SWAP_DIRECTORY;
        const bool taken = errno == EEXIST && !own_directory && tries < TSR_MAX_TRIES;
        if (!taken) return tsr_sys_raise(tsr_naming(err), "create", file->name);
        next_tag(output);
    }
}

/* ---- files of other processes and of earlier runs ---- */

/* Opens a file of a run that was killed while it published. The file already has the permissions of the file that it
 * replaces and may therefore be read-only. */
static int open_finished(directory_output *output, const output_file *file)
{
    const int fd = tsr_sys_open(output->sys, output->work, file->temporary, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    const bool opened = fd >= 0 && tsr_is_own_file(output->sys, fd) && fchmod(fd, TSR_PRIVATE_FILE) == 0;
    if (fd >= 0) output->sys->close(output->sys, fd);
    errno = opened ? 0 : EACCES;
    return opened ? tsr_output_open_file(output, file->temporary) : -1;
}

/* Opens the file that another process of the job or an earlier run created; creates it if there is none. */
static int open_shared(directory_output *output, output_file *file)
{
    int fd = tsr_output_open_file(output, file->temporary);
    if (fd < 0 && errno == EACCES && output->options.begun == TSR_BEGUN_PUBLISHING) fd = open_finished(output, file);
    if (fd < 0 && errno == ENOENT && output->options.begun == TSR_BEGUN_PUBLISHING) {
        fd = tsr_output_open_file(output, file->name);
        file->is_final = fd >= 0;
        if (file->is_final) file->temporary = file->name;
    }
    if (fd < 0 && errno == ENOENT && output->options.begun != TSR_BEGUN_WHOLE) fd = create_file(output, file);
    /* Another process has just created it. */
    return fd < 0 && errno == EEXIST ? tsr_output_open_file(output, file->temporary) : fd;
}

static tsr_status refuse_size(const output_file *file, uint64_t size, uint64_t found, tsr_error *err)
{
    return tsr_fail(tsr_naming(err), TSR_E_CHANGED,
                    "'%s' was changed after parts of it were written: it has %" PRIu64 " bytes, not %" PRIu64
                    "; remove the unpublished output and its journals, and write all shares again",
                    file->name, found, size);
}

static tsr_status refuse_gone(const output_file *file, tsr_error *err)
{
    return tsr_fail(
        tsr_naming(err), TSR_E_CHANGED,
        "'%s' was removed after parts of it were written; remove the unpublished output and its journals, and write "
        "all shares again",
        file->name);
}

/* Whether the file belongs to this user. A run that was killed while it published may already have given it to the owner of
 * the file that it replaces. */
static bool is_of_job(const directory_output *output, const output_file *file)
{
    struct stat info, old;
    if (tsr_is_own_file(output->sys, file->fd)) return true;
    return output->options.begun == TSR_BEGUN_PUBLISHING && output->exists &&
           output->sys->stat(output->sys, file->fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1 &&
           (file->replaces ? stat_replaced(output, file->name, &old) && old.st_uid == info.st_uid
                           : output->model && output->model->st_uid == info.st_uid);
}

/* Creates or opens a file that other processes of the job write, too, or that an earlier run wrote. Sets `begins` if the
 * file was missing or did not have its full size. */
static tsr_status join_temporary(directory_output *output, output_file *file, uint64_t size, tsr_error *err)
{
    struct stat info;
    file->temporary = temporary_name(output, file, err);
    if (!file->temporary) return TSR_E_NOMEM;
    file->fd = output->options.begun != TSR_BEGUN_REFUSED ? open_shared(output, file) : create_file(output, file);
    if (file->fd < 0 && (errno == EEXIST || errno == ELOOP))
        return refuse_foreign(output, output->temporary, file->temporary, err);
    if (file->fd < 0 && errno == ENOENT && output->options.begun == TSR_BEGUN_WHOLE) return refuse_gone(file, err);
    if (file->fd < 0) return tsr_sys_raise(tsr_naming(err), "create", file->name);
    if (!is_of_job(output, file)) return refuse_foreign(output, output->temporary, file->temporary, err);
    if (output->sys->stat(output->sys, file->fd, &info) != 0) return tsr_sys_raise(tsr_naming(err), "look at", file->name);
    if ((uint64_t)info.st_size == size) return TSR_OK;
    if (output->options.begun == TSR_BEGUN_WHOLE) return refuse_size(file, size, (uint64_t)info.st_size, err);
    output->begins = true;
    if ((uint64_t)info.st_size > size && output->sys->truncate(output->sys, file->fd, size) != 0)
        return tsr_sys_raise(tsr_naming(err), "size", file->name);
    return TSR_OK;
}

/* ---- all files ---- */

/* Reserves disk space for the whole file. Only sets its size if the file system cannot reserve space, or if the file may
 * have holes. */
static tsr_status reserve(const directory_output *output, const output_file *file, uint64_t size, tsr_error *err)
{
    int done = 0;
    if (!output->options.holes) {
        do done = output->sys->allocate(output->sys, file->fd, size);
        while (done != 0 && errno == EINTR);
        if (done == 0) return TSR_OK;
    }
    if (done != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        return tsr_sys_raise(tsr_naming(err), "reserve room for", file->name);
    if (output->sys->truncate(output->sys, file->fd, size) != 0) return tsr_sys_raise(tsr_naming(err), "size", file->name);
    return TSR_OK;
}

static tsr_status add_file(directory_output *output, tsr_str name, uint64_t size, uint32_t *number, tsr_error *err)
{
    output_file file = {.fd = -1, .size = size};
    tsr_status status = name_file(output, name, &file, err);
    if (status == TSR_OK && output->mode != OUTPUT_FILE) status = tsr_output_make_subdirectories(output, file.name, err);
    if (status != TSR_OK) return status;
    uint32_t *named;
    if (tsr_vec_reserve(&output->files, 1, err) != TSR_OK) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(output->names, tsr_str_from(file.name), 0, &named, NULL, err));
    *named = (uint32_t)output->files.count;
    tsr_output_make_room(output);
    status = output->options.tag ? join_temporary(output, &file, size, err) : create_temporary(output, &file, err);
    if (status != TSR_OK) {
        if (file.fd >= 0) output->sys->close(output->sys, file.fd);
        return status;
    }
    tsr_output_keep(output, 1);
    *number = (uint32_t)output->files.count;
    file.unsynced = output->unsynced_names = true;
    *(output_file *)tsr_vec_push(&output->files, err) = file; /* cannot fail: room was made before */
    return size ? reserve(output, &file, size, err) : TSR_OK;
}

static tsr_status create_output_file(tsr_output *base, tsr_str name, uint64_t size, uint32_t *file, tsr_error *err)
{
    directory_output *output = (directory_output *)base;
    pthread_mutex_lock(&output->lock);
    tsr_status status = add_file(output, name, size, file, err);
    pthread_mutex_unlock(&output->lock);
    return status;
}

/* ---- write ---- */

/* Writes the files of an output. */

/* After a write of at least this size, the disk is told to begin before the final sync. */
#define LARGE_WRITE ((size_t)1 << 20)
#define HOLE_BYTES  ((size_t)64 << 10)  /* aligned blocks of this size that are all zeros are not written */
#define MAX_COPY    ((uint64_t)1 << 30) /* bytes per copy_range call, so that a signal is handled soon */

/* Called after the write, because a sync that ran during it may have missed it. */
static void give_written(directory_output *output, uint32_t file)
{
    pthread_mutex_lock(&output->lock);
    tsr_output_file(output, file)->users--;
    tsr_output_file(output, file)->unsynced = true;
    pthread_mutex_unlock(&output->lock);
}

static bool is_zero(const uint8_t *data, size_t size)
{
    return data[0] == 0 && (size == 1 || memcmp(data, data + 1, size - 1) == 0);
}

static bool lies_within(directory_output *output, uint32_t file, uint64_t offset, size_t size)
{
    pthread_mutex_lock(&output->lock);
    const uint64_t known = tsr_output_file(output, file)->size;
    pthread_mutex_unlock(&output->lock);
    return offset <= known && size <= known - offset;
}

/* Writes everything except blocks of zeros. The file must be empty and already have its size. Blocks are aligned in the
 * file, not in `data`. */
static tsr_status write_around_holes(tsr_sys_file file, uint64_t offset, const uint8_t *data, size_t size, tsr_error *err)
{
    size_t from = 0; /* the start of the data that is not written yet */
    for (size_t at = 0, next; at < size; at = next) {
        const size_t left = HOLE_BYTES - (size_t)((offset + at) % HOLE_BYTES);
        next = size - at < left ? size : at + left;
        if (!is_zero(data + at, next - at)) continue;
        if (at > from) {
            TSR_TRY(tsr_sys_write(file, offset + from, data + from, at - from, err));
        }
        from = next;
    }
    return size > from ? tsr_sys_write(file, offset + from, data + from, size - from, err) : TSR_OK;
}

static void add_sum(directory_output *output, uint32_t file, uint64_t sum)
{
    pthread_mutex_lock(&output->lock);
    output_file *f = tsr_output_file(output, file);
    f->sum = tsr_sum_add(f->sum, sum);
    pthread_mutex_unlock(&output->lock);
}

static tsr_status write_output_at(tsr_output *base, uint32_t file, uint64_t offset, const void *data, size_t size,
                                  tsr_error *err)
{
    directory_output *output = (directory_output *)base;
    int fd;
    const char *name;
    tsr_status status = tsr_output_take(output, file, &fd, &name, err);
    if (status != TSR_OK) return status;
    const tsr_sys_file to = {output->sys, fd, name};
    if (output->options.holes && size >= HOLE_BYTES && lies_within(output, file, offset, size)) {
        status = write_around_holes(to, offset, data, size, err);
    } else {
        status = tsr_sys_write(to, offset, data, size, err);
    }
    if (size >= LARGE_WRITE && !output->options.holes) output->sys->begin_sync(output->sys, fd, offset, size);
    give_written(output, file);
    if (status == TSR_OK && output->sums) add_sum(output, file, tsr_sum_bytes(output->sums, offset, data, size));
    return status;
}

/* An offset in an open file. */
typedef struct file_place {
    int fd;
    uint64_t offset;
} file_place;

static tsr_status copy(directory_output *output, file_place from, file_place to, uint64_t size, const char *name,
                       tsr_error *err)
{
    for (uint64_t done = 0; done < size;) {
        uint64_t left = size - done;
        ssize_t n = output->sys->copy_range(output->sys, from.fd, from.offset + done, to.fd, to.offset + done,
                                            (size_t)(left < MAX_COPY ? left : MAX_COPY));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
            return tsr_sys_raise(tsr_naming(err), "copy into", name);
        if (n <= 0) { /* another file system, not supported, or the source's end: reading and writing will find out */
            output->cannot_copy = true;
            return TSR_E_UNSUPPORTED;
        }
        if ((size_t)n >= LARGE_WRITE) output->sys->begin_sync(output->sys, to.fd, to.offset + done, (uint64_t)n);
        done += (uint64_t)n;
    }
    return TSR_OK;
}

static tsr_status copy_output_range(tsr_output *base, uint32_t file, uint64_t offset, const tsr_copied_range *source,
                                    tsr_error *err)
{
    directory_output *output = (directory_output *)base;
    int from, to;
    const char *name;
    if (output->cannot_copy) return TSR_E_UNSUPPORTED;
    tsr_status status = tsr_directory_store_take_fd(source->store, source->file, &from, err);
    if (status != TSR_OK) return status;
    status = tsr_output_take(output, file, &to, &name, err);
    if (status == TSR_OK) {
        status = copy(output, (file_place){from, source->offset}, (file_place){to, offset}, source->size, name, err);
        give_written(output, file);
    }
    tsr_directory_store_give_fd(source->store, source->file);
    return status;
}

/* ---- what the caller asks an open output ---- */

bool tsr_directory_output_continues(const tsr_output *output)
{
    return !((const directory_output *)output)->begins;
}

bool tsr_directory_output_replaces(const tsr_output *output)
{
    return ((const directory_output *)output)->mode == OUTPUT_INTO_DIRECTORY;
}

uint64_t tsr_directory_output_take_sum(tsr_output *base, uint32_t file)
{
    directory_output *output = (directory_output *)base;
    pthread_mutex_lock(&output->lock);
    output_file *f = tsr_output_file(output, file);
    const uint64_t sum = f->sum;
    f->sum = 0;
    pthread_mutex_unlock(&output->lock);
    return sum;
}

void tsr_directory_output_has_all(tsr_output *output)
{
    tsr_begun *begun = &((directory_output *)output)->options.begun;
    if (*begun == TSR_BEGUN_WHOLE) *begun = TSR_BEGUN_JOINED;
}

void tsr_directory_output_drop(tsr_output *output)
{
    ((directory_output *)output)->options.unfinished = TSR_UNFINISHED_REMOVED;
}

uint32_t tsr_directory_output_count(const tsr_output *output)
{
    return (uint32_t)((const directory_output *)output)->files.count;
}

/* ---- the destination ---- */

/* Whether the directory `inner` is `outer` or lies below it. Both must exist. */
static bool is_within(const char *inner, const char *outer)
{
    char *a = realpath(inner, NULL), *b = realpath(outer, NULL);
    size_t size = b ? strlen(b) : 0;
    bool within = a && b && strncmp(a, b, size) == 0 && (a[size] == '\0' || a[size] == '/' || size == 1);
    free(a);
    free(b);
    return within;
}

static tsr_status refuse_sources(const directory_output *output, const char *path, const char *parent,
                                 const struct stat *existing, tsr_error *err)
{
    for (size_t i = 0; i < output->options.source_count; i++) {
        struct stat info;
        const char *source = output->options.sources[i];
        if (output->sys->stat_at(output->sys, AT_FDCWD, source, &info) != 0) continue;
        const bool same = existing && tsr_is_one_file(existing, &info);
        if (!same && !(S_ISDIR(info.st_mode) && is_within(parent, source))) continue;
        return tsr_fail(tsr_naming(err), TSR_E_USAGE, "the destination '%s' is %sthe source '%s'", path,
                        same ? "" : "inside ", source);
    }
    return TSR_OK;
}

/* Refuses a destination that is a symbolic link without a target. Such a link occupies the name; only a single file written
 * with --overwrite may replace it. */
static tsr_status refuse_dead_link(const directory_output *output, const char *path, tsr_error *err)
{
    struct stat info;
    const bool replaces = output->mode == OUTPUT_FILE && output->options.existing != TSR_EXISTING_REFUSED;
    if (replaces || output->sys->link_stat_at(output->sys, output->parent, output->name, &info) != 0) return TSR_OK;
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                    "the destination '%s' exists: it is a symbolic link with a missing target; remove the link", path);
}

static tsr_status choose_mode(directory_output *output, const char *path, const char *parent, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    const bool directory = output->options.is_directory;
    struct stat info, found;
    const int *const known = output->options.parent;
    output->parent = sys->open_at(sys, known ? *known : AT_FDCWD, known ? "." : parent, O_RDONLY | O_DIRECTORY, 0);
    if (output->parent < 0) return tsr_sys_raise(tsr_naming(err), "open the directory", parent);
    if (known && tsr_output_refuse_moved(output, err) != TSR_OK) return err->status;
    bool exists = sys->stat_at(sys, output->parent, output->name, &info) == 0;
    if (sys->link_stat_at(sys, output->parent, output->name, &found) == 0) output->found = tsr_identity_of(&found);
    tsr_status status = refuse_sources(output, path, parent, exists ? &info : NULL, err);
    if (status != TSR_OK) return status;
    output->mode = !directory                                         ? OUTPUT_FILE
                   : !exists                                          ? OUTPUT_NEW_DIRECTORY
                   : output->options.existing >= TSR_EXISTING_SWAPPED ? OUTPUT_SWAP_DIRECTORY
                                                                      : OUTPUT_INTO_DIRECTORY;
    output->exists = exists;
    if (!exists) return refuse_dead_link(output, path, err);
    if (output->options.existing == TSR_EXISTING_ABSENT)
        return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                        "the destination '%s' exists now, but was not there a moment ago: another process is writing it",
                        path);
    if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) {
        return tsr_fail(tsr_naming(err), TSR_E_USAGE, "the destination '%s' exists and is neither a file nor a directory",
                        path);
    }
    if (S_ISDIR(info.st_mode) && !directory) {
        return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                        "the destination '%s' exists and is a directory, but a file would be written; give the file's name, "
                        "or write '%s%s' to replace the checkpoint in the directory",
                        path, path, path[strlen(path) - 1] == '/' ? "" : "/");
    }
    if (!S_ISDIR(info.st_mode) && directory) {
        return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                        "the destination '%s' exists and is a file, but a directory would be written; choose another name",
                        path);
    }
    if (output->options.existing == TSR_EXISTING_REFUSED) {
        return tsr_fail(tsr_naming(err), TSR_E_EXISTS, "the destination '%s' exists; --overwrite replaces %s", path,
                        directory ? "the checkpoint in it, and keeps its other files" : "it");
    }
    return TSR_OK;
}

/* ---- the directory of the files ---- */

/* Creates the directory that will be renamed to the destination. */
static tsr_status make_directory(directory_output *output, const char **directory, bool *made, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    char stem[TSR_STEM_SIZE + 1];
    tsr_stem_of(output->name, stem);
    for (unsigned tries = 0;; tries++) {
        *directory = tsr_arena_format(output->arena, err, ".%s.tessera-%s", stem, output->tag).data;
        if (!*directory) return TSR_E_NOMEM;
        *made = sys->make_directory(sys, output->parent, *directory, output->exists ? TSR_PRIVATE_DIRECTORY : 0777) == 0;
        if (*made || (errno == EEXIST && output->options.begun != TSR_BEGUN_REFUSED)) break;
        if (errno == EEXIST && output->options.tag) return refuse_foreign(output, NULL, *directory, err);
        if (errno != EEXIST || tries == TSR_MAX_TRIES) return tsr_sys_raise(tsr_naming(err), "create", *directory);
        next_tag(output);
    }
    output->temporary = *directory;
    return TSR_OK;
}

static bool is_directory_of_job(const directory_output *output, const struct stat *info)
{
    struct stat old;
    if (info->st_uid == geteuid()) return true;
    return output->options.begun == TSR_BEGUN_PUBLISHING && output->exists &&
           output->sys->link_stat_at(output->sys, output->parent, output->name, &old) == 0 && old.st_uid == info->st_uid;
}

/* Opens the directory in which files are written. Refuses a symbolic link, and a directory that another user created. */
static tsr_status open_work(directory_output *output, const char *directory, tsr_error *err)
{
    struct stat info;
    const tsr_sys *sys = output->sys;
    const int work = tsr_sys_open(sys, output->parent, directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (work < 0 && output->temporary && (errno == ENOTDIR || errno == ELOOP)) {
        output->temporary = NULL;
        return refuse_foreign(output, NULL, directory, err);
    }
    if (work < 0) return tsr_sys_raise(tsr_naming(err), "open", directory);
    output->work = work;
    if (!output->temporary || (sys->stat(sys, work, &info) == 0 && is_directory_of_job(output, &info))) return TSR_OK;
    output->temporary = NULL;
    return refuse_foreign(output, NULL, directory, err);
}

/* The identity of an obsolete file; its inode is 0 if there is none. */
static tsr_identity identity_of(const directory_output *output, const char *name)
{
    struct stat info;
    return tsr_output_stat_old(output, name, &info) ? tsr_identity_of(&info) : (tsr_identity){0};
}

/* Remembers the files of the old checkpoint, which permissions they give, and who owns them. */
static tsr_status look_at_old(directory_output *output, tsr_error *err)
{
    struct stat info;
    output->widest = 0;
    output->obsolete = tsr_arena_array(output->arena, output->options.obsolete_count, sizeof *output->obsolete, err);
    if (!output->obsolete) return TSR_E_NOMEM;
    for (size_t i = 0; i < output->options.obsolete_count; i++) {
        output->obsolete[i] = identity_of(output, output->options.obsolete[i].data);
        if (!tsr_output_stat_old(output, output->options.obsolete[i].data, &info) || !S_ISREG(info.st_mode)) continue;
        output->widest |= info.st_mode & 0777;
        if (output->model) continue;
        struct stat *model = tsr_arena_array(output->arena, 1, sizeof *model, err);
        if (!model) return TSR_E_NOMEM;
        *model = info;
        output->model = model;
    }
    if (!output->model) output->widest = 0777;
    return TSR_OK;
}

/* ---- opening and closing ---- */

static void output_close(tsr_output *base)
{
    directory_output *output = (directory_output *)base;
    for (uint32_t i = 0; i < output->files.count; i++) {
        if (tsr_output_file(output, i)->fd >= 0) output->sys->close(output->sys, tsr_output_file(output, i)->fd);
    }
    tsr_output_keep(output, -(int32_t)output->open_files);
    if (!output->published && output->options.unfinished == TSR_UNFINISHED_REMOVED) tsr_output_discard(output);
    if (output->work >= 0 && output->work != output->parent) output->sys->close(output->sys, output->work);
    if (output->parent >= 0) output->sys->close(output->sys, output->parent);
    pthread_mutex_destroy(&output->lock);
    tsr_vec_free(&output->files);
    tsr_vec_free(&output->directories);
    tsr_map_free(output->names);
    tsr_map_free(output->obsolete_names);
    tsr_arena_free(output->arena);
    tsr_free(output->allocator, output, 1, sizeof *output);
}

static tsr_status make_work(directory_output *output, tsr_error *err)
{
    const char *directory = output->name;
    bool made = false;
    tsr_status status = TSR_OK;
    output->work = output->parent;
    output->number = (unsigned)getpid();
    if (output->options.tag) snprintf(output->tag, sizeof output->tag, "%s", output->options.tag);
    else next_tag(output);
    if (output->mode == OUTPUT_FILE) return TSR_OK;
    if (output->exists) status = look_at_old(output, err);
    if (status == TSR_OK && output->mode != OUTPUT_INTO_DIRECTORY) status = make_directory(output, &directory, &made, err);
    if (status == TSR_OK) status = open_work(output, directory, err);
    if (status != TSR_OK || output->options.existing == TSR_EXISTING_EITHER) return status;
    return output->mode == OUTPUT_SWAP_DIRECTORY ? tsr_output_check_swap(output, made, err) : TSR_OK;
}

static tsr_status make_key(directory_output *output, tsr_error *err)
{
    tsr_sum_key *key = tsr_arena_array(output->arena, 1, sizeof *key, err);
    if (!key) return TSR_E_NOMEM;
    *key = tsr_sum_key_of(output->options.tag);
    output->sums = key;
    output->cannot_copy = true;
    return TSR_OK;
}

static tsr_status make_maps(directory_output *output, tsr_error *err)
{
    const size_t count = output->options.obsolete_count;
    output->names = tsr_map_new(output->allocator, 0, err);
    output->obsolete_names = tsr_map_new(output->allocator, count, err);
    if (!output->names || !output->obsolete_names) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        TSR_TRY(tsr_map_put(output->obsolete_names, output->options.obsolete[i], (uint32_t)i, NULL, NULL, err));
    return TSR_OK;
}

/* Decides how the destination is written; nothing is created there yet. */
static tsr_status new_output(const tsr_sys *sys, const tsr_allocator *allocator, const char *path,
                             const tsr_directory_output_options *options, directory_output **out, tsr_error *err)
{
    directory_output *output = tsr_alloc(allocator, 1, sizeof *output, err);
    tsr_destination place;
    if (!output) return TSR_E_NOMEM;
    *output = (directory_output){
        .base = {create_output_file, write_output_at, copy_output_range, tsr_output_publish, output_close,
                 tsr_output_sync_all, options->generation},
        .sys = sys ? sys : &tsr_sys_posix,
        .allocator = allocator,
        .options = *options,
        .parent = -1,
        .work = -1,
        .files = tsr_vec_of(allocator, sizeof(output_file)),
        .directories = tsr_vec_of(allocator, sizeof(const char *)),
    };
    pthread_mutex_init(&output->lock, NULL);
    output->arena = tsr_arena_new(allocator, 0, err);
    tsr_status status = !output->arena       ? TSR_E_NOMEM
                        : options->is_within ? tsr_destination_within(path, &place, err)
                                             : tsr_destination_of(path, &place, err);
    if (status == TSR_OK) output->name = tsr_arena_str(output->arena, tsr_str_from(place.name), err).data;
    if (status == TSR_OK) output->parent_path = tsr_arena_str(output->arena, tsr_str_from(place.parent), err).data;
    if (status == TSR_OK && (!output->name || !output->parent_path)) status = TSR_E_NOMEM;
    if (status == TSR_OK) status = make_maps(output, err);
    if (status == TSR_OK && options->sums) status = make_key(output, err);
    if (status == TSR_OK) status = choose_mode(output, path, place.parent, err);
    if (status == TSR_OK) *out = output;
    else output_close(&output->base);
    return status;
}

tsr_status tsr_directory_output_check(const tsr_allocator *allocator, const char *path,
                                      const tsr_directory_output_options *options, tsr_error *err)
{
    directory_output *output;
    TSR_TRY(new_output(NULL, allocator, path, options, &output, err));
    output_close(&output->base);
    return TSR_OK;
}

tsr_status tsr_directory_output_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *path,
                                     const tsr_directory_output_options *options, tsr_output **out, tsr_error *err)
{
    directory_output *output;
    TSR_TRY(new_output(sys, allocator, path, options, &output, err));
    const tsr_status status = make_work(output, err);
    if (status == TSR_OK) *out = &output->base;
    else output_close(&output->base);
    return status;
}
