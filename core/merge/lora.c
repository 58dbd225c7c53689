/* Folds a LoRA adapter into its base: matches the adapter's tensors to the tensors of the base that they change. */
#include <math.h>

#include "codec/json.h"
#include "mapping/mapping_rules.h"
#include "merge/lora_parts.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/options.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

typedef struct folding {
    tsr_checkpoint *adapter;
    const tsr_part *model; /* of an adapter in a training directory, whose other parts are not read; otherwise NULL */
    tsr_lora_names names;
    tsr_lora_options options;
    tsr_lora_config config;
    tsr_mapped *m;
    tsr_map *targets; /* name in the base → index in `folds` */
    tsr_vec folds;    /* of tsr_fold * */
    tsr_lora_tied tied;
    uint32_t tied_file; /* the computed file of both; 0: not computed yet */
    tsr_error *err;
} folding;

static tsr_status join(const folding *f, tsr_str stem, const char *ending, tsr_str *out)
{
    *out = tsr_arena_format(f->m->own->arena, f->err, "%.*s%s", TSR_STR_ARG(stem), ending);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* ---- modules that the adapter has but the base lacks ---- */

/* Such as the classifier of an adapter that was trained on a language model. The model that PEFT merges then has them. */

/* Inside the modules of the base, a missing name is more likely one that transformers has renamed since. */
static bool is_apart(const tsr_checkpoint *base, tsr_str target)
{
    const tsr_catalog *catalog = &base->catalog;
    const char *dot = memchr(target.data, '.', target.size);
    const tsr_str root = {target.data, dot ? (size_t)(dot - target.data) + 1 : 0};
    for (uint64_t i = 0; i < catalog->entry_count; i++)
        if (tsr_str_starts(catalog->entries[i].fqn, root)) return false;
    return true;
}

/* Whether `target`, which is not in the base, is of a module that the adapter stores whole and that the base does
 * not have at all. */
static bool adds_module(const tsr_lora_config *config, const tsr_checkpoint *base, tsr_str target)
{
    const cJSON *saved = cJSON_GetObjectItemCaseSensitive(config->tree, "modules_to_save");
    for (size_t i = target.size; i > 0; i--)
        if (target.data[i - 1] == '.' && tsr_lora_lists(saved, (tsr_str){target.data, i - 1})) return is_apart(base, target);
    return false;
}

/* The dtype of the base's floating-point tensors, which added ones receive; TSR_DTYPE_NONE if it has none. transformers loads a model in
 * the dtype of its weights, and so a module that it creates has that dtype, too. */
static tsr_dtype dtype_of_base(const tsr_checkpoint *base)
{
    const tsr_catalog *catalog = &base->catalog;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind == TSR_ENTRY_TENSOR && tsr_cast_possible(entry->dtype, TSR_FLOAT32)) return entry->dtype;
    }
    return TSR_DTYPE_NONE;
}

/* Other tasks, such as CAUSAL_LM, keep the output layer. */
static bool classifies(const tsr_lora_config *config)
{
    const cJSON *task = cJSON_GetObjectItemCaseSensitive(config->tree, "task_type");
    const cJSON *of = cJSON_GetObjectItemCaseSensitive(config->tree, "auto_mapping");
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(of, "base_model_class");
    if (cJSON_IsString(task)) return strstr(task->valuestring, "_CLS") || strstr(task->valuestring, "QUESTION");
    return cJSON_IsString(model) && strstr(model->valuestring, "Classification");
}

/* Whether an entry of the base is left out of a model to which modules are added: a classifier is in place of the output
 * layer. */
static bool is_left_out(const tsr_lora_config *config, tsr_str name)
{
    static const char *const outputs[] = {"lm_head.", "cls.", "embed_out.", "language_model.lm_head."};
    size_t i = 0;
    while (i < sizeof outputs / sizeof *outputs && !tsr_str_starts(name, tsr_str_from(outputs[i]))) i++;
    return i < sizeof outputs / sizeof *outputs && classifies(config);
}

static tsr_status add_note(tsr_mapped *m, const char *format, tsr_str first, tsr_error *err)
{
    return tsr_mapped_add_note(m, tsr_arena_format(m->own->arena, err, format, TSR_STR_ARG(first)), err);
}

/* Notes that tensors were added, such as `first`, and which entries of the base are left out (m->dropped). */
static tsr_status note_added(tsr_mapped *m, tsr_str first, tsr_error *err)
{
    const tsr_entry *const *left_out = m->dropped.items;
    TSR_TRY(add_note(
        m,
        "tensors that the base does not have are added, such as '%.*s'; state the class of the model that has them in config.json",
        first, err));
    if (!m->dropped.count) return TSR_OK;
    return add_note(m, "the output layer of the base is left out, as in the model that PEFT merges, such as '%.*s'",
                    left_out[0]->fqn, err);
}

/* ---- folds ---- */

