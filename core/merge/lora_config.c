/* Reads PEFT's adapter_config.json. */
#include <math.h>

#include "codec/json.h"
#include "merge/lora_parts.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

#define CONFIG_NAME "adapter_config.json"

/* Settings with which the result is not W + scale·(B·A), or with which the adapter does not fit the base as it is stored.
 * Source: peft.LoraConfig. */
/* clang-format off */
static const char *const settings[] = {
    "use_qalora", "layer_replication", "alora_invocation_tokens", "use_bdlora", "arrow_config", "velora_config",
    "monteclora_config", "kasa_config", "megatron_config",
};
/* clang-format on */
/* The other settings of PEFT 0.21. They are used here, or do not affect the result. */
/* clang-format off */
static const char *const understood[] = {
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode", "r",
    "target_modules", "target_parameters", "exclude_modules", "trainable_token_indices", "lora_alpha", "lora_dropout", "bias",
    "fan_in_fan_out", "use_rslora", "use_dora", "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern",
    "rank_pattern", "alpha_pattern", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
    "qalora_group_size", "runtime_config", "lora_bias", "ensure_weight_tying"};
/* clang-format on */
/* Initializations that change the base when the adapter is created and when it is loaded. Letter case does not matter here,
 * because PEFT also accepts OLoRA for olora. */
static const char *const changed_bases[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

static bool is_set(const cJSON *item)
{
    if (!item || cJSON_IsNull(item) || cJSON_IsFalse(item)) return false;
    return !(cJSON_IsArray(item) || cJSON_IsObject(item)) || cJSON_GetArraySize(item) > 0;
}

/* Whether `text` starts with `start`, ignoring case. `start` must be lower-case. */
static bool starts_in_any_case(const char *text, const char *start)
{
    while (*start && (*text >= 'A' && *text <= 'Z' ? *text - 'A' + 'a' : *text) == *start) text++, start++;
    return !*start;
}

static tsr_status refuse_others(const cJSON *tree, tsr_error *err)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(tree, "peft_type");
    const cJSON *start = cJSON_GetObjectItemCaseSensitive(tree, "init_lora_weights");
    TSR_FAIL_IF(!cJSON_IsString(type) || strcmp(type->valuestring, "LORA") != 0, err, TSR_E_UNSUPPORTED,
                "peft_type is %s; only LORA adapters can be folded into a base",
                cJSON_IsString(type) ? type->valuestring : "missing");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        TSR_FAIL_IF(is_set(cJSON_GetObjectItemCaseSensitive(tree, settings[i])), err, TSR_E_UNSUPPORTED,
                    "the adapter has %s, which is not supported; only LoRA and DoRA can be folded into a base", settings[i]);
    for (size_t i = 0; cJSON_IsString(start) && i < sizeof changed_bases / sizeof *changed_bases; i++)
        TSR_FAIL_IF(starts_in_any_case(start->valuestring, changed_bases[i]), err, TSR_E_UNSUPPORTED,
                    "init_lora_weights is %s, which changes the base; save the adapter with "
                    "path_initial_model_for_weight_conversion, "
                    "which makes it plain LoRA",
                    start->valuestring);
    return TSR_OK;
}

static tsr_status read_patterns(const tsr_lora_config *c, const char *name, const tsr_mapped *m, tsr_lora_patterns *out,
                                tsr_error *err)
{
    const cJSON *patterns, *item;
    TSR_TRY(tsr_json_find(c->tree, name, TSR_JSON_OBJECT, "", &patterns, err));
    const size_t count = patterns ? (size_t)cJSON_GetArraySize(patterns) : 0;
    *out = (tsr_lora_patterns){tsr_arena_array(m->own->arena, count, sizeof *out->items, err), 0, NULL};
    out->work = TSR_ARENA_NEW(m->own->arena, uint64_t, err);
    if (!out->items || !out->work) return TSR_E_NOMEM;
    *out->work = TSR_REGEX_WORK;
    cJSON_ArrayForEach(item, patterns)
    {
        tsr_lora_pattern *pattern = &out->items[out->count++];
        pattern->value = item;
        const tsr_str text = tsr_arena_format(m->own->arena, err, "(.*\\.)?(%s)$", item->string);
        if (!text.data) return TSR_E_NOMEM;
        const tsr_status status = tsr_regex_compile(text, m->own->host->allocator, m->own->arena, &pattern->regex, err);
        if (status != TSR_OK) return tsr_error_context(err, "%s '%s'", name, item->string), status;
    }
    return TSR_OK;
}

static tsr_status read_numbers(tsr_lora_config *c, tsr_error *err)
{
    const cJSON *alpha, *rank;
    TSR_TRY(tsr_json_get(c->tree, "lora_alpha", TSR_JSON_NUMBER, "", &alpha, err));
    TSR_TRY(tsr_json_get(c->tree, "r", TSR_JSON_NUMBER, "", &rank, err));
    c->alpha = alpha->valuedouble;
    c->rslora = is_set(cJSON_GetObjectItemCaseSensitive(c->tree, "use_rslora"));
    c->dora = is_set(cJSON_GetObjectItemCaseSensitive(c->tree, "use_dora"));
    c->fan_in_fan_out = is_set(cJSON_GetObjectItemCaseSensitive(c->tree, "fan_in_fan_out"));
    return tsr_json_to_u64(rank, "r", &c->rank, err);
}

