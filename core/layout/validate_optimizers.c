/* Checks the optimizer states that a catalog lists: is each parameter's state complete, and has it the parameter's shape?
 *
 * Many optimizers keep states that differ from parameter to parameter, and none of them is wrong: Adafactor factors matrices
 * only, Muon leaves vectors to AdamW, parameters that are frozen or never got a gradient have no state. So a state counts as
 * incomplete only where another parameter of the group has the same state and more. */
#include "tessera/sys/layout.h"

#include <stdlib.h>

#include "base/line.h"
#include "layout/shard.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/stored_optimizers.h"
#include "tessera/sys/try.h"

#define NAME_BYTES   300u
#define NAMES_SHOWN  5u
#define MOST_NAMES   64u        /* of states that complete parameters of one group have */
#define MOST_LOOKUPS (1u << 26) /* of names; no model needs as many */

typedef struct checking {
    const tsr_catalog *catalog;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_findings *findings;
    tsr_stored_optimizers all;
    uint64_t lookups; /* so far */
} checking;

static const tsr_stored_optimizer_state *state_at(const checking *c, uint32_t number)
{
    return number == TSR_NO_STATE ? NULL : &c->all.states[number];
}

/* Old versions of SGD have None in place of a state. */
static bool is_none(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_OBJECT && entry->value && entry->value->kind == TSR_VALUE_NONE;
}

static bool has_state(const checking *c, const tsr_stored_optimizer_param *param, const char *name)
{
    for (const tsr_stored_optimizer_state *s = state_at(c, param->first); s; s = state_at(c, s->next))
        if (tsr_str_equal(s->name, tsr_str_from(name))) return !is_none(s->entry);
    return false;
}

static const tsr_value *option(const tsr_stored_optimizer_group *group, const char *name)
{
    for (uint32_t i = 0; i < group->option_count; i++)
        if (tsr_str_equal(group->options[i].name, tsr_str_from(name))) return group->options[i].value;
    return NULL;
}

/* "parameter 'a.weight'", or "parameter 1 ('a.weight')". */
static const char *param_text(const tsr_stored_optimizer_param *param, tsr_str fqn, char out[NAME_BYTES])
{
    tsr_line line = tsr_line_on(out, NAME_BYTES);
    if (!param->is_id) {
        tsr_line_format(&line, "parameter '%.*s'", TSR_STR_ARG(param->key));
        return out;
    }
    tsr_line_format(&line, "parameter %.*s", TSR_STR_ARG(param->key));
    if (fqn.data && fqn.size) tsr_line_format(&line, " ('%.*s')", TSR_STR_ARG(fqn));
    return out;
}

static tsr_status place_of(const checking *c, const tsr_stored_optimizer *of, tsr_str key, tsr_place *out, tsr_error *err)
{
    *out = TSR_NOWHERE;
    out->fqn = tsr_arena_format(c->arena, err, "%.*s%sstate%s%.*s", TSR_STR_ARG(of->name), of->name.size ? "." : "",
                                key.size ? "." : "", (int)key.size, key.data ? key.data : "");
    return out->fqn.data ? TSR_OK : TSR_E_NOMEM;
}

/* ---- incomplete and missing states ---- */

/* What the parameters of one group have. */
typedef struct group_states {
    uint32_t with, without;    /* any state */
    tsr_str names[MOST_NAMES]; /* the states of parameters that have both exp_avg and exp_avg_sq */
    uint32_t name_count;
} group_states;

static bool lists(const group_states *g, tsr_str name)
{
    for (uint32_t i = 0; i < g->name_count; i++)
        if (tsr_str_equal(g->names[i], name)) return true;
    return false;
}

static void count_param(const checking *c, const tsr_stored_optimizer_param *param, group_states *g)
{
    if (param->first == TSR_NO_STATE) g->without++;
    else g->with++;
    if (!has_state(c, param, "exp_avg") || !has_state(c, param, "exp_avg_sq")) return;
    for (const tsr_stored_optimizer_state *s = state_at(c, param->first); s; s = state_at(c, s->next))
        if (g->name_count < MOST_NAMES && !lists(g, s->name)) g->names[g->name_count++] = s->name;
}