static tsr_status misfit(const folding *f, const tsr_entry *entry, const tsr_entry *weight)
{
    tsr_mapped_tensor a = {.ndim = entry->ndim}, b = {.ndim = weight->ndim};
    a.shape = (uint64_t *)(uintptr_t)entry->shape;
    b.shape = (uint64_t *)(uintptr_t)weight->shape;
    TSR_FAIL_IF(
        entry->ndim == 1 && !entry->shape[0] && weight->ndim > 1, f->err, TSR_E_FORMAT,
        "'%.*s' of the adapter is empty, as DeepSpeed's ZeRO 3 leaves parameters that are saved without being gathered; "
        "save the adapter again with stage3_gather_16bit_weights_on_model_save",
        TSR_STR_ARG(entry->fqn));
    return tsr_fail(f->err, TSR_E_FORMAT, "'%.*s' %s of the adapter does not fit '%.*s' %s of the base",
                    TSR_STR_ARG(entry->fqn), tsr_shape_of(&a).text, TSR_STR_ARG(weight->fqn), tsr_shape_of(&b).text);
}

/* Whether `target`, which the base does not have, is an output layer that shares the input embedding. */
static bool is_tied_output(const folding *f, tsr_str target)
{
    return !f->tied.output && tsr_lora_is_output(target) && (!f->tied.out || tsr_str_equal(f->tied.out->name, target));
}

static void place_tied(tsr_lora_tied *tied, tsr_fold *fold)
{
    if (!tied->embedding) return;
    if (fold->weight == tied->output || !tsr_str_equal(fold->weight->fqn, fold->name)) tied->out = fold;
    else if (fold->weight == tied->embedding || (tied->unsure && tsr_lora_is_input(fold->name))) tied->in = fold;
}

/* Refuses a base that holds the target as packed numbers under another name. */
static tsr_status check_packed(const folding *f, tsr_str target)
{
    const tsr_arithmetic sum = {.dtype = TSR_DTYPE_NONE};
    const tsr_entry *packed;
    TSR_TRY(tsr_find_packed(f->m->source, target, &packed, f->err));
    return packed ? tsr_check_arithmetic_on(f->m->source, packed, &sum, f->err) : TSR_OK;
}

/* Returns the fold of the base's tensor `target`, and creates it if this is the first tensor of the adapter that changes it.
 * `entry` is that tensor of the adapter; `whole` means that it replaces the base's, so that the base need not have it. */
static tsr_status fold_of(folding *f, const tsr_entry *entry, tsr_str target, bool whole, tsr_fold **out)
{
    uint32_t *number;
    bool inserted;
    const tsr_arithmetic sum = {.dtype = TSR_DTYPE_NONE};
    const tsr_str in_memory = target;
    const bool is_second = tsr_lora_is_second_place(&f->names, in_memory);
    TSR_TRY(tsr_lora_stored(&f->names, target, &target, f->err));
    const tsr_entry *weight = tsr_checkpoint_entry(f->m->source, target);
    if (!weight && is_tied_output(f, target)) weight = f->tied.embedding;
    const bool added = !weight && whole && adds_module(&f->config, f->m->source, target);
    if (added) weight = entry;
    else if (weight) TSR_TRY(tsr_check_arithmetic_on(f->m->source, weight, &sum, f->err));
    else TSR_TRY(check_packed(f, target));
    TSR_FAIL_IF(
        !weight || weight->kind != TSR_ENTRY_TENSOR, f->err, TSR_E_NOT_FOUND,
        "'%.*s' of the adapter is for '%.*s', which the base does not have; if transformers makes it from other tensors "
        "when it loads the base, fold this adapter with PEFT",
        TSR_STR_ARG(entry->fqn), TSR_STR_ARG(target));
    TSR_FAIL_IF(is_second && tsr_str_equal(target, in_memory), f->err, TSR_E_UNSUPPORTED,
                "'%.*s' is the same tensor in memory as that of another module, but the base stores both; fold this adapter "
                "with PEFT",
                TSR_STR_ARG(target));
    const bool floats = tsr_cast_possible(weight->dtype, TSR_FLOAT32) && tsr_cast_possible(entry->dtype, TSR_FLOAT32);
    TSR_FAIL_IF(!floats && weight->dtype != entry->dtype, f->err, TSR_E_FORMAT,
                "'%.*s' is %s in the adapter, but '%.*s' of the base is %s", TSR_STR_ARG(entry->fqn),
                tsr_dtype_describe(entry->dtype)->name, TSR_STR_ARG(weight->fqn), tsr_dtype_describe(weight->dtype)->name);
    TSR_TRY(tsr_map_put(f->targets, is_second ? in_memory : target, (uint32_t)f->folds.count, &number, &inserted, f->err));
    if (!inserted) {
        *out = ((tsr_fold **)f->folds.items)[*number];
        return TSR_OK;
    }
    tsr_fold **place = tsr_vec_push(&f->folds, f->err),
             *fold = place ? TSR_ARENA_NEW(f->m->own->arena, tsr_fold, f->err) : NULL;
    if (!fold) return TSR_E_NOMEM;
    *fold = (tsr_fold){.base = f->m->source, .adapter = f->adapter, .weight = weight, .name = target, .scale = 1};
    fold->dtype = floats && f->options.dtype ? f->options.dtype : weight->dtype;
    fold->added = added;
    fold->is_second = is_second;
    if (added && floats && !f->options.dtype) fold->dtype = dtype_of_base(f->m->source);
    *place = *out = fold;
    place_tied(&f->tied, fold);
    return TSR_OK;
}

