/* Reads any bytes as the `.metadata` of a directory with two small data files. They must be rejected, or give a catalog
 * whose entries, chunks and findings can be walked, located, and read in file order. */
#include <assert.h>

#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static tsr_status count(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    const tsr_store *store = ctx;
    (void)err;
    assert(extent->file < store->file_count && extent->byte_offset <= store->files[extent->file].size);
    assert(extent->byte_length <= store->files[extent->file].size - extent->byte_offset);
    return TSR_OK;
}

static void walk_entry(tsr_checkpoint *checkpoint, const tsr_entry *entry)
{
    const tsr_store *store = tsr_checkpoint_store(checkpoint);
    assert(tsr_checkpoint_entry(checkpoint, entry->fqn) == entry);
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        uint64_t sum = 0;
        for (uint32_t d = 0; entry->kind == TSR_ENTRY_TENSOR && d < entry->ndim; d++)
            sum += chunk->offsets[d] + chunk->sizes[d] + entry->shape[d];
        assert(chunk->file == TSR_NO_FILE || chunk->byte_offset + chunk->byte_length <= store->files[chunk->file].size);
        if (entry->kind != TSR_ENTRY_TENSOR) continue;
        tsr_view view;
        tsr_arena *scratch = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
        tsr_error err = {0};
        if (tsr_checkpoint_locate(checkpoint, entry, chunk, scratch, &view, &err) != TSR_OK) assert(err.message[0] || sum);
        tsr_arena_free(scratch);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char image[] = "\x48\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}      "
                                "         0123456789abcdef";
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    host.limits.memory_bytes = 256 * (uint64_t)size + (1 << 20);
    tsr_memory_file files[] = {{TSR_STR(".metadata"), {(const char *)data, size}},
                               {TSR_STR("__0_0.distcp"), {image, sizeof image - 1}},
                               {TSR_STR("__1_0.distcp"), TSR_STR("PK\3\4 no archive")}};
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    if (tsr_store_from_memory(&tsr_allocator_libc, files, 3, &store, NULL) != TSR_OK) return 0;
    if (tsr_checkpoint_open(store, &host, NULL, &checkpoint, &err) == TSR_OK) {
        const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
        for (uint64_t i = 0; i < catalog->entry_count; i++) walk_entry(checkpoint, &catalog->entries[i]);
        assert(tsr_checkpoint_extents(checkpoint, count, store, &err) == TSR_OK);
        tsr_checkpoint_close(checkpoint);
    } else {
        assert(err.message[0]);
    }
    store->close(store);
    return 0;
}