static tsr_status check_complete(const checking *c, const tsr_stored_optimizer *of, const tsr_stored_optimizer_param *param,
                                 const group_states *g, tsr_error *err)
{
    const bool first = has_state(c, param, "exp_avg"), second = has_state(c, param, "exp_avg_sq");
    const tsr_value *amsgrad = option(&c->all.groups[param->group], "amsgrad");
    char name[NAME_BYTES];
    tsr_place place;
    TSR_TRY(place_of(c, of, param->key, &place, err));
    if (first && second) {
        if (!amsgrad || amsgrad->kind != TSR_VALUE_BOOL || !amsgrad->as.boolean || has_state(c, param, "max_exp_avg_sq"))
            return TSR_OK;
        return tsr_finding_add(c->findings, "optim/state-incomplete", place, err,
                               "%s has no max_exp_avg_sq, though the options of its group have amsgrad=True",
                               param_text(param, param->fqn, name));
    }
    if (first == second || !g->name_count) return TSR_OK;
    for (const tsr_stored_optimizer_state *s = state_at(c, param->first); s; s = state_at(c, s->next))
        if (!lists(g, s->name)) return TSR_OK; /* a state of another kind, such as Adafactor's factors */
    return tsr_finding_add(c->findings, "optim/state-incomplete", place, err,
                           "%s has %s but no %s, while other parameters of its group have both",
                           param_text(param, param->fqn, name), first ? "exp_avg" : "exp_avg_sq",
                           first ? "exp_avg_sq" : "exp_avg");
}

static tsr_status report_missing(const checking *c, const tsr_stored_optimizer *of,
                                 const tsr_stored_optimizer_param *const *params, uint32_t count, const group_states *g,
                                 tsr_error *err)
{
    char names[NAMES_SHOWN * NAME_BYTES] = "", name[NAME_BYTES];
    tsr_line line = tsr_line_on(names, sizeof names);
    uint32_t shown = 0;
    tsr_place place;
    for (uint32_t i = 0; i < count; i++) {
        if (params[i]->first != TSR_NO_STATE || shown == NAMES_SHOWN) continue;
        tsr_line_format(&line, "%s%s", shown++ ? ", " : "",
                        param_text(params[i], params[i]->fqn, name) + strlen("parameter "));
    }
    TSR_TRY(place_of(c, of, (tsr_str){NULL, 0}, &place, err));
    return tsr_finding_add(c->findings, "optim/state-missing", place, err,
                           "%u of %u parameters of one group have no state: %s%s", (unsigned)g->without, (unsigned)count,
                           names, shown < g->without ? ", …" : "");
}

static tsr_status check_group(const checking *c, const tsr_stored_optimizer *of,
                              const tsr_stored_optimizer_param *const *params, uint32_t count, tsr_error *err)
{
    group_states g = {0};
    for (uint32_t i = 0; i < count; i++) count_param(c, params[i], &g);
    for (uint32_t i = 0; i < count; i++) TSR_TRY(check_complete(c, of, params[i], &g, err));
    return g.with && g.without ? report_missing(c, of, params, count, &g, err) : TSR_OK;
}

static int by_group(const void *a, const void *b)
{
    const tsr_stored_optimizer_param *x = *(const tsr_stored_optimizer_param *const *)a,
                                     *y = *(const tsr_stored_optimizer_param *const *)b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return (x > y) - (x < y);
}

static tsr_status check_groups(const checking *c, const tsr_stored_optimizer *of, tsr_error *err)
{
    const tsr_stored_optimizer_param **params = tsr_arena_array(c->arena, of->param_count, sizeof *params, err);
    if (!params) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < of->param_count; i++) params[i] = &c->all.params[of->first_param + i];
    qsort(params, of->param_count, sizeof *params, by_group);
    for (uint32_t i = 0, end; i < of->param_count; i = end) {
        for (end = i + 1; end < of->param_count && params[end]->group == params[i]->group;) end++;
        TSR_TRY(check_group(c, of, params + i, end - i, err));
    }
    return TSR_OK;
}

static tsr_status check_texts(const checking *c, const tsr_stored_optimizer *of, tsr_error *err)
{
    const tsr_stored_optimizer_param *params = c->all.params + of->first_param, *sample = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < of->param_count; i++) {
        if (!params[i].is_id || !params[i].is_text || params[i].first == TSR_NO_STATE) continue;
        const tsr_entry *entry = c->all.states[params[i].first].entry;
        if (!tsr_format_keeps_keys(tsr_entry_format(c->catalog, (uint64_t)(entry - c->catalog->entries)))) continue;
        if (!count++) sample = &params[i];
    }
    if (!count) return TSR_OK;
    tsr_place place;
    TSR_TRY(place_of(c, of, (tsr_str){NULL, 0}, &place, err));
    return tsr_finding_add(c->findings, "optim/ids-are-texts", place, err,
                           "%u of %u keys are texts such as \"%.*s\", but the param groups list the int %.*s, so "
                           "Optimizer.load_state_dict would give these parameters no state",
                           (unsigned)count, (unsigned)of->param_count, TSR_STR_ARG(sample->key), TSR_STR_ARG(sample->key));
}

