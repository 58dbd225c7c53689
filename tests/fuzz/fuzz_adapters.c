/* Folds any adapter into any base. The input has five parts, each up to the next NUL: adapter_config.json, the base's
 * config.json, the headers of the safetensors files of the base and of the adapter, and the bytes of their tensors, repeated. What
 * opens must have values that can be read, or an error that says why not. */
#include "../support/fuzzed_models.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/merge.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A directory of two files, opened. */
typedef struct directory {
    tsr_store *store;
    tsr_checkpoint *checkpoint;
} directory;

static bool open_directory(directory *d, const tsr_memory_file files[2], const tsr_host *host)
{
    if (tsr_store_from_memory(host->allocator, files, 2, &d->store, NULL) != TSR_OK) abort();
    return tsr_checkpoint_open(d->store, host, NULL, &d->checkpoint, NULL) == TSR_OK;
}

static void close_directory(directory *d)
{
    tsr_checkpoint_close(d->checkpoint);
    if (d->store) d->store->close(d->store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_str rest = {(const char *)data, size};
    const tsr_str settings = fuzzed_take(&rest), config = fuzzed_take(&rest), base_header = fuzzed_take(&rest),
                  adapter_header = fuzzed_take(&rest);
    const tsr_str base_file = fuzzed_safetensors(base_header, rest), adapter_file = fuzzed_safetensors(adapter_header, rest);
    const tsr_memory_file base_files[] = {{TSR_STR("config.json"), config}, {TSR_STR("model.safetensors"), base_file}};
    const tsr_memory_file adapter_files[] = {{TSR_STR("adapter_config.json"), settings},
                                             {TSR_STR("adapter_model.safetensors"), adapter_file}};
    directory base = {NULL, NULL}, adapter = {NULL, NULL};
    tsr_checkpoint *folded = NULL;
    tsr_error err = {0};
    host.limits.memory_bytes = 256u << 20;
    if (open_directory(&base, base_files, &host) && open_directory(&adapter, adapter_files, &host)) {
        const tsr_status status = tsr_lora_fold(base.checkpoint, adapter.checkpoint, NULL, &folded, &err);
        if (status == TSR_OK) fuzzed_read_all(folded);
        else if (!err.message[0]) abort();
    }
    tsr_checkpoint_close(folded);
    close_directory(&adapter);
    close_directory(&base);
    free((void *)(uintptr_t)adapter_file.data);
    free((void *)(uintptr_t)base_file.data);
    return 0;
}
