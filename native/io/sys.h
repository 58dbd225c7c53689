/* The system calls that native/io makes, as a table, so that a test can make any of them fail, transfer less or stop. Each
 * behaves like the system call it is named after: it returns -1 and sets errno on failure, and transfers may be short. */
#ifndef TSR_NATIVE_SYS_H
#define TSR_NATIVE_SYS_H

#include "tessera/host.h"
#include "tessera/status.h"
#include "tessera/str.h"
#include "tessera/sys/directory.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

typedef struct tsr_sys tsr_sys;
struct tsr_sys {
    int (*open_at)(const tsr_sys *sys, int directory, const char *name, int flags, unsigned mode);
    int (*close)(const tsr_sys *sys, int fd);
    int (*stat_at)(const tsr_sys *sys, int directory, const char *name, struct stat *out);
    /* Does not follow a symbolic link. */
    int (*link_stat_at)(const tsr_sys *sys, int directory, const char *name, struct stat *out);
    int (*stat)(const tsr_sys *sys, int fd, struct stat *out);
    ssize_t (*read_at)(const tsr_sys *sys, int fd, void *buffer, size_t size, uint64_t offset);
    /* The offset of the next bytes that are not in a hole, at or after `offset`; UINT64_MAX if only holes follow; `offset`
     * if the file system does not report holes. */
    uint64_t (*next_data)(const tsr_sys *sys, int fd, uint64_t offset);
    ssize_t (*write_at)(const tsr_sys *sys, int fd, const void *data, size_t size, uint64_t offset);
    ssize_t (*copy_range)(const tsr_sys *sys, int from, uint64_t from_offset, int to, uint64_t to_offset, size_t size);
    int (*allocate)(const tsr_sys *sys, int fd, uint64_t size);
    int (*truncate)(const tsr_sys *sys, int fd, uint64_t size);
    /* A hint: the range will be synced soon, so its writing may begin now. */
    void (*begin_sync)(const tsr_sys *sys, int fd, uint64_t offset, uint64_t size);
    int (*sync)(const tsr_sys *sys, int fd);
    int (*make_directory)(const tsr_sys *sys, int directory, const char *name, unsigned mode);
    int (*rename)(const tsr_sys *sys, int directory, const char *from, int to_directory, const char *to);
    /* Exchanges two names atomically. EINVAL or ENOSYS if the file system cannot do it. */
    int (*exchange)(const tsr_sys *sys, int directory, const char *a, const char *b);
    /* Gives a file a second name. */
    int (*link)(const tsr_sys *sys, int directory, const char *name, int to_directory, const char *to);
    /* Like rename, but fails with EEXIST if the new name exists. */
    int (*rename_new)(const tsr_sys *sys, int directory, const char *from, int to_directory, const char *to);
    /* Takes an advisory lock that is released when `close` is called, even if a child of a fork has the descriptor, too. EWOULDBLOCK
     * if another process holds it. */
    int (*lock)(const tsr_sys *sys, int fd);
    /* The same, together with other processes that share it, but with none that has it alone. */
    int (*share)(const tsr_sys *sys, int fd);
    int (*unlink)(const tsr_sys *sys, int directory, const char *name, bool is_directory);
};

/* The real system calls. */
extern const tsr_sys tsr_sys_posix;

/* An open file, and its name for messages. */
typedef struct tsr_sys_file {
    const tsr_sys *sys;
    int fd;
    const char *name;
} tsr_sys_file;

/* Transfers exactly `size` bytes, despite short transfers and EINTR. TSR_E_IO has the offset at which a read reached the end
 * of the file. Thread-safe. */
tsr_status tsr_sys_read(tsr_sys_file file, uint64_t offset, void *buffer, size_t size, tsr_error *err);
tsr_status tsr_sys_write(tsr_sys_file file, uint64_t offset, const void *data, size_t size, tsr_error *err);

/* For the thread that cleans up before the process ends. From now on, every other thread that creates, links or renames
 * anything with tsr_sys_posix waits forever, so that nothing is created after the cleanup. It waits with the locks that it has:
 * what needs one of them must come before. */
void tsr_sys_stop_naming(void);
/* These calls are repeated on EINTR. */
int tsr_sys_open(const tsr_sys *sys, int directory, const char *name, int flags, unsigned mode);
tsr_status tsr_sys_sync(const tsr_sys *sys, int fd, const char *name, tsr_error *err);

