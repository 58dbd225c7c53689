/* Syncs and publishes an output to a directory or a file. The order of the steps is essential:
 *
 *   sync files → rename data files → sync the directory → rename the marker → sync the directory → remove old files
 *
 * At any time, also after a power loss, the destination is then either what it was before or the whole new checkpoint. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "publish/directory_output.h"
#include "publish/record.h"
#include "tessera/sys/try.h"

/* ---- subdirectories ---- */

/* Each directory is listed once, after its parents. */

static const char *directory_at(const directory_output *output, size_t i)
{
    return ((const char *const *)output->directories.items)[i];
}

/* Searches from the end, because the files of one directory are usually created one after the other. */
static bool is_noted(const directory_output *output, const char *name, size_t size)
{
    for (size_t i = output->directories.count; i-- > 0;)
        if (strncmp(directory_at(output, i), name, size) == 0 && directory_at(output, i)[size] == '\0') return true;
    return false;
}

/* Makes a directory, or accepts the one that is there. A link could lead out of the output. */
static tsr_status make_at(const directory_output *output, int directory, const char *name, tsr_error *err)
{
    struct stat info;
    if (output->sys->make_directory(output->sys, directory, name, 0777) == 0) return TSR_OK;
    if (errno == EEXIST && output->sys->link_stat_at(output->sys, directory, name, &info) == 0 && S_ISDIR(info.st_mode))
        return TSR_OK;
    return tsr_sys_raise(tsr_naming(err), "create", name);
}

static tsr_status make_subdirectory(directory_output *output, const char *name, size_t size, tsr_error *err)
{
    const char *copy = tsr_arena_str(output->arena, (tsr_str){name, size}, err).data;
    const char **noted = copy ? tsr_vec_push(&output->directories, err) : NULL;
    if (!noted) return TSR_E_NOMEM;
    *noted = copy;
    const tsr_status status = make_at(output, output->work, copy, err);
    if (status != TSR_OK) output->directories.count--;
    return status;
}

tsr_status tsr_output_make_subdirectories(directory_output *output, const char *name, tsr_error *err)
{
    const char *slash = strchr(name, '/');
    if (slash && output->mode != OUTPUT_NEW_DIRECTORY && output->options.existing != TSR_EXISTING_EITHER)
        return tsr_fail(tsr_naming(err), TSR_E_UNSUPPORTED,
                        "'%s' exists, and a checkpoint with subdirectories can only be written to a new directory",
                        output->name);
    for (; slash; slash = strchr(slash + 1, '/')) {
        if (is_noted(output, name, (size_t)(slash - name))) continue;
        TSR_TRY(make_subdirectory(output, name, (size_t)(slash - name), err));
    }
    return TSR_OK;
}

/* Whether a name in the output's directory is one of these directories. */
static bool is_subdirectory(const directory_output *output, const char *name)
{
    return is_noted(output, name, strlen(name));
}

/* Syncs them as subdirectories of `directory`, which makes the names in them durable. */
static tsr_status sync_subdirectories(const directory_output *output, int directory, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < output->directories.count && status == TSR_OK; i++) {
        const int fd = tsr_sys_open(output->sys, directory, directory_at(output, i), O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
        if (fd < 0) return tsr_sys_raise(tsr_naming(err), "open", directory_at(output, i));
        status = tsr_sys_sync(output->sys, fd, directory_at(output, i), err);
        output->sys->close(output->sys, fd);
    }
    return status;
}

/* Makes the same ones in another directory, except those that it has. */
static tsr_status copy_subdirectories(const directory_output *output, int directory, tsr_error *err)
{
    for (size_t i = 0; i < output->directories.count; i++) TSR_TRY(make_at(output, directory, directory_at(output, i), err));
    return TSR_OK;
}

static bool is_removed(const directory_output *output, int directory, const char *name, bool is_directory)
{
    tsr_error unused = {0};
    return tsr_remove_name(output->sys, directory, name, is_directory, &unused) == TSR_OK;
}

/* Removes them, and returns whether they are gone. Their files must have been removed before. */
static bool remove_subdirectories(const directory_output *output)
{
    bool is_gone = true;
    for (size_t i = output->directories.count; i-- > 0;)
        is_gone &= is_removed(output, output->work, directory_at(output, i), true);
    return is_gone;
}

/* ---- permissions ---- */

#if defined(__linux__)
#include <sys/xattr.h>