/* trainable_token_indices: rows of an embedding, or of the output layer, that the adapter stores instead of a change. The list is for
 * the input embedding, unless it is an object with a list for each module. */
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

/* Sets fold->tokens to `entry`. Errors: TSR_E_FORMAT if the configuration or the base does not have its rows. */
static tsr_status set_tokens(const tsr_mapped *m, const tsr_lora_config *config, const tsr_entry *entry, tsr_str module,
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

static tsr_status set_change(const folding *f, tsr_fold *fold, const tsr_entry *b)
{
    TSR_FAIL_IF(fold->b, f->err, TSR_E_FORMAT, "'%.*s' is changed twice by the adapter", TSR_STR_ARG(fold->weight->fqn));
    TSR_FAIL_IF(!tsr_cast_possible(b->dtype, TSR_FLOAT32), f->err, TSR_E_UNSUPPORTED,
                "'%.*s' is %s; only floating-point matrices can be folded", TSR_STR_ARG(b->fqn),
                tsr_dtype_describe(b->dtype)->name);
    fold->b = b;
    return TSR_OK;
}

/* Finds the tensor of another kind in the module, which `of` needs. */
static tsr_status find_pair(const folding *f, tsr_str module, tsr_lora_kind kind, const tsr_entry *of, const tsr_entry **out)
{
    const tsr_str name = tsr_lora_sibling(&f->names, module, kind, f->err);
    *out = name.data ? tsr_checkpoint_entry(f->adapter, name) : NULL;
    if (!name.data) return TSR_E_NOMEM;
    TSR_FAIL_IF(!*out, f->err, TSR_E_NOT_FOUND, "the adapter has '%.*s' but not '%.*s'", TSR_STR_ARG(of->fqn),
                TSR_STR_ARG(name));
    return TSR_OK;
}

/* Whether the adapter selects the tensor by target_parameters. PEFT then rounds the change as it does for embeddings. */
static bool is_parameter(const folding *f, tsr_str target)
{
    return tsr_lora_lists(tsr_lora_parameters(&f->config), target);
}

static uint64_t elements_of_row(const tsr_entry *entry)
{
    uint64_t count = 1;
    for (uint32_t i = 1; i < entry->ndim; i++) count *= entry->shape[i]; /* less than the entry's, which were counted */
    return count;
}

/* Whether the three are matrices, or A is a convolution like W and B one with a kernel of size 1, which are then read as
 * matrices. */
static bool are_matrices(const tsr_fold *fold)
{
    const tsr_entry *a = fold->a, *b = fold->b, *w = fold->weight;
    if (fold->experts || w->ndim < 3)
        return w->ndim == (fold->experts && w->ndim == 3 ? 3u : 2u) && a->ndim == 2 && b->ndim == 2;
    return a->ndim == w->ndim && b->ndim == w->ndim &&
           !memcmp(a->shape + 1, w->shape + 1, (w->ndim - 1) * sizeof *w->shape) && elements_of_row(b) == b->shape[1];
}

static tsr_status set_sizes(const folding *f, tsr_fold *fold, uint64_t outputs, bool transposed)
{
    const tsr_entry *a = fold->a, *b = fold->b, *w = fold->weight;
    const uint64_t each = fold->experts ? fold->experts : 1;
    if (!are_matrices(fold) || b->shape[1] != a->shape[0]) return misfit(f, b, w);
    TSR_FAIL_IF(each > TSR_LORA_COLUMNS, f->err, TSR_E_LIMIT, "'%.*s' is of too many experts", TSR_STR_ARG(b->fqn));
    TSR_FAIL_IF(a->shape[0] % each || a->shape[0] / each != fold->rank, f->err, TSR_E_FORMAT,
                "'%.*s' has rank %llu, but adapter_config.json states %llu", TSR_STR_ARG(a->fqn),
                (unsigned long long)(a->shape[0] / each), (unsigned long long)fold->rank);
    const bool fused = fold->experts && w->ndim == 3;
    fold->rows = w->shape[fused ? 1 : 0];
    fold->columns = fused ? w->shape[2] : elements_of_row(w);
    const uint64_t inputs = elements_of_row(a);
    const bool plain = fold->rows == outputs && fold->columns == inputs;
    const bool turned = (fused || w->ndim == 2) && fold->columns == outputs && fold->rows == inputs;
    if (!plain && !turned) return misfit(f, b, w);
    fold->transposed = turned && (transposed || !plain);
    return TSR_OK;
}

static tsr_status set_product(folding *f, tsr_fold *fold, const tsr_lora_pair *pair)
{
    TSR_TRY(set_change(f, fold, pair->b));
    fold->a = pair->a;
    TSR_FAIL_IF(!tsr_cast_possible(pair->a->dtype, TSR_FLOAT32), f->err, TSR_E_UNSUPPORTED, "'%.*s' is %s",
                TSR_STR_ARG(pair->a->fqn), tsr_dtype_describe(pair->a->dtype)->name);
    return TSR_OK;
}

static tsr_status add_experts(folding *f, const tsr_lora_pair *pair, const tsr_lora_places *found)
{
    const tsr_lora_place *places = found->places.items;
    for (size_t i = 0; i < found->places.count; i++) {
        tsr_fold *fold = NULL;
        const tsr_lora_place *place = &places[i];
        const uint64_t parts = found->places.count > 1 ? found->places.count / place->experts : 1;
        TSR_TRY(fold_of(f, pair->b, place->target, false, &fold));
        TSR_TRY(set_product(f, fold, pair));
        fold->experts = place->experts;
        fold->expert = place->expert;
        fold->first_output = place->first_output;
        fold->rounds = fold->dtype == fold->weight->dtype;
        TSR_TRY(tsr_lora_scale(&f->config, found->parameter, &fold->scale, &fold->rank, f->err));
        TSR_TRY(set_sizes(f, fold, place->outputs / parts, false));
    }
    return TSR_OK;
}

/* Adds the product of matrices of a parameter that is not the weight of its module. */
static tsr_status add_parameter(folding *f, const tsr_lora_pair *pair, tsr_str module)
{
    tsr_lora_places found = {.places = tsr_vec_of(f->m->own->host->allocator, sizeof(tsr_lora_place))};
    tsr_status status = tsr_lora_find_places(&f->names, &f->config, pair, module, &found, f->err);
    if (status == TSR_OK) status = add_experts(f, pair, &found);
    tsr_vec_free(&found.places);
    return status;
}

/* Adds the product of B, which is `entry`, and its A. */
static tsr_status add_product(folding *f, const tsr_entry *b, tsr_str stem, bool embedding)
{
    tsr_lora_pair pair = {.b = b};
    tsr_str module, target, stored;
    tsr_fold *fold = NULL;
    TSR_TRY(find_pair(f, stem, embedding ? TSR_LORA_EMBEDDING_A : TSR_LORA_A, b, &pair.a));
    TSR_TRY(tsr_lora_base_name(&f->names, stem, &module, f->err));
    TSR_TRY(join(f, module, ".weight", &target));
    TSR_TRY(tsr_lora_stored(&f->names, target, &stored, f->err));
    if (cJSON_IsArray(tsr_lora_parameters(&f->config)) && !tsr_checkpoint_entry(f->m->source, stored) &&
        !is_tied_output(f, target))
        return add_parameter(f, &pair, module);
    TSR_TRY(fold_of(f, b, target, false, &fold));
    TSR_TRY(set_product(f, fold, &pair));
    fold->embedding = embedding;
    fold->rounds = (embedding || is_parameter(f, target)) && fold->dtype == fold->weight->dtype;
    TSR_TRY(tsr_lora_scale(&f->config, is_parameter(f, target) ? target : module, &fold->scale, &fold->rank, f->err));
    return set_sizes(f, fold, b->ndim ? b->shape[0] : 0, embedding || f->config.fan_in_fan_out);
}

/* Whether the adapter stores a tensor a second time, under the plain name. With bias="all" PEFT saves the biases of a module
 * of modules_to_save three times: as CLASSIFIER.bias, as CLASSIFIER.modules_to_save.bias, which has the same value, and as
 * CLASSIFIER.original_module.bias, which is the base's. When PEFT loads and merges such an adapter, only the first one
 * counts. A state dict has the last two only. */
static tsr_status is_repeated(const folding *f, tsr_str name, tsr_str target, bool *out)
{
    const tsr_str original = TSR_STR(".original_module.");
    const bool is_original = tsr_str_contains(name, original);
    *out = is_original || tsr_str_contains(name, TSR_STR(".modules_to_save."));
    if (!*out) return TSR_OK;
    const tsr_str plain = tsr_arena_format(f->m->own->arena, f->err, TSR_LORA_PREFIX "%.*s", TSR_STR_ARG(target));
    if (!plain.data) return TSR_E_NOMEM;
    *out = tsr_checkpoint_entry(f->adapter, plain);
    if (*out || !is_original) return TSR_OK;
    const char *at = name.data;
    while (memcmp(at, original.data, original.size) != 0) at++;
    const tsr_str head = {name.data, (size_t)(at - name.data)},
                  tail = {at + original.size, name.size - head.size - original.size};
    const tsr_str saved =
        tsr_arena_format(f->m->own->arena, f->err, "%.*s.modules_to_save.%.*s%s%.*s", TSR_STR_ARG(head),
                         TSR_STR_ARG(f->names.adapter), f->names.adapter.size ? "." : "", TSR_STR_ARG(tail));
    *out = saved.data && tsr_checkpoint_entry(f->adapter, saved);
    return saved.data ? TSR_OK : TSR_E_NOMEM;
}

/* Whether the adapter was trained with a larger vocabulary than the base's: it then holds the embedding or the output layer whole, with
 * more rows. */
static bool has_more_tokens(const folding *f, const tsr_fold *fold)
{
    const tsr_entry *base = fold->weight, *own = fold->start;
    const bool is_vocabulary = tsr_lora_is_output(fold->name) || tsr_lora_is_input(fold->name) || base == f->tied.embedding;
    return own && is_vocabulary && own->ndim == 2 && base->ndim == 2 && own->shape[1] == base->shape[1] &&
           own->shape[0] > base->shape[0];
}

static tsr_status note_more_tokens(const folding *f, const tsr_fold *fold)
{
    f->m->config_changes.tokens = fold->weight->shape[0];
    f->m->config_changes.more_tokens = fold->start->shape[0];
    return tsr_mapped_add_note(
        f->m,
        tsr_arena_format(
            f->m->own->arena, f->err,
            "'%.*s' has %llu rows, as in the adapter, where the base has %llu: vocab_size of config.json, and the "
            "tokenizer, are the adapter's",
            TSR_STR_ARG(fold->name), (unsigned long long)fold->start->shape[0], (unsigned long long)fold->weight->shape[0]),
        f->err);
}

/* Adds a tensor that replaces the base's: from modules_to_save, or a bias or an embedding that the adapter stores whole. */
static tsr_status add_whole(folding *f, const tsr_entry *entry)
{
    tsr_str target;
    tsr_fold *fold = NULL;
    bool repeated;
    TSR_TRY(tsr_lora_base_name(&f->names, entry->fqn, &target, f->err));
    TSR_TRY(is_repeated(f, entry->fqn, target, &repeated));
    if (repeated) return TSR_OK;
    TSR_TRY(fold_of(f, entry, target, true, &fold));
    TSR_FAIL_IF(fold->start, f->err, TSR_E_FORMAT, "the adapter has '%.*s' and '%.*s', both for '%.*s'",
                TSR_STR_ARG(fold->start->fqn), TSR_STR_ARG(entry->fqn), TSR_STR_ARG(fold->weight->fqn));
    fold->start = entry;
    if (tsr_entry_same_shape(entry, fold->weight)) return TSR_OK;
    return has_more_tokens(f, fold) ? note_more_tokens(f, fold) : misfit(f, entry, fold->weight);
}

/* Finds the base's tensor that `entry`, a tensor of the module `stem`, changes. Its name is that of the module followed by
 * `parameter`. */
static tsr_status find_changed(folding *f, const tsr_entry *entry, tsr_str stem, const char *parameter, tsr_str *module,
                               tsr_fold **out)
{
    tsr_str target;
    TSR_TRY(tsr_lora_base_name(&f->names, stem, module, f->err));
    TSR_TRY(join(f, *module, parameter, &target));
    return fold_of(f, entry, target, false, out);
}

static tsr_status add_bias(folding *f, const tsr_entry *b, tsr_str stem)
{
    tsr_str module;
    tsr_fold *fold = NULL;
    TSR_TRY(find_changed(f, b, stem, ".bias", &module, &fold));
    TSR_TRY(set_change(f, fold, b));
    if (!tsr_entry_same_shape(b, fold->weight)) return misfit(f, b, fold->weight);
    return tsr_lora_scale(&f->config, module, &fold->scale, &fold->rank, f->err);
}

static tsr_status add_magnitude(folding *f, const tsr_entry *entry, tsr_str stem)
{
    tsr_str module;
    tsr_fold *fold = NULL;
    TSR_TRY(find_changed(f, entry, stem, ".weight", &module, &fold));
    fold->magnitude = entry;
    return TSR_OK;
}

static tsr_status add_tokens(folding *f, const tsr_entry *entry, tsr_str stem)
{
    tsr_str module;
    tsr_fold *fold = NULL;
    TSR_TRY(find_changed(f, entry, stem, ".weight", &module, &fold));
    return set_tokens(f->m, &f->config, entry, module, fold, f->err);
}

/* In PEFT, the class of the module decides whether its parameters are [experts, outputs, inputs] or [experts, inputs, outputs].
 * A bias, which is [experts, outputs], shows it, too. */
static tsr_status shown_by_bias(const tsr_mapped *m, bool *known, bool *turned, tsr_error *err)
{
    const tsr_catalog *catalog = &m->source->catalog;
    for (uint64_t i = 0; i < catalog->entry_count && !*known; i++) {
        const tsr_entry *w = &catalog->entries[i];
        if (w->kind != TSR_ENTRY_TENSOR || w->ndim != 3 || w->shape[1] == w->shape[2]) continue;
        const tsr_str name = tsr_arena_format(m->own->arena, err, "%.*s_bias", TSR_STR_ARG(w->fqn));
        const tsr_entry *bias = name.data ? tsr_checkpoint_entry(m->source, name) : NULL;
        if (!name.data) return TSR_E_NOMEM;
        if (!bias || bias->kind != TSR_ENTRY_TENSOR || bias->ndim != 2) continue;
        *turned = bias->shape[1] == w->shape[2];
        *known = *turned || bias->shape[1] == w->shape[1];
    }
    return TSR_OK;
}

static bool is_square(const tsr_fold *fold)
{
    return fold->a && fold->weight->ndim == 3 && fold->experts && fold->rows == fold->columns;
}

/* Decides for square matrices of experts whether they are transposed. TSR_E_UNSUPPORTED if nothing shows it. */
static tsr_status turn_experts(const tsr_mapped *m, const tsr_vec *folds, tsr_error *err)
{
    tsr_fold *const *all = folds->items;
    bool known = false, turned = false;
    size_t square = 0;
    while (square < folds->count && !is_square(all[square])) square++;
    if (square == folds->count) return TSR_OK;
    for (size_t i = 0; i < folds->count && !known; i++) {
        known = all[i]->a && all[i]->experts && all[i]->weight->ndim == 3 && !is_square(all[i]);
        if (known) turned = all[i]->transposed;
    }
    if (!known) TSR_TRY(shown_by_bias(m, &known, &turned, err));
    TSR_FAIL_IF(
        !known, err, TSR_E_UNSUPPORTED,
        "the matrices of '%.*s' are square, so nothing shows whether they are transposed; fold this adapter with PEFT",
        TSR_STR_ARG(all[square]->weight->fqn));
    for (size_t i = square; i < folds->count; i++)
        if (is_square(all[i])) all[i]->transposed = turned;
    return TSR_OK;
}

/* Completes the folds when all tensors of the adapter are known. */
static tsr_status complete(folding *f)
{
    tsr_fold *const *folds = f->folds.items;
    for (size_t i = 0; i < f->folds.count; i++) {
        tsr_fold *fold = folds[i];
        TSR_FAIL_IF(fold->tokens && (fold->b || fold->start), f->err, TSR_E_FORMAT,
                    "the adapter has both rows of '%.*s' and a change of all of it", TSR_STR_ARG(fold->name));
        if (has_more_tokens(f, fold) && fold->b) return misfit(f, fold->start, fold->weight);
        TSR_FAIL_IF(fold->magnitude && !(fold->a && f->config.dora), f->err, TSR_E_FORMAT, "the adapter has '%.*s', but %s",
                    TSR_STR_ARG(fold->magnitude->fqn),
                    fold->a ? "use_dora of adapter_config.json is not set" : "no matrices for its module");
        TSR_FAIL_IF(fold->a && f->config.dora && !fold->magnitude, f->err, TSR_E_NOT_FOUND,
                    "use_dora is set, but the adapter has no lora_magnitude_vector for '%.*s'", TSR_STR_ARG(fold->name));
        if (!fold->magnitude) continue;
        fold->rounds = false;
        TSR_TRY(tsr_dora_open(f->m->own->arena, fold, f->err));
    }
    return TSR_OK;
}

/* Joins what changes a tensor that two modules share, so that the base's tensor has one fold. */
static tsr_status join_places(folding *f)
{
    tsr_fold *const *folds = f->folds.items;
    const tsr_fold *shared = NULL;
    for (size_t i = 0; i < f->folds.count; i++) {
        uint32_t *number;
        bool inserted;
        if (!folds[i]->is_second) continue;
        TSR_TRY(tsr_map_put(f->targets, folds[i]->name, (uint32_t)i, &number, &inserted, f->err));
        const tsr_fold *joined = tsr_lora_join(inserted ? NULL : folds[*number], folds[i]);
        TSR_FAIL_IF(joined->before && joined->magnitude, f->err, TSR_E_UNSUPPORTED,
                    "'%.*s' is the tensor of two modules, both with DoRA; fold this adapter with PEFT",
                    TSR_STR_ARG(joined->name));
        if (joined == folds[i]) *number = (uint32_t)i;
        if (joined->b && !shared) shared = joined;
    }
    if (!shared) return TSR_OK;
    return add_note(
        f->m,
        "tensors of two modules, such as '%.*s', change for both, as in PEFT's merge, so the result does not compute "
        "what the adapter does",
        shared->name, f->err);
}

/* Adds one tensor of the adapter. A matrix A is only checked for its B here; the product is added when B is. */
static tsr_status add_tensor(folding *f, const tsr_entry *entry)
{
    tsr_str stem, adapter;
    const tsr_entry *pair;
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_TENSOR, f->err, TSR_E_UNSUPPORTED, "'%.*s' of the adapter is not a tensor",
                TSR_STR_ARG(entry->fqn));
    switch (tsr_lora_kind_of(entry->fqn, &stem, &adapter)) {
    case TSR_LORA_B: return add_product(f, entry, stem, false);
    case TSR_LORA_EMBEDDING_B: return add_product(f, entry, stem, true);
    case TSR_LORA_A: return find_pair(f, stem, TSR_LORA_B, entry, &pair);
    case TSR_LORA_EMBEDDING_A: return find_pair(f, stem, TSR_LORA_EMBEDDING_B, entry, &pair);
    case TSR_LORA_BIAS: return add_bias(f, entry, stem);
    case TSR_LORA_MAGNITUDE: return add_magnitude(f, entry, stem);
    case TSR_LORA_TOKENS: return add_tokens(f, entry, stem);
    case TSR_LORA_COPY: return TSR_OK;
    case TSR_LORA_WHOLE: return add_whole(f, entry);
    case TSR_LORA_OTHER: break;
    }
    return tsr_fail(f->err, TSR_E_UNSUPPORTED, "'%.*s' is not a tensor of plain LoRA", TSR_STR_ARG(entry->fqn));
}

