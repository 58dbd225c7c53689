/* Creates the files of an output under temporary names, or opens those that other processes of the job or an earlier run
 * created. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "io/locked.h"
#include "io/sys.h"
#include "publish/destination.h"
#include "publish/folder_output.h"
#include "publish/journal.h"

/* ---- output files ---- */

/* The descriptors of an output's files. At most MAX_OPEN_FILES are open; to open another one, a file that nobody uses is
 * closed. */

#define MAX_OPEN_FILES 256

/* Closes a file that nobody uses if the limit of open files is reached. The caller holds the lock. */
static void output_make_room(folder_output *output)
{
    assert(tsr_is_locked(&output->lock));
    if (output->open_files < MAX_OPEN_FILES) return;
    for (uint32_t i = 0; i < output->files.count; i++) {
        output_file *f = tsr_output_file(output, i);
        if (f->fd < 0 || f->users) continue;
        output->sys->close(output->sys, f->fd);
        f->fd = -1;
        output->open_files--;
        return;
    }
}

/* Opens an existing file in `work`; -1 with errno. */
static int output_open_file(folder_output *output, const char *name)
{
    return tsr_sys_open(output->sys, output->work, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
}

tsr_status tsr_output_take(folder_output *output, uint32_t file, int *fd, const char **name, tsr_error *err)
{
    tsr_status status = TSR_OK;
    pthread_mutex_lock(&output->lock);
    output_file *f = file < output->files.count ? tsr_output_file(output, file) : NULL;
    if (!f) {
        status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "there is no output file number %u", file);
    } else if (f->fd < 0) {
        output_make_room(output);
        f->fd = output_open_file(output, f->temporary);
        if (f->fd < 0) status = tsr_sys_raise(err, "open", f->name);
        else output->open_files++;
    }
    if (status == TSR_OK) {
        f->users++;
        *fd = f->fd;
        *name = f->name;
    }
    pthread_mutex_unlock(&output->lock);
    return status;
}

void tsr_output_give(folder_output *output, uint32_t file)
{
    pthread_mutex_lock(&output->lock);
    assert(tsr_output_file(output, file)->users);
    tsr_output_file(output, file)->users--;
    pthread_mutex_unlock(&output->lock);
}

/* ---- changed ---- */

/* Notices that another program has changed the destination since this run decided what to replace there. A training job may
 * have saved its next checkpoint in the directory, or a user may have moved the old one to a safe place: neither may be
 * removed or overwritten, because --overwrite meant what was there before. */

