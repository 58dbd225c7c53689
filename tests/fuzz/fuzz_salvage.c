/* Reads any bytes as a data file without its metadata. What is found must be inside the file. Metadata is then written for
 * it. */
#include <stdlib.h>

#include "tessera/sys/host_calls.h"
#include "tessera/sys/salvage.h"
#include "tessera/sys/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const tsr_salvage *found, size_t size)
{
    uint64_t items = 0;
    for (uint64_t e = 0; e < found->entry_count; e++) {
        const tsr_dcp_new_entry *entry = &found->entries[e];
        for (uint64_t i = 0; i < entry->item_count; i++, items++) {
            if (entry->items[i].byte_length > size || entry->items[i].byte_offset > size - entry->items[i].byte_length)
                abort();
        }
    }
    if (items != found->items) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_memory_file file = {TSR_STR("__0_0.distcp"), {(const char *)data, size}};
    tsr_error err = {0};
    tsr_store *store;
    tsr_salvage found;
    host.limits.memory_bytes = 256u << 20;
    tsr_arena *arena = tsr_arena_new(host.allocator, (size_t)host.limits.memory_bytes, &err);
    tsr_findings *findings = tsr_findings_new(host.allocator, 0, &err);
    if (arena && findings && tsr_store_from_memory(host.allocator, &file, 1, &store, &err) == TSR_OK) {
        const tsr_status status =
            tsr_salvage_dcp(store, &host, &(tsr_salvage_options){.findings = findings}, arena, &found, &err);
        tsr_vec text = tsr_vec_of(host.allocator, 1);
        if (status == TSR_OK) {
            check(&found, size);
            const tsr_str id = tsr_dcp_save_id(found.entries, found.entry_count, 0, arena, &err);
            const tsr_dcp_new_metadata metadata = {found.entries, found.entry_count, id, 0, false};
            if (id.data) tsr_dcp_metadata_write(&metadata, &host, &text, &err);
        } else if (!err.message[0]) {
            abort();
        }
        tsr_vec_free(&text);
        store->close(store);
    }
    tsr_findings_free(findings);
    tsr_arena_free(arena);
    return 0;
}