/* ---- the base ---- */

/* Returns the fold of an entry of the base, or NULL if it stays as it is. */
static const tsr_fold *fold_at(const folding *f, const tsr_entry *entry)
{
    tsr_fold *const *folds = f->folds.items;
    if (f->tied.embedding && entry == f->tied.embedding) return f->tied.in;
    if (f->tied.output && entry == f->tied.output) return f->tied.out;
    const uint32_t number = tsr_map_get(f->targets, entry->fqn, UINT32_MAX);
    return number == UINT32_MAX ? NULL : folds[number];
}

/* Adds a row for the fold. Tied tensors share the computed file. */
static tsr_status compute(folding *f, const tsr_fold *fold, const tsr_entry *like, uint64_t order)
{
    const tsr_entry *input = fold->added || fold->start ? NULL : fold->weight;
    const tsr_computed by = {.dtype = fold->dtype, .compute = tsr_lora_sum, .ctx = fold, .input = input};
    const bool tied = fold == f->tied.in && fold == f->tied.out;
    uint32_t file;
    if (has_more_tokens(f, fold)) {
        tsr_entry *larger = TSR_ARENA_NEW(f->m->own->arena, tsr_entry, f->err);
        if (!larger) return TSR_E_NOMEM;
        *larger = *like;
        larger->shape = fold->start->shape;
        like = larger;
    }
    if (!tied) return tsr_mapped_compute(f->m, like, order, &by, &file, f->err);
    if (f->tied_file) TSR_TRY(tsr_mapped_share(f->m, like, order, by.dtype, f->tied_file, f->err));
    else TSR_TRY(tsr_mapped_compute(f->m, like, order, &by, &f->tied_file, f->err));
    if (tsr_lora_one_storage(&f->tied))
        ((tsr_mapped_row *)f->m->rows.items)[f->m->rows.count - 1].entry.storage_id = like->storage_id;
    return TSR_OK;
}