/* ---- shapes ---- */

/* Whether a state has its parameter's shape in PyTorch's optimizers. */
static bool has_param_shape(const tsr_stored_optimizer_state *state)
{
    static const char *const names[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tsr_str_equal(state->name, tsr_str_from(names[i]))) return state->entry->kind == TSR_ENTRY_TENSOR;
    return false;
}

/* Whether a group has only options of the optimizers in torch.optim (2.13), and those that its learning-rate schedulers
 * add. */
static bool is_of_torch(const tsr_stored_optimizer_group *group)
{
    static const char *const known[] = {"adjust_lr_fn",
                                        "alpha",
                                        "amsgrad",
                                        "base_momentum",
                                        "beta2_decay",
                                        "betas",
                                        "capturable",
                                        "centered",
                                        "d",
                                        "dampening",
                                        "decoupled_weight_decay",
                                        "differentiable",
                                        "eps",
                                        "etas",
                                        "foreach",
                                        "fused",
                                        "history_size",
                                        "initial_accumulator_value",
                                        "initial_lr",
                                        "lambd",
                                        "line_search_fn",
                                        "lr",
                                        "lr_decay",
                                        "max_eval",
                                        "max_iter",
                                        "max_lr",
                                        "max_momentum",
                                        "maximize",
                                        "min_lr",
                                        "momentum",
                                        "momentum_decay",
                                        "nesterov",
                                        "ns_coefficients",
                                        "ns_steps",
                                        "param_names",
                                        "params",
                                        "rho",
                                        "step_sizes",
                                        "swa_lr",
                                        "t0",
                                        "tolerance_change",
                                        "tolerance_grad",
                                        "weight_decay"};
    for (uint32_t i = 0; i < group->option_count; i++) {
        bool is_known = false;
        for (size_t k = 0; k < sizeof known / sizeof *known && !is_known; k++)
            is_known = tsr_str_equal(group->options[i].name, tsr_str_from(known[k]));
        if (!is_known) return false;
    }
    return true;
}

/* The first state of another shape than the parameter's, or NULL. */
static const tsr_stored_optimizer_state *misshapen(const checking *c, const tsr_stored_optimizer_param *param,
                                                   const tsr_entry *model)
{
    for (const tsr_stored_optimizer_state *s = state_at(c, param->first); s; s = state_at(c, s->next))
        if (has_param_shape(s) && !tsr_entry_same_shape(s->entry, model)) return s;
    return NULL;
}

static bool has_shaped_state(const checking *c, const tsr_stored_optimizer_param *param)
{
    for (const tsr_stored_optimizer_state *s = state_at(c, param->first); s; s = state_at(c, s->next))
        if (has_param_shape(s)) return true;
    return false;
}

/* May be loaded on demand (wasm/later.txt). */
tsr_status tsr_misshapen_report(const checking *c, const tsr_stored_optimizer_param *param, const tsr_entry *model,
                                tsr_error *err);
tsr_status tsr_misshapen_report(const checking *c, const tsr_stored_optimizer_param *param, const tsr_entry *model,
                                tsr_error *err)
{
    const tsr_rated_rule rule = {"optim/state-shape", is_of_torch(&c->all.groups[param->group]) ? TSR_ERROR : TSR_WARNING};
    for (const tsr_stored_optimizer_state *s = state_at(c, param->first); s; s = state_at(c, s->next)) {
        if (!has_param_shape(s) || tsr_entry_same_shape(s->entry, model)) continue;
        char name[NAME_BYTES];
        tsr_dims_buffer own, expected;
        tsr_place place = TSR_NOWHERE;
        place.fqn = s->entry->fqn;
        TSR_TRY(tsr_finding_add_at(c->findings, rule, place, err, "%.*s of %s is %s, but '%.*s' is %s", TSR_STR_ARG(s->name),
                                   param_text(param, param->fqn, name), tsr_dims_text(&own, s->entry->shape, s->entry->ndim),
                                   TSR_STR_ARG(model->fqn), tsr_dims_text(&expected, model->shape, model->ndim)));
    }
    return TSR_OK;
}

