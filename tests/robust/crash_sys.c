/* Counts the calls that change the file system, and ends the process at one of them.
 *
 * For a power loss, every change is recorded together with what undoes it, until it is synced. As POSIX promises, and no
 * more, fsync of a file makes its bytes and its size durable, and fsync of a directory makes the names in it durable. */
#include "robust/crash_sys.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/sys.h"

#define MOST 20000
#define real tsr_sys_real
extern const tsr_sys tsr_sys_real; /* io/sys.c, compiled with this name for its table */

typedef enum change_kind { BYTES, SIZE, CREATED, DIRECTORY_MADE, RENAMED, EXCHANGED, REMOVED } change_kind;

typedef struct change {
    change_kind kind;
    bool synced;
    ino_t made;  /* for DIRECTORY_MADE and REMOVED: inode of the directory itself */
    ino_t owner; /* inode of the file for BYTES and SIZE, else of the directory */
    int fd;      /* a duplicate of the file's or the directory's descriptor */
    uint64_t offset, size;
    uint64_t file_size; /* size of the file before the change */
    char *bytes;        /* the bytes before the change */
    char name[256], to[256];
    int stashed; /* number under which the replaced or removed file is kept in the stash, or -1 */
    bool is_directory;
} change;

static struct {
    crash_kind kind;
    unsigned long at, calls;
    bool after;
    unsigned seed, order;
    int stash, stashed;
    change *changes;
    size_t count;
} state;

void crash_arm(crash_kind kind, unsigned long at, bool after, unsigned seed, const char *stash)
{
    state.kind = kind;
    state.at = at;
    state.after = after;
    state.seed = seed;
    state.order = seed * 2654435761u >> 8;
    state.stash = open(stash, O_RDONLY | O_DIRECTORY);
    state.changes = calloc(MOST, sizeof *state.changes);
    assert(state.changes);
}

unsigned long crash_calls(void)
{
    return state.calls;
}

static unsigned draw(unsigned below)
{
    state.seed = state.seed * 1664525u + 1013904223u;
    return (state.seed >> 8) % below;
}

/* ---- undoing ---- */

static void unstash(int number, int directory, const char *name)
{
    char stashed[32];
    snprintf(stashed, sizeof stashed, "%d", number);
    assert(renameat(state.stash, stashed, directory, name) == 0); /* the file has one name again */
}

/* Makes a removed directory again. Changes in the removed directory are then undone in the new one. */
static void bring_back_directory(const change *removed)
{
    assert(mkdirat(removed->fd, removed->name, 0777) == 0);
    const int fd = openat(removed->fd, removed->name, O_RDONLY | O_DIRECTORY);
    assert(fd >= 0);
    for (size_t i = 0; i < state.count; i++) {
        change *c = &state.changes[i];
        if (c->kind >= CREATED && c->owner == removed->made) c->fd = fd;
    }
}

static void undo(const change *c)
{
    switch (c->kind) {
    case BYTES:
        if (c->bytes) assert(pwrite(c->fd, c->bytes, c->size, (off_t)c->offset) == (ssize_t)c->size);
        if (c->file_size < c->offset + c->size) assert(ftruncate(c->fd, (off_t)c->file_size) == 0);
        break;
    case SIZE: assert(ftruncate(c->fd, (off_t)c->file_size) == 0); break;
    case CREATED: assert(unlinkat(c->fd, c->name, 0) == 0); break;
    case DIRECTORY_MADE: assert(unlinkat(c->fd, c->name, AT_REMOVEDIR) == 0); break;
    case RENAMED:
        assert(renameat(c->fd, c->to, c->fd, c->name) == 0);
        if (c->stashed >= 0) unstash(c->stashed, c->fd, c->to);
        break;
    case EXCHANGED: assert(real.exchange(&real, c->fd, c->name, c->to) == 0); break;
    case REMOVED:
        if (c->is_directory) bring_back_directory(c);
        else unstash(c->stashed, c->fd, c->name);
        break;
    }
}

/* Whether a change survives the power loss. Changes of names in one directory reach the disk in their order: of those that
 * are not synced, the first few survive. */
static bool stays(size_t index)
{
    const change *c = &state.changes[index];
    if (c->synced) return true;
    if (state.kind == CRASH_POWER_ALL) return false;
    if (c->kind == BYTES) return draw(2);
    if (c->kind == SIZE) return true;
    size_t before = 0, all = 0;
    for (size_t i = 0; i < state.count; i++) {
        const change *o = &state.changes[i];
        if (o->kind < CREATED || o->synced || o->owner != c->owner) continue;
        before += i < index;
        all++;
    }
    return before < state.order % (all + 1);
}