/* Adds a tensor that the base does not have: of an added module, or the output layer, where that was the embedding. */
static tsr_status add_new(folding *f, const tsr_fold *fold, uint64_t order)
{
    tsr_entry *like = TSR_ARENA_NEW(f->m->own->arena, tsr_entry, f->err);
    if (!like) return TSR_E_NOMEM;
    *like = *fold->weight;
    like->fqn = fold->name;
    like->path = NULL;
    like->path_length = 0;
    return compute(f, fold, like, order);
}

static tsr_status leave_out(folding *f, const tsr_entry *entry)
{
    const tsr_entry **place = tsr_vec_push(&f->m->dropped, f->err);
    if (place) *place = entry;
    return place ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status fill_rows(folding *f)
{
    const tsr_catalog *catalog = &f->m->source->catalog;
    tsr_fold *const *folds = f->folds.items;
    const tsr_fold *added = NULL;
    for (size_t i = f->folds.count; i; i--)
        if (folds[i - 1]->added) added = folds[i - 1];
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        const tsr_fold *fold = fold_at(f, entry);
        if (fold) TSR_TRY(compute(f, fold, entry, i));
        else if (added && is_left_out(&f->config, entry->fqn)) TSR_TRY(leave_out(f, entry));
        else TSR_TRY(tsr_mapped_keep(f->m, entry, i, f->err));
    }
    if (f->tied.embedding && !f->tied.output && f->tied.out && f->tied.out != f->tied.in)
        TSR_TRY(add_new(f, f->tied.out, catalog->entry_count));
    for (size_t i = 0; i < f->folds.count; i++)
        if (folds[i]->added) TSR_TRY(add_new(f, folds[i], catalog->entry_count));
    return added ? note_added(f->m, added->name, f->err) : TSR_OK;
}

