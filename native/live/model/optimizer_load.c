/* Loads a state dict into live optimizers. Its names are first replaced by parameter numbers, as in Optimizer.state_dict(), so
 * a shared parameter may have been saved under any of its names.
 *
 *   nested or flat ── split ──▶ one optimizer's, by number ── broadcast or distribute ──▶ check, agree, write */
#include <inttypes.h>

#include "live/model/optimizer_names.h"
#include "live/ops/state_full.h"
#include "live/tensor/state_dict.h"
#include "tessera/state_keys.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"

/* ---- optimizer add ---- */

/* Keys of a loaded state dict that the optimizer does not hold, added to it as PyTorch does (the end of
 * `_load_optim_state_dict`). Both are keyed by number. */

typedef struct adding {
    const tsr_optimizer_names *names;
    const tsr_model_optimizer *optimizer;
    bool tensors_only; /* anything else is refused */
    tsr_arena *arena;
} adding;

static bool is_container(const tsr_value *value)
{
    return value->kind == TSR_VALUE_DICT || tsr_is_list(value);
}

/* The canonical name of the parameter with a number; data NULL: none. */
static tsr_str param_name(const adding *a, int64_t number)
{
    size_t first = 0;
    for (size_t g = 0; g < a->optimizer->group_count; first += a->optimizer->groups[g++].count) {
        const tsr_model_group *group = &a->optimizer->groups[g];
        const size_t p = (size_t)number - first;
        uint32_t id;
        if (p < group->count && tsr_optimizer_param_id(a->names, &group->params[p], NULL, &id, NULL) == TSR_OK)
            return a->names->first[id];
    }
    return (tsr_str){NULL, 0};
}

/* Dotted, as PyTorch names the key: "state.fc.weight.step", "param_groups.0.lr". */
static tsr_str path_text(const adding *a, const tsr_step *at, tsr_error *err)
{
    tsr_str text = at->key ? at->key->text : (tsr_str){NULL, 0};
    const bool number = at->key && at->key->kind == TSR_VALUE_INT;
    const bool state = at->depth == 2 && at->up->key && tsr_str_equal(at->up->key->text, TSR_STR("state"));
    if (number && state) text = param_name(a, at->key->as.integer);
    if (!text.data) text = tsr_arena_format(a->arena, err, "%" PRIi64, number ? at->key->as.integer : (int64_t)at->index);
    if (!text.data || !at->up) return text;
    const tsr_str above = path_text(a, at->up, err);
    return above.data ? tsr_arena_format(a->arena, err, "%.*s.%.*s", TSR_STR_ARG(above), TSR_STR_ARG(text)) : above;
}

static tsr_status check_new(const adding *a, const tsr_value *value, const tsr_step *at, tsr_error *err)
{
    const bool dict = value->kind == TSR_VALUE_DICT;
    for (size_t i = 0; is_container(value) && i < value->count; i += dict ? 2 : 1) {
        const tsr_step step = {at, dict ? value->items[i] : NULL, i, at->depth + 1};
        TSR_TRY(check_new(a, value->items[i + dict], &step, err));
    }
    const tsr_tensor *tensor = tsr_tensor_of(value);
    if (is_container(value) || !a->tensors_only || (tensor && tensor->entry.ndim)) return TSR_OK;
    const tsr_str path = path_text(a, at, err);
    return path.data ? tsr_fail(err, TSR_E_FORMAT,
                                "the state dict has '%.*s', which the optimizer does not hold: full_state_dict adds tensors "
                                "with dimensions only; take a step before loading, or load without full_state_dict",
                                TSR_STR_ARG(path))
                     : TSR_E_NOMEM;
}

static tsr_status add(const adding *a, const tsr_value *held, const tsr_value *given, const tsr_step *at,
                      const tsr_value **out, tsr_error *err);

