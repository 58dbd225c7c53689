/* Reads any bytes as the header of a safetensors file, followed by as many data bytes as the first two bytes of the input
 * say. The file must be rejected with a position inside it, or open so that every tensor's span and shape agree. With
 * `salvage`, where the file may end too early, every tensor that is left must be inside it. The length word is set to fit the
 * header: otherwise almost no input would pass that check. */
#include <assert.h>
#include <stdlib.h>

#include "formats/safetensors/safetensors.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_opened(const tsr_safetensors *opened)
{
    for (uint64_t i = 0; i < opened->count; i++) {
        const tsr_safetensors_tensor *t = &opened->tensors[i];
        uint64_t elements = 1, bytes;
        for (uint32_t d = 0; d < t->ndim; d++) elements *= t->shape[d];
        assert(tsr_dtype_bytes(t->dtype, elements, &bytes) && t->end - t->begin == bytes);
        assert(tsr_safetensors_find(opened, t->name) == t);
    }
}

static void check_salvaged(tsr_store *store, const tsr_host *host)
{
    const tsr_open_options options = {.size = sizeof options, .salvage = true};
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    if (tsr_checkpoint_open(store, host, &options, &checkpoint, &err) != TSR_OK) return;
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        for (uint64_t c = 0; c < catalog->entries[i].chunk_count; c++) {
            const tsr_chunk *chunk = &catalog->entries[i].chunks[c];
            assert(chunk->file == 0 && chunk->byte_length <= store->files[0].size &&
                   chunk->byte_offset <= store->files[0].size - chunk->byte_length);
        }
    }
    tsr_checkpoint_close(checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    size_t extra = data[0] | (size_t)(data[1] & 3) << 8, length = size - 2, total = 8 + length + extra;
    char *bytes = calloc(1, total);
    for (unsigned i = 0; i < 8; i++) bytes[i] = (char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, data + 2, length);
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_memory_file file = {TSR_STR("fuzz"), {bytes, total}};
    tsr_store *store;
    tsr_safetensors opened;
    tsr_error err = {0};
    if (tsr_store_from_memory(&tsr_allocator_libc, &file, 1, &store, NULL) != TSR_OK) abort();
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_findings *findings = tsr_findings_new(&tsr_allocator_libc, 0, NULL);
    if (tsr_safetensors_open((tsr_range){store, 0, 0, total}, &host, arena, findings, &opened, &err) == TSR_OK)
        check_opened(&opened);
    else assert(err.byte_position <= total && err.message[0]);
    tsr_safetensors_close(&opened);
    check_salvaged(store, &host);
    tsr_findings_free(findings);
    tsr_arena_free(arena);
    store->close(store);
    free(bytes);
    return 0;
}
