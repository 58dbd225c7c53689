/* Dequantizes any model: what is read as its config.json up to the first NUL, as the header of a safetensors file up to the next
 * one, and the rest as the bytes of its tensors, repeated. What opens must have values that can be read, or an error that says
 * why not. The config.json is also rewritten, to one that is read again. */
#include <stdlib.h>
#include <string.h>

#include "tessera/sys/config_text.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/memory_files.h"
#include "tessera/sys/read_run.h"
#include "tessera/sys/vec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DATA_BYTES = 4096, MOST_ELEMENTS = 1 << 16 };

static tsr_str take(tsr_str *rest)
{
    const char *end = rest->size ? memchr(rest->data, 0, rest->size) : NULL;
    const tsr_str taken = {rest->data, end ? (size_t)(end - rest->data) : rest->size};
    *rest = end ? (tsr_str){end + 1, rest->size - taken.size - 1} : (tsr_str){rest->data + rest->size, 0};
    return taken;
}

static tsr_str make_model(tsr_str header, tsr_str bytes)
{
    const size_t size = 8 + header.size + DATA_BYTES;
    char *file = calloc(1, size);
    for (unsigned i = 0; i < 8; i++) file[i] = (char)((uint64_t)header.size >> (8 * i));
    if (header.size) memcpy(file + 8, header.data, header.size);
    for (size_t i = 0; i < DATA_BYTES && bytes.size; i++) file[8 + header.size + i] = bytes.data[i % bytes.size];
    return (tsr_str){file, size};
}

static void read_all(tsr_checkpoint *checkpoint)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        uint64_t elements = 1;
        tsr_error err = {0};
        for (uint32_t d = 0; d < entry->ndim && elements <= MOST_ELEMENTS; d++)
            elements = entry->shape[d] > MOST_ELEMENTS ? MOST_ELEMENTS + 1 : elements * entry->shape[d];
        if (entry->kind != TSR_ENTRY_TENSOR || elements > MOST_ELEMENTS || !elements) continue;
        const size_t bytes = (size_t)elements * tsr_dtype_size(entry->dtype);
        void *values = malloc(bytes + 1);
        const tsr_run run = {.first = 0, .count = elements};
        if (bytes && tsr_read_run(checkpoint, entry, &run, values, bytes, &err) != TSR_OK && !err.message[0]) abort();
        free(values);
    }
}

static void rewrite(tsr_str config, const tsr_host *host)
{
    const tsr_config_changes changes = {.unquantized = true, .dtype = TSR_BFLOAT16};
    tsr_vec first = tsr_vec_of(host->allocator, 1), second = tsr_vec_of(host->allocator, 1);
    tsr_error err = {0};
    if (tsr_config_rewrite(config, &changes, host, &first, &err) == TSR_OK) {
        const tsr_str made = {first.items, first.count};
        if (tsr_config_rewrite(made, &changes, host, &second, &err) != TSR_OK) abort();
        if (second.count != first.count || memcmp(second.items, first.items, first.count) != 0) abort();
    }
    tsr_vec_free(&first);
    tsr_vec_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_str rest = {(const char *)data, size};
    const tsr_str config = take(&rest), header = take(&rest), model = make_model(header, rest);
    const tsr_memory_file files[] = {{TSR_STR("config.json"), config}, {TSR_STR("model.safetensors"), model}};
    tsr_checkpoint *source = NULL, *made = NULL;
    tsr_store *store;
    tsr_dtype used;
    tsr_error err = {0};
    host.limits.memory_bytes = 256u << 20;
    rewrite(config, &host);
    if (tsr_store_from_memory(host.allocator, files, 2, &store, NULL) != TSR_OK) abort();
    tsr_status status = tsr_checkpoint_open(store, &host, NULL, &source, &err);
    if (status == TSR_OK) status = tsr_mapping_dequantize(source, TSR_DTYPE_NONE, &used, &made, &err);
    if (status == TSR_OK) read_all(made);
    else if (!err.message[0]) abort();
    tsr_checkpoint_close(made);
    tsr_checkpoint_close(source);
    store->close(store);
    free((void *)(uintptr_t)model.data);
    return 0;
}