tsr_status tsr_lora_config_read(const tsr_mapped *m, tsr_checkpoint *adapter, tsr_lora_config *out, tsr_error *err)
{
    tsr_bytes bytes = {0};
    *out = (tsr_lora_config){.tree = NULL};
    const uint32_t file = tsr_store_find(adapter->store, TSR_STR(CONFIG_NAME));
    TSR_FAIL_IF(file == TSR_NO_FILE, err, TSR_E_NOT_FOUND,
                CONFIG_NAME
                " is not next to the adapter's tensors; give the directory that PEFT saved (adapters of diffusers and of "
                "kohya's scripts have none: fold them with diffusers' fuse_lora)");
    tsr_status status = tsr_range_load(tsr_whole_file(adapter->store, file), adapter->host, &bytes, err);
    if (status == TSR_OK) status = tsr_json_parse(bytes.data, adapter->host, &out->tree, err);
    tsr_bytes_free(&bytes);
    if (status == TSR_OK) status = tsr_json_expect(out->tree, TSR_JSON_OBJECT, "", err);
    if (status == TSR_OK) status = refuse_others(out->tree, err);
    if (status == TSR_OK) status = read_numbers(out, err);
    if (status == TSR_OK) status = read_patterns(out, "alpha_pattern", m, &out->alphas, err);
    if (status == TSR_OK) status = read_patterns(out, "rank_pattern", m, &out->ranks, err);
    if (status == TSR_OK) return TSR_OK;
    tsr_error_context(err, CONFIG_NAME);
    tsr_lora_config_free(out);
    return status;
}

void tsr_lora_config_free(tsr_lora_config *config)
{
    cJSON_Delete(config->tree);
    config->tree = NULL;
}

static bool is_among(const char *name, const char *const *names, size_t count)
{
    while (count && strcmp(name, names[count - 1]) != 0) count--;
    return count > 0;
}

size_t tsr_lora_unknown(const tsr_lora_config *config, tsr_str *first)
{
    const cJSON *item;
    size_t count = 0;
    cJSON_ArrayForEach(item, config->tree)
    {
        if (!is_set(item) || is_among(item->string, understood, sizeof understood / sizeof *understood)) continue;
        if (!count++) *first = tsr_json_key_of(item);
    }
    return count;
}

bool tsr_lora_ends(tsr_str name, tsr_str last)
{
    return tsr_str_ends(name, last) && (name.size == last.size || name.data[name.size - last.size - 1] == '.');
}

/* Sets *out to the value of the first key that matches, or to NULL. If none does, PEFT looks for the name itself. Source:
 * peft.utils.other.get_pattern_key. */
static tsr_status find_pattern(const tsr_lora_patterns *patterns, tsr_str module, const cJSON **out, tsr_error *err)
{
    bool matches = false;
    *out = NULL;
    for (size_t i = 0; i < patterns->count && !matches; i++) {
        const tsr_lora_pattern *pattern = &patterns->items[i];
        TSR_TRY(tsr_regex_match(pattern->regex, module, patterns->work, &matches, err));
        if (matches || tsr_str_equal(tsr_json_key_of(pattern->value), module)) *out = pattern->value;
    }
    TSR_FAIL_IF(*out && !cJSON_IsNumber(*out), err, TSR_E_FORMAT, CONFIG_NAME ": the pattern '%s' is not a number",
                (*out)->string);
    return TSR_OK;
}

tsr_status tsr_lora_scale(const tsr_lora_config *config, tsr_str module, double *scale, uint64_t *rank, tsr_error *err)
{
    const cJSON *alpha, *r;
    TSR_TRY(find_pattern(&config->alphas, module, &alpha, err));
    TSR_TRY(find_pattern(&config->ranks, module, &r, err));
    *rank = config->rank;
    if (r) TSR_TRY(tsr_json_to_u64(r, CONFIG_NAME, rank, err));
    TSR_FAIL_IF(!*rank, err, TSR_E_FORMAT, CONFIG_NAME ": the rank of '%.*s' is 0", TSR_STR_ARG(module));
    *scale = (alpha ? alpha->valuedouble : config->alpha) / (config->rslora ? sqrt((double)*rank) : (double)*rank);
    return TSR_OK;
}

bool tsr_lora_lists(const struct cJSON *list, tsr_str module)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item)) continue;
        if (tsr_lora_ends(module, tsr_str_from(item->valuestring))) return true;
    }
    return false;
}

const struct cJSON *tsr_lora_parameters(const tsr_lora_config *config)
{
    return cJSON_GetObjectItemCaseSensitive(config->tree, "target_parameters");
}

bool tsr_lora_selects(const tsr_lora_config *config, tsr_str module)
{
    const cJSON *selected = cJSON_GetObjectItemCaseSensitive(config->tree, "target_modules");
    const cJSON *excluded = cJSON_GetObjectItemCaseSensitive(config->tree, "exclude_modules");
    if (!cJSON_IsArray(selected) || is_set(cJSON_GetObjectItemCaseSensitive(config->tree, "layers_to_transform")))
        return false;
    if (is_set(excluded) && (!cJSON_IsArray(excluded) || tsr_lora_lists(excluded, module))) return false;
    return tsr_lora_lists(selected, module);
}