enum { MOST_LIST_BYTES = 4096 }; /* enough for about 500 entries */

/* Copies one access control list. False if the new file does not end up with the old one's list. */
static bool keep_list(int old, int new_file, const char *kind)
{
    char list[MOST_LIST_BYTES];
    const ssize_t size = old >= 0 ? fgetxattr(old, kind, list, sizeof list) : -1;
    if (size >= 0) return fsetxattr(new_file, kind, list, (size_t)size, 0) == 0;
    if (errno == EOPNOTSUPP) return true;
    if (old < 0 || errno != ENODATA) return false;
    /* Removes a list inherited from the directory. */
    return fremovexattr(new_file, kind) == 0 || errno == ENODATA || errno == EOPNOTSUPP;
}

static bool keep_lists(int old, bool is_directory, int new_file)
{
    if (is_directory) keep_list(old, new_file, "system.posix_acl_default"); /* affects only files created later */
    return keep_list(old, new_file, "system.posix_acl_access");
}
#else
static bool keep_lists(int old, bool is_directory, int new_file)
{
    (void)is_directory, (void)new_file;
    return old >= 0;
}
#endif

/* Copies owner and group. False if the new file does not end up with the old one's group. */
static bool keep_ids(const struct stat *info, const struct stat *now, int new_file)
{
    if (now->st_uid == info->st_uid && now->st_gid == info->st_gid) return true;
    return fchown(new_file, info->st_uid, info->st_gid) == 0 || now->st_gid == info->st_gid ||
           fchown(new_file, (uid_t)-1, info->st_gid) == 0;
}

/* `old` is -1 if the old file could not be opened; its list then counts as lost. */
static void keep_permissions(int old, const struct stat *info, int new_file)
{
    struct stat now;
    const bool is_directory = S_ISDIR(info->st_mode);
    mode_t mode = info->st_mode & (is_directory ? 07777 : 0777);
    if (fstat(new_file, &now) != 0) return;
    if (!keep_ids(info, &now, new_file) || !keep_lists(old, is_directory, new_file)) mode &= ~(mode_t)S_IRWXG;
    if (fchmod(new_file, mode) != 0) errno = 0; /* it stays private, as it was created */
}

/* Gives the new file the owner and group in `info`, and leaves its mode alone. */
static void keep_owner(const struct stat *info, int new_file)
{
    struct stat now;
    if (fstat(new_file, &now) != 0 || keep_ids(info, &now, new_file)) return;
    if (fchmod(new_file, now.st_mode & 0777 & ~(mode_t)S_IRWXG) != 0) errno = 0;
}

