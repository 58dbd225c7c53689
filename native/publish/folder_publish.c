/* Syncs and publishes an output to a directory or a file. The order of the steps is essential:
 *
 *   sync files → rename data files → sync the directory → rename the marker → sync the directory → remove old files
 *
 * At any time, also after a power loss, the destination is then either what it was before or the whole new checkpoint. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "publish/folder_output.h"
#include "publish/permissions.h"
#include "publish/record.h"
#include "publish/subfolders.h"

static bool set_unsynced(folder_output *output, uint32_t file, bool now)
{
    pthread_mutex_lock(&output->lock);
    const bool before = tsr_output_file(output, file)->unsynced;
    tsr_output_file(output, file)->unsynced = now;
    pthread_mutex_unlock(&output->lock);
    return before;
}

static tsr_status sync_file(folder_output *output, uint32_t file, tsr_error *err)
{
    int fd;
    const char *name;
    tsr_status status = tsr_output_take(output, file, &fd, &name, err);
    if (status != TSR_OK) return status;
    status = tsr_sys_sync(output->sys, fd, name, err);
    tsr_output_give(output, file);
    return status;
}

/* Syncs the files that this process has changed since it last synced them. Each process syncs what it writes before it
 * reports it to the others or in its journal. */
static tsr_status sync_files(folder_output *output, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < output->files.count && status == TSR_OK; i++) {
        if (!set_unsynced(output, i, false)) continue;
        status = sync_file(output, i, err);
        if (status != TSR_OK) set_unsynced(output, i, true);
    }
    return status;
}

/* Syncs the names, too: the files that a journal mentions must still exist after a power loss. */
tsr_status tsr_output_sync_all(tsr_output *base, tsr_error *err)
{
    folder_output *output = (folder_output *)base;
    tsr_status status = sync_files(output, err);
    if (status != TSR_OK || !output->unsynced_names) return status;
    status = tsr_output_sync_subfolders(output, err);
    if (status == TSR_OK) status = tsr_sys_sync(output->sys, output->work, output->name, err);
    if (status == TSR_OK && output->parent != output->work)
        status = tsr_sys_sync(output->sys, output->parent, output->name, err);
    output->unsynced_names = status != TSR_OK;
    return status;
}

/* Gives a file its final name. With `replace`, it may replace an old file. */
static tsr_status rename_file(folder_output *output, output_file *file, bool replace, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    int done;
    if (file->is_final) return TSR_OK;
    do done = (replace ? sys->rename : sys->rename_new)(sys, output->work, file->temporary, output->work, file->name);
    while (done != 0 && errno == EINTR);
    if (done != 0) return tsr_sys_raise(err, "give its name to", file->name);
    file->is_final = true;
    return TSR_OK;
}

static tsr_status publish_file(folder_output *output, tsr_error *err)
{
    if (output->files.count == 0) return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "nothing was written");
    tsr_status status =
        rename_file(output, tsr_output_file(output, 0), output->options.overwrite && output->found.inode, err);
    if (status != TSR_OK) return status;
    output->published = true;
    return tsr_sys_sync(output->sys, output->parent, output->name, err);
}

static bool is_new_name(const folder_output *output, tsr_str name)
{
    const output_file *files = output->files.items;
    for (size_t i = 0; i < output->files.count; i++) {
        if (tsr_str_equal(tsr_str_from(files[i].name), name)) return true;
    }
    return false;
}

static tsr_status refuse_stranger(void *ctx, int folder, const char *name, tsr_error *err)
{
    const folder_output *output = ctx;
    struct stat here, there;
    if (is_new_name(output, tsr_str_from(name)) || tsr_output_is_subfolder(output, name)) return TSR_OK;
    const bool linked = output->mode == OUTPUT_SWAP_FOLDER &&
                        output->sys->link_stat_at(output->sys, folder, name, &here) == 0 && here.st_nlink > 1 &&
                        tsr_output_stat_old(output, name, &there) && tsr_is_one_file(&here, &there);
    if (linked) return TSR_OK; /* linked by a run that was killed afterwards */
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                     "'%s' in '%s' would become part of '%s', but this job did not write it; move it away", name,
                     output->temporary, output->name);
}

/* Files that other programs put into the new directory must not become part of the checkpoint. */
static tsr_status refuse_strangers(folder_output *output, tsr_error *err)
{
    return output->options.join ? tsr_output_each_in(output, output->temporary, refuse_stranger, err) : TSR_OK;
}

