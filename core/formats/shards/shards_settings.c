/* Reads a model's settings from its own files. Only numbers are read, and missing ones are not guessed. */
#include "codec/json.h"
#include "formats/common/reader.h"
#include "formats/shards/shards_rules.h"
#include "tessera/sys/try.h"

typedef struct setting {
    const char *key;
    uint64_t *number;
} setting;

static tsr_status load(tsr_checkpoint *checkpoint, const char *name, cJSON **root, tsr_error *err)
{
    tsr_bytes text;
    tsr_store *store = checkpoint->store;
    const uint32_t file = tsr_store_find(store, tsr_str_from(name));
    TSR_FAIL_IF(file == TSR_NO_FILE, err, TSR_E_NOT_FOUND, "the built-in map '%.*s' needs %s next to the ranks' files",
                TSR_STR_ARG(checkpoint->options.shards->name), name);
    TSR_TRY(tsr_range_load(tsr_whole_file(store, file), checkpoint->host, &text, err));
    tsr_status status = tsr_json_parse(text.data, checkpoint->host, root, err);
    if (status == TSR_OK) status = tsr_json_expect(*root, TSR_JSON_OBJECT, "", err);
    tsr_bytes_free(&text);
    if (status != TSR_OK) tsr_error_context(err, "%s", name);
    return status;
}

/* A number that may be absent, null, or -1 for "not set". */
static tsr_status read_number(const cJSON *root, const setting *s, tsr_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, s->key);
    int64_t number;
    if (!item || cJSON_IsNull(item)) return TSR_OK;
    TSR_TRY(tsr_json_to_i64(item, s->key, &number, err));
    *s->number = number > 0 ? (uint64_t)number : 0;
    return TSR_OK;
}

static tsr_status read_numbers(tsr_checkpoint *checkpoint, const char *file, const setting *settings, tsr_error *err)
{
    cJSON *root = NULL;
    tsr_status status = load(checkpoint, file, &root, err);
    for (const setting *s = settings; status == TSR_OK && s->key; s++) {
        status = read_number(root, s, err);
        if (status != TSR_OK) tsr_error_context(err, "%s", file);
    }
    cJSON_Delete(root);
    return status;
}

static tsr_status settle_heads(const char *file, tsr_shards_settings *out, tsr_error *err)
{
    TSR_FAIL_IF(!out->dim || !out->heads, err, TSR_E_FORMAT,
                "%s does not state the width of the model and its number of attention heads", file);
    TSR_FAIL_IF(!out->head_dim && out->dim % out->heads, err, TSR_E_FORMAT,
                "%s: a width of %llu is not a multiple of %llu attention heads", file, (unsigned long long)out->dim,
                (unsigned long long)out->heads);
    if (!out->head_dim) out->head_dim = out->dim / out->heads;
    if (!out->kv_heads) out->kv_heads = out->heads;
    TSR_FAIL_IF(out->heads > UINT32_MAX || out->kv_heads > UINT32_MAX || out->head_dim > UINT32_MAX, err, TSR_E_LIMIT,
                "%s: too many or too large attention heads", file);
    return TSR_OK;
}

tsr_status tsr_shards_read_params(tsr_checkpoint *checkpoint, tsr_shards_settings *out, tsr_error *err)
{
    const setting settings[] = {{"dim", &out->dim},         {"n_heads", &out->heads},         {"n_kv_heads", &out->kv_heads},
                                {"n_layers", &out->layers}, {"vocab_size", &out->vocabulary}, {NULL, NULL}};
    TSR_TRY(read_numbers(checkpoint, "params.json", settings, err));
    return settle_heads("params.json", out, err);
}

tsr_status tsr_shards_read_config(tsr_checkpoint *checkpoint, tsr_shards_settings *out, tsr_error *err)
{
    const setting settings[] = {
        {"hidden_size", &out->dim},   {"num_attention_heads", &out->heads}, {"num_key_value_heads", &out->kv_heads},
        {"head_dim", &out->head_dim}, {"vocab_size", &out->vocabulary},     {NULL, NULL}};
    TSR_TRY(read_numbers(checkpoint, "config.json", settings, err));
    return settle_heads("config.json", out, err);
}

/* ---- argparse.Namespace ---- */

static const tsr_entry *find_object(const tsr_checkpoint *checkpoint, tsr_str fqn)
{
    for (uint64_t i = 0; i < checkpoint->catalog.entry_count; i++) {
        const tsr_entry *entry = &checkpoint->catalog.entries[i];
        if (tsr_str_equal(entry->fqn, fqn) && entry->value) return entry;
    }
    return NULL;
}

/* The attributes of a pickled object, which are in its state; or the object itself if it is a dict. */
static const tsr_value *attributes_of(const tsr_value *object)
{
    if (object->kind == TSR_VALUE_DICT) return object;
    for (size_t i = 0; object->kind == TSR_VALUE_OBJECT && i < object->count; i++)
        if (object->items[i] && object->items[i]->kind == TSR_VALUE_DICT) return object->items[i];
    return NULL;
}

static uint64_t number_of(const tsr_value *attributes, const char *key)
{
    const tsr_value *value = tsr_value_get(attributes, tsr_str_from(key));
    return value && value->kind == TSR_VALUE_INT && value->as.integer > 0 ? (uint64_t)value->as.integer : 0;
}

static bool is_set(const tsr_value *attributes, const char *key)
{
    const tsr_value *value = tsr_value_get(attributes, tsr_str_from(key));
    if (!value || value->kind == TSR_VALUE_NONE) return false;
    return value->kind != TSR_VALUE_BOOL || value->as.boolean;
}

tsr_status tsr_shards_read_args(tsr_checkpoint *checkpoint, tsr_shards_settings *out, tsr_error *err)
{
    const tsr_entry *args = find_object(checkpoint, TSR_STR("args"));
    const tsr_entry *version = find_object(checkpoint, TSR_STR("checkpoint_version"));
    const tsr_value *attributes = args ? attributes_of(args->value) : NULL;
    TSR_FAIL_IF(!attributes, err, TSR_E_NOT_FOUND,
                "the built-in map '%.*s' needs the object 'args' of Megatron's checkpoints, which is not in these files",
                TSR_STR_ARG(checkpoint->options.shards->name));
    out->tensor_ranks = number_of(attributes, "tensor_model_parallel_size");
    out->stages = number_of(attributes, "pipeline_model_parallel_size");
    out->expert_ranks = number_of(attributes, "expert_model_parallel_size");
    out->layers = number_of(attributes, "num_layers");
    out->gated = is_set(attributes, "swiglu") || is_set(attributes, "glu_activation") || is_set(attributes, "quick_geglu") ||
                 is_set(attributes, "gated_linear_unit");
    if (version && version->value->kind == TSR_VALUE_FLOAT) out->version = version->value->as.real;
    if (version && version->value->kind == TSR_VALUE_INT) out->version = (double)version->value->as.integer;
    return TSR_OK;
}
