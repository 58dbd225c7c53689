/* Adapters of models whose output layer and input embedding are the same tensor. Source: what merge_and_unload of PEFT 0.21
 * computes, and what save_pretrained of transformers 5.23 then stores. */
#include "codec/json.h"
#include "merge/lora_parts.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"

static tsr_str module_of(tsr_str weight)
{
    const tsr_str ending = TSR_STR(".weight");
    return tsr_str_ends(weight, ending) ? (tsr_str){weight.data, weight.size - ending.size} : TSR_STR("");
}

/* The number of the name in `names`, from 1, that the module of the weight ends with; or 0. An empty string ends `names`. */
static unsigned place_among(tsr_str weight, const char *names)
{
    const tsr_str module = module_of(weight);
    for (unsigned place = 1; *names; names += strlen(names) + 1, place++)
        if (tsr_lora_ends(module, tsr_str_from(names))) return place;
    return 0;
}

/* Models with the first NAMED of them name the output layer "lm_head". Others, such as BERT, XLNet and ModernBERT, do not. */
enum { NAMED = 6 };
static unsigned input_place(tsr_str weight)
{
    return place_among(weight, "embed_tokens\0wte\0tokens_embed\0transformer.word_embeddings\0gpt_neox.embed_in\0"
                               "backbone.embeddings\0word_embeddings\0word_embedding\0tok_embeddings\0shared\0");
}

bool tsr_lora_is_input(tsr_str weight)
{
    return input_place(weight);
}

/* Layers of a transformer may have an "output", too, but not as a matrix of the embedding's shape, which is checked. */
bool tsr_lora_is_output(tsr_str weight)
{
    return place_among(weight, "lm_head\0embed_out\0output\0");
}

/* ---- whether the base ties them ---- */

static const cJSON *setting(const tsr_lora_config *config, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(config->tree, name);
}

/* Whether the adapter was made for a model with an output layer, and not for one with a classifier in its place. */
static bool has_output_layer(const tsr_lora_config *config)
{
    const cJSON *task = setting(config, "task_type");
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(setting(config, "auto_mapping"), "base_model_class");
    if (cJSON_IsString(task)) return strstr(task->valuestring, "_LM");
    return !cJSON_IsString(model) || !strstr(model->valuestring, "Classification");
}

bool tsr_lora_one_storage(const tsr_lora_tied *tied)
{
    return tied->output && tied->output->storage_id && tied->output->storage_id == tied->embedding->storage_id;
}

static const cJSON *stated_tie(const tsr_mapped *m)
{
    const char *name = "tie_word_embeddings";
    const cJSON *stated = tsr_mapped_setting(m, name);
    return stated ? stated : cJSON_GetObjectItemCaseSensitive(tsr_mapped_setting(m, "text_config"), name);
}

/* If no config.json states it, a causal language model without an output layer counts as one with tied embeddings. */
static bool ties_words(const tsr_mapped *m, const tsr_lora_config *config, const tsr_lora_tied *tied)
{
    const cJSON *stated = stated_tie(m);
    if (tsr_lora_one_storage(tied)) return true;
    if (stated) return cJSON_IsTrue(stated);
    return !tied->output && cJSON_IsString(setting(config, "task_type"));
}

/* Whether both are matrices of the same shape and dtype. */
static bool alike(const tsr_entry *a, const tsr_entry *b)
{
    return a->dtype == b->dtype && a->ndim == 2 && tsr_entry_same_shape(a, b);
}

void tsr_lora_find_tied(const tsr_mapped *m, const tsr_lora_config *config, tsr_lora_tied *out)
{
    const tsr_catalog *catalog = &m->source->catalog;
    const tsr_entry *end = catalog->entries + catalog->entry_count;
    *out = (tsr_lora_tied){.embedding = NULL};
    for (const tsr_entry *entry = catalog->entries; entry < end; entry++) {
        if (!tsr_lora_is_input(entry->fqn)) continue;
        out->unsure = out->embedding != NULL;
        out->embedding = entry;
    }
    for (const tsr_entry *entry = catalog->entries; out->embedding && entry < end; entry++)
        if (tsr_lora_is_output(entry->fqn) && alike(entry, out->embedding)) out->output = entry;
    if (!out->embedding || !has_output_layer(config) || !ties_words(m, config, out))
        *out = (tsr_lora_tied){.embedding = NULL};
}

/* ---- what becomes of them ---- */

/* Whether modules_to_save has the module of the fold, which may be NULL. */
static bool lora_is_saved(const tsr_lora_config *config, const tsr_fold *fold)
{
    return fold && fold->start && tsr_lora_lists(setting(config, "modules_to_save"), module_of(fold->name));
}

/* A module of modules_to_save has a tensor of its own. The other module keeps the tensor that both had shared, which
 * therefore needs a second name if the base stores it only once. */
