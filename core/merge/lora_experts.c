/* target_parameters: matrices of parameters that have no module of their own, such as the fused weights of experts.
 *
 *   lora_A  [experts · rank, inputs]     the rows of one expert follow each other
 *   lora_B  [outputs, rank · experts]    the columns of one expert are `experts` apart
 *
 * The adapter's names do not state the parameter, only its module: with two parameters of one module, the matrices of the first
 * are EXPERTS.base_layer.lora_A, and those of the second are EXPERTS.lora_A. The shapes show which is which. Checkpoints may
 * store the experts one by one, although transformers fuses them when it loads them. */
#include "codec/json.h"
#include "merge/lora_parts.h"
#include "tessera/sys/try.h"

/* How checkpoints name the weights that transformers fuses. */
typedef struct split_name {
    const char *fused, *module; /* the last components of the module in the checkpoint; NULL: as in transformers */
    const char *parts[2];
} split_name;

static const split_name splits[] = {{"gate_up_proj", NULL, {"gate_proj", "up_proj"}},
                                    {"down_proj", NULL, {"down_proj", NULL}},
                                    {"gate_up_proj", ".block_sparse_moe.experts", {"w1", "w3"}},
                                    {"down_proj", ".block_sparse_moe.experts", {"w2", NULL}}};

static bool fits(const tsr_lora_pair *pair, uint64_t outputs, uint64_t inputs)
{
    return pair->b->shape[0] == outputs && pair->a->shape[1] == inputs;
}

static tsr_status put(tsr_str target, const tsr_lora_place *place, tsr_vec *out, tsr_error *err)
{
    tsr_lora_place *added = target.data ? tsr_vec_push(out, err) : NULL;
    if (!added) return TSR_E_NOMEM;
    *added = *place;
    added->target = target;
    return TSR_OK;
}

/* Adds a parameter that the base has under the name that transformers has for it. */
static tsr_status find_fused(const tsr_mapped *m, const tsr_lora_pair *pair, tsr_str parameter, tsr_vec *out, tsr_error *err)
{
    const tsr_entry *w = tsr_checkpoint_entry(m->source, parameter);
    if (!w || w->kind != TSR_ENTRY_TENSOR || w->ndim < 2 || w->ndim > 3) return TSR_OK;
    const uint64_t *sizes = w->shape + (w->ndim - 2);
    const tsr_lora_place place = {.experts = w->ndim == 3 ? w->shape[0] : 1, .outputs = pair->b->shape[0]};
    const bool matches = fits(pair, sizes[0], sizes[1]) || (w->ndim == 3 && fits(pair, sizes[1], sizes[0]));
    return matches ? put(parameter, &place, out, err) : TSR_OK;
}

static tsr_str name_of(const tsr_mapped *m, tsr_str module, const split_name *split, const tsr_lora_place *place,
                       tsr_error *err)
{
    const tsr_str fused = TSR_STR(".mlp.experts");
    const char *part = split->parts[place->first_output != 0];
    if (split->module && tsr_str_ends(module, fused)) module.size -= fused.size;
    return tsr_arena_format(m->own->arena, err, "%.*s%s.%llu.%s.weight", TSR_STR_ARG(module),
                            split->module ? split->module : "", (unsigned long long)place->expert, part);
}

/* Adds the weights of all experts, if the base has them one by one. */
static tsr_status find_split(const tsr_mapped *m, const tsr_lora_pair *pair, tsr_str module, const split_name *split,
                             tsr_vec *out, tsr_error *err)
{
    tsr_lora_place place = {.outputs = pair->b->shape[0]};
    const uint64_t each = place.outputs / (split->parts[1] ? 2 : 1), from = out->count;
    for (place.expert = 0;; place.expert++) {
        const tsr_str name = name_of(m, module, split, &place, err);
        const tsr_entry *w = name.data ? tsr_checkpoint_entry(m->source, name) : NULL;
        if (!name.data) return TSR_E_NOMEM;
        if (!w || w->ndim != 2 || !fits(pair, w->shape[0] * (split->parts[1] ? 2 : 1), w->shape[1])) break;
        TSR_TRY(put(name, &place, out, err));
        place.first_output = each;
        if (split->parts[1]) TSR_TRY(put(name_of(m, module, split, &place, err), &place, out, err));
        place.first_output = 0;
    }
    for (size_t i = from; i < out->count; i++) ((tsr_lora_place *)out->items)[i].experts = place.expert;
    return TSR_OK;
}

/* Adds the places of one parameter that target_parameters selects. */
static tsr_status find_places(const tsr_mapped *m, const tsr_lora_pair *pair, tsr_str module, tsr_str parameter,
                              tsr_vec *out, tsr_error *err)
{
    const size_t before = out->count;
    TSR_TRY(find_fused(m, pair, parameter, out, err));
    for (size_t i = 0; out->count == before && i < sizeof splits / sizeof *splits; i++)
        if (tsr_lora_ends(parameter, tsr_str_from(splits[i].fused)))
            TSR_TRY(find_split(m, pair, module, &splits[i], out, err));
    TSR_FAIL_IF(before && out->count > before, err, TSR_E_UNSUPPORTED,
                "'%.*s' of the adapter fits both '%.*s' and another parameter of its module; fold this adapter with PEFT",
                TSR_STR_ARG(pair->b->fqn), TSR_STR_ARG(parameter));
    return TSR_OK;
}

tsr_status tsr_lora_find_places(const tsr_mapped *m, const tsr_lora_config *config, const tsr_lora_pair *pair,
                                tsr_str module, tsr_lora_places *out, tsr_error *err)
{
    const cJSON *list = tsr_lora_parameters(config), *item;
    const bool matrices = pair->a->ndim == 2 && pair->b->ndim == 2;
    cJSON_ArrayForEach(item, list)
    {
        if (!matrices || !cJSON_IsString(item)) continue;
        const char *dot = strrchr(item->valuestring, '.'), *last = dot ? dot + 1 : item->valuestring;
        const tsr_str name = tsr_arena_format(m->own->arena, err, "%.*s.%s", TSR_STR_ARG(module), last);
        const size_t before = out->places.count;
        if (!name.data) return TSR_E_NOMEM;
        if (!tsr_lora_lists(list, name) || (before && tsr_str_equal(name, out->parameter))) continue;
        TSR_TRY(find_places(m, pair, module, name, &out->places, err));
        if (out->places.count > before) out->parameter = name;
    }
    TSR_FAIL_IF(!out->places.count, err, TSR_E_NOT_FOUND,
                "'%.*s' of the adapter does not fit any tensor of the base that target_parameters selects",
                TSR_STR_ARG(pair->b->fqn));
    return TSR_OK;
}

/* ---- experts whose matrices are square ---- */

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

tsr_status tsr_lora_turn_experts(const tsr_mapped *m, const tsr_vec *folds, tsr_error *err)
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
