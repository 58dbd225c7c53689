/* Replacing a folder whose files have no free names and no marker to switch them: the new folder takes its place at once.
 *
 *   NAME/   old files, notes.txt          link notes.txt ─▶ .NAME.tessera-TAG/   new files, notes.txt
 *   exchange the two names, sync their parent, then remove what .NAME.tessera-TAG/ holds now */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "publish/folder_output.h"

/* Calls `each` for every name of a folder but "." and "..". */
static tsr_status for_each_in(const folder_output *output, const char *folder,
                              tsr_status (*each)(folder_output *output, int folder, const char *name, tsr_error *err),
                              tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    int fd = sys->open_at(sys, output->parent, folder, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return tsr_sys_raise(err, "open", folder);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        sys->close(sys, fd);
        return tsr_sys_raise(err, "list", folder);
    }
    tsr_status status = TSR_OK;
    for (struct dirent *item; status == TSR_OK && (item = readdir(dir));) {
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        status = each((folder_output *)(uintptr_t)output, fd, item->d_name, err);
    }
    closedir(dir);
    return status;
}

static tsr_status refuse_folder(folder_output *output, int folder, const char *name, tsr_error *err)
{
    struct stat info;
    if (output->sys->stat_at(output->sys, folder, name, &info) != 0 || !S_ISDIR(info.st_mode)) return TSR_OK;
    return tsr_raise(
        err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
        "'%s' holds the folder '%s', which cannot be kept when '%s' is replaced as a whole (this form has no file "
        "whose rename could replace all others)",
        output->name, name, output->name);
}

static const char *const trial[] = {".tessera-a", ".tessera-b"};

static void end_trial(const folder_output *output)
{
    for (int i = 0; i < 2; i++) output->sys->unlink(output->sys, output->work, trial[i], true);
}

/* Whether names can be exchanged here: tried with two empty folders in the new one. */
static tsr_status try_exchange(const folder_output *output, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    for (int i = 0; i < 2; i++) {
        if (sys->make_folder(sys, output->work, trial[i]) != 0) return tsr_sys_raise(err, "create", trial[i]);
    }
    const int done = sys->exchange(sys, output->work, trial[0], trial[1]);
    const bool cannot = done != 0 && (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP);
    tsr_status status = done == 0 || cannot || errno == ENOENT ? TSR_OK : tsr_sys_raise(err, "exchange", trial[0]);
    end_trial(output);
    if (!cannot) return status;
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                     "'%s' cannot be replaced at once: this form has no file whose rename could replace all others, and the "
                     "file system cannot exchange two folders; remove it instead of --overwrite",
                     output->name);
}

tsr_status tsr_output_check_swap(folder_output *output, bool made, tsr_error *err)
{
    tsr_status status = for_each_in(output, output->name, refuse_folder, err);
    if (status == TSR_OK && made) return try_exchange(output, err);
    end_trial(output); /* of a run that was killed in it */
    return status;
}

/* Files that are not the old checkpoint's stay. */
static tsr_status keep_file(folder_output *output, int folder, const char *name, tsr_error *err)
{
    for (size_t i = 0; i < output->options.obsolete_count; i++) {
        if (tsr_str_equal(output->options.obsolete[i], tsr_str_from(name))) return TSR_OK;
    }
    struct stat old, new;
    const tsr_sys *sys = output->sys;
    if (sys->link(sys, folder, name, output->work, name) == 0) return TSR_OK;
    if (errno != EEXIST) return tsr_sys_raise(err, "keep", name);
    const bool linked = sys->stat_at(sys, folder, name, &old) == 0 && sys->stat_at(sys, output->work, name, &new) == 0 &&
                        old.st_ino == new.st_ino &&old.st_dev == new.st_dev;
    if (linked) return TSR_OK; /* by a run that was killed behind this */
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION, "'%s' in '%s' is no part of the checkpoint there, and in the way",
                     name, output->name);
}

static tsr_status remove_file(folder_output *output, int folder, const char *name, tsr_error *err)
{
    if (output->sys->unlink(output->sys, folder, name, false) == 0 || errno == ENOENT) return TSR_OK;
    return tsr_sys_raise(err, "remove the replaced file", name);
}

tsr_status tsr_output_swap(folder_output *output, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    int done;
    tsr_status status = for_each_in(output, output->name, keep_file, err);
    if (status == TSR_OK) status = tsr_output_sync(output, output->work, output->name, err);
    if (status != TSR_OK) return status;
    do done = sys->exchange(sys, output->parent, output->temporary, output->name);
    while (done != 0 && errno == EINTR);
    if (done != 0) return tsr_sys_raise(err, "replace", output->name);
    output->published = true;
    status = tsr_output_sync(output, output->parent, output->name, err);
    if (status == TSR_OK) status = for_each_in(output, output->temporary, remove_file, err);
    if (status == TSR_OK && sys->unlink(sys, output->parent, output->temporary, true) != 0)
        status = tsr_sys_raise(err, "remove", output->temporary);
    return status;
}