bool tsr_output_stat_old(const folder_output *output, const char *name, struct stat *info)
{
    const tsr_sys *sys = output->sys;
    const int folder = tsr_sys_open(sys, output->parent, output->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    const bool found = folder >= 0 && sys->link_stat_at(sys, folder, name, info) == 0;
    if (folder >= 0) sys->close(sys, folder);
    return found;
}

tsr_identity tsr_output_identity(const folder_output *output, const char *name)
{
    struct stat info;
    return tsr_output_stat_old(output, name, &info) ? tsr_identity_of(&info) : (tsr_identity){0};
}

bool tsr_output_is_obsolete(const folder_output *output, tsr_str name, const struct stat *info)
{
    for (size_t i = 0; i < output->options.obsolete_count; i++) {
        if (!tsr_str_equal(output->options.obsolete[i], name)) continue;
        if (!info || !output->obsolete || tsr_identity_is(&output->obsolete[i], info, true)) return true;
    }
    return false;
}

static tsr_status refuse(const folder_output *output, const char *what, tsr_error *err)
{
    return tsr_raise(
        err, TSR_E_CHANGED, TSR_NO_POSITION,
        "another program has %s the destination '%s' during this run, so nothing was published; run it again, or "
        "write to a new name",
        what, output->name);
}

/* A file that is gone needs no removal; one that has another identity belongs to somebody else. */
static tsr_status refuse_changed_file(const folder_output *output, size_t index, tsr_error *err)
{
    struct stat now;
    const char *name = output->options.obsolete[index].data;
    if (!tsr_output_stat_old(output, name, &now) || tsr_identity_is(&output->obsolete[index], &now, true)) return TSR_OK;
    return tsr_raise(
        err, TSR_E_CHANGED, TSR_NO_POSITION,
        "another program has written '%s' in the destination '%s' during this run, so nothing was published; run it "
        "again, or write to a new name",
        name, output->name);
}

static tsr_status refuse_changed_destination(const folder_output *output, tsr_error *err)
{
    struct stat now;
    const tsr_identity *then = &output->found;
    const bool exists = output->sys->link_stat_at(output->sys, output->parent, output->name, &now) == 0;
    if (!exists) return output->mode == OUTPUT_FILE ? TSR_OK : refuse(output, "removed or moved", err);
    return then->inode && tsr_identity_is(then, &now, true) ? TSR_OK
                                                            : refuse(output, then->inode ? "replaced" : "created", err);
}

/* Everything is written through the descriptor of the parent directory, so the output would appear in a directory that the user has
 * moved elsewhere, and not at the path that was given. */
tsr_status tsr_output_refuse_moved(const folder_output *output, tsr_error *err)
{
    struct stat now, then;
    if (output->sys->stat(output->sys, output->parent, &then) != 0)
        return tsr_sys_raise(err, "look at", output->parent_path);
    if (output->sys->stat_at(output->sys, AT_FDCWD, output->parent_path, &now) == 0 && tsr_is_one_file(&now, &then))
        return TSR_OK;
    return tsr_raise(
        err, TSR_E_CHANGED, TSR_NO_POSITION,
        "another program has moved or replaced the directory '%s' during this run, so '%s' was not published; run it again",
        output->parent_path, output->name);
}

tsr_status tsr_output_refuse_changed(const folder_output *output, tsr_error *err)
{
    const output_file *files = output->files.items;
    const tsr_status moved = tsr_output_refuse_moved(output, err);
    if (moved != TSR_OK) return moved;
    if (output->mode == OUTPUT_NEW_FOLDER || output->options.existing == TSR_EXISTING_REFUSED)
        return TSR_OK; /* the rename replaces nothing */
    if (output->mode == OUTPUT_FILE && output->files.count && files[0].is_final) return TSR_OK;
    tsr_status status = refuse_changed_destination(output, err);
    for (size_t i = 0; output->obsolete && i < output->options.obsolete_count && status == TSR_OK; i++)
        status = refuse_changed_file(output, i, err);
    return status;
}

/* ---- create ---- */

void tsr_output_next_tag(folder_output *output)
{
    snprintf(output->tag, sizeof output->tag, "%u", output->number++);
}

tsr_status tsr_output_refuse_foreign(const folder_output *output, const char *name, tsr_error *err)
{
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                     "'%s' prevents '%s' from being written, and no run of this job created it; move it away", name,
                     output->name);
}

/* New files follow the umask, but private data must not become readable. A file that replaces another gets its permissions
 * only when it is published. A file with a new name can be opened only by users who could open some file of the old
 * checkpoint. */
static int create_file(folder_output *output, const output_file *file)
{
    const unsigned mode = !output->exists  ? 0666
                          : file->replaces ? TSR_PRIVATE_FILE
                                           : (0666 & output->widest) | TSR_PRIVATE_FILE;
    return tsr_sys_open(output->sys, output->work, file->temporary, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CREAT | O_EXCL,
                        mode);
}

static bool stat_replaced(const folder_output *output, const char *name, struct stat *old)
{
    if (output->mode == OUTPUT_FILE) return output->sys->stat_at(output->sys, output->parent, name, old) == 0;
    return tsr_output_stat_old(output, name, old);
}

static tsr_status name_file(folder_output *output, tsr_str name, output_file *file, tsr_error *err)
{
    struct stat old;
    if (output->mode == OUTPUT_FILE) {
        if (name.size || output->files.count)
            return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "the output is a single file, which has no name of its own");
        file->name = output->name;
    } else {
        if (!tsr_is_name_below(name, NAME_MAX))
            return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "'%.*s' is not a valid file name", TSR_STR_ARG(name));
        file->name = tsr_arena_str(output->arena, name, err).data;
    }
    if (!file->name) return TSR_E_NOMEM;
    file->replaces = output->exists && stat_replaced(output, file->name, &old);
    return TSR_OK;
}

static const char *temporary_name(folder_output *output, const output_file *file, tsr_error *err)
{
    const char *tag = output->tag;
    char stem[TSR_STEM_SIZE + 1];
    switch (output->mode) {
    case OUTPUT_NEW_FOLDER:
    case OUTPUT_MOVE:
    case OUTPUT_SWAP_FOLDER: return file->name;
    case OUTPUT_FILE: return tsr_arena_format(output->arena, err, ".%s.tessera-%s", tsr_stem_of(file->name, stem), tag).data;
    default: return tsr_arena_format(output->arena, err, ".tessera-%s-%zu", tag, output->files.count).data;
    }
}

