/* Answers of the system that Emscripten's C library makes up: constants, or success without having done anything. The linker calls
 * these functions instead (--wrap); system.js knows the answers. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/utsname.h>

#define HOST(name) __attribute__((import_module("tessera"), import_name(name)))

HOST("lock") int host_lock(int fd);
HOST("link") int host_link(int directory, const char *from, int to_directory, const char *to);
HOST("process_id") int host_process_id(void);
HOST("user_id") int host_user_id(void);
HOST("end_by_signal") void host_end_by_signal(int number);
HOST("system_name") void host_system_name(char *name, char *release, char *machine, size_t capacity);

int main(int argc, char **argv);
int tessera_run(int argc, char **argv);
int __wrap_flock(int fd, int operation);
int __wrap_raise(int number);
int __wrap_strerror_r(int code, char *text, size_t size);
char *__wrap_strerror(int code);
char *__real_strerror(int code);
long __wrap___syscall_getpid(void);
long __wrap___syscall_getppid(void);
long __wrap___syscall_geteuid32(void);
long __wrap___syscall_linkat(long directory, long from, long to_directory, long to, long flags);
long __wrap___syscall_uname(long out);

int tessera_run(int argc, char **argv)
{
    exit(main(argc, argv));
}

int __wrap_flock(int fd, int operation)
{
    if (operation == LOCK_UN) return 0; /* closing the file releases the lock */
    errno = host_lock(fd);              /* exclusive and without waiting is all that is used otherwise */
    return errno ? -1 : 0;
}

int __wrap_raise(int number)
{
    host_end_by_signal(number);
    return 0;
}

/* The words of GNU's C library where they differ, so that messages are the same on every system. */
char *__wrap_strerror(int code)
{
    static const struct {
        int code;
        const char *text;
    } texts[] = {
        {EBUSY, "Device or resource busy"},
        {EDQUOT, "Disk quota exceeded"},
        {EIO, "Input/output error"},
        {ELOOP, "Too many levels of symbolic links"},
        {EMFILE, "Too many open files"},
        {ENAMETOOLONG, "File name too long"},
        {ENOMEM, "Cannot allocate memory"},
        {ENOTTY, "Inappropriate ioctl for device"},
        {EOPNOTSUPP, "Operation not supported"},
        {ENOTSUP, "Operation not supported"},
        {EOVERFLOW, "Value too large for defined data type"},
        {ESPIPE, "Illegal seek"},
        {EXDEV, "Invalid cross-device link"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].code == code) return (char *)(size_t)texts[i].text;
    }
    return __real_strerror(code);
}

int __wrap_strerror_r(int code, char *text, size_t size)
{
    snprintf(text, size, "%s", __wrap_strerror(code));
    return 0;
}

long __wrap___syscall_getpid(void)
{
    return host_process_id();
}

long __wrap___syscall_getppid(void)
{
    return 0;
}

long __wrap___syscall_geteuid32(void)
{
    return host_user_id();
}

long __wrap___syscall_linkat(long directory, long from, long to_directory, long to, long flags)
{
    (void)flags;
    return -host_link((int)directory, (const char *)from, (int)to_directory, (const char *)to);
}

long __wrap___syscall_uname(long out)
{
    struct utsname *name = (struct utsname *)out;
    memset(name, 0, sizeof *name);
    host_system_name(name->sysname, name->release, name->machine, sizeof name->sysname);
    return 0;
}