static tsr_status publish_new_folder(folder_output *output, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    int done;
    tsr_status status = refuse_strangers(output, err);
    if (status == TSR_OK && output->unsynced_names) status = tsr_output_sync_subfolders(output, err);
    if (status == TSR_OK && output->unsynced_names) status = tsr_sys_sync(sys, output->work, output->name, err);
    if (status != TSR_OK) return status;
    do done = sys->rename_new(sys, output->parent, output->temporary, output->parent, output->name);
    while (done != 0 && errno == EINTR);
    if (done != 0) return tsr_sys_raise(err, "give its name to", output->name);
    output->published = true;
    return tsr_sys_sync(output->sys, output->parent, output->name, err);
}

/* Removes as many of the obsolete files as possible, and allocates no memory for it: a file left behind would be taken for
 * part of the checkpoint. */
static tsr_status remove_obsolete(folder_output *output, tsr_error *err)
{
    tsr_status status = TSR_OK;
    struct stat info;
    char path[PATH_MAX];
    for (size_t i = 0; i < output->options.obsolete_count; i++) {
        const tsr_str name = output->options.obsolete[i];
        if (is_new_name(output, name) || name.size >= sizeof path) continue; /* no file has a longer name */
        memcpy(path, name.data, name.size);
        path[name.size] = '\0';
        if (output->sys->link_stat_at(output->sys, output->work, path, &info) == 0 &&
            !tsr_output_is_obsolete(output, name, &info))
            continue; /* another program has just written it */
        if (output->sys->unlink(output->sys, output->work, path, false) != 0 && errno != ENOENT) {
            status = tsr_sys_raise(err, "remove the replaced file", path);
        }
    }
    return status;
}

/* Replaces a marker only if it is the old checkpoint's: another program may have put its own there, where there was none. */
static tsr_status rename_marker(folder_output *output, output_file *marker, tsr_error *err)
{
    return rename_file(output, marker, tsr_output_is_obsolete(output, tsr_str_from(marker->name), NULL), err);
}

static tsr_status publish_into_folder(folder_output *output, uint32_t marker, tsr_error *err)
{
    for (uint32_t i = 0; i < output->files.count; i++) {
        if (i == marker) continue;
        tsr_status status = rename_file(output, tsr_output_file(output, i), false, err);
        if (status != TSR_OK) return status;
    }
    tsr_status status = tsr_sys_sync(output->sys, output->work, output->name, err);
    if (status == TSR_OK) status = tsr_output_refuse_changed(output, err); /* again: until here everything can be undone */
    if (status == TSR_OK && marker < output->files.count)
        status = rename_marker(output, tsr_output_file(output, marker), err);
    if (status != TSR_OK) return status;
    output->published = true;
    status = tsr_sys_sync(output->sys, output->work, output->name, err);
    if (status == TSR_OK) status = remove_obsolete(output, err);
    if (status != TSR_OK || output->options.obsolete_count == 0) return status;
    /* Before the record that lists the obsolete files is removed. */
    return tsr_sys_sync(output->sys, output->work, output->name, err);
}

