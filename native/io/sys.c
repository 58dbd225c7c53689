/* The real system calls, and two loops that complete partial transfers. */
#include "io/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "tessera/sys/try.h"

#if defined(__linux__)
#include <sys/statfs.h>
#include <sys/syscall.h>

#define TMPFS 0x01021994 /* f_type of tmpfs, as in <linux/magic.h> */
#endif

/* Calls that create names hold this lock shared. tsr_sys_stop_naming takes it exclusively and keeps it. */
static pthread_rwlock_t naming = PTHREAD_RWLOCK_INITIALIZER;
static _Thread_local bool is_cleaner;

void tsr_sys_stop_naming(void)
{
    pthread_rwlock_wrlock(&naming);
    is_cleaner = true;
}

static void begin_naming(void)
{
    if (!is_cleaner) pthread_rwlock_rdlock(&naming);
}

/* `done` is the result of the call. Preserves errno. */
static int end_naming(int done)
{
    const int saved = errno;
    if (!is_cleaner) pthread_rwlock_unlock(&naming);
    errno = saved;
    return done;
}

static int posix_open_at(const tsr_sys *sys, int directory, const char *name, int flags, unsigned mode)
{
    (void)sys;
    if (!(flags & O_CREAT)) return openat(directory, name, flags | O_CLOEXEC);
    begin_naming();
    return end_naming(openat(directory, name, flags | O_CLOEXEC, (mode_t)mode));
}

/* Descriptors that have a lock, plus 1; 0 is an unused place. A child of a fork gets copies of the descriptors, and a lock lasts until
 * the last copy is closed. It is therefore released when it is closed here, whatever children there are, and a child closes its copies:
 * the lock ends with the process that took it. Further locks, for which there is no place here, last until all copies are closed. */
enum { MOST_LOCKS = 64 };
static atomic_int locked[MOST_LOCKS];

static bool replace_lock(int from, int to)
{
    for (unsigned i = 0; i < MOST_LOCKS; i++) {
        int expected = from;
        if (atomic_load(&locked[i]) == from && atomic_compare_exchange_strong(&locked[i], &expected, to)) return true;
    }
    return false;
}

static int take_lock(int fd, int kind)
{
    if (!replace_lock(fd + 1, fd + 1)) replace_lock(0, fd + 1);
    const int done = flock(fd, kind | LOCK_NB), code = errno;
    if (done != 0) replace_lock(fd + 1, 0);
    errno = code;
    return done;
}

void tsr_sys_forget_locks(void)
{
    for (unsigned i = 0; i < MOST_LOCKS; i++) {
        const int fd = atomic_exchange(&locked[i], 0) - 1;
        if (fd >= 0) close(fd);
    }
}

static int posix_close_fd(const tsr_sys *sys, int fd)
{
    (void)sys;
    if (replace_lock(fd + 1, 0)) flock(fd, LOCK_UN);
    return close(fd);
}

static int posix_stat_at(const tsr_sys *sys, int directory, const char *name, struct stat *out)
{
    (void)sys;
    return fstatat(directory, name, out, 0);
}

static int posix_link_stat_at(const tsr_sys *sys, int directory, const char *name, struct stat *out)
{
    (void)sys;
    return fstatat(directory, name, out, AT_SYMLINK_NOFOLLOW);
}

static int posix_stat(const tsr_sys *sys, int fd, struct stat *out)
{
    (void)sys;
    return fstat(fd, out);
}

static ssize_t posix_read_at(const tsr_sys *sys, int fd, void *buffer, size_t size, uint64_t offset)
{
    (void)sys;
    return pread(fd, buffer, size, (off_t)offset);
}

static uint64_t posix_next_data(const tsr_sys *sys, int fd, uint64_t offset)
{
    (void)sys;
#if defined(SEEK_DATA)
    const off_t data = lseek(fd, (off_t)offset, SEEK_DATA);
    if (data >= 0) return (uint64_t)data;
    if (errno == ENXIO) return UINT64_MAX;
#else
    (void)fd;
#endif
    return offset;
}

static ssize_t posix_write_at(const tsr_sys *sys, int fd, const void *data, size_t size, uint64_t offset)
{
    (void)sys;
    return pwrite(fd, data, size, (off_t)offset);
}

static ssize_t posix_copy_range(const tsr_sys *sys, int from, uint64_t from_offset, int to, uint64_t to_offset, size_t size)
{
    (void)sys;
#if defined(__linux__)
    loff_t in = (loff_t)from_offset, out = (loff_t)to_offset;
    return copy_file_range(from, &in, to, &out, size, 0);
#else
    (void)from, (void)from_offset, (void)to, (void)to_offset, (void)size;
    errno = ENOSYS;
    return -1;
#endif
}

