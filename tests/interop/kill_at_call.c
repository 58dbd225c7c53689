/* Loaded before a program that saves checkpoints: kills its process at one of the calls that change files below a directory, before it, after it,
 * or, if it writes, after half of its bytes. kill_at arms it; without that, calls are only counted.
 *
 * Build: cc -shared -fPIC kill_at_call.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BEFORE, HALF, AFTER };

static long left, seen;
static int moment;
static char root[PATH_MAX]; /* empty: not armed */

/* Kills at call `number`, from 1; 0: never. */
void kill_at(long number, int when, const char *below)
{
    left = number;
    moment = when;
    seen = 0;
    snprintf(root, sizeof root, "%s", below);
}

long calls_seen(void)
{
    return seen;
}

static int is_below(const char *path)
{
    return *root && strncmp(path, root, strlen(root)) == 0;
}

static int names_below(int directory, const char *path)
{
    char link[64], base[PATH_MAX], full[2 * PATH_MAX];
    if (!*root || *path == '/') return *root && is_below(path);
    snprintf(link, sizeof link, directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", directory);
    const ssize_t size = readlink(link, base, sizeof base - 1);
    if (size < 0) return 0;
    base[size] = '\0';
    snprintf(full, sizeof full, "%s/%s", base, path);
    return is_below(full);
}

static int is_open_below(int fd)
{
    char link[64], path[PATH_MAX];
    if (!*root) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = '\0';
    return is_below(path);
}

/* Whether the process is to end at this call. */
static int ends(int counts)
{
    if (!counts) return 0;
    seen++;
    return left && --left == 0;
}

static void end(void)
{
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define CALL(type, name, parameters, arguments, counts) \
    type name parameters \
    { \
        REAL(name); \
        const int is_last = ends(counts); \
        if (is_last && moment != AFTER) end(); \
        type result = real arguments; \
        if (is_last) end(); \
        return result; \
    }
#define WRITE(name, parameters, arguments, half) \
    ssize_t name parameters \
    { \
        REAL(name); \
        const int is_last = ends(is_open_below(fd)); \
        if (is_last && moment == HALF && real half < 0) end(); \
        if (is_last && moment != AFTER) end(); \
        const ssize_t result = real arguments; \
        if (is_last) end(); \
        return result; \
    }
#define OPEN(name, parameters, directory, arguments) \
    int name parameters \
    { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        const int is_last = ends((flags & (O_CREAT | O_TRUNC)) && names_below(directory, path)); \
        if (is_last && moment != AFTER) end(); \
        const int fd = real arguments; \
        if (is_last) end(); \
        return fd; \
    }

OPEN(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(openat, (int directory, const char *path, int flags, ...), directory, (directory, path, flags, mode))
OPEN(openat64, (int directory, const char *path, int flags, ...), directory, (directory, path, flags, mode))
CALL(FILE *, fopen, (const char *path, const char *how), (path, how), *how != 'r' && names_below(AT_FDCWD, path))
CALL(FILE *, fopen64, (const char *path, const char *how), (path, how), *how != 'r' && names_below(AT_FDCWD, path))
WRITE(write, (int fd, const void *data, size_t size), (fd, data, size), (fd, data, size / 2))
WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), (fd, data, size / 2, at))
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), (fd, data, size / 2, at))
WRITE(writev, (int fd, const struct iovec *data, int count), (fd, data, count), (fd, data, 1))
CALL(int, rename, (const char *from, const char *to), (from, to), names_below(AT_FDCWD, to))
CALL(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), names_below(b, to))
CALL(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags),
     names_below(b, to))
CALL(int, unlink, (const char *path), (path), names_below(AT_FDCWD, path))
CALL(int, unlinkat, (int directory, const char *path, int flags), (directory, path, flags), names_below(directory, path))
CALL(int, mkdir, (const char *path, mode_t mode), (path, mode), names_below(AT_FDCWD, path))
CALL(int, mkdirat, (int directory, const char *path, mode_t mode), (directory, path, mode), names_below(directory, path))
CALL(int, ftruncate, (int fd, off_t size), (fd, size), is_open_below(fd))
CALL(int, ftruncate64, (int fd, off64_t size), (fd, size), is_open_below(fd))
CALL(int, fsync, (int fd), (fd), is_open_below(fd))