static tsr_status add_items(const adding *a, const tsr_value *held, const tsr_value *given, const tsr_step *at,
                            const tsr_value **out, tsr_error *err)
{
    const bool dict = held->kind == TSR_VALUE_DICT;
    size_t count = held->count;
    const tsr_value **items = tsr_arena_array(a->arena, held->count + given->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    if (count) memcpy(items, held->items, count * sizeof *items);
    for (size_t i = 0; i < given->count; i += dict ? 2 : 1) {
        const tsr_step step = {at, dict ? given->items[i] : NULL, i, at ? at->depth + 1 : 1};
        const size_t pair = dict ? tsr_dict_pair(held, given->items[i], i / 2) : i < held->count ? i : TSR_NO_PAIR;
        const tsr_value *value = given->items[i + dict];
        if (pair != TSR_NO_PAIR) {
            const size_t place = dict ? 2 * pair + 1 : pair;
            TSR_TRY(add(a, held->items[place], value, &step, &items[place], err));
            continue;
        }
        TSR_TRY(check_new(a, value, &step, err));
        if (is_container(value) && !value->count) continue;
        if (dict) items[count++] = given->items[i];
        items[count++] = value;
    }
    *out = tsr_value_items(a->arena, held->kind, items, count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* Bounded: both were walked before. */
static tsr_status add(const adding *a, const tsr_value *held, const tsr_value *given, const tsr_step *at,
                      const tsr_value **out, tsr_error *err)
{
    *out = held;
    if (!is_container(held) && !is_container(given)) return TSR_OK;
    if ((held->kind == TSR_VALUE_DICT) == (given->kind == TSR_VALUE_DICT) && is_container(held) == is_container(given))
        return add_items(a, held, given, at, out, err);
    if (held->count == 0 && is_container(held)) { /* an empty one has no key of its own */
        *out = given;
        return check_new(a, given, at, err);
    }
    if (given->count == 0 && is_container(given)) return TSR_OK;
    const tsr_str path = path_text(a, at, err);
    return path.data ? tsr_fail(err, TSR_E_FORMAT, "'%.*s' is a %s in the state dict, and a %s in the optimizer",
                                TSR_STR_ARG(path), tsr_python_type(given), tsr_python_type(held))
                     : TSR_E_NOMEM;
}

/* Adds to `*tree` the keys of `given` that it lacks. Both are keyed by number, and their depth has been checked. With
 * `tensors_only`, returns TSR_E_FORMAT with the key for anything but tensors that have dimensions. */
static tsr_status optimizer_add(const tsr_optimizer_names *names, const tsr_model_optimizer *optimizer,
                                const tsr_value *given, bool tensors_only, const tsr_value **tree, tsr_error *err)
{
    const adding a = {names, optimizer, tensors_only, names->arena};
    return add(&a, *tree, given, NULL, tree, err);
}

/* ---- flat state: what must be in it, and whether options that are tensors are equal ---- */

#define COMPARED_BYTES 4096u /* at a time */

/* Memory of a tensor, on its device. */
typedef struct buffer {
    tsr_device *device;
    void *data;
    uint64_t bytes;
} buffer;

/* Both have the same number of bytes. */
static tsr_status same_buffer(const buffer *a, const buffer *b, bool *equal, tsr_error *err)
{
    uint8_t p[COMPARED_BYTES], q[COMPARED_BYTES];
    for (uint64_t at = 0; at < a->bytes && *equal; at += COMPARED_BYTES) {
        const size_t some = a->bytes - at < COMPARED_BYTES ? (size_t)(a->bytes - at) : COMPARED_BYTES;
        TSR_TRY(tsr_device_download(a->device, p, (const uint8_t *)a->data + at, some, err));
        TSR_TRY(tsr_device_download(b->device, q, (const uint8_t *)b->data + at, some, err));
        *equal = memcmp(p, q, some) == 0;
    }
    return TSR_OK;
}

/* tsr_unflatten.same for trees of live tensors; `arena` is its ctx. */
static tsr_status optimizer_same_tensor(void *arena, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err)
{
    const tsr_tensor *x = (const tsr_tensor *)a, *y = (const tsr_tensor *)b;
    *equal = tsr_tensor_is_like(x, y, true) && x->meta == y->meta;
    for (uint32_t i = 0; *equal && !x->meta && i < tsr_tensor_buffer_count(x); i++) {
        buffer p = {.device = x->device}, q = {.device = y->device};
        TSR_TRY(tsr_tensor_buffer(x, i, arena, &p.data, &p.bytes, err));
        TSR_TRY(tsr_tensor_buffer(y, i, arena, &q.data, &q.bytes, err));
        TSR_TRY(same_buffer(&p, &q, equal, err));
    }
    return TSR_OK;
}

/* ---- what must be there ---- */

static tsr_status index_keys(const tsr_value *flat, tsr_map *keys, tsr_error *err)
{
    for (size_t i = 0; i < flat->count; i += 2)
        if (flat->items[i]->kind == TSR_VALUE_STR) TSR_TRY(tsr_map_put(keys, flat->items[i]->text, 1, NULL, NULL, err));
    return TSR_OK;
}

/* Whether a key is of one of the names: "state.fc.weight.step" of "fc.weight". Others than the two forms are kept, so that
 * what reads them refuses them. */
static bool is_own(tsr_str key, const tsr_map *names)
{
    const tsr_str forms[] = {TSR_STR("state."), TSR_STR("param_groups.")};
    for (size_t f = 0; f < 2; f++) {
        if (!tsr_str_starts(key, forms[f])) continue;
        const tsr_str rest = {key.data + forms[f].size, key.size - forms[f].size};
        for (size_t at = 0; at < rest.size; at++)
            if (rest.data[at] == '.' && tsr_map_get(names, (tsr_str){rest.data, at}, 0)) return true;
        return false;
    }
    return true;
}

static tsr_status take_own(const tsr_value *flat, const tsr_map *names, tsr_arena *arena, const tsr_value **out,
                           tsr_error *err)
{
    size_t count = 0;
    const tsr_value **items = tsr_arena_array(arena, flat->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < flat->count; i += 2) {
        if (flat->items[i]->kind == TSR_VALUE_STR && !is_own(flat->items[i]->text, names)) continue;
        items[count++] = flat->items[i];
        items[count++] = flat->items[i + 1];
    }
    *out = tsr_value_items(arena, TSR_VALUE_DICT, items, count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* The part of a flat state dict that belongs to the parameters in `lists`. The state dict may contain other optimizers,
 * and other stages of a pipeline, as well. */
static tsr_status optimizer_own_keys(const tsr_value *flat, const tsr_name_list *lists, size_t count, tsr_arena *arena,
                                     const tsr_value **out, tsr_error *err)
{
    *out = flat;
    if (flat->kind != TSR_VALUE_DICT) return TSR_OK; /* refused by what reads it */
    tsr_map *names = tsr_map_new(tsr_arena_allocator(arena), 0, err);
    tsr_status status = names ? TSR_OK : TSR_E_NOMEM;
    for (size_t g = 0; g < count && status == TSR_OK; g++)
        for (size_t p = 0; p < lists[g].count && status == TSR_OK; p++)
            status = tsr_map_put(names, lists[g].names[p], 1, NULL, NULL, err);
    if (status == TSR_OK) status = take_own(flat, names, arena, out, err);
    tsr_map_free(names);
    return status;
}

static tsr_status check_options(const tsr_map *keys, const tsr_model_group *group, const tsr_name_list *names,
                                tsr_arena *arena, tsr_error *err)
{
    for (size_t i = 0; names->count && i < group->options->count; i += 2) {
        const tsr_str option = group->options->items[i]->text;
        const tsr_str key =
            tsr_arena_format(arena, err, "param_groups.%.*s.%.*s", TSR_STR_ARG(names->names[0]), TSR_STR_ARG(option));
        if (!key.data) return TSR_E_NOMEM;
        TSR_FAIL_IF(!tsr_map_get(keys, key, 0), err, TSR_E_NOT_FOUND,
                    "the flat state dict has no '%.*s': it must have every option of the optimizer's param groups",
                    TSR_STR_ARG(key));
    }
    return TSR_OK;
}

/* These two check that a flat state dict has what an optimizer needs; TSR_E_NOT_FOUND with the missing key. This one: every
 * option of its groups, under the first of the group's `names`, where PyTorch looks for it. optimizer_check_held, after
 * unflattening: under `name`, every state that the optimizer holds for that parameter (`held`, may be NULL). */
static tsr_status optimizer_check_flat(const tsr_value *flat, const tsr_model_optimizer *optimizer,
                                       const tsr_name_list *names, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    if (flat->kind != TSR_VALUE_DICT) return TSR_OK; /* refused by what reads it */
    tsr_map *keys = tsr_map_new(host->allocator, flat->count / 2, err);
    tsr_status status = keys ? index_keys(flat, keys, err) : TSR_E_NOMEM;
    for (size_t g = 0; g < optimizer->group_count && status == TSR_OK; g++) {
        if (!optimizer->groups[g].options || optimizer->groups[g].options->kind != TSR_VALUE_DICT) continue;
        status = check_options(keys, &optimizer->groups[g], &names[g], arena, err);
    }
    tsr_map_free(keys);
    return status;
}

static tsr_status optimizer_check_held(const tsr_value *nested, tsr_str name, const tsr_value *held, tsr_error *err)
{
    const tsr_value *given = tsr_value_get(tsr_value_get(nested, TSR_STR("state")), name);
    for (size_t i = 0; held && given && i < held->count; i += 2) {
        const tsr_value *key = held->items[i], *value = held->items[i + 1];
        if (key->kind != TSR_VALUE_STR || (value->kind == TSR_VALUE_DICT && !value->count)) continue;
        TSR_FAIL_IF(!tsr_value_get(given, key->text), err, TSR_E_NOT_FOUND,
                    "the flat state dict has no 'state.%.*s.%.*s', which the optimizer holds; to load anyway, pass "
                    "strict = false",
                    TSR_STR_ARG(name), TSR_STR_ARG(key->text));
    }
    return TSR_OK;
}

/* ---- optimizer load ---- */

typedef struct loading {
    const tsr_state_options *options;
    const tsr_host *host;
    tsr_comm *comm;
    tsr_arena *passing;
    tsr_model_optimizer *const *optimizers;
    size_t count;
    tsr_optimizer_names names;
    tsr_params *params;
    tsr_optimizer *by_index;  /* one an optimizer: groups as indices into `params` */
    const tsr_value **loaded; /* one an optimizer, by number */
    tsr_state_dict *scratch;
    tsr_map *lent;    /* memory that is loaded from */
    uint64_t visited; /* values of the state dict */
    bool units;       /* the tree has FSDP1's */
} loading;

/* ---- what each optimizer wants ---- */

static tsr_status index_groups(loading *l, tsr_error *err)
{
    size_t *places = tsr_arena_array(l->passing, l->names.ids.count, sizeof *places, err); /* by id */
    l->by_index = tsr_arena_array(l->passing, l->count, sizeof *l->by_index, err);
    if (!places || !l->by_index) return TSR_E_NOMEM;
    for (size_t i = 0; i < tsr_params_count(l->params); i++)
        places[tsr_tensor_ids_get(&l->names.ids, &tsr_params_at(l->params, i)->tensor)] = i;
    for (size_t o = 0; o < l->count; o++) {
        const tsr_model_optimizer *optimizer = l->optimizers[o];
        tsr_optimizer_group *groups = tsr_arena_array(l->passing, optimizer->group_count, sizeof *groups, err);
        for (size_t g = 0; groups && g < optimizer->group_count; g++) {
            const tsr_model_group *group = &optimizer->groups[g];
            size_t *list = tsr_arena_array(l->passing, group->count, sizeof *list, err);
            for (size_t p = 0; list && p < group->count; p++) {
                uint32_t id;
                TSR_TRY(tsr_optimizer_param_id(&l->names, &group->params[p], NULL, &id, err));
                list[p] = places[id];
            }
            groups[g] = (tsr_optimizer_group){list, group->count};
            if (!list) return TSR_E_NOMEM;
        }
        l->by_index[o] = (tsr_optimizer){groups, optimizer->group_count};
        if (!groups) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

/* Of a shared parameter's names the one that the flat state dict has. */
static tsr_status flat_name(loading *l, const tsr_value *flat, const tsr_param *param, tsr_str *out, tsr_error *err)
{
    *out = param->fqns[0];
    for (size_t n = 0; n < param->fqn_count && param->shared; n++) {
        const tsr_str prefix = tsr_arena_format(l->passing, err, "param_groups.%.*s.", TSR_STR_ARG(param->fqns[n]));
        if (!prefix.data) return TSR_E_NOMEM;
        for (size_t i = 0; i < flat->count; i += 2) {
            if (!tsr_str_starts(flat->items[i]->text, prefix)) continue;
            *out = param->fqns[n];
            return TSR_OK;
        }
    }
    return TSR_OK;
}

/* The names of a group's parameters in a flat state dict: all originals of a flat parameter, one of a shared one. */
static tsr_status flat_names(loading *l, const tsr_value *flat, const tsr_optimizer_group *group, tsr_name_list *out,
                             tsr_error *err)
{
    size_t count = 0;
    for (size_t p = 0; p < group->count; p++) count += tsr_params_at(l->params, group->params[p])->fqn_count;
    tsr_str *list = tsr_arena_array(l->passing, count, sizeof *list, err);
    if (!list) return TSR_E_NOMEM;
    *out = (tsr_name_list){list, 0};
    for (size_t p = 0; p < group->count; p++) {
        const tsr_param *param = tsr_params_at(l->params, group->params[p]);
        if (param->shared) TSR_TRY(flat_name(l, flat, param, &list[out->count++], err));
        for (size_t n = 0; n < param->fqn_count && !param->shared; n++) list[out->count++] = param->fqns[n];
    }
    return TSR_OK;
}

/* The names of all groups, one optimizer's after another's. */
static tsr_status list_names(loading *l, const tsr_value *flat, tsr_name_list **out, size_t *count, tsr_error *err)
{
    size_t at = 0;
    *count = 0;
    for (size_t o = 0; o < l->count; o++) *count += l->by_index[o].group_count;
    tsr_name_list *lists = *out = tsr_arena_array(l->passing, *count, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    for (size_t o = 0; o < l->count; o++) {
        for (size_t g = 0; g < l->by_index[o].group_count; g++)
            TSR_TRY(flat_names(l, flat, &l->by_index[o].groups[g], &lists[at++], err));
    }
    return TSR_OK;
}

static void warn_unused(const loading *l, const tsr_name_tally *unused)
{
    const tsr_warnings warnings = {l->names.model->warn, l->names.model->ctx};
    tsr_name_tally_warn(unused, &warnings, "the optimizer state dict has keys that none of the optimizers wants");
}

/* Keys of `all` that `own`, in the same order, does not have. */
static void warn_others(const loading *l, const tsr_value *all, const tsr_value *own)
{
    tsr_name_tally others = {0};
    for (size_t i = 0, at = 0; i < all->count; i += 2) {
        if (at < own->count && own->items[at] == all->items[i]) at += 2;
        else tsr_name_tally_add(&others, all->items[i]->text);
    }
    warn_unused(l, &others);
}

/* The states that an optimizer holds must be given under each name of their parameter: all originals of a flat one. A rank
 * checks what it holds itself. */
static tsr_status check_held(const loading *l, size_t o, const tsr_name_list *names, const tsr_value *nested, tsr_error *err)
{
    for (size_t g = 0; g < l->by_index[o].group_count; g++) {
        const tsr_optimizer_group *group = &l->by_index[o].groups[g];
        for (size_t p = 0, at = 0; p < group->count; p++) {
            const tsr_param *param = tsr_params_at(l->params, group->params[p]);
            const size_t end = at + (param->shared ? 1 : param->fqn_count);
            const tsr_value *held = l->optimizers[o]->groups[g].params[p].state;
            for (; at < end; at++) TSR_TRY(optimizer_check_held(nested, names[g].names[at], held, err));
        }
    }
    return TSR_OK;
}

/* What this rank's optimizers take of a flat state dict, nested, once it has all that they need. `own`: those of its keys. */
static tsr_status unflatten_own(loading *l, const tsr_value *all, const tsr_value **own, const tsr_value **out,
                                tsr_error *err)
{
    tsr_name_list *lists;
    size_t count;
    TSR_TRY(list_names(l, all, &lists, &count, err));
    TSR_TRY(optimizer_own_keys(all, lists, count, l->passing, own, err));
    const tsr_unflatten how = {
        .params = l->params, .groups = lists, .group_count = count, .same = optimizer_same_tensor, .ctx = l->passing};
    const tsr_name_list *names = lists;
    for (size_t o = 0; o < l->count; names += l->optimizers[o++]->group_count)
        TSR_TRY(optimizer_check_flat(*own, l->optimizers[o], names, l->host, l->passing, err));
    TSR_TRY(tsr_optim_unflatten(*own, &how, l->host, l->passing, out, err));
    names = lists;
    for (size_t o = 0; o < l->count && l->options->strict; names += l->optimizers[o++]->group_count)
        TSR_TRY(check_held(l, o, names, *out, err));
    return TSR_OK;
}

static tsr_status unflatten(loading *l, const tsr_value *all, const tsr_value **out, tsr_error *err)
{
    const tsr_value *own = all;
    const tsr_status status = unflatten_own(l, all, &own, out, err);
    warn_others(l, all, own);
    return status;
}

/* The keys of a flat state dict, without its values; no keys of a nested one. */
static tsr_status outline_of(loading *l, const tsr_value *state, const tsr_value **out, tsr_error *err)
{
    const size_t count = tsr_value_get(state, TSR_STR("state")) ? 0 : state->count;
    const tsr_value *nothing = tsr_value_int(l->passing, 0, err);
    const tsr_value **items = tsr_arena_array(l->passing, count, sizeof *items, err);
    if (!nothing || !items) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) items[i] = i % 2 ? nothing : state->items[i];
    *out = tsr_value_items(l->passing, TSR_VALUE_DICT, items, count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* In a broadcast only rank 0 has the flat state dict, but which keys it must contain depends on the state that each
 * rank's optimizers hold. So the other ranks check its keys. Collective. */
static tsr_status check_on_others(loading *l, const tsr_value *state, tsr_error *err)
{
    const bool root = l->comm->rank == 0;
    const tsr_value *outline = NULL, *own, *nested;
    tsr_status status = root ? outline_of(l, state, &outline, err) : TSR_OK;
    TSR_TRY(tsr_comm_agree(l->comm, status, err));
    TSR_TRY(tsr_fsdp_share_tree(l->comm, &outline, l->scratch, err));
    if (!root && outline->count) status = unflatten_own(l, outline, &own, &nested, err);
    return tsr_comm_agree(l->comm, status, err);
}

/* Whether parameters are keyed by number already. */
static bool is_numbered(const tsr_value *state)
{
    const tsr_value *groups = tsr_value_get(state, TSR_STR("param_groups"));
    for (size_t g = 0; groups && g < groups->count; g++) {
        const tsr_value *params = tsr_value_get(groups->items[g], TSR_STR("params"));
        if (params && params->count) return params->items[0]->kind == TSR_VALUE_INT;
    }
    return false;
}

static tsr_status split_one(loading *l, size_t o, const tsr_value *state, tsr_map *used, tsr_error *err)
{
    const tsr_value *part, *taken;
    const tsr_split how = {l->params, &l->by_index[o], l->options->strict};
    TSR_TRY(tsr_optim_split(state, &how, l->host, l->passing, &part, err));
    TSR_TRY(tsr_optimizer_bounded(part, l->host, &l->visited, err));
    l->loaded[o] = part;
    taken = tsr_value_get(part, TSR_STR("state"));
    for (size_t i = 0; i < taken->count; i += 2)
        if (taken->items[i]->kind == TSR_VALUE_STR) TSR_TRY(tsr_map_put(used, taken->items[i]->text, 1, NULL, NULL, err));
    if (l->names.fsdp) return TSR_OK; /* numbered once all ranks are there */
    TSR_TRY(tsr_optimizer_check_groups(l->optimizers[o], part, err));
    return is_numbered(part) ? TSR_OK : tsr_optim_to_id(part, l->host, l->passing, &l->loaded[o], err);
}

static tsr_status split_all(loading *l, const tsr_value *state, tsr_error *err)
{
    tsr_name_tally unused = {0};
    if (!tsr_value_get(state, TSR_STR("state"))) TSR_TRY(unflatten(l, state, &state, err));
    tsr_map *used = tsr_map_new(l->host->allocator, 0, err);
    tsr_status status = used ? TSR_OK : TSR_E_NOMEM;
    for (size_t o = 0; o < l->count && status == TSR_OK; o++) status = split_one(l, o, state, used, err);
    const tsr_value *given = tsr_value_get(state, TSR_STR("state"));
    for (size_t i = 0; status == TSR_OK && i < given->count; i += 2) {
        const tsr_value *key = given->items[i];
        if (key->kind == TSR_VALUE_STR && !tsr_map_get(used, key->text, 0)) tsr_name_tally_add(&unused, key->text);
    }
    warn_unused(l, &unused);
    tsr_map_free(used);
    return status;
}

/* ---- full → what ranks hold ---- */

/* Leaves of a state dict by dotted names; `only` (may be NULL): no others. */
static tsr_status flat_dict(loading *l, const tsr_value *state, const tsr_map *only, const tsr_value **out, tsr_map *names,
                            tsr_error *err)
{
    tsr_state_key *keys;
    size_t count, used = 0;
    TSR_TRY(tsr_state_keys(state, l->host, l->scratch->arena, &keys, &count, err));
    const tsr_value **items = tsr_arena_array(l->scratch->arena, 2 * count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        if (names) TSR_TRY(tsr_map_put(names, keys[i].name, 1, NULL, NULL, err));
        if (only && !tsr_map_get(only, keys[i].name, 0)) continue;
        items[used++] = tsr_value_str(l->scratch->arena, keys[i].name, err);
        items[used++] = keys[i].value;
        if (!items[used - 2]) return TSR_E_NOMEM;
    }
    *out = tsr_value_items(l->scratch->arena, TSR_VALUE_DICT, items, used, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* `tree` again with the leaves that `values`, a dict in the same order, has. The tree is one that tsr_state_keys walked. */
static const tsr_value *refill(loading *l, const tsr_value *tree, const tsr_value *values, size_t *at, tsr_error *err)
{
    const bool dict = tree->kind == TSR_VALUE_DICT;
    if (!dict && tree->kind != TSR_VALUE_LIST && tree->kind != TSR_VALUE_TUPLE && tree->kind != TSR_VALUE_SIZE)
        return values->items[2 * (*at)++ + 1];
    const tsr_value **items = tsr_arena_array(l->passing, tree->count, sizeof *items, err);
    for (size_t i = 0; items && i < tree->count; i++) {
        items[i] = dict && i % 2 == 0 ? tree->items[i] : refill(l, tree->items[i], values, at, err);
        if (!items[i]) return NULL;
    }
    return items ? tsr_value_items(l->passing, tree->kind, items, tree->count, err) : NULL;
}

/* One optimizer's state: its own, the same by dotted names, and what of the loaded one has these names. */
typedef struct full_one {
    const tsr_value *local, *flat_local, *full;
} full_one;

static bool has_dimensions(const tsr_value *flat)
{
    for (size_t i = 1; i < flat->count; i += 2) {
        const tsr_tensor *tensor = tsr_tensor_of(flat->items[i]);
        if (tensor && tensor->entry.ndim) return true;
    }
    return false;
}

/* PyTorch asserts that the optimizer holds a tensor, whose device loaded ones get: it would load nothing otherwise. */
static tsr_status check_local(const tsr_value *flat_local, tsr_error *err)
{
    TSR_FAIL_IF(!has_dimensions(flat_local), err, TSR_E_USAGE,
                "the optimizer holds no state tensors that a full state dict could be loaded into: it has gradients but did "
                "not step yet, its algorithm has no state, or it lacks first_state; drop the gradients before loading, or "
                "load without full_state_dict");
    return TSR_OK;
}

/* PyTorch gets the optimizer's own state first, which fails for such keys. */
static tsr_status check_user_state(loading *l, const tsr_value *user, tsr_error *err)
{
    if (!user || !user->count) return TSR_OK;
    const tsr_step step = {.key = user->items[0], .depth = 1};
    const tsr_str name = tsr_step_text(&step, l->passing, err);
    if (!name.data) return TSR_E_NOMEM;
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "the optimizer holds '%.*s', which is not the state of a parameter, and full_state_dict cannot be "
                    "loaded next to it: remove it before loading, or load without full_state_dict",
                    TSR_STR_ARG(name));
}

static tsr_status flat_both(loading *l, size_t o, full_one *out, tsr_error *err)
{
    TSR_TRY(check_user_state(l, l->optimizers[o]->user_state, err));
    tsr_map *names = tsr_map_new(l->host->allocator, 0, err);
    tsr_status status = names ? tsr_optimizer_native(l->optimizers[o], l->passing, &out->local, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = flat_dict(l, out->local, NULL, &out->flat_local, names, err);
    if (status == TSR_OK) status = check_local(out->flat_local, err);
    if (status == TSR_OK && l->loaded[o]) status = flat_dict(l, l->loaded[o], names, &out->full, NULL, err);
    tsr_map_free(names);
    return status;
}

/* `tree` with the loaded keys that it does not have. PyTorch adds them on the ranks that were given them. */
static tsr_status add_new(loading *l, size_t o, const tsr_value **tree, tsr_error *err)
{
    const bool broadcast = l->options->broadcast_from_rank0;
    if (!l->loaded[o]) return TSR_OK;
    return optimizer_add(&l->names, l->optimizers[o], l->loaded[o], !broadcast, tree, err);
}

static tsr_status spread_one(loading *l, size_t o, const full_one *one, tsr_error *err)
{
    const tsr_broadcast_options options = {0};
    if (l->options->broadcast_from_rank0) {
        TSR_TRY(tsr_state_dict_broadcast(one->full, one->flat_local, l->comm, &options, l->scratch, err));
    } else {
        const tsr_status status = tsr_state_dict_distribute(one->full, one->flat_local, l->scratch, err);
        TSR_TRY(tsr_comm_agree(l->comm, status, err));
    }
    size_t at = 0;
    const tsr_value *tree = refill(l, one->local, tsr_state_dict_root(l->scratch), &at, err);
    const tsr_status status = tree ? add_new(l, o, &tree, err) : TSR_E_NOMEM;
    l->loaded[o] = tree;
    return tsr_comm_agree(l->comm, status, err);
}

/* Distributing writes into the optimizers, so everything that could be refused is checked in all of them first. */
static tsr_status spread_full(loading *l, tsr_error *err)
{
    full_one *all = tsr_arena_array(l->passing, l->count, sizeof *all, err);
    tsr_status status = all ? TSR_OK : TSR_E_NOMEM;
    for (size_t o = 0; o < l->count && status == TSR_OK; o++) {
        status = flat_both(l, o, &all[o], err);
        const tsr_value *tree = all[o].local;
        if (status == TSR_OK) status = add_new(l, o, &tree, err);
    }
    TSR_TRY(tsr_comm_agree(l->comm, status, err));
    for (size_t o = 0; o < l->count && l->options->broadcast_from_rank0; o++)
        TSR_TRY(tsr_full_agree(all[o].flat_local, l->comm, l->host, l->passing, err));
    for (size_t o = 0; o < l->count; o++) TSR_TRY(spread_one(l, o, &all[o], err));
    return TSR_OK;
}

/* ---- FSDP1 ---- */

/* Whether only rank 0's state counts. */
static bool root_only(const loading *l)
{
    return l->units ? tsr_state_fsdp_choice(l->options).optimizer_rank0_only : l->options->broadcast_from_rank0;
}

static tsr_status spread_units(loading *l, size_t o, tsr_error *err)
{
    const size_t count = l->optimizers[o]->group_count;
    tsr_name_list *groups = NULL;
    TSR_TRY(tsr_comm_agree(l->comm, tsr_optimizer_unit_names(&l->names, l->optimizers[o], l->passing, &groups, err), err));
    const bool has = !root_only(l) || l->comm->rank == 0;
    const tsr_fsdp_state_call call = {l->names.fsdp, {groups, count}, l->options, l->scratch};
    return tsr_fsdp_optimizer_set(&call, has ? l->loaded[o] : NULL, &l->loaded[o], err);
}

/* ---- the whole ---- */

static tsr_loaded_state loaded_of(const loading *l, size_t o)
{
    return (tsr_loaded_state){.names = &l->names,
                              .optimizer = l->optimizers[o],
                              .state = l->loaded[o],
                              .full = l->options->full_state_dict,
                              .lent = l->lent};
}

static tsr_status check_states(const loading *l, size_t o, tsr_error *err)
{
    const tsr_loaded_state loaded = loaded_of(l, o);
    return tsr_optimizer_check_states(&loaded, err);
}

static tsr_status prepare(loading *l, const tsr_model *model, const tsr_value *state, bool has, tsr_error *err)
{
    const bool empty = !state || state->kind != TSR_VALUE_DICT || state->count == 0;
    const tsr_state_request request = {.handle_optimizer = true, .optimizer_is_empty = empty};
    TSR_TRY(tsr_state_options_check(l->options, l->count, true, err));
    TSR_TRY(tsr_state_dict_check(l->options, &request, err));
    TSR_TRY(tsr_optimizer_names_of(model, l->comm, l->host, l->passing, &l->names, err));
    if (l->names.fsdp) TSR_TRY(tsr_fsdp_optimizers_params(l->names.fsdp, &l->params, err));
    else TSR_TRY(tsr_params_new(model->modules, l->host, &l->params, err));
    TSR_TRY(tsr_state_dict_new(l->host, &l->scratch, err));
    TSR_TRY(index_groups(l, err));
    l->loaded = tsr_arena_array(l->passing, l->count, sizeof *l->loaded, err);
    if (!l->loaded) return TSR_E_NOMEM;
    for (size_t o = 0; o < l->count; o++) TSR_TRY(tsr_optimizer_first(l->optimizers[o], &l->names, err));
    if (!has || empty) return TSR_OK;
    TSR_TRY(split_all(l, state, err));
    for (size_t o = 0; o < l->count && !l->names.fsdp; o++) TSR_TRY(check_states(l, o, err));
    return TSR_OK;
}

static tsr_status spread_all(loading *l, tsr_error *err)
{
    tsr_status mine = TSR_OK;
    if (!l->names.fsdp) return l->options->full_state_dict ? spread_full(l, err) : TSR_OK;
    TSR_TRY(tsr_fsdp_optimizers_meet(l->names.fsdp, err));
    for (size_t o = 0; o < l->count; o++) TSR_TRY(spread_units(l, o, err));
    for (size_t o = 0; o < l->count && mine == TSR_OK; o++) {
        mine = tsr_optimizer_check_groups(l->optimizers[o], l->loaded[o], err);
        if (mine == TSR_OK) mine = check_states(l, o, err);
    }
    return tsr_comm_agree(l->comm, mine, err);
}

/* Whether there is anything to load: either all ranks have a state dict, or rank 0 of a broadcast has, or none. */
static tsr_status anything(loading *l, const tsr_value *state, bool *some, tsr_error *err)
{
    uint64_t given = state && state->count && (!root_only(l) || l->comm->rank == 0);
    const bool lacks = !given && !root_only(l);
    TSR_TRY(l->comm->largest(l->comm, &given, err));
    *some = given != 0;
    const tsr_status mine =
        *some && lacks ? tsr_fail(err, TSR_E_USAGE, "the optimizer state is empty here, and not on other ranks") : TSR_OK;
    return tsr_comm_agree(l->comm, mine, err);
}

static tsr_status write_all(loading *l, tsr_error *err)
{
    tsr_status status = TSR_OK;
    l->lent = tsr_map_new(l->host->allocator, 0, err);
    if (!l->lent) return TSR_E_NOMEM;
    for (size_t o = 0; o < l->count && status == TSR_OK; o++) status = tsr_optimizer_lend(l->loaded[o], l->lent, err);
    for (size_t o = 0; o < l->count && status == TSR_OK; o++) {
        const tsr_loaded_state loaded = loaded_of(l, o);
        status = tsr_optimizer_write(&loaded, err);
    }
    return status;
}

static tsr_status load(loading *l, const tsr_model *model, const tsr_value *state, tsr_error *err)
{
    const bool has = !root_only(l) || l->comm->rank == 0;
    bool some;
    tsr_status status = l->passing ? prepare(l, model, state, has, err) : TSR_E_NOMEM;
    TSR_TRY(tsr_options_agree(l->comm, "set_optimizer_state_dict: options", l->options, l->count, status, err));
    TSR_TRY(anything(l, state, &some, err));
    if (!some) return TSR_OK;
    if (root_only(l)) TSR_TRY(check_on_others(l, state, err));
    TSR_TRY(spread_all(l, err));
    return tsr_comm_agree(l->comm, write_all(l, err), err);
}

tsr_status tsr_set_optimizer_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_value *state,
                                        const tsr_state_call *call, tsr_error *err)
{
    tsr_call c;
    TSR_TRY(tsr_call_open(&c, call, call->host, err));
    loading l = {.options = &c.options,
                 .host = call->host,
                 .comm = c.given.comm,
                 .passing = tsr_arena_new(call->host->allocator, 0, err),
                 .optimizers = optimizers.items,
                 .count = optimizers.count,
                 .units = tsr_fsdp_is_in(model->modules)};
    const tsr_status status = load(&l, model, state, err);
    tsr_map_free(l.lent);
    tsr_state_dict_free(l.scratch);
    tsr_params_free(l.params);
    tsr_optimizer_names_free(&l.names);
    tsr_arena_free(l.passing);
    tsr_call_close(&c);
    return status;
}
