/* Numbers that a map takes from config.json. */
#include "base/try.h"
#include "codec/json.h"
#include "mapping/mapped.h"

#define CONFIG_NAME "config.json"

tsr_status tsr_mapped_load_config(tsr_mapped *m, tsr_error *err)
{
    tsr_bytes bytes = {0};
    const uint32_t file = tsr_store_find(m->source->store, TSR_STR(CONFIG_NAME));
    if (file == TSR_NO_FILE) return TSR_OK;
    const uint64_t size = m->source->store->files[file].size;
    tsr_status status = tsr_store_load(m->source->store, m->source->host, file, 0, size, &bytes, err);
    if (status == TSR_OK) status = tsr_json_parse(bytes.data, m->source->host, &m->config, err);
    tsr_bytes_free(&bytes);
    if (status != TSR_OK) tsr_error_context(err, "%s", CONFIG_NAME);
    return status;
}

tsr_status tsr_mapped_number(const tsr_mapped *m, const tsr_map_number *number, uint64_t *out, tsr_error *err)
{
    *out = number->value;
    if (!number->config.size) return TSR_OK;
    TSR_FAIL_IF(!m->config, err, TSR_E_NOT_FOUND, TSR_NO_POSITION,
                "the map takes '%.*s' from config.json, which is not next to the checkpoint's files; give the directory that has it, or "
                "a map with the number",
                TSR_STR_ARG(number->config));
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(m->config, number->config.data);
    TSR_FAIL_IF(!item || !cJSON_IsNumber(item), err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "config.json has no number '%.*s', which the map needs",
                TSR_STR_ARG(number->config));
    return tsr_json_to_u64(item, CONFIG_NAME, out, err);
}

tsr_dtype tsr_mapped_config_dtype(const tsr_mapped *m)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(m->config, "torch_dtype");
    if (!item) item = cJSON_GetObjectItemCaseSensitive(m->config, "dtype"); /* its name since transformers 5 */
    return cJSON_IsString(item) ? tsr_dtype_from_name(tsr_json_text_of(item)) : TSR_DTYPE_NONE;
}

tsr_status tsr_mapped_block(const tsr_mapped *m, uint64_t block[2], tsr_error *err)
{
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(m->config, "quantization_config");
    const cJSON *size = cJSON_GetObjectItemCaseSensitive(config, "weight_block_size");
    block[0] = block[1] = 128;
    if (!cJSON_IsArray(size) || cJSON_GetArraySize(size) != 2) return TSR_OK;
    for (int i = 0; i < 2; i++) TSR_TRY(tsr_json_to_u64(cJSON_GetArrayItem(size, i), "weight_block_size of config.json", &block[i], err));
    TSR_FAIL_IF(!block[0] || !block[1], err, TSR_E_FORMAT, TSR_NO_POSITION, "weight_block_size of config.json is 0");
    return TSR_OK;
}
