/* The descriptors of an output's files, and whether its destination is still what this run decided to replace. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>

#include "io/locked.h"
#include "io/sys.h"
#include "publish/folder_output.h"
#include "tessera/sys/try.h"

/* ---- output files ---- */

/* The descriptors of an output's files. At most MAX_OPEN_FILES are open; to open another one, a file that nobody uses is
 * closed. */

#define MAX_OPEN_FILES 256

void tsr_output_make_room(folder_output *output)
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

int tsr_output_open_file(folder_output *output, const char *name)
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
        tsr_output_make_room(output);
        f->fd = tsr_output_open_file(output, f->temporary);
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

/* A file that no longer exists need not be removed. A file with another identity belongs to somebody else. */
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
    TSR_TRY(tsr_output_refuse_moved(output, err));
    if (output->mode == OUTPUT_NEW_FOLDER || output->options.existing == TSR_EXISTING_REFUSED)
        return TSR_OK; /* the rename replaces nothing */
    if (output->mode == OUTPUT_FILE && output->files.count && files[0].is_final) return TSR_OK;
    tsr_status status = refuse_changed_destination(output, err);
    for (size_t i = 0; output->obsolete && i < output->options.obsolete_count && status == TSR_OK; i++)
        status = refuse_changed_file(output, i, err);
    return status;
}
