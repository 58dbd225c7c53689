/* Opens any directory of a pipeline or of sentence-transformers. The input has parts, each up to the next NUL: model_index.json,
 * modules.json, router_config.json, config.json, the header of all safetensors files, and the bytes of their tensors, repeated. A document
 * that is empty is not there. The parts must have all entries between them, and each must open alone, with its config.json; or there is an
 * error that says why not. */
#include "../support/fuzzed_models.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/mapping.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DOCUMENTS = 4, MODELS = 5, CONFIGS = 2 };
static const char *const documents[DOCUMENTS] = {"model_index.json", "modules.json", "router/router_config.json",
                                                 "config.json"};
static const char *const models[MODELS] = {"model.safetensors", "2_Dense/model.safetensors",
                                           "router/query_0_Static/model.safetensors",
                                           "unet/diffusion_pytorch_model.safetensors", "vae/model.safetensors"};
static const char *const configs[CONFIGS] = {"2_Dense/config.json", "unet/config.json"};

static int by_name(const void *a, const void *b)
{
    return tsr_str_compare(((const tsr_memory_file *)a)->name, ((const tsr_memory_file *)b)->name);
}

/* What is opened must be readable with the document that tsr_config_load finds for it. */
static void read_checkpoint(tsr_checkpoint *checkpoint)
{
    tsr_bytes config;
    tsr_error err = {0};
    const tsr_status status = tsr_config_load(checkpoint, &config, &err);
    if (status != TSR_OK && !err.message[0]) abort();
    tsr_bytes_free(&config);
    fuzzed_read_all(checkpoint);
}

static uint64_t open_part(tsr_store *store, const tsr_host *host, tsr_str part)
{
    const tsr_open_options options = {.part = part};
    tsr_checkpoint *checkpoint = NULL;
    tsr_error err = {0};
    uint64_t count = 0;
    if (tsr_checkpoint_open(store, host, &options, &checkpoint, &err) == TSR_OK) {
        count = tsr_checkpoint_catalog(checkpoint)->entry_count;
        read_checkpoint(checkpoint);
    } else if (!err.message[0]) {
        abort();
    }
    tsr_checkpoint_close(checkpoint);
    return count;
}

static void open_all(tsr_store *store, const tsr_host *host)
{
    tsr_checkpoint *checkpoint = NULL;
    tsr_error err = {0};
    uint64_t count = 0;
    if (tsr_checkpoint_open(store, host, NULL, &checkpoint, &err) == TSR_OK) {
        const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
        read_checkpoint(checkpoint);
        for (uint32_t p = 0; p < catalog->part_count; p++) count += open_part(store, host, catalog->parts[p].name);
        if (catalog->part_count && count < catalog->entry_count) abort();
    } else if (!err.message[0]) {
        abort();
    }
    tsr_checkpoint_close(checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_memory_file files[DOCUMENTS + MODELS + CONFIGS];
    tsr_str rest = {(const char *)data, size}, config = {"", 0};
    tsr_store *store;
    uint32_t count = 0;
    host.limits.memory_bytes = 256u << 20;
    for (unsigned i = 0; i < DOCUMENTS; i++) {
        const tsr_str text = fuzzed_take(&rest);
        if (text.size) files[count++] = (tsr_memory_file){tsr_str_from(documents[i]), text};
        config = text; /* the last one */
    }
    const tsr_str header = fuzzed_take(&rest), model = fuzzed_safetensors(header, rest);
    for (unsigned i = 0; i < MODELS; i++) files[count++] = (tsr_memory_file){tsr_str_from(models[i]), model};
    for (unsigned i = 0; i < CONFIGS; i++) files[count++] = (tsr_memory_file){tsr_str_from(configs[i]), config};
    qsort(files, count, sizeof *files, by_name);
    if (tsr_store_from_memory(host.allocator, files, count, &store, NULL) != TSR_OK) abort();
    open_all(store, &host);
    store->close(store);
    free((void *)(uintptr_t)model.data);
    return 0;
}
