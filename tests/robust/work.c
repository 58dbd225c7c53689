/* See work.h. The linker sends the core's calls of memcpy, memmove, memset, memcmp, memchr and qsort through __wrap_… */
#include "robust/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/sys/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"
#include "tessera/validate.h"

static uint64_t blocks, bytes_moved;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    blocks++;
}

void *__real_memcpy(void *to, const void *from, size_t size);
void *__wrap_memcpy(void *to, const void *from, size_t size);
void *__wrap_memcpy(void *to, const void *from, size_t size)
{
    bytes_moved += size;
    return __real_memcpy(to, from, size);
}

void *__real_memmove(void *to, const void *from, size_t size);
void *__wrap_memmove(void *to, const void *from, size_t size);
void *__wrap_memmove(void *to, const void *from, size_t size)
{
    bytes_moved += size;
    return __real_memmove(to, from, size);
}

void *__real_memset(void *to, int value, size_t size);
void *__wrap_memset(void *to, int value, size_t size);
void *__wrap_memset(void *to, int value, size_t size)
{
    bytes_moved += size;
    return __real_memset(to, value, size);
}

/* Counts only the bytes up to the first difference, as memcmp looks no further. */
int __wrap_memcmp(const void *a, const void *b, size_t size);
int __wrap_memcmp(const void *a, const void *b, size_t size)
{
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < size; i++) {
        bytes_moved++;
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    }
    return 0;
}

void *__wrap_memchr(const void *data, int value, size_t size);
void *__wrap_memchr(const void *data, int value, size_t size)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < size; i++) {
        bytes_moved++;
        if (p[i] == (unsigned char)value) return (void *)(uintptr_t)(p + i);
    }
    return NULL;
}

typedef struct counting {
    tsr_allocator allocator;
    uint64_t asked, live, peak;
} counting;

static void *counting_resize(void *ctx, void *pointer, size_t old_size, size_t new_size)
{
    counting *self = ctx;
    self->live += new_size - (pointer ? old_size : 0);
    if (self->live > self->peak) self->peak = self->live;
    if (new_size > old_size) self->asked += new_size - old_size;
    if (new_size == 0) {
        free(pointer);
        return NULL;
    }
    if (pointer && new_size > old_size) bytes_moved += old_size; /* realloc may copy the block */
    return realloc(pointer, new_size);
}

typedef struct counting_store {
    tsr_store base; /* must be first */
    tsr_store *inner;
    uint64_t reads, bytes;
} counting_store;

static tsr_status counting_read(tsr_store *base, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    counting_store *self = (counting_store *)base;
    self->reads++;
    self->bytes += size;
    return self->inner->read_at(self->inner, file, offset, buffer, size, err);
}

static tsr_status each_extent(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    (void)extent, (void)err;
    ++*(uint64_t *)ctx;
    return TSR_OK;
}

static void open_all(tsr_store *store, const tsr_host *host, work *out)
{
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    uint64_t extents = 0;
    out->status = tsr_checkpoint_open(store, host, NULL, &checkpoint, &err);
    if (out->status == TSR_OK) {
        tsr_findings *findings = tsr_checkpoint_findings(checkpoint);
        out->status = tsr_validate_catalog(tsr_checkpoint_catalog(checkpoint), host, findings, &err);
        if (out->status == TSR_OK) out->status = tsr_checkpoint_extents(checkpoint, each_extent, &extents, &err);
        out->errors = tsr_findings_total(findings, TSR_ERROR);
        tsr_checkpoint_close(checkpoint);
    }
    snprintf(out->message, sizeof out->message, "%.190s", err.message);
}

work work_of_open(const tsr_memory_file *files, uint32_t count)
{
    work out = {0};
    counting counted = {{counting_resize, NULL}, 0, 0, 0};
    counted.allocator.ctx = &counted;
    tsr_host host = {.allocator = &counted.allocator, .limits = tsr_limits_default()};
    tsr_store *inner;
    if (tsr_store_from_memory(&tsr_allocator_libc, files, count, &inner, NULL) != TSR_OK) abort();
    counting_store store = {*inner, inner, 0, 0};
    store.base.read_at = counting_read;
    store.base.map = NULL;
    const uint64_t blocks_before = blocks, moved_before = bytes_moved;
    open_all(&store.base, &host, &out);
    out.steps = blocks - blocks_before + (bytes_moved - moved_before) / 16;
    out.byte_asked = counted.asked;
    out.byte_peak = counted.peak;
    out.reads = store.reads;
    out.byte_read = store.bytes;
    if (counted.live != 0) abort();
    inner->close(inner);
    return out;
}
