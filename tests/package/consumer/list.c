/* Lists a checkpoint: FQN, dtype and CRC-32 of each tensor. */
#include <inttypes.h>
#include <stdio.h>

#include <tessera/native_host.h>
#include <tessera/sys/directory.h>
#include <tessera/sys/host_calls.h>
#include <tessera/tessera.h>

typedef struct sum {
    const tsr_host *host;
    uint32_t crc;
} sum;

static tsr_status add(void *ctx, const void *data, size_t size, uint64_t byte_at, tsr_error *err)
{
    (void)byte_at, (void)err;
    sum *s = ctx;
    s->crc = tsr_crc32(s->host, s->crc, data, size);
    return TSR_OK;
}

static tsr_status list(tsr_checkpoint *checkpoint, const tsr_host *host, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    tsr_ring *ring = NULL;
    tsr_status status = tsr_ring_new(host, 0, &ring, err);
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        sum crc = {host, 0};
        if (entry->kind != TSR_ENTRY_TENSOR) continue;
        status = tsr_stream_tensor(checkpoint, entry, ring, add, &crc, err);
        printf("%.*s %s %08" PRIx32 "\n", TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name, crc.crc);
    }
    tsr_ring_free(ring);
    return status;
}

int main(int argc, char **argv)
{
    tsr_native_host native;
    tsr_error err = {0};
    tsr_store *store = NULL;
    tsr_checkpoint *checkpoint = NULL;
    if (argc != 2) return 2;
    tsr_native_host_open(&native, 0);
    tsr_status status = tsr_directory_store_open(NULL, native.host.allocator, argv[1], &store, &err);
    if (status == TSR_OK) status = tsr_checkpoint_open(store, &native.host, NULL, &checkpoint, &err);
    if (status == TSR_OK) status = list(checkpoint, &native.host, &err);
    if (status != TSR_OK) fprintf(stderr, "%s\n", err.message);
    tsr_checkpoint_close(checkpoint);
    if (store) store->close(store);
    tsr_native_host_close(&native);
    return status == TSR_OK ? 0 : 1;
}
