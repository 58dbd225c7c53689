/* Reads any bytes as a tessera.target/1 document, and its texts as a target. Both must be accepted or rejected with a
 * reason. */
#include <stdlib.h>

#include "tessera/sys/commands.h"
#include "tessera/sys/document.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"

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
    tsr_target_texts texts;
    tsr_target target;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, (size_t)64 << 20, &err);
    if (!arena) return 0;
    tsr_status status = tsr_target_texts_read((tsr_str){(const char *)data, size}, &host, arena, &texts, &err);
    if (status == TSR_OK) status = tsr_target_from_texts(&texts, never, arena, &target, &err);
    if (status == TSR_OK && (target.mesh.dim_count == 0 || tsr_mesh_ranks(&target.mesh) == 0)) abort();
    if (status != TSR_OK && !err.message[0]) abort();
    tsr_arena_free(arena);
    return 0;
}