/* Gives the new file or directory the permissions of `name` in `directory`, following links. Does nothing if that does not exist. */
static void keep_permissions_of(int directory, const char *name, int new_file)
{
    struct stat info;
    if (fstatat(directory, name, &info, 0) != 0) return;
    const int old = openat(directory, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    keep_permissions(old, &info, new_file);
    if (old >= 0) close(old);
}

/* ---- what other programs have changed ---- */

/* Notices that another program has changed the destination since this run decided what to replace there. A training job may
 * have saved its next checkpoint in the directory, or a user may have moved the old one to a safe place: neither may be
 * removed or overwritten, because --overwrite meant what was there before. */

/* Whether the old checkpoint lists this name, and `info` is still the file that had it; `info` NULL: only the name counts. */
static bool lists_obsolete(const directory_output *output, tsr_str name, const struct stat *info)
{
    const uint32_t number = tsr_map_get(output->obsolete_names, name, UINT32_MAX);
    return number != UINT32_MAX && (!info || !output->obsolete || tsr_identity_is(&output->obsolete[number], info, true));
}

static tsr_status refuse(const directory_output *output, const char *what, tsr_error *err)
{
    return tsr_fail(
        tsr_naming(err), TSR_E_CHANGED,
        "another program has %s the destination '%s' during this run, so nothing was published; run it again, or "
        "write to a new name",
        what, output->name);
}

/* A file that no longer exists need not be removed. A file with another identity belongs to somebody else. */
static tsr_status refuse_changed_file(const directory_output *output, size_t index, tsr_error *err)
{
    struct stat now;
    const char *name = output->options.obsolete[index].data;
    if (!tsr_output_stat_old(output, name, &now) || tsr_identity_is(&output->obsolete[index], &now, true)) return TSR_OK;
    return tsr_fail(
        tsr_naming(err), TSR_E_CHANGED,
        "another program has written '%s' in the destination '%s' during this run, so nothing was published; run it "
        "again, or write to a new name",
        name, output->name);
}

static tsr_status refuse_changed_destination(const directory_output *output, tsr_error *err)
{
    struct stat now;
    const tsr_identity *then = &output->found;
    const bool exists = output->sys->link_stat_at(output->sys, output->parent, output->name, &now) == 0;
    if (!exists) return output->mode == OUTPUT_FILE ? TSR_OK : refuse(output, "removed or moved", err);
    return then->inode && tsr_identity_is(then, &now, true) ? TSR_OK
                                                            : refuse(output, then->inode ? "replaced" : "created", err);
}

static tsr_status refuse_changed(const directory_output *output, tsr_error *err)
{
    const output_file *files = output->files.items;
    TSR_TRY(tsr_output_refuse_moved(output, err));
    if (output->mode == OUTPUT_NEW_DIRECTORY || output->options.existing == TSR_EXISTING_REFUSED)
        return TSR_OK; /* the rename replaces nothing */
    if (output->mode == OUTPUT_FILE && output->files.count && files[0].is_final) return TSR_OK;
    tsr_status status = refuse_changed_destination(output, err);
    for (size_t i = 0; output->obsolete && i < output->options.obsolete_count && status == TSR_OK; i++)
        status = refuse_changed_file(output, i, err);
    return status;
}

/* ---- swap ---- */

/* Replaces a directory in one step if the new files need the names of old ones, and no marker can be renamed to switch
 * between them:
 *
 *   NAME/   old files, notes.txt          link notes.txt ─▶ .NAME.tessera-TAG/   new files, notes.txt
 *   exchange the two names, sync their parent, then remove the files that .NAME.tessera-TAG/ has now */

/* Calls `each` for every name in a subdirectory of the parent, except "." and "..". */
static tsr_status output_each_in(directory_output *output, const char *directory,
                                 tsr_status (*each)(void *output, int directory, const char *name, tsr_error *err),
                                 tsr_error *err)
{
    return tsr_each_name(output->sys, output->parent, directory, each, output, err);
}

/* What a subdirectory of the old directory contains. */
typedef struct inside {
    const directory_output *output;
    const char *name;
    bool has_obsolete, has_others;
} inside;

static tsr_status look_inside(void *ctx, int directory, const char *name, tsr_error *err)
{
    inside *in = ctx;
    char path[PATH_MAX];
    (void)directory, (void)err;
    snprintf(path, sizeof path, "%s/%s", in->name, name);
    const bool obsolete = lists_obsolete(in->output, tsr_str_from(path), NULL);
    in->has_obsolete |= obsolete;
    in->has_others |= !obsolete;
    return TSR_OK;
}

/* Whether a name in the old directory is a file of the old checkpoint, or a subdirectory that has only such files. */
static tsr_status is_replaced(const directory_output *output, int directory, const char *name, bool *out, tsr_error *err)
{
    inside in = {.output = output, .name = name};
    struct stat info;
    *out = lists_obsolete(output, tsr_str_from(name), NULL);
    if (*out || output->sys->link_stat_at(output->sys, directory, name, &info) != 0 || !S_ISDIR(info.st_mode)) return TSR_OK;
    TSR_TRY(tsr_each_name(output->sys, directory, name, look_inside, &in, err));
    *out = in.has_obsolete && !in.has_others;
    return TSR_OK;
}

static tsr_status refuse_directory(void *ctx, int directory, const char *name, tsr_error *err)
{
    const directory_output *output = ctx;
    struct stat info;
    bool replaced;
    if (output->sys->link_stat_at(output->sys, directory, name, &info) != 0 || !S_ISDIR(info.st_mode)) return TSR_OK;
    TSR_TRY(is_replaced(output, directory, name, &replaced, err));
    if (replaced) return TSR_OK;
    return tsr_fail(
        tsr_naming(err), TSR_E_UNSUPPORTED,
        "'%s' contains the directory '%s', which cannot be kept when '%s' is replaced as a whole (no single file could be "
        "renamed to switch from the old checkpoint to the new one); move that directory away, or write to another one",
        output->name, name, output->name);
}

/* Names cannot be linked, exchanged or moved between two mounts, even of the same file system. Where the system does not tell mounts
 * apart, those of two devices are. */
bool tsr_is_one_mount(const tsr_sys *sys, int directory, const char *name, int other_directory, const char *other)
{
#if defined(STATX_MNT_ID)
    struct statx a, b;
    (void)sys;
    if (statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_MNT_ID, &a) != 0 ||
        statx(other_directory, other, AT_SYMLINK_NOFOLLOW, STATX_MNT_ID, &b) != 0)
        return true;
    return a.stx_mask & b.stx_mask & STATX_MNT_ID ? a.stx_mnt_id == b.stx_mnt_id
                                                  : a.stx_dev_major == b.stx_dev_major && a.stx_dev_minor == b.stx_dev_minor;
#else
    struct stat a, b;
    return sys->link_stat_at(sys, directory, name, &a) != 0 || sys->link_stat_at(sys, other_directory, other, &b) != 0 ||
           a.st_dev == b.st_dev;
#endif
}

