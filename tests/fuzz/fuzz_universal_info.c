/* Joins three tensor-parallel ranks of DeepSpeed as any universal_checkpoint_info describes. The input is the pickle of its value
 * without PROTO and STOP. What opens must have chunks inside their tensors and values that can be read, or an error that
 * says why not. */
#include <stdio.h>

#include "../support/fuzzed_models.h"
#include "../support/zip_image.h"
#include "tessera/sys/host_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANKS = 3, MOST_BYTES = 1 << 16, STORAGE_BYTES = 4 * 16 * 16 };

static zip_image image;

/* Writes the opcodes of a tensor that is contiguous. */
static void put_tensor(const char *name, unsigned rows, unsigned columns)
{
    char text[512];
    const int size =
        snprintf(text, sizeof text,
                 "S'%s'\nctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI%u\nNt"
                 "QI0\n(I%u\nI%u\nt(I%u\nI1\ntI00\nccollections\nOrderedDict\n(tRtR",
                 name, STORAGE_BYTES / 4, rows, columns, columns);
    zip_put_bytes(&image, text, (size_t)size);
}

static void put_text(const char *text)
{
    zip_put_bytes(&image, text, strlen(text));
}

/* The model states of a rank, in torch.save's form of before 1.6. Sizes differ between ranks. */
static tsr_str make_rank(unsigned rank, const uint8_t *info, size_t size)
{
    static const char head[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.";
    static const uint8_t storage[STORAGE_BYTES];
    zip_start(&image, 0);
    zip_put_bytes(&image, head, sizeof head - 1);
    put_text("\x80\x02}(S'module'\n}(");
    put_tensor("embed.weight", 7, 6);
    put_tensor("a.weight", 5 - rank, 6);
    put_tensor("b.weight", 6, 2 * (rank + 1));
    put_tensor("qkv.weight", 7 - rank / 2, 6);
    put_tensor("head.weight", 3, 6);
    put_text("uS'buffer_names'\n(lS'optimizer'\nNS'param_shapes'\nNS'mp_world_size'\nI3\nS'dp_world_size'\nI1\n"
             "S'universal_checkpoint_info'\n");
    zip_put_bytes(&image, info, size);
    put_text("u.(lS'0'\na.");
    zip_put(&image, 8, STORAGE_BYTES / 4);
    zip_put_bytes(&image, storage, STORAGE_BYTES);
    char *copy = malloc(image.size);
    memcpy(copy, image.bytes, image.size);
    return (tsr_str){copy, image.size};
}

static void check_chunks(const tsr_catalog *catalog)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        for (uint64_t k = 0; k < entry->chunk_count; k++) {
            const tsr_chunk *chunk = &entry->chunks[k];
            for (uint32_t d = 0; d < entry->ndim; d++)
                if (chunk->sizes[d] > entry->shape[d] || chunk->offsets[d] > entry->shape[d] - chunk->sizes[d]) abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_memory_file files[RANKS] = {{.name = TSR_STR("mp_rank_00_model_states.pt")},
                                    {.name = TSR_STR("mp_rank_01_model_states.pt")},
                                    {.name = TSR_STR("mp_rank_02_model_states.pt")}};
    tsr_checkpoint *checkpoint = NULL;
    tsr_store *store;
    tsr_error err = {0};
    if (size > MOST_BYTES) return 0;
    host.limits.memory_bytes = 256u << 20;
    for (unsigned rank = 0; rank < RANKS; rank++) files[rank].content = make_rank(rank, data, size);
    if (tsr_store_from_memory(host.allocator, files, RANKS, &store, NULL) != TSR_OK) abort();
    if (tsr_checkpoint_open(store, &host, NULL, &checkpoint, &err) == TSR_OK) {
        check_chunks(tsr_checkpoint_catalog(checkpoint));
        fuzzed_read_all(checkpoint);
    } else if (!err.message[0]) {
        abort();
    }
    tsr_checkpoint_close(checkpoint);
    store->close(store);
    for (unsigned rank = 0; rank < RANKS; rank++) free((void *)(uintptr_t)files[rank].content.data);
    return 0;
}
