/* Reading an unpublished output again. */
#include <unistd.h>

#include "publish/folder_output.h"
#include "io/try.h"

#include "tessera/sys/alloc.h"

#define READ_BYTES ((size_t)1 << 20)

static tsr_status sum_file(folder_output *output, uint32_t file, uint8_t *buffer, uint64_t *sum, const char **name, tsr_error *err)
{
    struct stat info;
    int fd;
    TSR_TRY(tsr_output_take(output, file, &fd, name, err));
    tsr_status status = output->sys->stat(output->sys, fd, &info) == 0 ? TSR_OK : tsr_sys_raise(err, "look at", *name);
    const uint64_t size = status == TSR_OK ? (uint64_t)info.st_size : 0;
    *sum = 0;
    for (uint64_t at = 0; at < size && status == TSR_OK; at += READ_BYTES) {
        const size_t some = size - at < READ_BYTES ? (size_t)(size - at) : READ_BYTES;
        status = tsr_sys_read((tsr_sys_file){output->sys, fd, *name}, at, buffer, some, err);
        if (status == TSR_OK) *sum = tsr_sum_add(*sum, tsr_sum_bytes(output->sums, at, buffer, some));
    }
    tsr_output_give(output, file);
    return status;
}

tsr_status tsr_folder_output_verify(tsr_output *base, const uint64_t *sums, uint32_t count, tsr_error *err)
{
    folder_output *output = (folder_output *)base;
    const char *name = "";
    tsr_status status = TSR_OK;
    uint8_t *buffer = tsr_alloc(output->allocator, READ_BYTES, 1, err);
    if (!buffer) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < count && status == TSR_OK; f++) {
        uint64_t sum;
        status = sum_file(output, f, buffer, &sum, &name, err);
        if (status == TSR_OK && sum != sums[f])
            status = tsr_raise(err, TSR_E_CHANGED, TSR_NO_POSITION,
                               "'%s' was changed after it was written: its bytes do not have the digest that was recorded; "
                               "remove the unpublished output and its journals, and write it again",
                               name);
    }
    tsr_free(output->allocator, buffer, READ_BYTES, 1);
    return status;
}
