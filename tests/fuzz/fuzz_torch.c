/* Reads torch.save files. The first byte decides whether the rest is a whole file, the pickle of a zip archive, or the
 * pickle of the legacy form. A sound file is built around a pickle, so that the input reaches the code that reads the
 * pickle. What opens must have tensors whose chunks are inside the file and inside their shape, unique names, and the same
 * values when it is opened again. Values that JSON can hold are written as JSON. All of this also holds for what is whole of a
 * file that has lost its end. */
#include <stdlib.h>

#include "../support/zip_image.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STORAGE_BYTES = 256 };

static zip_image image;
static uint8_t storage[STORAGE_BYTES];

static void put_zip(const uint8_t *pickle, size_t size)
{
    static const char *const keys[] = {"a/data/0", "a/data/1", "a/data/2", "a/data/3",
                                       "a/data/4", "a/data/5", "a/data/6", "a/data/7"};
    zip_start(&image, 0);
    zip_add(&image, "a/data.pkl", pickle, size, ZIP_DESCRIPTOR);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        zip_add(&image, keys[i], storage, STORAGE_BYTES, ZIP_DESCRIPTOR);
    zip_add(&image, "a/data/8", storage, 4, ZIP_DESCRIPTOR); /* the rank map of a mesh */
    zip_finish(&image, true);
}

static void put_legacy(const uint8_t *pickle, size_t size)
{
    static const char head[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.";
    static const char keys[] = "(lS'0'\na.";
    zip_start(&image, 0);
    zip_put_bytes(&image, head, sizeof head - 1);
    zip_put_bytes(&image, pickle, size);
    zip_put_bytes(&image, keys, sizeof keys - 1);
    zip_put(&image, 8, STORAGE_BYTES / 4);
    zip_put_bytes(&image, storage, STORAGE_BYTES);
}

static void check_chunk(const tsr_catalog *catalog, const tsr_entry *entry, const tsr_chunk *chunk)
{
    uint64_t size = catalog->store->files[chunk->file].size;
    if (chunk->byte_length > size || chunk->byte_offset > size - chunk->byte_length) abort();
    for (uint32_t d = 0; d < entry->ndim; d++)
        if (chunk->sizes[d] > entry->shape[d] || chunk->offsets[d] > entry->shape[d] - chunk->sizes[d]) abort();
}

static tsr_status check_extent(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    const tsr_catalog *catalog = ctx;
    uint64_t size = catalog->store->files[extent->file].size;
    (void)err;
    if (extent->byte_length > size || extent->byte_offset > size - extent->byte_length) abort();
    return TSR_OK;
}

static void check_value(const tsr_value *value, const tsr_value *again, const tsr_host *host)
{
    char shown[300];
    tsr_value_text(value, shown, sizeof shown);
    if (tsr_value_match(value, again, 60, 10000) == TSR_DIFFERENT) abort();
    if (!tsr_value_is_json(value, 60, 10000)) return;
    tsr_vec text = tsr_vec_of(host->allocator, 1);
    tsr_json json;
    tsr_json_start(&json, tsr_vec_write, &text, 0, NULL);
    tsr_json_value(&json, value);
    if (tsr_json_finish(&json) != TSR_OK) abort();
    tsr_vec_free(&text);
}

static void check(tsr_checkpoint *checkpoint, tsr_checkpoint *again)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint), *other = tsr_checkpoint_catalog(again);
    if (catalog->entry_count != other->entry_count) abort();
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (tsr_checkpoint_entry(checkpoint, entry->fqn) != entry) abort();
        if (!tsr_str_equal(entry->fqn, other->entries[i].fqn) || entry->kind != other->entries[i].kind) abort();
        if (entry->value) check_value(entry->value, other->entries[i].value, tsr_checkpoint_host(checkpoint));
        for (uint64_t k = 0; k < entry->chunk_count; k++) check_chunk(catalog, entry, &entry->chunks[k]);
    }
    tsr_checkpoint_extents(checkpoint, check_extent, (void *)catalog, NULL);
}

static void open_twice(tsr_store *store, const tsr_host *host, bool salvage)
{
    const tsr_open_options options = {.size = sizeof options, .salvage = salvage};
    tsr_checkpoint *checkpoint, *again;
    tsr_error err = {0};
    if (tsr_checkpoint_open(store, host, &options, &checkpoint, &err) != TSR_OK) return;
    if (tsr_checkpoint_open(store, host, &options, &again, &err) != TSR_OK) abort();
    check(checkpoint, again);
    tsr_checkpoint_close(again);
    tsr_checkpoint_close(checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_str bytes = {(const char *)data + 1, size - 1};
    if (size == 0 || size > ZIP_IMAGE_SIZE / 2) return 0;
    host.limits.expansion = 100000;
    host.limits.memory_bytes = 256u << 20;
    if (data[0] % 4 == 1) put_zip(data + 1, size - 1);
    if (data[0] % 4 == 2) put_legacy(data + 1, size - 1);
    if (data[0] % 4 == 1 || data[0] % 4 == 2) bytes = (tsr_str){(const char *)image.bytes, image.size};
    tsr_memory_file file = {TSR_STR("x.pt"), bytes};
    tsr_store *store;
    if (tsr_store_from_memory(host.allocator, &file, 1, &store, NULL) != TSR_OK) return 0;
    open_twice(store, &host, false);
    open_twice(store, &host, true);
    store->close(store);
    return 0;
}
