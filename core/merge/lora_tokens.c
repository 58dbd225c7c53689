/* trainable_token_indices: rows of an embedding, or of the output layer, that the adapter stores instead of a change. */
#include "codec/json.h"
#include "merge/lora_sum.h"
#include "merge/merge_read.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/try.h"

/* The list is for the input embedding, unless it is an object with a list for each module. */
static const cJSON *indices_of(const tsr_lora_config *config, tsr_str module)
{
    const cJSON *setting = cJSON_GetObjectItemCaseSensitive(config->tree, "trainable_token_indices"), *item;
    if (!cJSON_IsObject(setting)) return setting;
    cJSON_ArrayForEach(item, setting)
    {
        if (tsr_lora_ends(module, tsr_json_key_of(item))) return item;
    }
    return NULL;
}

tsr_status tsr_lora_set_tokens(const tsr_mapped *m, const tsr_lora_config *config, const tsr_entry *entry, tsr_str module,
                               tsr_fold *fold, tsr_error *err)
{
    const cJSON *list = indices_of(config, module), *item;
    const tsr_entry *w = fold->weight;
    const uint64_t count = cJSON_IsArray(list) ? (uint64_t)cJSON_GetArraySize(list) : 0;
    const bool fits = w->ndim == 2 && entry->ndim == 2 && entry->shape[0] == count && entry->shape[1] == w->shape[1];
    uint64_t *row = tsr_arena_array(m->own->arena, (size_t)count, sizeof *row, err);
    if (!row) return TSR_E_NOMEM;
    fold->tokens = entry;
    fold->token_rows = row;
    TSR_FAIL_IF(!fits, err, TSR_E_FORMAT,
                "'%.*s' does not have a row of '%.*s' for each of the %llu trainable_token_indices of adapter_config.json",
                TSR_STR_ARG(entry->fqn), TSR_STR_ARG(w->fqn), (unsigned long long)count);
    cJSON_ArrayForEach(item, list)
    {
        TSR_TRY(tsr_json_to_u64(item, "trainable_token_indices", row, err));
        TSR_FAIL_IF(*row >= w->shape[0], err, TSR_E_FORMAT,
                    "trainable_token_indices has %llu, but '%.*s' of the base has %llu rows; resize it first",
                    (unsigned long long)*row, TSR_STR_ARG(w->fqn), (unsigned long long)w->shape[0]);
        row++;
    }
    return TSR_OK;
}

tsr_status tsr_lora_put_tokens(const tsr_fold *fold, const tsr_run *run, tsr_dtype dtype, const tsr_lora_room *r,
                               uint8_t *out, tsr_error *err)
{
    const tsr_stored_tensor tokens = {fold->adapter, fold->tokens};
    const uint64_t width = fold->weight->shape[1], end = run->first + run->count;
    for (uint64_t i = 0; i < fold->tokens->shape[0]; i++) {
        const uint64_t start = fold->token_rows[i] * width, from = start > run->first ? start : run->first;
        const uint64_t to = start + width < end ? start + width : end;
        if (from >= to) continue;
        const tsr_run part = {.first = i * width + (from - start), .count = to - from};
        TSR_TRY(tsr_merge_read(tokens, &part, dtype, r->bytes, out + (from - run->first) * tsr_dtype_size(dtype), r->losses,
                               err));
    }
    return TSR_OK;
}
