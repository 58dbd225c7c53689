/* Runs a job on a store, with each of its allocations failing once, and then each of its reads. The job must then end with
 * that failure, or with the same status as when nothing fails, and free every block. */
#ifndef TESTS_SUPPORT_FAULTS_H
#define TESTS_SUPPORT_FAULTS_H

#include "support/failing_allocator.h"
#include "tessera/store.h"

typedef tsr_status (*faulty_job)(void *ctx, tsr_store *store, const tsr_host *host, tsr_error *err);

#define FIRE "the disk is on fire"

/* Wraps a store so that its n-th read fails. The files cannot be mapped. */
typedef struct failing_store {
    tsr_store base;
    tsr_store *inner;
    size_t fail_at, reads;
    bool failed;
} failing_store;

static inline tsr_status failing_read(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size,
                                      tsr_error *err)
{
    failing_store *self = (failing_store *)store;
    if (self->reads++ != self->fail_at) return self->inner->read_at(self->inner, file, offset, buffer, size, err);
    self->failed = true;
    return tsr_raise(err, TSR_E_IO, offset, FIRE);
}

static inline failing_store failing_store_of(tsr_store *inner, size_t fail_at)
{
    return (failing_store){
        .base = {.file_count = inner->file_count, .files = inner->files, .primary = inner->primary, .read_at = failing_read},
        .inner = inner,
        .fail_at = fail_at};
}

/* Returns the status of the run in which nothing fails. */
static inline tsr_status must_bear_failures(faulty_job job, void *ctx, tsr_store *store, const tsr_host *host)
{
    bool failed = true;
    const tsr_status sound = job(ctx, store, host, NULL);
    for (size_t n = 0; failed; n++) {
        failing_allocator failing;
        tsr_host with = *host;
        tsr_error err = {0};
        failing_start(&failing, n);
        with.allocator = &failing.allocator;
        const tsr_status status = job(ctx, store, &with, &err);
        failed = failing.failed;
        if (failing.live || status != (failed ? TSR_E_NOMEM : sound) || err.status != status)
            fail_msg("allocation %zu fails: status %d, %zu blocks left: %s", n, (int)status, failing.live, err.message);
    }
    failed = true;
    for (size_t n = 0; failed; n++) {
        failing_allocator counting;
        failing_store burning = failing_store_of(store, n);
        tsr_host with = *host;
        tsr_error err = {0};
        failing_start(&counting, SIZE_MAX);
        with.allocator = &counting.allocator;
        const tsr_status status = job(ctx, &burning.base, &with, &err);
        failed = burning.failed;
        if (counting.live || status != (failed ? TSR_E_IO : sound) || (failed && !strstr(err.message, FIRE)))
            fail_msg("read %zu fails: status %d, %zu blocks left: %s", n, (int)status, counting.live, err.message);
    }
    return sound;
}

#endif