#if defined(__linux__)
/* On tmpfs, reserving space allocates the pages themselves. That is half of the work of writing, and a single thread would
 * do it before all others can begin. */
static bool lies_in_memory(int fd, uint64_t size, bool *fits)
{
    struct statfs info;
    if (fstatfs(fd, &info) != 0 || info.f_type != TMPFS) return false;
    *fits = info.f_blocks == 0 || size / (uint64_t)info.f_bsize <= info.f_bavail; /* f_blocks is 0 if tmpfs has no limit */
    return true;
}
#endif

static int posix_allocate(const tsr_sys *sys, int fd, uint64_t size)
{
    (void)sys;
#if defined(__linux__)
    bool fits;
    if (lies_in_memory(fd, size, &fits)) {
        errno = fits ? EOPNOTSUPP : ENOSPC;
        return -1;
    }
    /* Not posix_fallocate, which writes zeros if the file system cannot reserve space. */
    return fallocate(fd, 0, 0, (off_t)size);
#else
    return ftruncate(fd, (off_t)size);
#endif
}

static int posix_truncate(const tsr_sys *sys, int fd, uint64_t size)
{
    (void)sys;
    return ftruncate(fd, (off_t)size);
}

static void posix_begin_sync(const tsr_sys *sys, int fd, uint64_t offset, uint64_t size)
{
    (void)sys;
#if defined(__linux__)
    sync_file_range(fd, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE);
#else
    (void)fd, (void)offset, (void)size;
#endif
}

static int posix_sync(const tsr_sys *sys, int fd)
{
    (void)sys;
    return fsync(fd);
}

static int posix_make_directory(const tsr_sys *sys, int directory, const char *name, unsigned mode)
{
    (void)sys;
    begin_naming();
    return end_naming(mkdirat(directory, name, (mode_t)mode));
}

static int posix_rename(const tsr_sys *sys, int directory, const char *from, int to_directory, const char *to)
{
    (void)sys;
    begin_naming();
    return end_naming(renameat(directory, from, to_directory, to));
}

static int posix_exchange(const tsr_sys *sys, int directory, const char *a, const char *b)
{
    (void)sys;
#if defined(SYS_renameat2) && defined(RENAME_EXCHANGE)
    begin_naming();
    return end_naming((int)syscall(SYS_renameat2, directory, a, directory, b, RENAME_EXCHANGE));
#else
    (void)directory, (void)a, (void)b;
    errno = ENOSYS;
    return -1;
#endif
}

static int posix_link(const tsr_sys *sys, int directory, const char *name, int to_directory, const char *to)
{
    (void)sys;
    begin_naming();
    return end_naming(linkat(directory, name, to_directory, to, 0));
}

static int rename_new(int directory, const char *from, int to_directory, const char *to)
{
#if defined(SYS_renameat2) && defined(RENAME_NOREPLACE)
    int done = (int)syscall(SYS_renameat2, directory, from, to_directory, to, RENAME_NOREPLACE);
    if (done == 0 || (errno != EINVAL && errno != ENOSYS)) return done;
#endif
    struct stat taken; /* On file systems without the flag, the check and the rename are two steps. */
    if (fstatat(to_directory, to, &taken, AT_SYMLINK_NOFOLLOW) == 0) {
        errno = EEXIST;
        return -1;
    }
    return renameat(directory, from, to_directory, to);
}

static int posix_rename_new(const tsr_sys *sys, int directory, const char *from, int to_directory, const char *to)
{
    (void)sys;
    begin_naming();
    return end_naming(rename_new(directory, from, to_directory, to));
}

static int posix_unlink(const tsr_sys *sys, int directory, const char *name, bool is_directory)
{
    (void)sys;
    return unlinkat(directory, name, is_directory ? AT_REMOVEDIR : 0);
}

static int posix_lock(const tsr_sys *sys, int fd)
{
    (void)sys;
    return take_lock(fd, LOCK_EX);
}

static int posix_share(const tsr_sys *sys, int fd)
{
    (void)sys;
    return take_lock(fd, LOCK_SH);
}