static tsr_status untie(tsr_mapped *m, tsr_lora_tied *tied, tsr_error *err)
{
    const tsr_entry *embedding = tied->embedding;
    const tsr_str inner = TSR_STR("language_model.");
    if (!tied->output && !tied->out) {
        TSR_FAIL_IF(input_place(embedding->fqn) > NAMED || cJSON_IsTrue(tsr_mapped_setting(m, "is_encoder_decoder")), err,
                    TSR_E_UNSUPPORTED, TSR_LORA_OTHERS_TIED, TSR_STR_ARG(embedding->fqn));
        tsr_fold *copy = TSR_ARENA_NEW(m->own->arena, tsr_fold, err);
        if (!copy) return TSR_E_NOMEM;
        *copy = (tsr_fold){.base = m->source, .weight = embedding, .dtype = embedding->dtype};
        copy->name = tsr_arena_format(m->own->arena, err, "%slm_head.weight",
                                      tsr_str_starts(embedding->fqn, inner) ? inner.data : "");
        if (!copy->name.data) return TSR_E_NOMEM;
        tied->out = copy;
    }
    const tsr_str output = tied->output ? tied->output->fqn : tied->out->name;
    m->config_changes.untied = true;
    return tsr_mapped_add_config_note(
        m,
        tsr_arena_format(
            m->own->arena, err,
            "'%.*s' is no longer the same tensor as '%.*s'; set tie_word_embeddings to false in config.json, as PEFT does",
            TSR_STR_ARG(output), TSR_STR_ARG(embedding->fqn)),
        err);
}

tsr_fold *tsr_lora_join(tsr_fold *first, tsr_fold *second)
{
    tsr_fold *last = second && (second->b || !first) ? second : first;
    if (!first || !second) return last;
    if (second->start) first->start = second->start;
    if (last == first) return last;
    if (first->dtype != first->weight->dtype) first->dtype = first->weight->dtype == TSR_FLOAT64 ? TSR_FLOAT64 : TSR_FLOAT32;
    second->start = NULL;
    second->before = first;
    return last;
}

tsr_status tsr_lora_settle_tied(tsr_mapped *m, const tsr_lora_config *config, tsr_lora_tied *tied, tsr_error *err)
{
    tsr_fold *in = tied->in, *out = tied->out;
    const bool ensure = cJSON_IsTrue(setting(config, "ensure_weight_tying"));
    const bool changes = (in && in->b) || (out && out->b);
    if (!in && !out) return TSR_OK;
    TSR_FAIL_IF(tied->unsure, err, TSR_E_UNSUPPORTED,
                "the base has several input embeddings, one of them tied to the output layer; fold this adapter with PEFT");
    TSR_FAIL_IF(
        ensure && changes, err, TSR_E_UNSUPPORTED,
        "PEFT's merge adds twice what ensure_weight_tying trains; to add it once, remove the output layer's tensors from the "
        "adapter and set ensure_weight_tying to false");
    TSR_FAIL_IF(
        in && out && (in->tokens || out->tokens), err, TSR_E_UNSUPPORTED,
        "trainable_token_indices and another change of the tied embedding: PEFT's merge applies both to both layers; "
        "fold this adapter with PEFT");
    if (!ensure && (lora_is_saved(config, in) || lora_is_saved(config, out))) return untie(m, tied, err);
    tied->in = tied->out = tsr_lora_join(in, out); /* PEFT loads the replacement of the output layer last */
    if (tied->output && !tsr_lora_one_storage(tied)) m->tied = (tsr_tied){tied->output, tied->embedding};
    if (!changes) return TSR_OK;
    const tsr_str output = tied->output ? tied->output->fqn : out ? out->name : TSR_STR("the output layer");
    return tsr_mapped_add_note(
        m,
        tsr_arena_format(
            m->own->arena, err,
            "'%.*s' and '%.*s' are tied and both change, as in PEFT's merge, so the result does not compute what the adapter "
            "does; to prevent that, first save the base with both tensors and tie_word_embeddings false",
            TSR_STR_ARG(output), TSR_STR_ARG(tied->embedding->fqn)),
        err);
}

/* ---- check ---- */

/* Refuses adapters with which PEFT would also change tensors that they do not name, or whose files do not determine the
 * result. */

/* In PEFT, a tensor that shares memory with a changed one changes with it. The files do not show whether that is intended,
 * so such a base is refused, unless the tensors are the input embedding and the output layer. */
static tsr_status check_shared(const tsr_catalog *catalog, const tsr_lora_tied *tied, const tsr_fold *fold, tsr_error *err)
{
    const tsr_entry *weight = fold->weight;
    const bool is_tied = weight == tied->embedding || weight == tied->output;
    for (uint64_t e = 0; !fold->added && weight->storage_id && e < catalog->entry_count; e++) {
        const tsr_entry *other = &catalog->entries[e];
        if (is_tied && (other == tied->embedding || other == tied->output)) continue;
        TSR_FAIL_IF(
            other != weight && other->storage_id == weight->storage_id, err, TSR_E_UNSUPPORTED,
            "'%.*s', which the adapter changes, shares its memory with '%.*s'; convert the base to safetensors first",
            TSR_STR_ARG(weight->fqn), TSR_STR_ARG(other->fqn));
    }
    return TSR_OK;
}

