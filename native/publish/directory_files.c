/* The descriptors of an output's files, the sums of their bytes, and what is at the destination. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>

#include "io/locked.h"
#include "io/sys.h"
#include "publish/directory_output.h"
#include "tessera/sys/try.h"

/* ---- output files ---- */

/* The descriptors of an output's files. Where many are open, one that nobody uses is closed before another one is opened. The search for it
 * begins behind the one that was closed last: files are mostly opened in their order, and those before it would be visited again for every
 * file of the output. */

void tsr_output_make_room(directory_output *output)
{
    assert(tsr_is_locked(&output->lock));
    if (!output->open_files || !tsr_sys_keeps_many(output->open_files)) return;
    for (uint32_t i = 0; i < output->files.count; i++) {
        const uint32_t number = (uint32_t)(((uint64_t)output->hand + i) % output->files.count);
        output_file *f = tsr_output_file(output, number);
        if (f->fd < 0 || f->users) continue;
        output->sys->close(output->sys, f->fd);
        f->fd = -1;
        tsr_output_keep(output, -1);
        output->hand = number + 1;
        return;
    }
}

void tsr_output_keep(directory_output *output, int32_t change)
{
    output->open_files += (uint32_t)change;
    tsr_sys_keep(change);
}

int tsr_output_open_file(directory_output *output, const char *name)
{
    return tsr_sys_open(output->sys, output->work, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
}

tsr_status tsr_output_take(directory_output *output, uint32_t file, int *fd, const char **name, tsr_error *err)
{
    tsr_status status = TSR_OK;
    pthread_mutex_lock(&output->lock);
    output_file *f = file < output->files.count ? tsr_output_file(output, file) : NULL;
    if (!f) {
        status = tsr_fail(err, TSR_E_USAGE, "there is no output file number %u", file);
    } else if (f->fd < 0) {
        tsr_output_make_room(output);
        f->fd = tsr_output_open_file(output, f->temporary);
        if (f->fd < 0) status = tsr_sys_raise(tsr_naming(err), "open", f->name);
        else tsr_output_keep(output, 1);
    }
    if (status == TSR_OK) {
        f->users++;
        *fd = f->fd;
        *name = f->name;
    }
    pthread_mutex_unlock(&output->lock);
    return status;
}

void tsr_output_give(directory_output *output, uint32_t file)
{
    pthread_mutex_lock(&output->lock);
    assert(tsr_output_file(output, file)->users);
    tsr_output_file(output, file)->users--;
    pthread_mutex_unlock(&output->lock);
}

/* ---- sums ---- */

/* Reads an unpublished output again to verify its sums. */

#define READ_BYTES ((size_t)256 << 10) /* small enough to be in the cache while they are summed up */

/* The bytes of an open file from `at` to `end`. */
typedef struct span {
    int fd;
    const char *name;
    uint64_t at, end;
} span;

static tsr_status sum_span(const directory_output *output, span s, uint8_t *buffer, uint64_t *sum, tsr_error *err)
{
    *sum = 0;
    for (; s.at < s.end; s.at += READ_BYTES) {
        const size_t some = s.end - s.at < READ_BYTES ? (size_t)(s.end - s.at) : READ_BYTES;
        TSR_TRY(tsr_sys_read((tsr_sys_file){output->sys, s.fd, s.name}, s.at, buffer, some, err));
        *sum = tsr_sum_add(*sum, tsr_sum_bytes(output->sums, s.at, buffer, some));
    }
    return TSR_OK;
}

static tsr_status sum_file(directory_output *output, uint32_t file, uint8_t *buffer, uint64_t *sum, const char **name,
                           tsr_error *err)
{
    struct stat info;
    int fd;
    TSR_TRY(tsr_output_take(output, file, &fd, name, err));
    tsr_status status =
        output->sys->stat(output->sys, fd, &info) == 0 ? TSR_OK : tsr_sys_raise(tsr_naming(err), "look at", *name);
    if (status == TSR_OK) status = sum_span(output, (span){fd, *name, 0, (uint64_t)info.st_size}, buffer, sum, err);
    tsr_output_give(output, file);
    return status;
}

tsr_status tsr_directory_output_sum(tsr_output *base, uint32_t file, tsr_file_range range, uint64_t *sum, tsr_error *err)
{
    directory_output *output = (directory_output *)base;
    span s = {.at = range.offset, .end = range.offset + range.size};
    uint8_t *buffer = tsr_alloc(output->allocator, READ_BYTES, 1, err);
    if (!buffer) return TSR_E_NOMEM;
    tsr_status status = tsr_output_take(output, file, &s.fd, &s.name, err);
    if (status == TSR_OK) {
        status = sum_span(output, s, buffer, sum, err);
        tsr_output_give(output, file);
    }
    tsr_free(output->allocator, buffer, READ_BYTES, 1);
    return status;
}

tsr_status tsr_directory_output_verify(tsr_output *base, const uint64_t *sums, uint32_t count, tsr_error *err)
{
    directory_output *output = (directory_output *)base;
    const char *name = "";
    tsr_status status = TSR_OK;
    uint8_t *buffer = tsr_alloc(output->allocator, READ_BYTES, 1, err);
    if (!buffer) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < count && status == TSR_OK; f++) {
        uint64_t sum;
        status = sum_file(output, f, buffer, &sum, &name, err);
        if (status == TSR_OK && sum != sums[f])
            status = tsr_fail(tsr_naming(err), TSR_E_CHANGED,
                              "'%s' was changed after it was written: its bytes do not have the digest that was recorded; "
                              "remove the unpublished output and its journals, and write it again",
                              name);
    }
    tsr_free(output->allocator, buffer, READ_BYTES, 1);
    return status;
}

/* ---- the destination ---- */

bool tsr_output_stat_old(const directory_output *output, const char *name, struct stat *info)
{
    const tsr_sys *sys = output->sys;
    const int directory = tsr_sys_open(sys, output->parent, output->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    const bool found = directory >= 0 && sys->link_stat_at(sys, directory, name, info) == 0;
    if (directory >= 0) sys->close(sys, directory);
    return found;
}

/* Everything is written through the descriptor of the parent directory, so the output would appear in a directory that the user has
 * moved elsewhere, and not at the path that was given. */
tsr_status tsr_output_refuse_moved(const directory_output *output, tsr_error *err)
{
    struct stat now, then;
    if (output->sys->stat(output->sys, output->parent, &then) != 0)
        return tsr_sys_raise(tsr_naming(err), "look at", output->parent_path);
    if (output->sys->stat_at(output->sys, AT_FDCWD, output->parent_path, &now) == 0 && tsr_is_one_file(&now, &then))
        return TSR_OK;
    return tsr_fail(
        tsr_naming(err), TSR_E_CHANGED,
        "another program has moved or replaced the directory '%s' during this run, so '%s' was not published; run it again",
        output->parent_path, output->name);
}
