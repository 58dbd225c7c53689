/* The built-in maps. A name that is in none of the tables has no rule: guessing one could produce wrong tensors.
 *
 * Sources of the axes: ColumnParallelLinear, RowParallelLinear, ParallelEmbedding and VocabParallelEmbedding of fairscale
 * (Llama 1 to 3), of megatron.core.tensor_parallel, and of vllm.model_executor.layers. */
#include "base/cursor.h"
#include "codec/json.h"
#include "formats/common/reader.h"
#include "formats/shards/shards_join.h"
#include "tessera/glob.h"
#include "tessera/sys/try.h"

/* ---- settings ---- */

/* Reads a model's settings from its own files. Only numbers are read, and missing ones are not guessed. */

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

/* These read params.json of Llama 1 to 3, config.json, and the `args` of a Megatron checkpoint. They fail with
 * TSR_E_NOT_FOUND if it does not exist, and with TSR_E_FORMAT for settings that are not numbers. */
static tsr_status shards_read_params(tsr_checkpoint *checkpoint, tsr_shards_settings *out, tsr_error *err)
{
    const setting settings[] = {{"dim", &out->dim},         {"n_heads", &out->heads},         {"n_kv_heads", &out->kv_heads},
                                {"n_layers", &out->layers}, {"vocab_size", &out->vocabulary}, {NULL, NULL}};
    TSR_TRY(read_numbers(checkpoint, "params.json", settings, err));
    return settle_heads("params.json", out, err);
}

static tsr_status shards_read_config(tsr_checkpoint *checkpoint, tsr_shards_settings *out, tsr_error *err)
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

static tsr_status shards_read_args(tsr_checkpoint *checkpoint, tsr_shards_settings *out, tsr_error *err)
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

/* ---- built in ---- */

typedef enum split {
    ROWS,    /* split along dim 0: column-parallel */
    COLUMNS, /* split along dim 1: row-parallel */
    LAST,    /* split along dim 2 */
    WHOLE,   /* replicated on every rank */
    SAME,    /* whole if it is equal on every rank; otherwise there is no rule */
    GATED_ROWS,
    GATED_EXPERT_ROWS, /* gate and up, split along dim 0 or dim 1 */
    QUERY,
    KEY,
    EMBEDDING,
    VOCABULARY,
    FUSED_QKV,
    OLD_QKV /* decided by the model's settings */
} split;

typedef struct known {
    const char *match; /* a GLOB over the FQN */
    split split;
} known;

static split split_of(const known *table, tsr_str fqn, bool *is_known)
{
    for (const known *k = table; k->match; k++)
        if (tsr_glob_match(tsr_str_from(k->match), fqn)) {
            *is_known = true;
            return k->split;
        }
    *is_known = false;
    return SAME;
}

/* Sets the rule for a split that needs no settings. */
static void set_split(split how, tsr_shards_choice *out)
{
    out->known = how != SAME;
    out->equal_is_enough = how == SAME;
    out->rule.kind = how == WHOLE ? TSR_SHARDS_REPLICATE : TSR_SHARDS_CONCAT;
    out->rule.dim = how == COLUMNS || how == GATED_EXPERT_ROWS ? 1 : how == LAST ? 2 : 0;
    out->rule.block_count = how == GATED_ROWS || how == GATED_EXPERT_ROWS ? 2 : 1;
}

/* If there are fewer attention heads than ranks, several ranks share each head. Sets *copies to how many. */
static tsr_status share_heads(const tsr_shards_held *held, uint64_t heads, uint64_t *copies, tsr_error *err)
{
    *copies = heads < held->ranks ? held->ranks / heads : 1;
    TSR_FAIL_IF(heads < held->ranks ? held->ranks % heads : heads % held->ranks, err, TSR_E_FORMAT,
                "'%.*s': %llu heads cannot be distributed over %u ranks", TSR_STR_ARG(held->fqn), (unsigned long long)heads,
                held->ranks);
    return TSR_OK;
}

static uint64_t size_along(const tsr_shards_held *held, uint32_t dim)
{
    const tsr_entry *first = held->tensors[0];
    return first && first->kind == TSR_ENTRY_TENSOR && dim < first->ndim ? first->shape[dim] : 0;
}