static tsr_status refuse_mount(const directory_output *output, tsr_error *err)
{
    if (tsr_is_one_mount(output->sys, output->parent, output->name, output->work, ".")) return TSR_OK;
    return tsr_fail(tsr_naming(err), TSR_E_UNSUPPORTED,
                    "'%s' cannot be replaced as a whole, because it is a mount point; remove the files in it instead of "
                    "passing --overwrite, or write to a new directory in it",
                    output->name);
}

static const char *const trial[] = {TSR_TRIAL_A, TSR_TRIAL_B};

static void end_trial(const directory_output *output)
{
    for (int i = 0; i < 2; i++) output->sys->unlink(output->sys, output->work, trial[i], true);
}

/* Tries with two empty directories in the new one whether the file system can exchange names. */
static tsr_status try_exchange(const directory_output *output, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    for (int i = 0; i < 2; i++) {
        if (sys->make_directory(sys, output->work, trial[i], TSR_PRIVATE_DIRECTORY) != 0)
            return tsr_sys_raise(tsr_naming(err), "create", trial[i]);
    }
    const int done = sys->exchange(sys, output->work, trial[0], trial[1]);
    const bool cannot = done != 0 && (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP);
    tsr_status status =
        done == 0 || cannot || errno == ENOENT ? TSR_OK : tsr_sys_raise(tsr_naming(err), "exchange", trial[0]);
    end_trial(output);
    if (!cannot) return status;
    return tsr_fail(
        tsr_naming(err), TSR_E_UNSUPPORTED,
        "'%s' cannot be replaced in one step: this format has no single file that could be renamed to switch to the new "
        "checkpoint, and the file system cannot exchange two directories; remove it instead of passing --overwrite",
        output->name);
}

static bool is_obsolete(const void *ctx, const char *name, const struct stat *info)
{
    return lists_obsolete(ctx, tsr_str_from(name), info);
}

/* Tries whether a file that stays can get a second name in the new directory. The system may forbid it for files of other
 * users (fs.protected_hardlinks), and some file systems have no hard links. */
static tsr_status try_link(void *ctx, int directory, const char *name, tsr_error *err)
{
    const directory_output *output = ctx;
    char why[128] = "";
    const tsr_sys *sys = output->sys;
    bool replaced;
    TSR_TRY(is_replaced(output, directory, name, &replaced, err));
    if (replaced) return TSR_OK;
    if (sys->link(sys, directory, name, output->work, name) == 0)
        return tsr_remove_name(sys, output->work, name, false, err);
    if (errno == ENOENT) return TSR_OK; /* it has just been removed */
    return tsr_fail(
        tsr_naming(err), TSR_E_UNSUPPORTED,
        "'%s' in '%s' does not belong to the checkpoint there and cannot be kept when the directory is replaced as a "
        "whole: the system refuses to give it a second name (%s); move it away, or write to another directory",
        name, output->name, tsr_sys_reason(errno, why, sizeof why));
}

tsr_status tsr_output_check_swap(directory_output *output, bool made, tsr_error *err)
{
    tsr_status status = refuse_mount(output, err);
    if (status == TSR_OK) status = output_each_in(output, output->name, refuse_directory, err);
    if (status == TSR_OK && made) status = try_exchange(output, err);
    if (status == TSR_OK && made) return output_each_in(output, output->name, try_link, err);
    end_trial(output); /* of a run that was killed during a trial */
    return status;
}

