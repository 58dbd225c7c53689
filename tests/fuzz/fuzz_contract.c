/* Reads any bytes as a contract (a layout, a module tree, an index or a list of names). They must be accepted, or rejected
 * with a message; a contract cannot have more chunks than its text has bytes. */
#include "tessera/document_read.h"
#include "tessera/sys/host_calls.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_error err = {0};
    tsr_contract contract;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, (size_t)64 << 20, &err);
    if (!arena) return 0;
    if (tsr_contract_read((tsr_str){(const char *)data, size}, &host, arena, &contract, &err) == TSR_OK) {
        uint64_t chunks = 0;
        for (uint64_t i = 0; i < contract.expected.entry_count; i++) {
            const tsr_entry *entry = &contract.expected.entries[i];
            if (!entry->fqn.data) abort();
            for (uint64_t c = 0; c < entry->chunk_count; c++) {
                if (entry->ndim && (!entry->chunks[c].offsets || !entry->chunks[c].sizes)) abort();
                chunks++;
            }
        }
        if (chunks > size) abort(); /* each chunk takes bytes of the text */
    } else if (!err.message[0]) {
        abort();
    }
    tsr_arena_free(arena);
    return 0;
}