/* Notes settings that PEFT 0.21 does not have. PEFT also warns about them and ignores them. */
static tsr_status note_unknown(folding *f)
{
    tsr_str first;
    const size_t count = tsr_lora_unknown(&f->config, &first);
    if (!count) return TSR_OK;
    return tsr_mapped_add_note(
        f->m,
        tsr_arena_format(f->m->own->arena, f->err,
                         "%zu of the settings of adapter_config.json, such as '%.*s', are not those of PEFT 0.21; they are "
                         "ignored",
                         count, TSR_STR_ARG(first)),
        f->err);
}

/* Notes which config.json states what the modules of a base in one file are called. */
static tsr_status note_config(const folding *f)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(f->m->config, "model_type");
    if (!f->m->is_config_beside || !cJSON_IsString(type)) return TSR_OK;
    return tsr_mapped_add_note(f->m,
                               tsr_arena_format(f->m->own->arena, f->err,
                                                "the model_type of the base, '%s', is that of the config.json next to it",
                                                type->valuestring),
                               f->err);
}

/* Notes selected modules for which the adapter has no tensors. PEFT also warns about them when it loads the adapter, and
 * leaves them unchanged. */
static tsr_status note_left_out(folding *f)
{
    const tsr_catalog *catalog = &f->m->source->catalog;
    const tsr_str ending = TSR_STR(".weight");
    tsr_str first = {NULL, 0};
    uint64_t count = 0;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind != TSR_ENTRY_TENSOR || entry->ndim != 2 || !tsr_str_ends(entry->fqn, ending)) continue;
        if (tsr_map_get(f->targets, entry->fqn, UINT32_MAX) != UINT32_MAX) continue;
        const tsr_str module = {entry->fqn.data, entry->fqn.size - ending.size};
        if (tsr_lora_selects(&f->config, module) && !count++) first = module;
    }
    if (!count) return TSR_OK;
    return tsr_mapped_add_note(
        f->m,
        tsr_arena_format(
            f->m->own->arena, f->err,
            "the adapter has no tensors for %llu of the modules that its target_modules select, such as '%.*s'; "
            "these stay as they are",
            (unsigned long long)count, TSR_STR_ARG(first)),
        f->err);
}