static tsr_status report_shape(const checking *c, const tsr_stored_optimizer_param *param, const tsr_entry *model,
                               tsr_error *err)
{
    TSR_TRY(tsr_host_load(c->host, err));
    return tsr_misshapen_report(c, param, model, err);
}

/* Tensors that may be a model's parameters. Weights that ZeRO 3 holds elsewhere have no elements. */
static bool may_be_weight(const checking *c, const tsr_entry *entry)
{
    uint64_t elements;
    return entry->kind == TSR_ENTRY_TENSOR && !c->all.owners[entry - c->catalog->entries] &&
           tsr_entry_elements(entry, &elements) && elements;
}

/* ---- parameters with names ---- */

/* A tensor whose name is a parameter's, or ends with it. */
typedef struct namesake {
    uint32_t param;
    tsr_str prefix; /* "model." */
    const tsr_entry *entry;
} namesake;

static tsr_status find_namesakes(checking *c, const tsr_map *names, tsr_vec *out, tsr_error *err)
{
    for (uint64_t i = 0; i < c->catalog->entry_count; i++) {
        const tsr_entry *entry = &c->catalog->entries[i];
        if (!may_be_weight(c, entry)) continue;
        for (size_t at = 0; at < entry->fqn.size;) {
            const tsr_str rest = {entry->fqn.data + at, entry->fqn.size - at};
            const uint32_t param = tsr_map_get(names, rest, UINT32_MAX);
            const char *dot = memchr(rest.data, '.', rest.size);
            c->lookups++;
            if (param != UINT32_MAX) {
                namesake *new = tsr_vec_push(out, err);
                if (!new) return TSR_E_NOMEM;
                *new = (namesake){param, {entry->fqn.data, at}, entry};
            }
            at = dot ? (size_t)(dot - entry->fqn.data) + 1 : entry->fqn.size;
        }
    }
    return TSR_OK;
}

/* A prefix is the model's if all parameters have a namesake with it. Where several models are (an average of the weights, or
 * two networks with the same names), each may be the one that the optimizer belongs to. */
static tsr_status check_namesakes(const checking *c, const namesake *list, size_t count, size_t wanted, tsr_error *err)
{
    tsr_map *prefixes = tsr_map_new(c->host->allocator, 0, err);
    const tsr_entry **others = tsr_arena_array(c->arena, c->all.param_count, sizeof *others, err);
    bool *matched = tsr_arena_array(c->arena, c->all.param_count, sizeof *matched, err);
    tsr_status status = prefixes && others && matched ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        uint32_t *known;
        bool fresh;
        status = tsr_map_put(prefixes, list[i].prefix, 1, &known, &fresh, err);
        if (status == TSR_OK && !fresh) ++*known;
    }
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        if (tsr_map_get(prefixes, list[i].prefix, 0) != wanted) continue;
        const uint32_t param = list[i].param;
        if (!misshapen(c, &c->all.params[param], list[i].entry)) matched[param] = true;
        else if (!others[param]) others[param] = list[i].entry;
    }
    for (uint32_t i = 0; i < c->all.param_count && status == TSR_OK; i++)
        if (others[i] && !matched[i]) status = report_shape(c, &c->all.params[i], others[i], err);
    tsr_map_free(prefixes);
    return status;
}

static tsr_status check_named(checking *c, const tsr_stored_optimizer *of, tsr_error *err)
{
    tsr_map *names = tsr_map_new(c->host->allocator, of->param_count, err);
    tsr_vec found = tsr_vec_of(c->host->allocator, sizeof(namesake));
    tsr_status status = names ? TSR_OK : TSR_E_NOMEM;
    for (uint32_t i = of->first_param; i < of->first_param + of->param_count && status == TSR_OK; i++) {
        const tsr_stored_optimizer_param *param = &c->all.params[i];
        if (param->fqn.data && has_shaped_state(c, param)) status = tsr_map_put(names, param->fqn, i, NULL, NULL, err);
    }
    if (status == TSR_OK && tsr_map_count(names)) status = find_namesakes(c, names, &found, err);
    if (status == TSR_OK && found.count) status = check_namesakes(c, found.items, found.count, tsr_map_count(names), err);
    tsr_vec_free(&found);
    tsr_map_free(names);
    return status;
}

/* ---- parameters with ids ---- */

/* The tensors of one state dict, in its order, without further names of the same weight. */
typedef struct weights {
    tsr_vec tensors; /* const tsr_entry * */
    size_t buffers;  /* how many have the name of a buffer */
} weights;