/* ---- Meta's Llama 1 to 3 ---- */

static const known meta_names[] = {
    {"tok_embeddings.weight", EMBEDDING},
    {"output.weight", VOCABULARY},
    {"layers.*.attention.wq.weight", QUERY},
    {"layers.*.attention.w[kv].weight", KEY},
    {"layers.*.attention.wo.weight", COLUMNS},
    {"layers.*.feed_forward.w[13].weight", ROWS},
    {"layers.*.feed_forward.w2.weight", COLUMNS},
    {"layers.*.attention_norm.weight", WHOLE},
    {"layers.*.ffn_norm.weight", WHOLE},
    {"norm.weight", WHOLE},
    {"rope.freqs", WHOLE},
    {"layers.*.attention.inner_attention.rope.freqs", WHOLE},
    {NULL, WHOLE},
};

static tsr_status meta_settings(tsr_checkpoint *checkpoint, uint32_t ranks, uint32_t stages, tsr_shards_settings *out,
                                tsr_error *err)
{
    (void)ranks, (void)stages;
    return shards_read_params(checkpoint, out, err);
}

/* Llama 1 and 2 split the embedding by columns, Llama 3 by rows; the width of a rank's rows shows which. */
static tsr_status choose_embedding(const tsr_shards_settings *s, const tsr_shards_held *held, tsr_shards_choice *out,
                                   tsr_error *err)
{
    const uint64_t width = size_along(held, 1);
    uint64_t all;
    TSR_FAIL_IF(width != s->dim && (!tsr_mul_u64(width, held->ranks, &all) || all != s->dim), err, TSR_E_FORMAT,
                "'%.*s' has rows of %llu elements on rank 0, but params.json states a width of %llu and there are %u ranks",
                TSR_STR_ARG(held->fqn), (unsigned long long)width, (unsigned long long)s->dim, held->ranks);
    out->rule.dim = width != s->dim;
    out->expected = width == s->dim ? s->vocabulary : s->dim;
    return TSR_OK;
}

/* If there are more ranks than key heads, several successive ranks may have the same rows. This is the case if all ranks
 * together have more rows than expected. */
static void share_rows(const tsr_shards_held *held, tsr_shards_choice *out)
{
    const uint64_t rows = size_along(held, 0);
    uint64_t all;
    out->block_copies[0] = 1;
    if (tsr_mul_u64(rows, held->ranks, &all) && all > out->expected && all % out->expected == 0)
        out->block_copies[0] = all / out->expected;
    out->rule.block_copies = out->block_copies;
}

static tsr_status meta_choose(const tsr_shards_settings *s, const tsr_shards_held *held, tsr_shards_choice *out,
                              tsr_error *err)
{
    const split how = split_of(meta_names, held->fqn, &out->known);
    if (!out->known) return TSR_OK;
    set_split(how, out);
    if (how == EMBEDDING) return choose_embedding(s, held, out, err);
    if (how == VOCABULARY) out->expected = s->vocabulary;
    if (how == QUERY) out->expected = s->heads * s->head_dim;
    if (how == KEY) {
        out->expected = s->kv_heads * s->head_dim;
        share_rows(held, out);
    }
    if (how == COLUMNS && tsr_str_ends(held->fqn, TSR_STR(".wo.weight"))) out->expected = s->heads * s->head_dim;
    return TSR_OK;
}

/* ---- Megatron-LM's GPT, from megatron.core and from earlier versions ---- */