/* T5, BART and the models like them use "shared" under further names, which PEFT does not replace in modules_to_save. */
static tsr_status check_replaced(const tsr_lora_config *config, const tsr_fold *fold, tsr_error *err)
{
    TSR_FAIL_IF(lora_is_saved(config, fold) && tsr_lora_ends(fold->name, TSR_STR("shared.weight")), err, TSR_E_UNSUPPORTED,
                TSR_LORA_OTHERS_TIED, TSR_STR_ARG(fold->name));
    return TSR_OK;
}

/* ---- matrices that may be transposed ---- */

/* Whether the fold is of a Linear or a Conv1D. */
static bool is_layer(const tsr_fold *fold)
{
    return fold->a && !fold->embedding && !fold->experts && fold->weight->ndim == 2;
}

static bool is_square(const tsr_entry *weight)
{
    return weight->shape[0] == weight->shape[1];
}

/* Sets *turned to whether the shape of the module's bias shows that the weight is [inputs, outputs]. *known is false if it
 * does not decide this. */
static tsr_status is_turned(const tsr_mapped *m, const tsr_entry *weight, bool *known, bool *turned, tsr_error *err)
{
    const tsr_str ending = TSR_STR(".weight");
    *known = false;
    if (weight->kind != TSR_ENTRY_TENSOR || weight->ndim != 2 || is_square(weight) || !tsr_str_ends(weight->fqn, ending))
        return TSR_OK;
    const tsr_str name =
        tsr_arena_format(m->own->arena, err, "%.*s.bias", (int)(weight->fqn.size - ending.size), weight->fqn.data);
    if (!name.data) return TSR_E_NOMEM;
    const tsr_entry *bias = tsr_checkpoint_entry(m->source, name);
    if (!bias || bias->kind != TSR_ENTRY_TENSOR || bias->ndim != 1) return TSR_OK;
    *turned = bias->shape[0] == weight->shape[1];
    *known = *turned || bias->shape[0] == weight->shape[0];
    return TSR_OK;
}

/* Sets *out to a weight, in a fold or in the base, whose shape contradicts fan_in_fan_out, or to NULL if there is none. */
static tsr_status find_contradiction(const tsr_mapped *m, bool fan_in_fan_out, tsr_fold *const *folds, size_t count,
                                     const tsr_entry **out, tsr_error *err)
{
    const tsr_catalog *catalog = &m->source->catalog;
    *out = NULL;
    for (size_t i = 0; i < count && !*out; i++) {
        const tsr_fold *fold = folds[i];
        if (is_layer(fold) && !is_square(fold->weight) && fold->transposed != fan_in_fan_out) *out = fold->weight;
    }
    for (uint64_t e = 0; e < catalog->entry_count && !*out; e++) {
        bool known, turned = false;
        TSR_TRY(is_turned(m, &catalog->entries[e], &known, &turned, err));
        if (known && turned != fan_in_fan_out) *out = &catalog->entries[e];
    }
    return TSR_OK;
}

/* PEFT decides for each module by its class whether the weight is transposed (Conv1D, as in GPT-2) or not (Linear), but the
 * saved fan_in_fan_out is that of the last module only. The shapes of the other weights show how they are stored, unless
 * they are square. So a square weight is refused if another weight contradicts the setting. */
static tsr_status check_squares(const tsr_mapped *m, bool fan_in_fan_out, tsr_fold *const *folds, size_t count,
                                tsr_error *err)
{
    size_t first = 0;
    const tsr_entry *other;
    while (first < count && !(is_layer(folds[first]) && is_square(folds[first]->weight))) first++;
    if (first == count) return TSR_OK;
    TSR_TRY(find_contradiction(m, fan_in_fan_out, folds, count, &other, err));
    TSR_FAIL_IF(
        other, err, TSR_E_UNSUPPORTED,
        "'%.*s' is square, so nothing shows whether it is transposed: fan_in_fan_out of adapter_config.json does not hold for "
        "'%.*s'; fold this adapter with PEFT",
        TSR_STR_ARG(folds[first]->weight->fqn), TSR_STR_ARG(other->fqn));
    return TSR_OK;
}

tsr_status tsr_lora_check(const tsr_mapped *m, const tsr_lora_config *config, const tsr_lora_tied *tied,
                          const tsr_vec *folds, tsr_error *err)
{
    tsr_fold *const *all = folds->items;
    for (size_t i = 0; i < folds->count; i++) {
        TSR_TRY(check_shared(&m->source->catalog, tied, all[i], err));
        TSR_TRY(check_replaced(config, all[i], err));
    }
    return check_squares(m, config->fan_in_fan_out, all, folds->count, err);
}
