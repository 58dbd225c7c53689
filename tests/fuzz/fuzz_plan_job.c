/* Reads any bytes as a tessera.plan/1 document. They must give a job that equals itself. The document, or the job's target,
 * may be rejected with a reason. */
#include <stdlib.h>

#include "tessera/sys/commands.h"
#include "tessera/sys/document.h"
#include "tessera/sys/host_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool never(tsr_str glob, tsr_str name)
{
    (void)glob, (void)name;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_error err = {0};
    tsr_plan_job job;
    tsr_target target;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, (size_t)64 << 20, &err);
    if (!arena) return 0;
    tsr_status status = tsr_plan_job_read((tsr_str){(const char *)data, size}, &host, arena, &job, &err);
    if (status == TSR_OK && tsr_plan_source_check(&job.source, &job.source, NULL) != TSR_OK) abort();
    if (status == TSR_OK) status = tsr_target_from_texts(&job.target, never, arena, &target, &err);
    if (status != TSR_OK && !err.message[0]) abort();
    tsr_arena_free(arena);
    return 0;
}
