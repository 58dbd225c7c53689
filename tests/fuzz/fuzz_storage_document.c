/* Reads any bytes as a tessera.storage/1 document. It must be rejected with a reason, or be written as a document that reads back
 * as the same, and place the files of a store on servers that exist. */
#include <stdlib.h>

#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BYTES = 1 << 20 };

static const uint64_t offsets[] = {0, 1, 4095, (uint64_t)1 << 20, ((uint64_t)1 << 40) + 7};

/* Everything spelled out, as text in `out`. */
static tsr_str written(const tsr_storage_text *text, tsr_vec *out)
{
    tsr_json json;
    tsr_json_start(&json, tsr_vec_write, out, 0, NULL);
    tsr_storage_write(&json, text);
    if (tsr_json_finish(&json) != TSR_OK) abort();
    return (tsr_str){out->items, out->count};
}

static void place(const tsr_storage_text *text, const tsr_host *host, tsr_arena *arena)
{
    const tsr_memory_file files[] = {{TSR_STR("a"), TSR_STR("1234")}, {TSR_STR("b/c"), TSR_STR("")}};
    tsr_storage storage;
    tsr_store *store;
    tsr_error err = {0};
    if (tsr_store_from_memory(host->allocator, files, 2, &store, NULL) != TSR_OK) abort();
    const tsr_status status = tsr_storage_of(text, store, host, arena, &storage, &err);
    if (status != TSR_OK && !err.message[0]) abort();
    for (uint32_t file = 0; status == TSR_OK && file < 2; file++)
        for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
            if (tsr_storage_server_at(&storage, file, offsets[i]) >= text->server_count) abort();
    store->close(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, (size_t)64 << 20, NULL);
    tsr_vec first = tsr_vec_of(host.allocator, 1), second = tsr_vec_of(host.allocator, 1);
    tsr_storage_text text, again;
    tsr_error err = {0};
    if (!arena) return 0;
    if (tsr_storage_read((tsr_str){(const char *)data, size}, &host, arena, &text, &err) == TSR_OK) {
        const tsr_str made = written(&text, &first);
        if (made.size < MOST_BYTES) {
            if (tsr_storage_read(made, &host, arena, &again, &err) != TSR_OK) abort();
            if (!tsr_str_equal(written(&again, &second), made)) abort();
        }
        place(&text, &host, arena);
    } else if (!err.message[0]) {
        abort();
    }
    tsr_vec_free(&first);
    tsr_vec_free(&second);
    tsr_arena_free(arena);
    return 0;
}