static const known megatron_names[] = {
    {"**._extra_state", SAME},
    {"model.embedding.word_embeddings.weight", ROWS},
    {"model.embedding.position_embeddings.weight", WHOLE},
    {"model.output_layer.weight", ROWS},
    {"model.output_layer.bias", ROWS},
    {"model.decoder.final_layernorm.*", WHOLE},
    {"model.decoder.layers.*.*_layernorm.*", WHOLE},
    {"model.decoder.layers.*.self_attention.linear_qkv.weight", ROWS},
    {"model.decoder.layers.*.self_attention.linear_qkv.bias", ROWS},
    {"model.decoder.layers.*.self_attention.linear_qkv.layer_norm_*", WHOLE},
    {"model.decoder.layers.*.self_attention.[qk]_layernorm.*", WHOLE},
    {"model.decoder.layers.*.self_attention.linear_proj.weight", COLUMNS},
    {"model.decoder.layers.*.self_attention.linear_proj.bias", WHOLE},
    {"model.decoder.layers.*.mlp.linear_fc1.weight", GATED_ROWS},
    {"model.decoder.layers.*.mlp.linear_fc1.bias", GATED_ROWS},
    {"model.decoder.layers.*.mlp.linear_fc1.layer_norm_*", WHOLE},
    {"model.decoder.layers.*.mlp.linear_fc2.weight", COLUMNS},
    {"model.decoder.layers.*.mlp.linear_fc2.bias", WHOLE},
    {"model.language_model.embedding.word_embeddings.weight", ROWS},
    {"model.language_model.embedding.position_embeddings.weight", WHOLE},
    {"model.language_model.output_layer.weight", ROWS},
    {"model.word_embeddings_for_head.weight", ROWS},
    {"model.language_model.encoder.final_*norm.*", WHOLE},
    {"model.language_model.encoder.layers.*.*_*norm.*", WHOLE},
    {"model.language_model.encoder.layers.*.self_attention.query_key_value.weight", OLD_QKV},
    {"model.language_model.encoder.layers.*.self_attention.query_key_value.bias", OLD_QKV},
    {"model.language_model.encoder.layers.*.self_attention.dense.weight", COLUMNS},
    {"model.language_model.encoder.layers.*.self_attention.dense.bias", WHOLE},
    {"model.language_model.encoder.layers.*.mlp.dense_h_to_4h.weight", GATED_ROWS},
    {"model.language_model.encoder.layers.*.mlp.dense_h_to_4h.bias", GATED_ROWS},
    {"model.language_model.encoder.layers.*.mlp.dense_4h_to_h.weight", COLUMNS},
    {"model.language_model.encoder.layers.*.mlp.dense_4h_to_h.bias", WHOLE},
    {NULL, WHOLE},
};

static tsr_status megatron_settings(tsr_checkpoint *checkpoint, uint32_t ranks, uint32_t stages, tsr_shards_settings *out,
                                    tsr_error *err)
{
    TSR_TRY(shards_read_args(checkpoint, out, err));
    TSR_FAIL_IF(out->tensor_ranks && out->tensor_ranks != ranks, err, TSR_E_FORMAT,
                "args.tensor_model_parallel_size is %llu, but there are files of %u tensor-parallel ranks",
                (unsigned long long)out->tensor_ranks, ranks);
    TSR_FAIL_IF(out->stages && out->stages != stages, err, TSR_E_FORMAT,
                "args.pipeline_model_parallel_size is %llu, but there are files of %u pipeline stages",
                (unsigned long long)out->stages, stages);
    TSR_FAIL_IF(out->expert_ranks > 1, err, TSR_E_UNSUPPORTED,
                "args.expert_model_parallel_size is %llu; the built-in map does not support experts on several ranks",
                (unsigned long long)out->expert_ranks);
    return TSR_OK;
}

static tsr_status megatron_choose(const tsr_shards_settings *s, const tsr_shards_held *held, tsr_shards_choice *out,
                                  tsr_error *err)
{
    const split how = split_of(megatron_names, held->fqn, &out->known);
    if (!out->known) return TSR_OK;
    set_split(how == GATED_ROWS && !s->gated ? ROWS : how, out);
    TSR_FAIL_IF(how == OLD_QKV && s->version < 1, err, TSR_E_UNSUPPORTED,
                "'%.*s' has checkpoint_version 0, whose order of heads the built-in map does not support",
                TSR_STR_ARG(held->fqn));
    return TSR_OK;
}

/* ---- vLLM's sharded state ---- */