static bool is_buffer(const tsr_entry *entry)
{
    static const char *const names[] = {"running_mean", "running_var", "num_batches_tracked", "inv_freq", "position_ids"};
    const tsr_str last = tsr_last_component(entry->fqn);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tsr_str_equal(last, tsr_str_from(names[i]))) return true;
    return false;
}

/* The name of the dict that an entry is in. A state dict's own keys contain dots. */
static tsr_str dict_of(const tsr_entry *entry)
{
    const size_t key = entry->path ? tsr_path_item_size(&entry->path[entry->path_length - 1]) : entry->fqn.size;
    return (tsr_str){entry->fqn.data, key < entry->fqn.size ? entry->fqn.size - key - 1 : 0};
}

/* Whether no entry before this one has the same elements. */
static tsr_status put_storage(const checking *c, tsr_map *storages, const tsr_entry *entry, bool *fresh, tsr_error *err)
{
    uint64_t *key = tsr_arena_array(c->arena, 3, sizeof *key, err);
    if (!key) return TSR_E_NOMEM;
    const tsr_chunk *chunk = entry->chunk_count ? entry->chunks : NULL;
    key[0] = entry->storage_id;
    key[1] = !chunk ? 0 : chunk->view ? chunk->view->byte_offset : chunk->byte_offset;
    key[2] = tsr_hash_bytes(entry->shape, entry->ndim * sizeof *entry->shape, entry->ndim);
    return tsr_map_put(storages, (tsr_str){(const char *)key, 3 * sizeof *key}, 0, NULL, fresh, err);
}

static tsr_status list_weights(checking *c, tsr_vec *out, tsr_error *err)
{
    tsr_map *dicts = tsr_map_new(c->host->allocator, 0, err), *storages = tsr_map_new(c->host->allocator, 0, err);
    tsr_status status = dicts && storages ? TSR_OK : TSR_E_NOMEM;
    for (uint64_t i = 0; i < c->catalog->entry_count && status == TSR_OK; i++) {
        const tsr_entry *entry = &c->catalog->entries[i], **slot;
        uint32_t *known;
        bool fresh = true;
        if (!may_be_weight(c, entry)) continue;
        if (entry->storage_id) status = put_storage(c, storages, entry, &fresh, err);
        if (status != TSR_OK || !fresh) continue; /* tied weights are one parameter */
        status = tsr_map_put(dicts, dict_of(entry), (uint32_t)out->count, &known, &fresh, err);
        weights *dict = status != TSR_OK ? NULL : fresh ? tsr_vec_push(out, err) : (weights *)out->items + *known;
        if (dict && fresh) *dict = (weights){tsr_vec_of(c->host->allocator, sizeof entry), 0};
        slot = dict ? tsr_vec_push(&dict->tensors, err) : NULL;
        if (!slot) {
            status = TSR_E_NOMEM;
            continue;
        }
        *slot = entry;
        dict->buffers += is_buffer(entry);
    }
    tsr_map_free(dicts);
    tsr_map_free(storages);
    return status;
}

/* How the states of an optimizer compare with the weights of a dict, if the first parameter is the first weight, and so on. */
typedef struct comparison {
    size_t same, different;
    bool flat; /* the states of all matrices have one dimension: FSDP1 keeps them in flat parameters */
} comparison;

/* Calls `each` for the parameters of an optimizer that have states to compare, with their weights. False if the numbers of
 * parameters and weights differ, so that nothing says which belong together. */
static bool pair_up(checking *c, const tsr_stored_optimizer *of, const weights *w, bool buffers, const tsr_entry **pairs)
{
    size_t at = 0;
    c->lookups++;
    if (w->tensors.count - (buffers ? 0 : w->buffers) != of->param_count) return false;
    for (size_t i = 0; i < w->tensors.count; i++) {
        const tsr_entry *entry = ((const tsr_entry **)w->tensors.items)[i];
        c->lookups++;
        if (buffers || !is_buffer(entry)) pairs[at++] = entry;
    }
    return true;
}

static comparison compare(const checking *c, const tsr_stored_optimizer *of, const tsr_entry *const *pairs)
{
    const tsr_stored_optimizer_param *params = c->all.params + of->first_param;
    comparison result = {.flat = true};
    for (uint32_t i = 0; i < of->param_count; i++) {
        if (!has_shaped_state(c, &params[i])) continue;
        const tsr_stored_optimizer_state *s = misshapen(c, &params[i], pairs[i]);
        if (s) result.different++;
        else result.same++;
        if (pairs[i]->ndim > 1 && (!s || s->entry->ndim != 1)) result.flat = false;
    }
    return result;
}