/* Adds the tensors of adapter_model.safetensors. Notes that its directory has others, such as those of a model that was saved
 * there, too: PEFT does not read them. */
static tsr_status add_tensors(folding *f)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(f->adapter);
    const uint32_t file = tsr_store_find(f->adapter->store, TSR_STR("adapter_model.safetensors"));
    const tsr_entry *other = NULL;
    uint64_t first, end;
    f->model = tsr_lora_range(f->adapter, &f->names, &first, &end);
    for (uint64_t i = first; i < end; i++) TSR_TRY(tsr_lora_names_note(&f->names, catalog->entries[i].fqn, f->err));
    for (uint64_t i = first; i < end; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (file == TSR_NO_FILE || !entry->chunk_count || entry->chunks[0].file == file) TSR_TRY(add_tensor(f, entry));
        else other = entry;
    }
    if (!other) return TSR_OK;
    return tsr_mapped_add_note(f->m,
                               tsr_arena_format(f->m->own->arena, f->err,
                                                "tensors next to adapter_model.safetensors are ignored, such as '%.*s'",
                                                TSR_STR_ARG(other->fqn)),
                               f->err);
}

static tsr_status fold_all(folding *f)
{
    TSR_FAIL_IF(!tsr_checkpoint_catalog(f->adapter)->entry_count, f->err, TSR_E_FORMAT, "the adapter has no tensors");
    tsr_lora_find_tied(f->m, &f->config, &f->tied);
    TSR_TRY(add_tensors(f));
    TSR_TRY(turn_experts(f->m, &f->folds, f->err));
    TSR_TRY(complete(f));
    TSR_TRY(join_places(f));
    TSR_TRY(tsr_lora_settle_tied(f->m, &f->config, &f->tied, f->err));
    TSR_TRY(tsr_lora_check(f->m, &f->config, &f->tied, &f->folds, f->err));
    TSR_TRY(note_left_out(f));
    TSR_TRY(note_unknown(f));
    if (!TSR_IS_SMALL) TSR_TRY(note_config(f)); /* there, a file has no neighbors */
    return fill_rows(f);
}