static const known vllm_names[] = {
    {"**embed_tokens.weight", VOCABULARY},
    {"lm_head.weight", VOCABULARY},
    {"lm_head.bias", VOCABULARY},
    {"**.self_attn.qkv_proj.weight", FUSED_QKV},
    {"**.self_attn.qkv_proj.bias", FUSED_QKV},
    {"**.self_attn.o_proj.weight", COLUMNS},
    {"**.self_attn.o_proj.bias", WHOLE},
    {"**.gate_up_proj.weight", GATED_ROWS},
    {"**.gate_up_proj.bias", GATED_ROWS},
    {"**.down_proj.weight", COLUMNS},
    {"**.down_proj.bias", WHOLE},
    {"**.experts.w13_weight", GATED_EXPERT_ROWS},
    {"**.experts.w2_weight", LAST},
    {"**.mlp.gate.weight", WHOLE},
    {"**.block_sparse_moe.gate.weight", WHOLE},
    {"**.shared_expert_gate.weight", WHOLE},
    {"**.self_attn.[qk]_norm.weight", WHOLE},
    {"**.*layernorm.weight", WHOLE},
    {"**.*layernorm.bias", WHOLE},
    {"model.norm.weight", WHOLE},
    {NULL, WHOLE},
};

static tsr_status vllm_settings(tsr_checkpoint *checkpoint, uint32_t ranks, uint32_t stages, tsr_shards_settings *out,
                                tsr_error *err)
{
    (void)ranks, (void)stages;
    return shards_read_config(checkpoint, out, err);
}

/* A rank has its query heads, followed by its key heads and value heads. If there are fewer of those than ranks, several
 * ranks share each. */
static tsr_status choose_qkv(const tsr_shards_settings *s, const tsr_shards_held *held, tsr_shards_choice *out,
                             tsr_error *err)
{
    uint64_t copies;
    TSR_TRY(share_heads(held, s->kv_heads, &copies, err));
    TSR_FAIL_IF(s->heads % held->ranks, err, TSR_E_FORMAT, "'%.*s': %llu heads cannot be distributed over %u ranks",
                TSR_STR_ARG(held->fqn), (unsigned long long)s->heads, held->ranks);
    const uint64_t kv = (s->kv_heads > held->ranks ? s->kv_heads / held->ranks : 1) * s->head_dim;
    const uint64_t sizes[] = {s->heads / held->ranks * s->head_dim, kv, kv}, shared[] = {1, copies, copies};
    memcpy(out->block_sizes, sizes, sizeof sizes);
    memcpy(out->block_copies, shared, sizeof shared);
    out->rule.block_count = 3;
    out->rule.block_sizes = out->block_sizes;
    out->rule.block_copies = out->block_copies;
    return TSR_OK;
}

/* The vocabulary is padded to a multiple of 64 rows; the padding is at the end of the last ranks' rows. */
static tsr_status choose_vocabulary(const tsr_shards_settings *s, const tsr_shards_held *held, tsr_shards_choice *out,
                                    tsr_error *err)
{
    TSR_FAIL_IF(!s->vocabulary, err, TSR_E_FORMAT, "config.json does not state vocab_size, to which '%.*s' must be trimmed",
                TSR_STR_ARG(held->fqn));
    out->rule.trims = true;
    out->rule.trim = s->vocabulary;
    return TSR_OK;
}

static tsr_status vllm_choose(const tsr_shards_settings *s, const tsr_shards_held *held, tsr_shards_choice *out,
                              tsr_error *err)
{
    const split how = split_of(vllm_names, held->fqn, &out->known);
    if (!out->known) return TSR_OK;
    set_split(how, out);
    if (how == VOCABULARY) return choose_vocabulary(s, held, out, err);
    return how == FUSED_QKV ? choose_qkv(s, held, out, err) : TSR_OK;
}

/* ---- choosing a map by name ---- */

static const tsr_shards_family meta_llama = {NULL, meta_settings, meta_choose};
static const tsr_shards_family megatron_gpt = {"**.layers.{layer}.{rest...}", megatron_settings, megatron_choose};
static const tsr_shards_family vllm = {NULL, vllm_settings, vllm_choose};

const tsr_shards *tsr_shards_built_in(tsr_str name)
{
    static const tsr_shards maps[] = {{.name = {"meta-llama", 10}, .family = &meta_llama},
                                      {.name = {"megatron-gpt", 12}, .family = &megatron_gpt},
                                      {.name = {"vllm", 4}, .family = &vllm}};
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++)
        if (tsr_str_equal(maps[i].name, name)) return &maps[i];
    return NULL;
}