/* Creates the file under a temporary name. If a killed run left a file of that name, tries the next tag. */
static tsr_status create_temporary(folder_output *output, output_file *file, tsr_error *err)
{
    for (unsigned tries = 0;; tries++) {
        file->temporary = temporary_name(output, file, err);
        if (!file->temporary) return TSR_E_NOMEM;
        file->fd = create_file(output, file);
        if (file->fd >= 0) return TSR_OK;
        const bool own_folder = output->mode == OUTPUT_NEW_FOLDER || output->mode == OUTPUT_SWAP_FOLDER;
        const bool taken = errno == EEXIST && !own_folder && tries < TSR_MAX_TRIES;
        if (!taken) return tsr_sys_raise(err, "create", file->name);
        tsr_output_next_tag(output);
    }
}

/* ---- files of other processes and of earlier runs ---- */

/* Opens a file of a run that was killed while it published. The file already has the permissions of the file that it
 * replaces and may therefore be read-only. */
static int open_finished(folder_output *output, const output_file *file)
{
    const int fd = tsr_sys_open(output->sys, output->work, file->temporary, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    const bool opened = fd >= 0 && tsr_is_own_file(output->sys, fd) && fchmod(fd, TSR_PRIVATE_FILE) == 0;
    if (fd >= 0) output->sys->close(output->sys, fd);
    errno = opened ? 0 : EACCES;
    return opened ? output_open_file(output, file->temporary) : -1;
}

/* Opens the file that another process of the job or an earlier run created; creates it if there is none. */
static int open_shared(folder_output *output, output_file *file)
{
    int fd = output_open_file(output, file->temporary);
    if (fd < 0 && errno == EACCES && output->options.begun == TSR_BEGUN_PUBLISHING) fd = open_finished(output, file);
    if (fd < 0 && errno == ENOENT && output->options.begun == TSR_BEGUN_PUBLISHING) {
        fd = output_open_file(output, file->name);
        file->is_final = fd >= 0;
        if (file->is_final) file->temporary = file->name;
    }
    if (fd < 0 && errno == ENOENT && output->options.begun != TSR_BEGUN_WHOLE) fd = create_file(output, file);
    /* Another process has just created it. */
    return fd < 0 && errno == EEXIST ? output_open_file(output, file->temporary) : fd;
}

static tsr_status refuse_size(const output_file *file, uint64_t size, uint64_t found, tsr_error *err)
{
    return tsr_raise(err, TSR_E_CHANGED, TSR_NO_POSITION,
                     "'%s' was changed after parts of it were written: it has %" PRIu64 " bytes, not %" PRIu64
                     "; remove the unpublished output and its journals, and write all parts again",
                     file->name, found, size);
}

static tsr_status refuse_gone(const output_file *file, tsr_error *err)
{
    return tsr_raise(
        err, TSR_E_CHANGED, TSR_NO_POSITION,
        "'%s' was removed after parts of it were written; remove the unpublished output and its journals, and write "
        "all parts again",
        file->name);
}

/* Whether the file belongs to this user. A run that was killed while it published may already have given it to the owner of
 * the file that it replaces. */
static bool is_of_job(const folder_output *output, const output_file *file)
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
static tsr_status join_temporary(folder_output *output, output_file *file, uint64_t size, tsr_error *err)
{
    struct stat info;
    file->temporary = temporary_name(output, file, err);
    if (!file->temporary) return TSR_E_NOMEM;
    file->fd = output->options.begun != TSR_BEGUN_REFUSED ? open_shared(output, file) : create_file(output, file);
    if (file->fd < 0 && (errno == EEXIST || errno == ELOOP)) return tsr_output_refuse_foreign(output, file->temporary, err);
    if (file->fd < 0 && errno == ENOENT && output->options.begun == TSR_BEGUN_WHOLE) return refuse_gone(file, err);
    if (file->fd < 0) return tsr_sys_raise(err, "create", file->name);
    if (!is_of_job(output, file)) return tsr_output_refuse_foreign(output, file->temporary, err);
    if (output->sys->stat(output->sys, file->fd, &info) != 0) return tsr_sys_raise(err, "look at", file->name);
    if ((uint64_t)info.st_size == size) return TSR_OK;
    if (output->options.begun == TSR_BEGUN_WHOLE) return refuse_size(file, size, (uint64_t)info.st_size, err);
    output->begins = true;
    if ((uint64_t)info.st_size > size && output->sys->truncate(output->sys, file->fd, size) != 0)
        return tsr_sys_raise(err, "size", file->name);
    return TSR_OK;
}

/* ---- all files ---- */

/* Reserves disk space for the whole file. Only sets its size if the file system cannot reserve space, or if the file may
 * have holes. */
static tsr_status reserve(const folder_output *output, const output_file *file, uint64_t size, tsr_error *err)
{
    int done = 0;
    if (!output->options.holes) {
        do done = output->sys->allocate(output->sys, file->fd, size);
        while (done != 0 && errno == EINTR);
        if (done == 0) return TSR_OK;
    }
    if (done != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        return tsr_sys_raise(err, "reserve room for", file->name);
    if (output->sys->truncate(output->sys, file->fd, size) != 0) return tsr_sys_raise(err, "size", file->name);
    return TSR_OK;
}

static tsr_status add_file(folder_output *output, tsr_str name, uint64_t size, uint32_t *number, tsr_error *err)
{
    output_file file = {.fd = -1, .size = size};
    tsr_status status = name_file(output, name, &file, err);
    if (status == TSR_OK && output->mode != OUTPUT_FILE) status = tsr_output_make_subfolders(output, file.name, err);
    if (status != TSR_OK) return status;
    if (tsr_vec_reserve(&output->files, 1, err) != TSR_OK) return TSR_E_NOMEM;
    output_make_room(output);
    status = output->options.tag ? join_temporary(output, &file, size, err) : create_temporary(output, &file, err);
    if (status != TSR_OK) {
        if (file.fd >= 0) output->sys->close(output->sys, file.fd);
        return status;
    }
    output->open_files++;
    *number = (uint32_t)output->files.count;
    file.unsynced = output->unsynced_names = true;
    *(output_file *)tsr_vec_push(&output->files, err) = file; /* cannot fail: room was made before */
    return size ? reserve(output, &file, size, err) : TSR_OK;
}

tsr_status tsr_output_create(tsr_output *base, tsr_str name, uint64_t size, uint32_t *file, tsr_error *err)
{
    folder_output *output = (folder_output *)base;
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
static void give_written(folder_output *output, uint32_t file)
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

static bool lies_within(folder_output *output, uint32_t file, uint64_t offset, size_t size)
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
            tsr_status status = tsr_sys_write(file, offset + from, data + from, at - from, err);
            if (status != TSR_OK) return status;
        }
        from = next;
    }
    return size > from ? tsr_sys_write(file, offset + from, data + from, size - from, err) : TSR_OK;
}

