/* Reads an unpublished output again to verify its sums. */
#include <unistd.h>

#include "publish/folder_output.h"
#include "tessera/sys/try.h"

#include "tessera/sys/alloc.h"

#define READ_BYTES ((size_t)1 << 20)

/* The bytes of an open file from `at` to `end`. */
typedef struct span {
    int fd;
    const char *name;
    uint64_t at, end;
} span;

static tsr_status sum_span(const folder_output *output, span s, uint8_t *buffer, uint64_t *sum, tsr_error *err)
{
    *sum = 0;
    for (; s.at < s.end; s.at += READ_BYTES) {
        const size_t some = s.end - s.at < READ_BYTES ? (size_t)(s.end - s.at) : READ_BYTES;
        TSR_TRY(tsr_sys_read((tsr_sys_file){output->sys, s.fd, s.name}, s.at, buffer, some, err));
        *sum = tsr_sum_add(*sum, tsr_sum_bytes(output->sums, s.at, buffer, some));
    }
    return TSR_OK;
}

static tsr_status sum_file(folder_output *output, uint32_t file, uint8_t *buffer, uint64_t *sum, const char **name,
                           tsr_error *err)
{
    struct stat info;
    int fd;
    TSR_TRY(tsr_output_take(output, file, &fd, name, err));
    tsr_status status = output->sys->stat(output->sys, fd, &info) == 0 ? TSR_OK : tsr_sys_raise(err, "look at", *name);
    if (status == TSR_OK) status = sum_span(output, (span){fd, *name, 0, (uint64_t)info.st_size}, buffer, sum, err);
    tsr_output_give(output, file);
    return status;
}

tsr_status tsr_folder_output_sum(tsr_output *base, uint32_t file, tsr_file_range range, uint64_t *sum, tsr_error *err)
{
    folder_output *output = (folder_output *)base;
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
