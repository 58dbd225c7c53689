/* Loaded into a program (LD_PRELOAD), kills one of its ranks at one of its calls, or lists the calls.
 *
 *   KILL_AT_RANK=R       the rank whose calls are counted (OMPI_COMM_WORLD_RANK, SLURM_PROCID)
 *   KILL_AT_CALL=N       from 1: SIGKILL before the N-th call, or after it with KILL_AT_AFTER=1
 *   KILL_AT_LIST=FILE    appends the name of every call
 *
 * Only calls of the program itself count, not those of its libraries: calls of MPI's collectives, and calls that change
 * files. */
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_ulong calls;

static const char *setting(const char *name)
{
    const char *text = getenv(name);
    return text ? text : "";
}

/* The number of this call, or 0 if it is not counted. */
static unsigned long enter(const char *name, void *caller)
{
    Dl_info info;
    const char *rank = *setting("OMPI_COMM_WORLD_RANK") ? setting("OMPI_COMM_WORLD_RANK") : setting("SLURM_PROCID");
    if (!*rank || strcmp(rank, setting("KILL_AT_RANK")) != 0) return 0;
    const char *program = (const char *)(getauxval(AT_PHDR) & ~4095ul);
    if (!dladdr(caller, &info) || info.dli_fbase != program) return 0;
    unsigned long number = atomic_fetch_add(&calls, 1) + 1;
    const char *list = setting("KILL_AT_LIST");
    int fd = *list ? open(list, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    if (fd >= 0) {
        dprintf(fd, "%s\n", name);
        close(fd);
    }
    if (number == strtoul(setting("KILL_AT_CALL"), NULL, 10) && !*setting("KILL_AT_AFTER")) raise(SIGKILL);
    return number;
}

static void leave(unsigned long number)
{
    if (number && number == strtoul(setting("KILL_AT_CALL"), NULL, 10)) raise(SIGKILL);
}

/* Defines name(parameters), which calls the original with `arguments`. */
#define WATCH(type, name, parameters, arguments) \
    type name parameters; \
    type name parameters \
    { \
        static type(*next) parameters; \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name); \
        unsigned long number = enter(#name, __builtin_return_address(0)); \
        type result = next arguments; \
        leave(number); \
        return result; \
    }

WATCH(int, MPI_Iallreduce, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *q),
      (s, r, n, t, o, c, q))
WATCH(int, MPI_Allreduce, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (s, r, n, t, o, c))
WATCH(int, MPI_Bcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c), (b, n, t, root, c))
WATCH(int, MPI_Allgatherv,
      (const void *s, int n, MPI_Datatype t, void *r, const int *m, const int *d, MPI_Datatype u, MPI_Comm c),
      (s, n, t, r, m, d, u, c))
WATCH(int, MPI_Alltoall, (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c),
      (s, n, t, r, m, u, c))
WATCH(int, MPI_Comm_dup, (MPI_Comm c, MPI_Comm *out), (c, out))
WATCH(int, MPI_Comm_free, (MPI_Comm * c), (c))
WATCH(int, MPI_Init_thread, (int *argc, char ***argv, int level, int *provided), (argc, argv, level, provided))

WATCH(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WATCH(ssize_t, pwrite64, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WATCH(ssize_t, copy_file_range, (int from, off_t *in, int to, off_t *out, size_t size, unsigned flags),
      (from, in, to, out, size, flags))
WATCH(int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))
WATCH(int, ftruncate, (int fd, off_t size), (fd, size))
WATCH(int, fsync, (int fd), (fd))
WATCH(int, mkdirat, (int directory, const char *name, mode_t mode), (directory, name, mode))
WATCH(int, renameat, (int directory, const char *from, int to_directory, const char *to),
      (directory, from, to_directory, to))
WATCH(int, unlinkat, (int directory, const char *name, int flags), (directory, name, flags))

int openat(int directory, const char *name, int flags, ...)
{
    static int (*next)(int, const char *, int, ...);
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "openat");
    unsigned long number = flags & O_CREAT ? enter("openat", __builtin_return_address(0)) : 0;
    int fd = next(directory, name, flags, mode);
    leave(number);
    return fd;
}

long syscall(long what, ...)
{
    static long (*next)(long, ...);
    long a[6];
    va_list arguments;
    va_start(arguments, what);
    for (int i = 0; i < 6; i++) a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "syscall");
    unsigned long number = what == SYS_renameat2 ? enter("renameat2", __builtin_return_address(0)) : 0;
    long result = next(what, a[0], a[1], a[2], a[3], a[4], a[5]);
    leave(number);
    return result;
}