/* Keeps a file that does not belong to the old checkpoint, by giving it a second name in the new directory. */
static tsr_status keep_file(void *ctx, int directory, const char *name, tsr_error *err)
{
    const directory_output *output = ctx;
    struct stat old, new;
    const tsr_sys *sys = output->sys;
    bool replaced;
    TSR_TRY(is_replaced(output, directory, name, &replaced, err));
    if (replaced) return TSR_OK;
    if (sys->link(sys, directory, name, output->work, name) == 0) return TSR_OK;
    if (errno != EEXIST) return tsr_sys_raise(tsr_naming(err), "keep", name);
    const bool linked = sys->link_stat_at(sys, directory, name, &old) == 0 &&
                        sys->link_stat_at(sys, output->work, name, &new) == 0 && tsr_is_one_file(&old, &new);
    if (linked) return TSR_OK; /* linked by a run that was killed afterwards */
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS, "'%s' in '%s' is not part of that checkpoint and blocks the write", name,
                    output->name);
}

static tsr_status output_swap(directory_output *output, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    int done;
    tsr_status status = output_each_in(output, output->name, keep_file, err);
    if (status == TSR_OK) keep_permissions_of(output->parent, output->name, output->work);
    if (status == TSR_OK) status = tsr_sys_sync(sys, output->work, output->name, err);
    if (status != TSR_OK) return status;
    /* Until the old directory is gone, another job must not replace the new one, to which the files that stay belong. Where the file system
     * has no locks, it may. */
    (void)sys->lock(sys, output->work);
    do done = sys->exchange(sys, output->parent, output->temporary, output->name);
    while (done != 0 && errno == EINTR);
    if (done != 0) return tsr_sys_raise(tsr_naming(err), "replace", output->name);
    output->published = true;
    status = tsr_sys_sync(sys, output->parent, output->name, err);
    if (status != TSR_OK) return status;
    return tsr_retire_directory(sys, output->parent, output->temporary, output->name,
                                (tsr_obsolete_test){is_obsolete, output}, err);
}

/* ---- move ---- */

/* Where the directories cannot be exchanged, the old checkpoint is removed, and the new files are moved to the directory:
 *
 *   check that no other file has a name of theirs → remove the old marker → sync the directory → remove the other old files →
 *   rename the new files → sync → rename the marker → sync
 *
 * In between there is no marker. After a kill, the record shows what is left to remove. */

tsr_status tsr_directory_output_choose(tsr_output *base, tsr_error *err)
{
    directory_output *output = (directory_output *)base;
    tsr_error why = {0};
    assert(output->options.existing == TSR_EXISTING_EITHER);
    const tsr_status status = output->options.is_within ? TSR_E_UNSUPPORTED : tsr_output_check_swap(output, true, &why);
    if (status == TSR_E_UNSUPPORTED) output->mode = OUTPUT_MOVE;
    else if (status != TSR_OK) return tsr_raise_again(err, status, &why);
    return TSR_OK;
}

static tsr_status refuse_taken_names(const directory_output *output, int directory, tsr_error *err)
{
    struct stat info;
    for (uint32_t i = 0; i < output->files.count; i++) {
        const char *name = tsr_output_file(output, i)->name;
        if (output->sys->link_stat_at(output->sys, directory, name, &info) != 0 || is_obsolete(output, name, &info))
            continue;
        return tsr_fail(tsr_naming(err), TSR_E_EXISTS, "'%s' in '%s' is not part of that checkpoint and blocks the write",
                        name, output->name);
    }
    return TSR_OK;
}

static tsr_status remove_old(const directory_output *output, int directory, tsr_error *err)
{
    struct stat info;
    const tsr_sys *sys = output->sys;
    for (size_t i = 0; i < output->options.obsolete_count; i++) {
        const char *name = output->options.obsolete[i].data;
        if (sys->link_stat_at(sys, directory, name, &info) != 0 || !is_obsolete(output, name, &info)) continue;
        TSR_TRY(tsr_remove_name(sys, directory, name, false, err));
        tsr_remove_parents(sys, directory, name);
        if (i == 0) TSR_TRY(tsr_sys_sync(sys, directory, output->name, err));
    }
    return TSR_OK;
}

