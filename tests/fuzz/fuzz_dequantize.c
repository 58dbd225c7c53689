/* Dequantizes any model: what is read as its config.json up to the first NUL, as the header of a safetensors file up to the next
 * one, and the rest as the bytes of its tensors, repeated. What opens must have values that can be read, or an error that says
 * why not. The config.json is also rewritten, to one that is read again. */
#include "../support/fuzzed_models.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/mapping.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    const tsr_str config = fuzzed_take(&rest), header = fuzzed_take(&rest), model = fuzzed_safetensors(header, rest);
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
    if (status == TSR_OK) fuzzed_read_all(made);
    else if (!err.message[0]) abort();
    tsr_checkpoint_close(made);
    tsr_checkpoint_close(source);
    store->close(store);
    free((void *)(uintptr_t)model.data);
    return 0;
}
