/* Runs a job on a new arena, with each of its allocations failing once. The job must then end with TSR_E_NOMEM, or with the
 * same status as when nothing fails, and free every block. Include after cmocka.h. */
#ifndef TESTS_SUPPORT_ARENA_JOB_H
#define TESTS_SUPPORT_ARENA_JOB_H

#include "support/failing_allocator.h"
#include "tessera/host.h"
#include "tessera/sys/host_calls.h"

typedef tsr_status (*arena_job)(const void *ctx, const tsr_host *host, tsr_arena *arena, tsr_error *err);

static inline tsr_status run_arena_job(arena_job job, const void *ctx, const tsr_allocator *allocator, tsr_error *err)
{
    const tsr_host host = {.allocator = allocator, .limits = tsr_limits_default()};
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    const tsr_status status = arena ? job(ctx, &host, arena, err) : TSR_E_NOMEM;
    tsr_arena_free(arena);
    return status;
}

static inline void must_bear_failed_allocations(arena_job job, const void *ctx, tsr_status sound)
{
    bool failed = true;
    for (size_t n = 0; failed; n++) {
        failing_allocator failing;
        tsr_error err = {0};
        failing_start(&failing, n);
        const tsr_status status = run_arena_job(job, ctx, &failing.allocator, &err);
        failed = failing.failed;
        if (failing.live || status != (failed ? TSR_E_NOMEM : sound))
            fail_msg("allocation %zu fails: status %d, %zu blocks left: %s", n, (int)status, failing.live, err.message);
    }
}

#endif