static tsr_status fill(tsr_mapped *m, void *ctx, tsr_error *err)
{
    folding *f = ctx;
    f->m = m;
    tsr_lora_names_open(&f->names, m);
    f->err = err;
    f->folds = tsr_vec_of(m->own->host->allocator, sizeof(tsr_fold *));
    f->targets = tsr_map_new(m->own->host->allocator, 0, err);
    tsr_status status = f->targets ? tsr_lora_config_read(m, f->adapter, &f->config, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = fold_all(f);
    tsr_lora_config_free(&f->config);
    tsr_lora_names_close(&f->names);
    tsr_map_free(f->targets);
    tsr_vec_free(&f->folds);
    return status;
}

/* Closes `below` together with `*out`, which was opened over it, or now if it was not opened. */
static tsr_status keep_below(tsr_status status, tsr_checkpoint *below, tsr_checkpoint *const *out)
{
    if (status != TSR_OK) return tsr_checkpoint_close(below), status;
    tsr_mapped *m = (*out)->state;
    while (m->below) m = m->below->state;
    m->below = below;
    return TSR_OK;
}

static tsr_status fold_into(tsr_checkpoint *base, folding *f, tsr_checkpoint **out, tsr_error *err)
{
    const tsr_mapped_scheme scheme = {.fill = fill, .ctx = f, .step = "fold the adapter", .keeps_names = true};
    tsr_checkpoint *loaded = NULL, *folded;
    if (!TSR_IS_SMALL) TSR_TRY(tsr_lora_open_loaded(base, f->adapter, &loaded, err));
    if (!loaded) return tsr_mapped_open(base, &scheme, out, err);
    TSR_TRY(keep_below(tsr_mapped_open(loaded, &scheme, &folded, err), loaded, &folded));
    return keep_below(tsr_lora_open_saved(folded, loaded, out, err), folded, out);
}

/* Whether a checkpoint is the state dict of a whole PEFT model: with the names of PEFT's wrapper modules. */
static bool is_state(const tsr_checkpoint *checkpoint)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    for (uint64_t i = 0; i < catalog->entry_count; i++)
        if (tsr_str_contains(catalog->entries[i].fqn, TSR_STR(".base_layer.")) ||
            tsr_str_contains(catalog->entries[i].fqn, TSR_STR(TSR_LORA_PREFIX)))
            return true;
    return false;
}

tsr_status tsr_lora_fold(tsr_checkpoint *base, tsr_checkpoint *adapter, const tsr_lora_options *options,
                         tsr_checkpoint **out, tsr_error *err)
{
    folding f = {.adapter = adapter};
    tsr_checkpoint *below = NULL;
    *out = NULL;
    TSR_TRY(TSR_OPTIONS_COPY(&f.options, options, tsr_lora_options, err));
    if (is_state(base)) TSR_TRY(tsr_lora_open_state(base, &below, err));
    const tsr_status status = keep_below(fold_into(below ? below : base, &f, out, err), below, out);
    if (status != TSR_OK && f.options.name.size) tsr_error_context(err, "adapter %.*s", TSR_STR_ARG(f.options.name));
    return status;
}