const tsr_sys tsr_sys_posix = {
    .open_at = posix_open_at,
    .close = posix_close_fd,
    .stat_at = posix_stat_at,
    .link_stat_at = posix_link_stat_at,
    .stat = posix_stat,
    .read_at = posix_read_at,
    .next_data = posix_next_data,
    .write_at = posix_write_at,
    .copy_range = posix_copy_range,
    .allocate = posix_allocate,
    .truncate = posix_truncate,
    .begin_sync = posix_begin_sync,
    .sync = posix_sync,
    .make_directory = posix_make_directory,
    .rename = posix_rename,
    .exchange = posix_exchange,
    .link = posix_link,
    .rename_new = posix_rename_new,
    .lock = posix_lock,
    .share = posix_share,
    .unlink = posix_unlink,
};

const char *tsr_sys_reason(int code, char *text, size_t size)
{
#if defined(__GLIBC__)
    return strerror_r(code, text, size);
#else
    return strerror_r(code, text, size) == 0 ? text : "unknown error";
#endif
}

tsr_status tsr_sys_raise(tsr_error *err, const char *what, const char *name)
{
    int code = errno;
    char text[128] = "";
    tsr_status status = code == ENOENT      ? TSR_E_NOT_FOUND
                        : code == EEXIST    ? TSR_E_EXISTS
                        : code == ECANCELED ? TSR_E_CANCELLED
                                            : TSR_E_IO;
    return tsr_raise(err, status, TSR_NO_POSITION, "cannot %s '%s': %s", what, name,
                     tsr_sys_reason(code, text, sizeof text));
}

int tsr_sys_open(const tsr_sys *sys, int directory, const char *name, int flags, unsigned mode)
{
    int fd;
    do fd = sys->open_at(sys, directory, name, flags, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

tsr_status tsr_sys_sync(const tsr_sys *sys, int fd, const char *name, tsr_error *err)
{
    int done;
    do done = sys->sync(sys, fd);
    while (done != 0 && errno == EINTR);
    return done == 0 ? TSR_OK : tsr_sys_raise(tsr_naming(err), "sync", name);
}

tsr_status tsr_sys_read(tsr_sys_file file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = file.sys->read_at(file.sys, file.fd, (char *)buffer + done, size - done, offset + done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return tsr_sys_raise(err, "read", file.name);
        if (n == 0) {
            return tsr_raise(err, TSR_E_IO, offset + done, "'%s' ends at byte %" PRIu64 ", %zu bytes short of the read",
                             file.name, offset + done, size - done);
        }
        done += (size_t)n;
    }
    return TSR_OK;
}

tsr_status tsr_sys_write(tsr_sys_file file, uint64_t offset, const void *data, size_t size, tsr_error *err)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = file.sys->write_at(file.sys, file.fd, (const char *)data + done, size - done, offset + done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return tsr_sys_raise(tsr_naming(err), "write", file.name);
        done += (size_t)n;
    }
    return TSR_OK;
}

/* ---- names below a directory ---- */

static bool is_component(tsr_str name, size_t longest)
{
    return name.size > 0 && name.size <= longest && !memchr(name.data, '\0', name.size) &&
           !tsr_str_equal(name, TSR_STR(".")) && !tsr_str_equal(name, TSR_STR(".."));
}

bool tsr_is_name_below(tsr_str name, size_t longest)
{
    const char *slash;
    while (name.size && (slash = memchr(name.data, '/', name.size))) {
        const size_t size = (size_t)(slash - name.data);
        if (!is_component((tsr_str){name.data, size}, longest)) return false;
        name = (tsr_str){slash + 1, name.size - size - 1};
    }
    return is_component(name, longest);
}

/* ---- files that are kept open ---- */

static atomic_uint_fast32_t kept;

bool tsr_sys_keeps_many(uint32_t own)
{
    const long allowed = sysconf(_SC_OPEN_MAX); /* -1: no limit */
    return own >= TSR_SYS_KEPT_FILES || (allowed >= 0 && atomic_load(&kept) >= (unsigned long)allowed / 2);
}

void tsr_sys_keep(int32_t change)
{
    atomic_fetch_add(&kept, (uint_fast32_t)change);
}

/* ---- threads of a forked process ---- */

void tsr_process_init(tsr_process *process)
{
    atomic_init(&process->id, (int)getpid());
}

void tsr_process_enter(tsr_process *process, void (*begin)(void *ctx), void *ctx)
{
    static pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER;
    const int own = (int)getpid();
    if (atomic_load(&process->id) == own) return;
    pthread_mutex_lock(&beginning);
    if (atomic_load(&process->id) != own) {
        begin(ctx);
        atomic_store(&process->id, own);
    }
    pthread_mutex_unlock(&beginning);
}
