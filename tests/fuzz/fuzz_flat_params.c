/* Reads any bytes as a flat-parameter document. They must be rejected with a message, or give ranks whose slices add up to
 * every unit. */
#include <assert.h>

#include "tessera/sys/flat_params.h"
#include "tessera/sys/host_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_error err = {0};
    tsr_flat_params flat;
    tsr_arena *arena = tsr_arena_new(host.allocator, 1u << 26, NULL);
    tsr_status status = tsr_flat_params_parse((tsr_str){(const char *)data, size}, &host, arena, &flat, &err);
    if (status != TSR_OK) assert(err.status == status && *err.message);
    for (uint32_t u = 0; status == TSR_OK && u < flat.unit_count; u++) {
        for (uint32_t world = 1; world < 6; world++) {
            uint64_t at = 0, begin, end;
            for (uint32_t rank = 0; rank < world; rank++, at = end) {
                tsr_flat_shard_range(&flat.units[u], world, rank, &begin, &end);
                assert(begin == at && end >= begin && end - begin <= tsr_flat_shard_numel(&flat.units[u], world));
            }
            assert(at == flat.units[u].numel);
        }
    }
    tsr_arena_free(arena);
    return 0;
}
