/* See permissions.h. */
#include "publish/permissions.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

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

static bool keep_lists(int old, bool is_folder, int new_file)
{
    if (is_folder) keep_list(old, new_file, "system.posix_acl_default"); /* affects only files created later */
    return keep_list(old, new_file, "system.posix_acl_access");
}
#else
static bool keep_lists(int old, bool is_folder, int new_file)
{
    (void)is_folder, (void)new_file;
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
    const bool is_folder = S_ISDIR(info->st_mode);
    mode_t mode = info->st_mode & (is_folder ? 07777 : 0777);
    if (fstat(new_file, &now) != 0) return;
    if (!keep_ids(info, &now, new_file) || !keep_lists(old, is_folder, new_file)) mode &= ~(mode_t)S_IRWXG;
    if (fchmod(new_file, mode) != 0) errno = 0; /* it stays private, as it was created */
}

void tsr_keep_owner(const struct stat *info, int new_file)
{
    struct stat now;
    if (fstat(new_file, &now) != 0 || keep_ids(info, &now, new_file)) return;
    if (fchmod(new_file, now.st_mode & 0777 & ~(mode_t)S_IRWXG) != 0) errno = 0;
}

void tsr_keep_permissions_of(int folder, const char *name, int new_file)
{
    struct stat info;
    if (fstatat(folder, name, &info, 0) != 0) return;
    const int old = openat(folder, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    keep_permissions(old, &info, new_file);
    if (old >= 0) close(old);
}
