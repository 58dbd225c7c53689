/* Writes the files of an output. */
#include "publish/folder_output.h"

#include <errno.h>

/* After a write of at least this size, the disk is told to begin before the final sync. */
#define LARGE_WRITE ((size_t)1 << 20)
#define HOLE_BYTES  ((size_t)64 << 10)  /* aligned blocks of this size that are all zeros are not written */
#define MAX_COPY    ((uint64_t)1 << 30) /* bytes per copy_range call, so that a signal is handled soon */

/* Called after the write, because a sync that ran during it may have missed it. */
static void give_written(folder_output *output, uint32_t file)
{
    pthread_mutex_lock(&output->lock);
    tsr_output_file(output, file)->users--;
    tsr_output_file(output, file)->unsynced = true;
    pthread_mutex_unlock(&output->lock);
}

static bool is_zero(const uint8_t *data, size_t size)
{
    return data[0] == 0 && (size == 1 || memcmp(data, data + 1, size - 1) == 0);
}

static bool lies_within(folder_output *output, uint32_t file, uint64_t offset, size_t size)
{
    pthread_mutex_lock(&output->lock);
    const uint64_t known = tsr_output_file(output, file)->size;
    pthread_mutex_unlock(&output->lock);
    return offset <= known && size <= known - offset;
}

/* Writes everything except blocks of zeros. The file must be empty and already have its size. Blocks are aligned in the
 * file, not in `data`. */
static tsr_status write_around_holes(tsr_sys_file file, uint64_t offset, const uint8_t *data, size_t size, tsr_error *err)
{
    size_t from = 0; /* the start of the data that is not written yet */
    for (size_t at = 0, next; at < size; at = next) {
        const size_t left = HOLE_BYTES - (size_t)((offset + at) % HOLE_BYTES);
        next = size - at < left ? size : at + left;
        if (!is_zero(data + at, next - at)) continue;
        if (at > from) {
            tsr_status status = tsr_sys_write(file, offset + from, data + from, at - from, err);
            if (status != TSR_OK) return status;
        }
        from = next;
    }
    return size > from ? tsr_sys_write(file, offset + from, data + from, size - from, err) : TSR_OK;
}

static void add_sum(folder_output *output, uint32_t file, uint64_t sum)
{
    pthread_mutex_lock(&output->lock);
    output_file *f = tsr_output_file(output, file);
    f->sum = tsr_sum_add(f->sum, sum);
    pthread_mutex_unlock(&output->lock);
}

tsr_status tsr_output_write_at(tsr_output *base, uint32_t file, uint64_t offset, const void *data, size_t size,
                               tsr_error *err)
{
    folder_output *output = (folder_output *)base;
    int fd;
    const char *name;
    tsr_status status = tsr_output_take(output, file, &fd, &name, err);
    if (status != TSR_OK) return status;
    const tsr_sys_file to = {output->sys, fd, name};
    if (output->options.holes && size >= HOLE_BYTES && lies_within(output, file, offset, size)) {
        status = write_around_holes(to, offset, data, size, err);
    } else {
        status = tsr_sys_write(to, offset, data, size, err);
    }
    if (size >= LARGE_WRITE && !output->options.holes) output->sys->begin_sync(output->sys, fd, offset, size);
    give_written(output, file);
    if (status == TSR_OK && output->sums) add_sum(output, file, tsr_sum_bytes(output->sums, offset, data, size));
    return status;
}

/* An offset in an open file. */
typedef struct file_place {
    int fd;
    uint64_t offset;
} file_place;

static tsr_status copy(folder_output *output, file_place from, file_place to, uint64_t size, const char *name,
                       tsr_error *err)
{
    for (uint64_t done = 0; done < size;) {
        uint64_t left = size - done;
        ssize_t n = output->sys->copy_range(output->sys, from.fd, from.offset + done, to.fd, to.offset + done,
                                            (size_t)(left < MAX_COPY ? left : MAX_COPY));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
            return tsr_sys_raise(err, "copy into", name);
        if (n <= 0) { /* another file system, not supported, or the source's end: reading and writing will find out */
            output->cannot_copy = true;
            return TSR_E_UNSUPPORTED;
        }
        if ((size_t)n >= LARGE_WRITE) output->sys->begin_sync(output->sys, to.fd, to.offset + done, (uint64_t)n);
        done += (uint64_t)n;
    }
    return TSR_OK;
}

tsr_status tsr_output_copy_range(tsr_output *base, uint32_t file, uint64_t offset, const tsr_copied_range *source,
                                 tsr_error *err)
{
    folder_output *output = (folder_output *)base;
    int from, to;
    const char *name;
    if (output->cannot_copy) return TSR_E_UNSUPPORTED;
    tsr_status status = tsr_folder_store_take_fd(source->store, source->file, &from, err);
    if (status != TSR_OK) return status;
    status = tsr_output_take(output, file, &to, &name, err);
    if (status == TSR_OK) {
        status = copy(output, (file_place){from, source->offset}, (file_place){to, offset}, source->size, name, err);
        give_written(output, file);
    }
    tsr_folder_store_give_fd(source->store, source->file);
    return status;
}