/* Files that stores and outputs keep open for their next use. A store or an output has at most TSR_SYS_KEPT_FILES of them, and all
 * together at most half of the descriptors that the process may have (ulimit -n): a merge reads many checkpoints, and directories,
 * connections and the rest of the program need some, too. */
#define TSR_SYS_KEPT_FILES 256
/* Whether one that keeps `own` files should close an idle one before it opens another. Thread-safe. */
bool tsr_sys_keeps_many(uint32_t own);
void tsr_sys_keep(int32_t change); /* counts files that were opened, or, below 0, closed; thread-safe */

/* The system's words for a value of errno. `text` may be used for them. Thread-safe. */
const char *tsr_sys_reason(int code, char *text, size_t size);
/* Raises TSR_E_IO (TSR_E_NOT_FOUND for ENOENT, TSR_E_EXISTS for EEXIST, TSR_E_CANCELLED for ECANCELED): "cannot <what> '<name>': <errno's text>". */
tsr_status tsr_sys_raise(tsr_error *err, const char *what, const char *name);

/* ---- the clock ---- */

/* The time in seconds, on a clock that never goes backwards, for progress and time limits. */

static inline double tsr_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- names below a directory ---- */

/* Checks names of files below a destination, which come from checkpoints and from keys of object stores. */

/* Whether a relative name leads to a file below its directory: it must consist of components of 1 to `longest` bytes,
 * separated by slashes, none of which is "." or "..", and must not contain NUL. */
bool tsr_is_name_below(tsr_str name, size_t longest);

/* ---- threads of a forked process ---- */

/* For a child of a fork, before it uses anything else here: closes the descriptors with locks that it has of its parent, which would
 * keep the locks if the parent dies. What the parent had begun to write must not be used in the child. */
void tsr_sys_forget_locks(void);

/* Threads do not survive a fork. What owns threads notes the process that they belong to, and starts over in a child:
 *
 *     tsr_process_enter(&pool->process, begin_in_child, pool); */

typedef struct tsr_process {
    atomic_int id;
} tsr_process;

/* Notes the process that calls this. */
void tsr_process_init(tsr_process *process);

/* In another process than the noted one, calls `begin` with `ctx` and notes that process; otherwise does nothing. Several threads may
 * call this at the same time: all return after `begin`. */
void tsr_process_enter(tsr_process *process, void (*begin)(void *ctx), void *ctx);

/* Opens external libraries when they are first needed, so that programs that do not need them start without them. This is a
 * header because both libtessera and libtessera-cuda need the functions, and neither exports them. */

typedef struct tsr_library_call {
    const char *name;
    void *slot; /* address of a function pointer of the type that the caller declares */
} tsr_library_call;

static inline tsr_status tsr_library_find(void *library, const char *name, const tsr_library_call *calls, size_t count,
                                          tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, calls[i].name);
        if (!found) return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "%s has no %s", name, calls[i].name);
        memcpy(calls[i].slot, &found, sizeof found); /* ISO C cannot cast this pointer to a function pointer */
    }
    return TSR_OK;
}

/* Opens the first of the libraries `names` (ended by NULL) that exists, and looks up every call in it. The caller closes it
 * with dlclose; its code stays in the process, because libraries like NCCL have threads that may still be about to end.
 * TSR_E_UNSUPPORTED if none exists, or if it lacks a call; *out is then NULL. */
static inline tsr_status tsr_library_open(const char *const *names, const tsr_library_call *calls, size_t count, void **out,
                                          tsr_error *err)
{
    void *library = NULL;
    *out = NULL;
    for (; *names && !library; names++) library = dlopen(*names, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *why = dlerror();
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "%s", why ? why : "a library cannot be opened");
    }
    const tsr_status status = tsr_library_find(library, names[-1], calls, count, err);
    if (status == TSR_OK) *out = library;
    else dlclose(library);
    return status;
}

/* A pool of threads for tsr_host.parallel_for. The caller works, too. A loop that is started while another is running
 * (nested, or from another thread) is executed by its caller alone, so nothing ever waits for the pool itself. */

typedef struct tsr_pool tsr_pool;

/* `threads` includes the caller: threads − 1 are started with the first loop. NULL if memory runs out. */
tsr_pool *tsr_pool_new(uint32_t threads);
void tsr_pool_free(tsr_pool *pool); /* accepts NULL; no loop may be running */
/* Whether the system gives this process another thread. */
bool tsr_threads_exist(void);

/* A tsr_parallel_for; `ctx` is the pool. */
void tsr_pool_run(void *ctx, size_t count, void (*body)(void *arg, size_t index), void *arg);

#endif