static void lose_power(void)
{
    bool *gone = calloc(state.count + 1, sizeof *gone);
    for (size_t i = 0; i < state.count; i++) gone[i] = !stays(i);
    /* In a directory that stays removed, nothing can come back. */
    for (size_t i = 0; i < state.count; i++) {
        const change *directory = &state.changes[i];
        if (directory->kind != REMOVED || !directory->is_directory || gone[i]) continue;
        for (size_t k = 0; k < i; k++) {
            if (state.changes[k].kind >= CREATED && state.changes[k].owner == directory->made) gone[k] = false;
        }
    }
    /* A directory can only be unmade when it is empty, so the changes inside it are undone first. */
    for (size_t i = state.count; i-- > 0;) {
        if (!gone[i] || state.changes[i].kind != DIRECTORY_MADE) continue;
        for (size_t k = i + 1; k < state.count; k++) {
            const change *c = &state.changes[k];
            if (c->kind >= CREATED && c->owner == state.changes[i].made) gone[k] = true;
        }
    }
    for (size_t i = state.count; i-- > 0;) {
        if (gone[i]) undo(&state.changes[i]);
    }
}

static void end(void)
{
    if (state.kind >= CRASH_POWER_ALL) lose_power();
    kill(getpid(), SIGKILL);
    pause();
}

static void before_call(void)
{
    state.calls++;
    if (state.kind && !state.after && state.calls == state.at) end();
}

static void after_call(void)
{
    if (state.kind && state.after && state.calls == state.at) end();
}

/* ---- recording changes ---- */

static change *note(change_kind kind, int fd)
{
    struct stat info;
    assert(state.count < MOST && fstat(fd, &info) == 0);
    change *c = &state.changes[state.count++];
    *c = (change){.kind = kind, .owner = info.st_ino, .fd = dup(fd), .file_size = (uint64_t)info.st_size, .stashed = -1};
    assert(c->fd >= 0);
    return c;
}

static bool noting(void)
{
    return state.kind >= CRASH_POWER_ALL;
}

/* Gives a file that is about to be replaced or removed a second name, in the stash. Returns the file's number there, or
 * -1. */
static int put_aside(int directory, const char *name)
{
    char stashed[32];
    snprintf(stashed, sizeof stashed, "%d", state.stashed);
    return linkat(directory, name, state.stash, stashed, 0) == 0 ? state.stashed++ : -1;
}

static void note_synced(int fd)
{
    struct stat info;
    assert(fstat(fd, &info) == 0);
    for (size_t i = 0; i < state.count; i++) {
        change *c = &state.changes[i];
        if (c->owner != info.st_ino || (S_ISDIR(info.st_mode) ? c->kind < CREATED : c->kind >= CREATED)) continue;
        if (!c->synced && c->kind < CREATED) close(c->fd);
        c->synced = true;
    }
}

/* ---- the calls ---- */

static int c_open_at(const tsr_sys *sys, int directory, const char *name, int flags, unsigned mode)
{
    struct stat info;
    if (!(flags & O_CREAT)) return real.open_at(sys, directory, name, flags, mode);
    before_call();
    const bool fresh = fstatat(directory, name, &info, 0) != 0;
    const int fd = real.open_at(sys, directory, name, flags, mode);
    if (fd >= 0 && fresh && noting()) strcpy(note(CREATED, directory)->name, name);
    after_call();
    return fd;
}

static ssize_t c_write_at(const tsr_sys *sys, int fd, const void *data, size_t size, uint64_t offset)
{
    before_call();
    if (noting()) {
        change *c = note(BYTES, fd);
        c->offset = offset;
        c->size = size;
        c->bytes = malloc(size ? size : 1);
        /* The file was shorter: undoing the change of its size is enough. */
        if (pread(fd, c->bytes, size, (off_t)offset) != (ssize_t)size) {
            free(c->bytes);
            c->bytes = NULL;
        }
    }
    const ssize_t done = real.write_at(sys, fd, data, size, offset);
    after_call();
    return done;
}

static int c_allocate(const tsr_sys *sys, int fd, uint64_t size)
{
    before_call();
    if (noting()) note(SIZE, fd);
    const int done = real.allocate(sys, fd, size);
    after_call();
    return done;
}

static int c_truncate(const tsr_sys *sys, int fd, uint64_t size)
{
    before_call();
    if (noting()) note(SIZE, fd); /* bytes that are cut off are not restored: nothing reads them again */
    const int done = real.truncate(sys, fd, size);
    after_call();
    return done;
}

static int c_sync(const tsr_sys *sys, int fd)
{
    (void)sys; /* the machine keeps running: it is enough to record the sync */
    before_call();
    if (noting()) note_synced(fd);
    after_call();
    return 0;
}