/* Whether a state of another shape has that of a weight whose own state has another shape: the optimizer's order may be
 * another one. */
static bool may_be_reordered(checking *c, const tsr_stored_optimizer *of, const tsr_entry *const *pairs)
{
    const tsr_stored_optimizer_param *params = c->all.params + of->first_param;
    for (uint32_t i = 0; i < of->param_count; i++) {
        const tsr_stored_optimizer_state *s = misshapen(c, &params[i], pairs[i]);
        for (uint32_t k = 0; s && k < of->param_count; k++) {
            if (c->lookups++ > MOST_LOOKUPS) return true;
            if (k != i && misshapen(c, &params[k], pairs[k]) && tsr_entry_same_shape(s->entry, pairs[k])) return true;
        }
    }
    return false;
}

/* Ids are numbers of parameters in the order of the groups, which is that of the model's state dict where it has as many
 * tensors. This is certain only if most states confirm it, no other order would, and no other dict fits better. */
static tsr_status check_numbered(checking *c, const tsr_stored_optimizer *of, const tsr_vec *dicts, tsr_error *err)
{
    const tsr_entry **pairs = tsr_arena_array(c->arena, of->param_count, sizeof *pairs, err);
    const weights *list = dicts->items, *best = NULL;
    comparison least = {.different = SIZE_MAX};
    bool with_buffers = false;
    if (!pairs) return TSR_E_NOMEM;
    for (size_t i = 0; i < 2 * dicts->count && c->lookups < MOST_LOOKUPS; i++) {
        if (!pair_up(c, of, &list[i / 2], i % 2, pairs)) continue;
        const comparison here = compare(c, of, pairs);
        if (here.different >= least.different) continue;
        least = here;
        best = &list[i / 2];
        with_buffers = i % 2;
    }
    if (!best || !least.different || least.different > least.same || least.flat) return TSR_OK;
    pair_up(c, of, best, with_buffers, pairs);
    if (may_be_reordered(c, of, pairs)) return TSR_OK;
    for (uint32_t i = 0; i < of->param_count; i++) {
        const tsr_stored_optimizer_param *param = &c->all.params[of->first_param + i];
        if (misshapen(c, param, pairs[i])) TSR_TRY(report_shape(c, param, pairs[i], err));
    }
    return TSR_OK;
}

static bool is_numbered(const checking *c, const tsr_stored_optimizer *of)
{
    for (uint32_t i = 0; i < of->param_count; i++) {
        const tsr_stored_optimizer_param *param = &c->all.params[of->first_param + i];
        if (!param->is_id || param->fqn.data) return false;
    }
    return of->param_count > 0;
}

static tsr_status check_shapes(checking *c, tsr_error *err)
{
    tsr_vec dicts = tsr_vec_of(c->host->allocator, sizeof(weights));
    tsr_status status = list_weights(c, &dicts, err);
    for (uint32_t i = 0; i < c->all.count && status == TSR_OK && c->lookups < MOST_LOOKUPS; i++) {
        const tsr_stored_optimizer *of = &c->all.items[i];
        status = is_numbered(c, of) ? check_numbered(c, of, &dicts, err) : check_named(c, of, err);
    }
    for (size_t i = 0; i < dicts.count; i++) tsr_vec_free(&((weights *)dicts.items + i)->tensors);
    tsr_vec_free(&dicts);
    return status;
}

/* ---- all rules ---- */

tsr_status tsr_validate_optimizers(const tsr_catalog *catalog, const tsr_host *host, tsr_findings *findings, tsr_error *err)
{
    checking c = {.catalog = catalog, .host = host, .arena = tsr_arena_new(host->allocator, 0, err), .findings = findings};
    tsr_status status = c.arena ? tsr_stored_optimizers_find(catalog, host, c.arena, &c.all, err) : TSR_E_NOMEM;
    for (uint32_t i = 0; i < c.all.count && status == TSR_OK; i++) {
        status = check_texts(&c, &c.all.items[i], err);
        if (status == TSR_OK) status = check_groups(&c, &c.all.items[i], err);
    }
    if (status == TSR_OK && c.all.param_count) status = check_shapes(&c, err);
    tsr_arena_free(c.arena);
    return status;
}