static void add_sum(folder_output *output, uint32_t file, uint64_t sum)
{
    pthread_mutex_lock(&output->lock);
    output_file *f = tsr_output_file(output, file);
    f->sum = tsr_sum_add(f->sum, sum);
    pthread_mutex_unlock(&output->lock);
}

tsr_status tsr_output_write_at(tsr_output *base, uint32_t file, uint64_t offset, const void *data, size_t size,
                               tsr_error *err)
{
    folder_output *output = (folder_output *)base;
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

static tsr_status copy(folder_output *output, file_place from, file_place to, uint64_t size, const char *name,
                       tsr_error *err)
{
    for (uint64_t done = 0; done < size;) {
        uint64_t left = size - done;
        ssize_t n = output->sys->copy_range(output->sys, from.fd, from.offset + done, to.fd, to.offset + done,
                                            (size_t)(left < MAX_COPY ? left : MAX_COPY));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
            return tsr_sys_raise(err, "copy into", name);
        if (n <= 0) { /* another file system, not supported, or the source's end: reading and writing will find out */
            output->cannot_copy = true;
            return TSR_E_UNSUPPORTED;
        }
        if ((size_t)n >= LARGE_WRITE) output->sys->begin_sync(output->sys, to.fd, to.offset + done, (uint64_t)n);
        done += (uint64_t)n;
    }
    return TSR_OK;
}

tsr_status tsr_output_copy_range(tsr_output *base, uint32_t file, uint64_t offset, const tsr_copied_range *source,
                                 tsr_error *err)
{
    folder_output *output = (folder_output *)base;
    int from, to;
    const char *name;
    if (output->cannot_copy) return TSR_E_UNSUPPORTED;
    tsr_status status = tsr_folder_store_take_fd(source->store, source->file, &from, err);
    if (status != TSR_OK) return status;
    status = tsr_output_take(output, file, &to, &name, err);
    if (status == TSR_OK) {
        status = copy(output, (file_place){from, source->offset}, (file_place){to, offset}, source->size, name, err);
        give_written(output, file);
    }
    tsr_folder_store_give_fd(source->store, source->file);
    return status;
}