static void keep_permissions(const folder_output *output, const output_file *file, int fd)
{
    if (!file->replaces && output->model) tsr_keep_owner(output->model, fd);
    if (!file->replaces) return;
    if (output->mode == OUTPUT_FILE) {
        tsr_keep_permissions_of(output->parent, file->name, fd);
        return;
    }
    const int old = tsr_sys_open(output->sys, output->parent, output->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (old < 0) return;
    tsr_keep_permissions_of(old, file->name, fd);
    output->sys->close(output->sys, old);
}

/* Sets the permissions before the renames, so that a new file never permits more than the file it replaces. */
static tsr_status keep_all_permissions(folder_output *output, tsr_error *err)
{
    for (uint32_t i = 0; output->exists && i < output->files.count; i++) {
        int fd;
        const char *name;
        if (tsr_output_file(output, i)->is_final) continue;
        tsr_status status = tsr_output_take(output, i, &fd, &name, err);
        if (status != TSR_OK) return status;
        keep_permissions(output, tsr_output_file(output, i), fd);
        tsr_output_give(output, i);
    }
    return TSR_OK;
}

tsr_status tsr_output_publish(tsr_output *base, uint32_t marker, tsr_error *err)
{
    folder_output *output = (folder_output *)base;
    assert(!output->published);
    tsr_status status = keep_all_permissions(output, err);
    if (status == TSR_OK) status = sync_files(output, err);
    if (status == TSR_OK) status = tsr_output_refuse_changed(output, err);
    if (status != TSR_OK) return status;
    switch (output->mode) {
    case OUTPUT_FILE: return publish_file(output, err);
    case OUTPUT_NEW_FOLDER: return publish_new_folder(output, err);
    case OUTPUT_SWAP_FOLDER:
        status = refuse_strangers(output, err);
        return status == TSR_OK ? tsr_output_swap(output, err) : status;
    default: return publish_into_folder(output, marker, err);
    }
}

void tsr_output_discard(folder_output *output)
{
    const tsr_sys *sys = output->sys;
    for (uint32_t i = 0; i < output->files.count; i++) {
        const output_file *file = tsr_output_file(output, i);
        sys->unlink(sys, output->work, file->is_final ? file->name : file->temporary, false);
    }
    tsr_output_remove_subfolders(output);
    if (output->temporary) sys->unlink(sys, output->parent, output->temporary, true);
}

void tsr_folder_output_abandon(tsr_output *base)
{
    folder_output *output = (folder_output *)base;
    pthread_mutex_lock(&output->lock); /* never unlocked: a thread that wants to create a file waits here */
    if (!output->published && !output->options.keep) tsr_output_discard(output);
}

/* ---- the record ---- */

static tsr_status record_files(folder_output *output, tsr_recorded_file *files, tsr_error *err)
{
    struct stat info;
    const char *name;
    for (uint32_t i = 0; i < output->files.count; i++) {
        int fd;
        tsr_status status = tsr_output_take(output, i, &fd, &name, err);
        if (status != TSR_OK) return status;
        if (output->sys->stat(output->sys, fd, &info) != 0) status = tsr_sys_raise(err, "look at", name);
        tsr_output_give(output, i);
        if (status != TSR_OK) return status;
        files[i] = (tsr_recorded_file){tsr_str_from(name), tsr_identity_of(&info), false};
    }
    return TSR_OK;
}

static size_t record_old(const folder_output *output, tsr_recorded_file *files)
{
    struct stat info;
    size_t count = 0;
    for (size_t i = 0; i < output->options.obsolete_count; i++) {
        const tsr_str name = output->options.obsolete[i];
        if (tsr_output_stat_old(output, name.data, &info))
            files[count++] = (tsr_recorded_file){name, tsr_identity_of(&info), true};
    }
    return count;
}

/* Records the file that is published after this one, and the file that it replaces. */
static tsr_status record_companion(folder_output *companion, tsr_recorded_file *files, size_t *count, tsr_error *err)
{
    struct stat info;
    const tsr_status status = record_files(companion, files + *count, err);
    if (status != TSR_OK) return status;
    *count += companion->files.count;
    if (companion->sys->link_stat_at(companion->sys, companion->parent, companion->name, &info) == 0)
        files[(*count)++] = (tsr_recorded_file){tsr_str_from(companion->name), tsr_identity_of(&info), true};
    return TSR_OK;
}

tsr_status tsr_folder_output_record(tsr_output *base, uint32_t marker, tsr_output *companion, tsr_vec *text, tsr_error *err)
{
    folder_output *output = (folder_output *)base;
    struct stat info = {0};
    const size_t count = output->files.count;
    tsr_recorded_file *files =
        tsr_arena_array(output->arena, count + output->options.obsolete_count + 2, sizeof *files, err);
    tsr_status status = files ? record_files(output, files, err) : TSR_E_NOMEM;
    if (status != TSR_OK) return status;
    tsr_record record = {.kind = (tsr_switch)output->mode, .marker = TSR_STR(""), .files = files, .count = count};
    if (output->sys->stat(output->sys, output->parent, &info) == 0) record.device = (uint64_t)info.st_dev;
    if (companion) status = record_companion((folder_output *)companion, files, &record.count, err);
    if (status != TSR_OK) return status;
    if (output->mode == OUTPUT_INTO_FOLDER && marker < count) record.marker = files[marker].name;
    if (output->mode == OUTPUT_INTO_FOLDER || output->mode == OUTPUT_SWAP_FOLDER)
        record.count += record_old(output, files + count);
    if (output->mode == OUTPUT_FILE || output->mode == OUTPUT_INTO_FOLDER) {
        const uint32_t which = marker < count ? marker : 0;
        if (which < count) record.identity = files[which].identity;
    } else if (output->sys->stat(output->sys, output->work, &info) == 0) {
        record.identity = tsr_identity_of(&info);
    }
    return tsr_record_put(&record, text, err);
}
