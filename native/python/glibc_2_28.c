/* Lets the wheel run on glibc 2.28 although it is linked on a system with a newer one. Linked into its program and its library.
 *
 * The linker binds each function to the newest version that its own glibc has, which an older glibc lacks. Most of these
 * functions are old, and got a new version only because they moved to another library. Here they have hidden definitions
 * that continue in the old version, so that also the archives of other projects call that one. The few functions that are
 * really new are written here. make_wheel.py fails with the name of a function that is missing from this file. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OLDEST         "GLIBC_2.2.5"
#define CONTINUE(name) "endbr64\n jmp " name "@PLT\n"
#elif defined(__aarch64__)
#define OLDEST         "GLIBC_2.17"
#define CONTINUE(name) "bti c\n b " name "\n"
#else
#error "add the oldest version of glibc's functions for this processor"
#endif

/* Defines `name`, which continues in the oldest version of `as`. */
#define OLD_AS(name, as) \
    __asm__(".symver tsr_old_" #name ", " #as "@" OLDEST "\n" \
            ".pushsection .text\n.globl " #name "\n.hidden " #name "\n.type " #name ", %function\n" #name \
            ":\n" CONTINUE("tsr_old_" #name) ".size " #name ", . - " #name "\n.popsection")
#define OLD(name) OLD_AS(name, name)

/* libdl and libpthread, which became part of libc in 2.34. */
OLD(dladdr);
OLD(dlclose);
OLD(dlerror);
OLD(dlopen);
OLD(dlsym);
OLD(pthread_create);
OLD(pthread_detach);
OLD(pthread_getspecific);
OLD(pthread_join);
OLD(pthread_key_create);
OLD(pthread_key_delete);
OLD(pthread_kill);
OLD(pthread_mutex_timedlock);
OLD(pthread_mutex_trylock);
OLD(pthread_once);
OLD(pthread_rwlock_destroy);
OLD(pthread_rwlock_init);
OLD(pthread_rwlock_rdlock);
OLD(pthread_rwlock_timedwrlock);
OLD(pthread_rwlock_tryrdlock);
OLD(pthread_rwlock_trywrlock);
OLD(pthread_rwlock_unlock);
OLD(pthread_rwlock_wrlock);
OLD(pthread_setspecific);
OLD(pthread_sigmask);
OLD(sem_destroy);
OLD(sem_init);
OLD(sem_post);
OLD(sem_timedwait);
OLD(sem_trywait);
OLD(sem_wait);

/* libm: the newer versions differ in errno alone. */
OLD(exp);
OLD(exp2);
OLD(fmod);
OLD(hypot);
OLD(log);
OLD(log2);
OLD(pow);

/* Newer headers read binary numbers, too, under these names. */
OLD_AS(__isoc23_sscanf, sscanf);
OLD_AS(__isoc23_strtol, strtol);
OLD_AS(__isoc23_strtoll, strtoll);
OLD_AS(__isoc23_strtoul, strtoul);
OLD_AS(__isoc23_strtoull, strtoull);

/* Hidden, as the others: what the C library calls must stay its own. */
#pragma GCC visibility push(hidden)

/* The kernel fills in the same structure that these processors' C library has. */
int fstatat(int directory, const char *restrict path, struct stat *restrict out, int flags)
{
    return (int)syscall(SYS_newfstatat, directory, path, out, flags);
}

int stat(const char *restrict path, struct stat *restrict out)
{
    return fstatat(AT_FDCWD, path, out, 0);
}

int lstat(const char *restrict path, struct stat *restrict out)
{
    return fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}

int fstat(int fd, struct stat *out)
{
    return (int)syscall(SYS_fstat, fd, out);
}

/* For expat. */
void arc4random_buf(void *out, size_t size);
void arc4random_buf(void *out, size_t size)
{
    unsigned char *at = out;
    while (size) {
        const ssize_t got = getrandom(at, size, 0);
        if (got < 0) {
            if (errno != EINTR) _exit(127); /* as glibc, it has no way to fail */
            continue;
        }
        at += got;
        size -= (size_t)got;
    }
}

#if defined(TSR_IS_PROGRAM)
/* Start-up code that is linked today leaves the program's constructors to the C library. Before 2.34 the library runs only
 * those that are passed to it. */
typedef int main_function(int, char **, char **);
typedef void init_function(int, char **, char **);
int tsr_old_libc_start_main(main_function *, int, char **, init_function *, void (*)(void), void (*)(void), void *)
    __attribute__((visibility("default")));
__asm__(".symver tsr_old_libc_start_main, __libc_start_main@" OLDEST);
extern init_function *__preinit_array_start[];
extern init_function *__preinit_array_end[];
extern init_function *__init_array_start[];
extern init_function *__init_array_end[];

static void run_constructors(int count, char **arguments, char **environment)
{
    for (init_function **f = __preinit_array_start; f < __preinit_array_end; f++) (*f)(count, arguments, environment);
    for (init_function **f = __init_array_start; f < __init_array_end; f++) (*f)(count, arguments, environment);
}

int __libc_start_main(main_function *, int, char **, init_function *, void (*)(void), void (*)(void), void *);
int __libc_start_main(main_function *main, int count, char **arguments, init_function *init, void (*fini)(void),
                      void (*finish)(void), void *stack_end)
{
    (void)init;
    return tsr_old_libc_start_main(main, count, arguments, run_constructors, fini, finish, stack_end);
}
#endif
#pragma GCC visibility pop