static tsr_status move_file(const directory_output *output, int directory, uint32_t file, tsr_error *err)
{
    const output_file *f = tsr_output_file(output, file);
    const tsr_sys *sys = output->sys;
    int done;
    do done = sys->rename_new(sys, output->work, f->temporary, directory, f->name);
    while (done != 0 && errno == EINTR);
    return done == 0 ? TSR_OK : tsr_sys_raise(tsr_naming(err), "give its name to", f->name);
}

static tsr_status move_files(directory_output *output, int directory, uint32_t marker, tsr_error *err)
{
    TSR_TRY(refuse_taken_names(output, directory, err));
    TSR_TRY(remove_old(output, directory, err));
    TSR_TRY(copy_subdirectories(output, directory, err));
    for (uint32_t i = 0; i < output->files.count; i++)
        if (i != marker) TSR_TRY(move_file(output, directory, i, err));
    TSR_TRY(sync_subdirectories(output, directory, err));
    TSR_TRY(tsr_sys_sync(output->sys, directory, output->name, err));
    if (marker < output->files.count) TSR_TRY(move_file(output, directory, marker, err));
    output->published = true;
    return tsr_sys_sync(output->sys, directory, output->name, err);
}

static tsr_status publish_moved(directory_output *output, uint32_t marker, tsr_error *err)
{
    const int directory = tsr_sys_open(output->sys, output->parent, output->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (directory < 0) return tsr_sys_raise(tsr_naming(err), "open", output->name);
    const tsr_status status = move_files(output, directory, marker, err);
    output->sys->close(output->sys, directory);
    if (status != TSR_OK) return status;
    remove_subdirectories(output);
    return tsr_remove_name(output->sys, output->parent, output->temporary, true, err);
}

/* ---- publish ---- */

static bool set_unsynced(directory_output *output, uint32_t file, bool now)
{
    pthread_mutex_lock(&output->lock);
    const bool before = tsr_output_file(output, file)->unsynced;
    tsr_output_file(output, file)->unsynced = now;
    pthread_mutex_unlock(&output->lock);
    return before;
}

static tsr_status sync_file(directory_output *output, uint32_t file, tsr_error *err)
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
static tsr_status sync_files(directory_output *output, tsr_error *err)
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
    directory_output *output = (directory_output *)base;
    tsr_status status = sync_files(output, err);
    if (status != TSR_OK || !output->unsynced_names) return status;
    status = sync_subdirectories(output, output->work, err);
    if (status == TSR_OK) status = tsr_sys_sync(output->sys, output->work, output->name, err);
    if (status == TSR_OK && output->parent != output->work)
        status = tsr_sys_sync(output->sys, output->parent, output->name, err);
    output->unsynced_names = status != TSR_OK;
    return status;
}

/* Gives a file its final name. With `replace`, it may replace an old file. */
static tsr_status rename_file(directory_output *output, output_file *file, bool replace, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    int done;
    if (file->is_final) return TSR_OK;
    do done = (replace ? sys->rename : sys->rename_new)(sys, output->work, file->temporary, output->work, file->name);
    while (done != 0 && errno == EINTR);
    if (done != 0) return tsr_sys_raise(tsr_naming(err), "give its name to", file->name);
    file->is_final = true;
    return TSR_OK;
}

static tsr_status publish_file(directory_output *output, tsr_error *err)
{
    if (output->files.count == 0) return tsr_fail(err, TSR_E_USAGE, "nothing was written");
    TSR_TRY(rename_file(output, tsr_output_file(output, 0),
                        output->options.existing != TSR_EXISTING_REFUSED && output->found.inode, err));
    output->published = true;
    return tsr_sys_sync(output->sys, output->parent, output->name, err);
}

static bool is_new_name(const directory_output *output, tsr_str name)
{
    const uint32_t file = tsr_map_get(output->names, name, UINT32_MAX);
    return file < output->files.count && tsr_str_equal(tsr_str_from(tsr_output_file(output, file)->name), name);
}

static tsr_status refuse_stranger(void *ctx, int directory, const char *name, tsr_error *err)
{
    const directory_output *output = ctx;
    struct stat here, there;
    if (is_new_name(output, tsr_str_from(name)) || is_subdirectory(output, name)) return TSR_OK;
    const bool linked = output->mode == OUTPUT_SWAP_DIRECTORY &&
                        output->sys->link_stat_at(output->sys, directory, name, &here) == 0 && here.st_nlink > 1 &&
                        tsr_output_stat_old(output, name, &there) && tsr_is_one_file(&here, &there);
    if (linked) return TSR_OK; /* linked by a run that was killed afterwards */
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                    "'%s' in '%s' would become part of '%s', but this job did not write it; move it away", name,
                    output->temporary, output->name);
}

