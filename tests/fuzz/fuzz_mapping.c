/* Reads any bytes as a tessera.map/1 document over a small model. They must be rejected with a reason, or give a checkpoint
 * whose tensors can all be read. A map that can be inverted must give back the model's own names and bytes. */
#include <stdlib.h>

#include "tessera/read.h"
#include "tessera/store.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/store.h"
#include "tessera/validate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TYPED(dtype, name, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"
#define TENSOR(name, shape, from, to) TYPED("U8", name, shape, from, to)
/* clang-format off */
#define HEADER                                                                                                             \
    "{" TENSOR("a.0.w", "[2,3]", "0", "6") "," TENSOR("a.1.w", "[2,3]", "6", "12") "," TENSOR("b", "[4]", "12", "16") "," \
    TENSOR("e.0.x", "[1,2]", "16", "18") "," TENSOR("e.1.x", "[1,2]", "18", "20") "," TENSOR("q", "[8,2]", "20", "36") "," \
    TYPED("F8_E4M3", "f.0.w", "[2,3]", "36", "42") "," TYPED("F8_E4M3", "f.1.w", "[2,3]", "42", "48") "," \
    TYPED("F32", "f.0.s", "[2,1]", "48", "56") "," TYPED("F32", "f.1.s", "[1,2]", "56", "64") "," \
    TENSOR("x_blocks", "[1,1,16]", "64", "80") "," TENSOR("x_scales", "[1,1]", "80", "81") "}"
/* clang-format on */
#define CONFIG "{\"num_attention_heads\":2,\"hidden_size\":4}"

enum { MOST_READ = 64 }; /* how many bytes of each tensor are read */

static const char values[] = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKL0000111122223333abcdefghijklmnop~";

static tsr_status read_all(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        char bytes[MOST_READ];
        uint64_t count;
        if (entry->kind != TSR_ENTRY_TENSOR || !tsr_entry_bytes(entry, &count) || count > sizeof bytes) continue;
        status = tsr_read_box(checkpoint, entry, (tsr_box){entry->ndim, NULL, entry->shape}, bytes, (size_t)count, err);
    }
    return status;
}

static void apply(tsr_checkpoint *model, const tsr_mapping_rules *rules, tsr_arena *arena)
{
    tsr_error err = {0};
    tsr_checkpoint *mapped = NULL, *back = NULL;
    const tsr_mapping_rules *inverse;
    tsr_status status = tsr_mapping_open(model, rules, &mapped, &err);
    if (status == TSR_OK)
        status = tsr_validate_catalog(tsr_checkpoint_catalog(mapped), tsr_checkpoint_host(mapped),
                                      tsr_checkpoint_findings(mapped), &err);
    if (status == TSR_OK) status = read_all(mapped, &err);
    if (status != TSR_OK && !err.message[0]) abort();
    if (status == TSR_OK && tsr_mapping_invert(rules, arena, &inverse, &err) == TSR_OK &&
        tsr_mapping_open(mapped, inverse, &back, &err) == TSR_OK)
        status = read_all(back, &err);
    tsr_checkpoint_close(back);
    tsr_checkpoint_close(mapped);
}

static tsr_status open_model(const tsr_host *host, tsr_store **store, tsr_checkpoint **out, tsr_error *err)
{
    static char file[8 + sizeof HEADER - 1 + sizeof values - 1] = {(char)((sizeof HEADER - 1) & 0xFF),
                                                                   (char)((sizeof HEADER - 1) >> 8)};
    memcpy(file + 8, HEADER, sizeof HEADER - 1);
    memcpy(file + 8 + sizeof HEADER - 1, values, sizeof values - 1);
    const tsr_memory_file files[] = {{TSR_STR("config.json"), TSR_STR(CONFIG)},
                                     {TSR_STR("model.safetensors"), {file, sizeof file}}};
    tsr_status status = tsr_store_from_memory(host->allocator, files, 2, store, err);
    return status == TSR_OK ? tsr_checkpoint_open(*store, host, NULL, out, err) : status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_error err = {0};
    tsr_store *store = NULL;
    tsr_checkpoint *model = NULL;
    const tsr_mapping_rules *rules;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, (size_t)64 << 20, &err);
    if (!arena) return 0;
    const tsr_status status = tsr_mapping_parse((tsr_str){(const char *)data, size}, &host, arena, &rules, &err);
    if (status != TSR_OK && !err.message[0]) abort();
    if (status == TSR_OK) {
        tsr_error opening = {0};
        if (open_model(&host, &store, &model, &opening) != TSR_OK) abort();
        apply(model, rules, arena);
    }
    tsr_checkpoint_close(model);
    if (store) store->close(store);
    tsr_arena_free(arena);
    return 0;
}
