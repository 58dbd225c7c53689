/* Refuses adapters with which PEFT would also change tensors that they do not name, or whose files do not determine the
 * result. */
#include "merge/lora_parts.h"
#include "tessera/sys/try.h"

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
    TSR_FAIL_IF(tsr_lora_is_saved(config, fold) && tsr_lora_ends(fold->name, TSR_STR("shared.weight")), err,
                TSR_E_UNSUPPORTED, TSR_LORA_OTHERS_TIED, TSR_STR_ARG(fold->name));
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