/* Files that other programs put into the new directory must not become part of the checkpoint. */
static tsr_status refuse_strangers(directory_output *output, tsr_error *err)
{
    return output->options.begun != TSR_BEGUN_REFUSED ? output_each_in(output, output->temporary, refuse_stranger, err)
                                                      : TSR_OK;
}

static tsr_status publish_new_directory(directory_output *output, tsr_error *err)
{
    const tsr_sys *sys = output->sys;
    int done;
    tsr_status status = refuse_strangers(output, err);
    if (status == TSR_OK && output->unsynced_names) status = sync_subdirectories(output, output->work, err);
    if (status == TSR_OK && output->unsynced_names) status = tsr_sys_sync(sys, output->work, output->name, err);
    if (status != TSR_OK) return status;
    do done = sys->rename_new(sys, output->parent, output->temporary, output->parent, output->name);
    while (done != 0 && errno == EINTR);
    if (done != 0) return tsr_sys_raise(tsr_naming(err), "give its name to", output->name);
    output->published = true;
    return tsr_sys_sync(output->sys, output->parent, output->name, err);
}

/* Removes as many of the obsolete files as possible, and allocates no memory for it: a file left behind would be taken for
 * part of the checkpoint. */
static tsr_status remove_obsolete(directory_output *output, tsr_error *err)
{
    tsr_status status = TSR_OK;
    struct stat info;
    char path[PATH_MAX];
    for (size_t i = 0; i < output->options.obsolete_count; i++) {
        const tsr_str name = output->options.obsolete[i];
        if (is_new_name(output, name) || name.size >= sizeof path) continue; /* no file has a longer name */
        memcpy(path, name.data, name.size);
        path[name.size] = '\0';
        if (output->sys->link_stat_at(output->sys, output->work, path, &info) == 0 && !lists_obsolete(output, name, &info))
            continue; /* another program has just written it */
        if (output->sys->unlink(output->sys, output->work, path, false) != 0 && errno != ENOENT) {
            status = tsr_sys_raise(tsr_naming(err), "remove the replaced file", path);
        }
    }
    return status;
}

/* Replaces a marker only if it is the old checkpoint's: another program may have put its own there, where there was none. */
static tsr_status rename_marker(directory_output *output, output_file *marker, tsr_error *err)
{
    return rename_file(output, marker, lists_obsolete(output, tsr_str_from(marker->name), NULL), err);
}

