/* Creates the files of an output under temporary names, or opens those that other processes of the job or an earlier run
 * created. */
#include "publish/folder_output.h"

#include "io/file_name.h"
#include "publish/journal.h"
#include "publish/permissions.h"
#include "publish/stem.h"
#include "publish/subfolders.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

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
    return opened ? tsr_output_open_file(output, file->temporary) : -1;
}

/* Opens the file that another process of the job or an earlier run created; creates it if there is none. */
static int open_shared(folder_output *output, output_file *file)
{
    int fd = tsr_output_open_file(output, file->temporary);
    if (fd < 0 && errno == EACCES && output->options.publishing) fd = open_finished(output, file);
    if (fd < 0 && errno == ENOENT && output->options.publishing) {
        fd = tsr_output_open_file(output, file->name);
        file->is_final = fd >= 0;
        if (file->is_final) file->temporary = file->name;
    }
    if (fd < 0 && errno == ENOENT && !output->options.whole) fd = create_file(output, file);
    /* Another process has just created it. */
    return fd < 0 && errno == EEXIST ? tsr_output_open_file(output, file->temporary) : fd;
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
    return output->options.publishing && output->exists && output->sys->stat(output->sys, file->fd, &info) == 0 &&
           S_ISREG(info.st_mode) && info.st_nlink == 1 &&
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
    file->fd = output->options.join ? open_shared(output, file) : create_file(output, file);
    if (file->fd < 0 && (errno == EEXIST || errno == ELOOP)) return tsr_output_refuse_foreign(output, file->temporary, err);
    if (file->fd < 0 && errno == ENOENT && output->options.whole) return refuse_gone(file, err);
    if (file->fd < 0) return tsr_sys_raise(err, "create", file->name);
    if (!is_of_job(output, file)) return tsr_output_refuse_foreign(output, file->temporary, err);
    if (output->sys->stat(output->sys, file->fd, &info) != 0) return tsr_sys_raise(err, "look at", file->name);
    if ((uint64_t)info.st_size == size) return TSR_OK;
    if (output->options.whole) return refuse_size(file, size, (uint64_t)info.st_size, err);
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
    tsr_output_make_room(output);
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