static int c_make_directory(const tsr_sys *sys, int directory, const char *name, unsigned mode)
{
    before_call();
    const int done = real.make_directory(sys, directory, name, mode);
    if (done == 0 && noting()) {
        struct stat info;
        change *c = note(DIRECTORY_MADE, directory);
        strcpy(c->name, name);
        assert(fstatat(directory, name, &info, 0) == 0);
        c->made = info.st_ino;
    }
    after_call();
    return done;
}

static int renamed(const tsr_sys *sys, int directory, const char *from, int to_directory, const char *to, bool replace)
{
    before_call();
    const int aside = noting() && replace ? put_aside(to_directory, to) : -1;
    const int done = (replace ? real.rename : real.rename_new)(sys, directory, from, to_directory, to);
    if (done == 0 && noting()) {
        change *c = note(RENAMED, directory);
        strcpy(c->name, from);
        strcpy(c->to, to);
        c->stashed = aside;
    }
    after_call();
    return done;
}

static int c_rename(const tsr_sys *sys, int directory, const char *from, int to_directory, const char *to)
{
    return renamed(sys, directory, from, to_directory, to, true);
}

static int c_rename_new(const tsr_sys *sys, int directory, const char *from, int to_directory, const char *to)
{
    return renamed(sys, directory, from, to_directory, to, false);
}

static int c_exchange(const tsr_sys *sys, int directory, const char *a, const char *b)
{
    before_call();
    const int done = real.exchange(sys, directory, a, b);
    if (done == 0 && noting()) {
        change *c = note(EXCHANGED, directory);
        strcpy(c->name, a);
        strcpy(c->to, b);
    }
    after_call();
    return done;
}

static int c_link(const tsr_sys *sys, int directory, const char *name, int to_directory, const char *to)
{
    before_call();
    const int done = real.link(sys, directory, name, to_directory, to);
    if (done == 0 && noting()) strcpy(note(CREATED, to_directory)->name, to);
    after_call();
    return done;
}

static int c_unlink(const tsr_sys *sys, int directory, const char *name, bool is_directory)
{
    before_call();
    struct stat info = {0};
    const int aside = noting() && !is_directory ? put_aside(directory, name) : -1;
    if (is_directory && fstatat(directory, name, &info, 0) != 0) info.st_ino = 0;
    const int done = real.unlink(sys, directory, name, is_directory);
    if (done == 0 && noting()) {
        change *c = note(REMOVED, directory);
        strcpy(c->name, name);
        c->stashed = aside;
        c->is_directory = is_directory;
        c->made = info.st_ino;
    }
    after_call();
    return done;
}

/* These calls change nothing, and are passed on. */
static int c_close(const tsr_sys *sys, int fd)
{
    return real.close(sys, fd);
}
static int c_stat_at(const tsr_sys *sys, int directory, const char *name, struct stat *out)
{
    return real.stat_at(sys, directory, name, out);
}
static int c_link_stat_at(const tsr_sys *sys, int directory, const char *name, struct stat *out)
{
    return real.link_stat_at(sys, directory, name, out);
}
static int c_stat(const tsr_sys *sys, int fd, struct stat *out)
{
    return real.stat(sys, fd, out);
}
static ssize_t c_read_at(const tsr_sys *sys, int fd, void *buffer, size_t size, uint64_t offset)
{
    return real.read_at(sys, fd, buffer, size, offset);
}
static uint64_t c_next_data(const tsr_sys *sys, int fd, uint64_t offset)
{
    return real.next_data(sys, fd, offset);
}
static ssize_t c_copy_range(const tsr_sys *sys, int from, uint64_t a, int to, uint64_t b, size_t n)
{
    (void)sys, (void)from, (void)a, (void)to, (void)b, (void)n;
    errno = ENOSYS;
    return -1;
}
static void c_begin_sync(const tsr_sys *sys, int fd, uint64_t offset, uint64_t size)
{
    (void)sys, (void)fd, (void)offset, (void)size;
}
static int c_lock(const tsr_sys *sys, int fd)
{
    return real.lock(sys, fd);
}

const tsr_sys tsr_sys_posix = {
    .open_at = c_open_at,
    .close = c_close,
    .stat_at = c_stat_at,
    .link_stat_at = c_link_stat_at,
    .stat = c_stat,
    .read_at = c_read_at,
    .next_data = c_next_data,
    .write_at = c_write_at,
    .copy_range = c_copy_range,
    .allocate = c_allocate,
    .truncate = c_truncate,
    .begin_sync = c_begin_sync,
    .sync = c_sync,
    .make_directory = c_make_directory,
    .rename = c_rename,
    .exchange = c_exchange,
    .link = c_link,
    .rename_new = c_rename_new,
    .unlink = c_unlink,
    .lock = c_lock,
};