static tsr_status publish_into_directory(directory_output *output, uint32_t marker, tsr_error *err)
{
    for (uint32_t i = 0; i < output->files.count; i++) {
        if (i == marker) continue;
        TSR_TRY(rename_file(output, tsr_output_file(output, i), false, err));
    }
    tsr_status status = tsr_sys_sync(output->sys, output->work, output->name, err);
    if (status == TSR_OK) status = refuse_changed(output, err); /* again: until here everything can be undone */
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

static void publish_keep_permissions(const directory_output *output, const output_file *file, int fd)
{
    if (!file->replaces && output->model) keep_owner(output->model, fd);
    if (!file->replaces) return;
    if (output->mode == OUTPUT_FILE) {
        keep_permissions_of(output->parent, file->name, fd);
        return;
    }
    const int old = tsr_sys_open(output->sys, output->parent, output->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (old < 0) return;
    keep_permissions_of(old, file->name, fd);
    output->sys->close(output->sys, old);
}

/* Sets the permissions before the renames, so that a new file never permits more than the file it replaces. */
static tsr_status keep_all_permissions(directory_output *output, tsr_error *err)
{
    for (uint32_t i = 0; output->exists && i < output->files.count; i++) {
        int fd;
        const char *name;
        if (tsr_output_file(output, i)->is_final) continue;
        TSR_TRY(tsr_output_take(output, i, &fd, &name, err));
        publish_keep_permissions(output, tsr_output_file(output, i), fd);
        tsr_output_give(output, i);
    }
    return TSR_OK;
}

tsr_status tsr_output_publish(tsr_output *base, uint32_t marker, tsr_error *err)
{
    directory_output *output = (directory_output *)base;
    assert(!output->published);
    tsr_status status = keep_all_permissions(output, err);
    if (status == TSR_OK) status = sync_files(output, err);
    if (status == TSR_OK) status = refuse_changed(output, err);
    if (status != TSR_OK) return status;
    switch (output->mode) {
    case OUTPUT_FILE: return publish_file(output, err);
    case OUTPUT_NEW_DIRECTORY: return publish_new_directory(output, err);
    case OUTPUT_SWAP_DIRECTORY:
        status = refuse_strangers(output, err);
        return status == TSR_OK ? output_swap(output, err) : status;
    case OUTPUT_MOVE:
        status = refuse_strangers(output, err);
        return status == TSR_OK ? publish_moved(output, marker, err) : status;
    default: return publish_into_directory(output, marker, err);
    }
}

bool tsr_output_discard(directory_output *output)
{
    bool is_gone = true;
    for (uint32_t i = 0; i < output->files.count; i++) {
        const output_file *file = tsr_output_file(output, i);
        is_gone &= is_removed(output, output->work, file->is_final ? file->name : file->temporary, false);
    }
    is_gone &= remove_subdirectories(output);
    if (output->temporary) is_gone &= is_removed(output, output->parent, output->temporary, true);
    return is_gone;
}

bool tsr_directory_output_abandon(tsr_output *base)
{
    directory_output *output = (directory_output *)base;
    pthread_mutex_lock(&output->lock); /* never unlocked: a thread that wants to create a file waits here */
    return output->published || output->options.unfinished != TSR_UNFINISHED_REMOVED || tsr_output_discard(output);
}

/* ---- the record ---- */

static tsr_status record_files(directory_output *output, tsr_recorded_file *files, tsr_error *err)
{
    struct stat info;
    const char *name;
    for (uint32_t i = 0; i < output->files.count; i++) {
        int fd;
        tsr_status status = tsr_output_take(output, i, &fd, &name, err);
        if (status != TSR_OK) return status;
        if (output->sys->stat(output->sys, fd, &info) != 0) status = tsr_sys_raise(tsr_naming(err), "look at", name);
        tsr_output_give(output, i);
        if (status != TSR_OK) return status;
        files[i] = (tsr_recorded_file){tsr_str_from(name), tsr_identity_of(&info), false};
    }
    return TSR_OK;
}

static size_t record_old(const directory_output *output, tsr_recorded_file *files)
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
static tsr_status record_companion(directory_output *companion, tsr_recorded_file *files, size_t *count, tsr_error *err)
{
    struct stat info;
    TSR_TRY(record_files(companion, files + *count, err));
    *count += companion->files.count;
    if (companion->sys->link_stat_at(companion->sys, companion->parent, companion->name, &info) == 0)
        files[(*count)++] = (tsr_recorded_file){tsr_str_from(companion->name), tsr_identity_of(&info), true};
    return TSR_OK;
}

tsr_status tsr_directory_output_record(tsr_output *base, uint32_t marker, tsr_output *companion, tsr_vec *text,
                                       tsr_error *err)
{
    directory_output *output = (directory_output *)base;
    struct stat info = {0};
    const size_t count = output->files.count;
    tsr_recorded_file *files =
        tsr_arena_array(output->arena, count + output->options.obsolete_count + 2, sizeof *files, err);
    tsr_status status = files ? record_files(output, files, err) : TSR_E_NOMEM;
    if (status != TSR_OK) return status;
    tsr_record record = {.kind = (tsr_switch)output->mode, .marker = TSR_STR(""), .files = files, .count = count};
    if (output->sys->stat(output->sys, output->parent, &info) == 0) record.device = (uint64_t)info.st_dev;
    if (companion) status = record_companion((directory_output *)companion, files, &record.count, err);
    if (status != TSR_OK) return status;
    const bool into = output->mode == OUTPUT_INTO_DIRECTORY || output->mode == OUTPUT_MOVE;
    if (into && marker < count) record.marker = files[marker].name;
    if (into || output->mode == OUTPUT_SWAP_DIRECTORY) record.count += record_old(output, files + count);
    if (output->mode == OUTPUT_FILE || into) {
        const uint32_t which = marker < count ? marker : 0;
        if (which < count) record.identity = files[which].identity;
    } else if (output->sys->stat(output->sys, output->work, &info) == 0) {
        record.identity = tsr_identity_of(&info);
    }
    return tsr_record_put(&record, text, err);
}
