#include "native/scratch.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char root[256];

const char *scratch_make(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/tessera-test-XXXXXX", base && *base ? base : "/tmp");
    char *made = mkdtemp(root);
    assert(made);
    return made;
}

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *where)
{
    (void)info, (void)flag, (void)where;
    return remove(path);
}

void scratch_remove(void)
{
    if (root[0]) nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    root[0] = '\0';
}

int scratch_setup(void **state)
{
    (void)state;
    scratch_make();
    return 0;
}

int scratch_teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

const char *scratch_path(const char *name)
{
    static char buffers[4][600];
    static unsigned next;
    char *path = buffers[next++ % 4];
    snprintf(path, sizeof buffers[0], *name ? "%s/%s" : "%s", root, name);
    return path;
}

void scratch_write(const char *name, const void *data, size_t size)
{
    char directory[300];
    const char *slash = strchr(name, '/');
    if (slash) {
        snprintf(directory, sizeof directory, "%.*s", (int)(slash - name), name);
        mkdir(scratch_path(directory), 0777);
    }
    FILE *file = fopen(scratch_path(name), "wb");
    assert(file);
    size_t written = fwrite(data, 1, size, file);
    assert(written == size);
    fclose(file);
}

long scratch_read(const char *name, void *buffer, size_t capacity)
{
    FILE *file = fopen(scratch_path(name), "rb");
    if (!file) return -1;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    if (buffer) {
        size_t n = fread(buffer, 1, capacity, file);
        assert((long)n == size);
    }
    fclose(file);
    return size;
}

const char *scratch_list(const char *directory)
{
    static char text[4096];
    struct dirent **items;
    text[0] = '\0';
    int count = scandir(scratch_path(directory), &items, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        if (strcmp(items[i]->d_name, ".") != 0 && strcmp(items[i]->d_name, "..") != 0) {
            size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%s%s", used ? " " : "", items[i]->d_name);
        }
        free(items[i]);
    }
    if (count >= 0) free(items);
    return text;
}

/* Whether this call must fail now. Sets errno in that case. */
static bool strikes(const tsr_sys *sys, bool writes)
{
    faulty_sys *faulty = (faulty_sys *)(uintptr_t)sys;
    if (faulty->writes_only && !writes) return false;
    unsigned long call = ++faulty->calls;
    if (!faulty->fail_at || (faulty->stays ? call < faulty->fail_at : call != faulty->fail_at)) return false;
    errno = faulty->error;
    return true;
}

static size_t shortened(const tsr_sys *sys, size_t size)
{
    size_t most = ((const faulty_sys *)sys)->short_transfers;
    return most && size > most ? most : size;
}

static int f_open_at(const tsr_sys *sys, int directory, const char *name, int flags, unsigned mode)
{
    return strikes(sys, mode != 0) ? -1 : tsr_sys_posix.open_at(sys, directory, name, flags, mode);
}
static int f_stat_at(const tsr_sys *sys, int directory, const char *name, struct stat *out)
{
    return strikes(sys, false) ? -1 : tsr_sys_posix.stat_at(sys, directory, name, out);
}
static int f_stat(const tsr_sys *sys, int fd, struct stat *out)
{
    return strikes(sys, false) ? -1 : tsr_sys_posix.stat(sys, fd, out);
}
static ssize_t f_read_at(const tsr_sys *sys, int fd, void *buffer, size_t size, uint64_t offset)
{
    return strikes(sys, false) ? -1 : tsr_sys_posix.read_at(sys, fd, buffer, shortened(sys, size), offset);
}
static ssize_t f_write_at(const tsr_sys *sys, int fd, const void *data, size_t size, uint64_t offset)
{
    return strikes(sys, true) ? -1 : tsr_sys_posix.write_at(sys, fd, data, shortened(sys, size), offset);
}
static ssize_t f_copy_range(const tsr_sys *sys, int from, uint64_t from_offset, int to, uint64_t to_offset, size_t size)
{
    if (strikes(sys, true)) return -1;
    return tsr_sys_posix.copy_range(sys, from, from_offset, to, to_offset, shortened(sys, size));
}
static int f_allocate(const tsr_sys *sys, int fd, uint64_t size)
{
    return strikes(sys, true) ? -1 : tsr_sys_posix.allocate(sys, fd, size);
}
static int f_truncate(const tsr_sys *sys, int fd, uint64_t size)
{
    return strikes(sys, true) ? -1 : tsr_sys_posix.truncate(sys, fd, size);
}
static int f_sync(const tsr_sys *sys, int fd)
{
    return strikes(sys, true) ? -1 : tsr_sys_posix.sync(sys, fd);
}
static int f_make_directory(const tsr_sys *sys, int directory, const char *name, unsigned mode)
{
    return strikes(sys, true) ? -1 : tsr_sys_posix.make_directory(sys, directory, name, mode);
}
static int f_rename(const tsr_sys *sys, int directory, const char *from, int to_directory, const char *to)
{
    return strikes(sys, true) ? -1 : tsr_sys_posix.rename(sys, directory, from, to_directory, to);
}
static int f_rename_new(const tsr_sys *sys, int directory, const char *from, int to_directory, const char *to)
{
    return strikes(sys, true) ? -1 : tsr_sys_posix.rename_new(sys, directory, from, to_directory, to);
}
static int f_exchange(const tsr_sys *sys, int directory, const char *a, const char *b)
{
    return strikes(sys, true) ? -1 : tsr_sys_posix.exchange(sys, directory, a, b);
}
static int f_link(const tsr_sys *sys, int directory, const char *name, int to_directory, const char *to)
{
    return strikes(sys, true) ? -1 : tsr_sys_posix.link(sys, directory, name, to_directory, to);
}
static int f_unlink(const tsr_sys *sys, int directory, const char *name, bool is_directory)
{
    return strikes(sys, true) ? -1 : tsr_sys_posix.unlink(sys, directory, name, is_directory);
}

faulty_sys faulty_sys_make(void)
{
    faulty_sys faulty = {.sys = tsr_sys_posix};
    faulty.sys.open_at = f_open_at;
    faulty.sys.stat_at = f_stat_at;
    faulty.sys.stat = f_stat;
    faulty.sys.read_at = f_read_at;
    faulty.sys.write_at = f_write_at;
    faulty.sys.copy_range = f_copy_range;
    faulty.sys.allocate = f_allocate;
    faulty.sys.truncate = f_truncate;
    faulty.sys.sync = f_sync;
    faulty.sys.make_directory = f_make_directory;
    faulty.sys.rename = f_rename;
    faulty.sys.rename_new = f_rename_new;
    faulty.sys.exchange = f_exchange;
    faulty.sys.link = f_link;
    faulty.sys.unlink = f_unlink;
    return faulty;
}
