/* Loaded into tessera-mpi (LD_PRELOAD), slows down the ranks other than 0 while they begin their journals: between creating
 * and locking one, and between writing and syncing it. The thread that cleans up after a signal is not slowed down. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { BEFORE_LOCKING_MS = 600, BEFORE_SYNCING_MS = 1500 };

static void wait_if_journal(int fd, unsigned ms)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    char link[64], path[PATH_MAX];
    if (!rank || strcmp(rank, "0") == 0 || gettid() != getpid()) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t size = readlink(link, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = 0;
    if (strstr(path, "-by-")) usleep(ms * 1000);
}

int flock(int fd, int how)
{
    static int (*next)(int, int);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "flock");
    wait_if_journal(fd, BEFORE_LOCKING_MS);
    return next(fd, how);
}

int fsync(int fd)
{
    static int (*next)(int);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "fsync");
    wait_if_journal(fd, BEFORE_SYNCING_MS);
    return next(fd);
}
