/* Replaces a directory in one step if the new files need the names of old ones, and no marker can be renamed to switch
 * between them:
 *
 *   NAME/   old files, notes.txt          link notes.txt ─▶ .NAME.tessera-TAG/   new files, notes.txt
 *   exchange the two names, sync their parent, then remove the files that .NAME.tessera-TAG/ has now */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "publish/folder_output.h"
#include "publish/permissions.h"
#include "publish/record.h"

tsr_status tsr_output_each_in(folder_output *output, const char *folder,
                              tsr_status (*each)(void *output, int folder, const char *name, tsr_error *err), tsr_error *err)
{
    return tsr_each_name(output->sys, output->parent, folder, each, output, err);
}

static tsr_status refuse_folder(void *ctx, int folder, const char *name, tsr_error *err)
{
    const folder_output *output = ctx;
    struct stat info;
    if (output->sys->link_stat_at(output->sys, folder, name, &info) != 0 || !S_ISDIR(info.st_mode)) return TSR_OK;
    return tsr_raise(
        err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
        "'%s' contains the directory '%s', which cannot be kept when '%s' is replaced as a whole (no single file could be "
        "renamed to switch from the old checkpoint to the new one); move that directory away, or write to another one",
        output->name, name, output->name);
}

/* Whether two names are in the same mount. Names cannot be linked or exchanged between two mounts, even of the same file
 * system. */
static bool is_one_mount(const struct statx *a, const struct statx *b)
{
    const bool known = a->stx_mask & b->stx_mask & STATX_MNT_ID;
    return known ? a->stx_mnt_id == b->stx_mnt_id
                 : a->stx_dev_major == b->stx_dev_major && a->stx_dev_minor == b->stx_dev_minor;
}

static tsr_status refuse_mount(const folder_output *output, tsr_error *err)
{
    struct statx old, new;
    const bool known = statx(output->parent, output->name, AT_SYMLINK_NOFOLLOW, STATX_MNT_ID, &old) == 0 &&
                       statx(output->work, "", AT_EMPTY_PATH, STATX_MNT_ID, &new) == 0;
    if (!known || is_one_mount(&old, &new)) return TSR_OK;
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                     "'%s' cannot be replaced as a whole, because it is a mount point; remove the files in it instead of "
                     "passing --overwrite, or write to a new directory in it",
                     output->name);
}

static const char *const trial[] = {TSR_TRIAL_A, TSR_TRIAL_B};

static void end_trial(const folder_output *output)
{
    for (int i = 0; i < 2; i++) output->sys->unlink(output->sys, output->work, trial[i], true);
}

/* Tries with two empty directories in the new one whether the file system can exchange names. */
static tsr_status try_exchange(const folder_output *output, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    for (int i = 0; i < 2; i++) {
        if (sys->make_folder(sys, output->work, trial[i], TSR_PRIVATE_FOLDER) != 0)
            return tsr_sys_raise(err, "create", trial[i]);
    }
    const int done = sys->exchange(sys, output->work, trial[0], trial[1]);
    const bool cannot = done != 0 && (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP);
    tsr_status status = done == 0 || cannot || errno == ENOENT ? TSR_OK : tsr_sys_raise(err, "exchange", trial[0]);
    end_trial(output);
    if (!cannot) return status;
    return tsr_raise(
        err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
        "'%s' cannot be replaced in one step: this format has no single file that could be renamed to switch to the new "
        "checkpoint, and the file system cannot exchange two directories; remove it instead of passing --overwrite",
        output->name);
}

static bool is_obsolete(const void *ctx, const char *name, const struct stat *info)
{
    return tsr_output_is_obsolete(ctx, tsr_str_from(name), info);
}

/* Tries whether a file that stays can get a second name in the new directory. The system may forbid it for files of other
 * users (fs.protected_hardlinks), and some file systems have no hard links. */
static tsr_status try_link(void *ctx, int folder, const char *name, tsr_error *err)
{
    const folder_output *output = ctx;
    char why[128] = "";
    const tsr_sys *sys = output->sys;
    if (is_obsolete(output, name, NULL)) return TSR_OK;
    if (sys->link(sys, folder, name, output->work, name) == 0) return tsr_remove_name(sys, output->work, name, false, err);
    if (errno == ENOENT) return TSR_OK; /* it has just been removed */
    return tsr_raise(
        err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
        "'%s' in '%s' does not belong to the checkpoint there and cannot be kept when the directory is replaced as a "
        "whole: the system refuses to give it a second name (%s); move it away, or write to another directory",
        name, output->name, strerror_r(errno, why, sizeof why));
}

tsr_status tsr_output_check_swap(folder_output *output, bool made, tsr_error *err)
{
    tsr_status status = refuse_mount(output, err);
    if (status == TSR_OK) status = tsr_output_each_in(output, output->name, refuse_folder, err);
    if (status == TSR_OK && made) status = try_exchange(output, err);
    if (status == TSR_OK && made) return tsr_output_each_in(output, output->name, try_link, err);
    end_trial(output); /* of a run that was killed during a trial */
    return status;
}

/* Keeps a file that does not belong to the old checkpoint, by giving it a second name in the new directory. */
static tsr_status keep_file(void *ctx, int folder, const char *name, tsr_error *err)
{
    const folder_output *output = ctx;
    struct stat old, new;
    const tsr_sys *sys = output->sys;
    if (is_obsolete(output, name, NULL)) return TSR_OK;
    if (sys->link(sys, folder, name, output->work, name) == 0) return TSR_OK;
    if (errno != EEXIST) return tsr_sys_raise(err, "keep", name);
    const bool linked = sys->link_stat_at(sys, folder, name, &old) == 0 &&
                        sys->link_stat_at(sys, output->work, name, &new) == 0 && tsr_is_one_file(&old, &new);
    if (linked) return TSR_OK; /* linked by a run that was killed afterwards */
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION, "'%s' in '%s' is not part of that checkpoint and blocks the write",
                     name, output->name);
}

tsr_status tsr_output_swap(folder_output *output, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    int done;
    tsr_status status = tsr_output_each_in(output, output->name, keep_file, err);
    if (status == TSR_OK) tsr_keep_permissions_of(output->parent, output->name, output->work);
    if (status == TSR_OK) status = tsr_sys_sync(sys, output->work, output->name, err);
    if (status != TSR_OK) return status;
    do done = sys->exchange(sys, output->parent, output->temporary, output->name);
    while (done != 0 && errno == EINTR);
    if (done != 0) return tsr_sys_raise(err, "replace", output->name);
    output->published = true;
    status = tsr_sys_sync(sys, output->parent, output->name, err);
    if (status != TSR_OK) return status;
    return tsr_retire_folder(sys, output->parent, output->temporary, output->name, (tsr_obsolete_test){is_obsolete, output},
                             err);
}
