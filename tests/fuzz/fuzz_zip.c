/* Reads any bytes as a zip archive, and as one that has lost its end. The members of an accepted archive must be inside the archive, must not overlap, and
 * must have distinct names. */
#include <stdlib.h>

#include "../support/zip_opening.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const tsr_zip *zip)
{
    for (uint32_t i = 0; i < zip->count; i++) {
        const tsr_zip_member *m = &zip->members[i];
        size_t skip = zip->top.size ? zip->top.size + 1 : 0;
        tsr_str name = {m->name.data + skip, m->name.size - skip};
        if (m->byte_offset < m->header_offset || m->size > zip->size || m->byte_offset > zip->size - m->size) abort();
        if (tsr_zip_find(zip, name) != m) abort();
        for (uint32_t k = 0; k < i && zip->count < 64; k++) {
            const tsr_zip_member *other = &zip->members[k];
            if (m->header_offset < other->byte_offset + other->size && other->header_offset < m->byte_offset + m->size)
                abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_memory_file file = {TSR_STR("x.pt"), {(const char *)data, size}};
    tsr_store *store;
    tsr_error err = {0};
    if (tsr_store_from_memory(host.allocator, &file, 1, &store, NULL) != TSR_OK) return 0;
    tsr_arena *arena = tsr_arena_new(host.allocator, 0, NULL);
    tsr_zip zip;
    if (arena && zip_opened((tsr_range){store, 0, 0, size}, &host, arena, &zip, &err) == TSR_OK) check(&zip);
    tsr_zip_window window = tsr_zip_window_of((tsr_range){store, 0, 0, size}, host.allocator);
    if (arena && tsr_zip_salvage(&window, &host, arena, &zip, &err) == TSR_OK) check(&zip);
    tsr_zip_window_free(&window);
    tsr_arena_free(arena);
    store->close(store);
    return 0;
}
