/* Optimizer.load_state_dict(): a state dict keyed by number, checked against an optimizer and written into it. */
#include "live/model/optimizer_names.h"

#include "live/tensor/state_dict.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* ---- types ---- */

/* The same for the value under a key. */
static tsr_taking taking_below(const tsr_taking *taking, const tsr_value *key)
{
    tsr_taking below = *taking;
    below.is_step = key && key->kind == TSR_VALUE_STR && tsr_str_equal(key->text, TSR_STR("step"));
    return below;
}

static bool step_moves(const tsr_value *group);

static tsr_dtype wanted_dtype(const tsr_taking *t, tsr_dtype given, const tsr_tensor *there)
{
    if (t->in_place && there) given = there->entry.dtype;
    if (!t->param) return given;
    if (t->is_step) return t->step_moves ? TSR_FLOAT32 : given;
    return tsr_dtype_describe(t->param->entry.dtype)->kind == TSR_CLASS_FLOAT ? t->param->entry.dtype : given;
}

/* Floating parameters have state of their own type, except "step". TSR_E_UNSUPPORTED where there is no cast to it. `there`
 * (may be NULL): what `given` replaces. */
static tsr_status optimizer_check_cast(const tsr_taking *taking, const tsr_tensor *given, const tsr_tensor *there,
                                       tsr_error *err)
{
    const tsr_dtype from = given->entry.dtype, to = wanted_dtype(taking, from, there);
    TSR_FAIL_IF(!tsr_convert_possible(from, to), err, TSR_E_UNSUPPORTED,
                "%s in the state dict, which is not cast to the %s's %s", tsr_dtype_describe(from)->name,
                taking->in_place && there ? "state" : "parameter", tsr_dtype_describe(to)->name);
    return TSR_OK;
}

/* ---- memory ---- */

static tsr_str address(void *const *data)
{
    return (tsr_str){(const char *)data, sizeof *data};
}

static tsr_status lend_tensor(const tsr_tensor *tensor, tsr_map *lent, tsr_error *err)
{
    if (tensor->spread != TSR_IN_BOXES) return tsr_map_put(lent, address(&tensor->data), 1, NULL, NULL, err);
    for (uint32_t i = 0; i < tensor->part_count; i++)
        TSR_TRY(tsr_map_put(lent, address(&tensor->parts[i].data), 1, NULL, NULL, err));
    return TSR_OK;
}

tsr_status tsr_optimizer_lend(const tsr_value *value, tsr_map *lent, tsr_error *err)
{
    const tsr_tensor *tensor = tsr_tensor_of(value);
    if (tensor) return lend_tensor(tensor, lent, err);
    for (size_t i = 0; i < value->count; i++) TSR_TRY(tsr_optimizer_lend(value->items[i], lent, err));
    return TSR_OK;
}

/* A state dict may borrow the optimizer's own memory under another name. Writing there would change values that have yet
 * to be loaded. */
static bool is_lent(const tsr_taking *t, const tsr_tensor *from, const tsr_tensor *to)
{
    const bool boxes = to->spread == TSR_IN_BOXES;
    if (!t->lent) return false;
    if (!boxes) return from->data != to->data && tsr_map_get(t->lent, address(&to->data), 0);
    for (uint32_t i = 0; i < to->part_count; i++)
        if (from->parts[i].data != to->parts[i].data && tsr_map_get(t->lent, address(&to->parts[i].data), 0)) return true;
    return false;
}

static const tsr_value *take_tensor(const tsr_taking *t, const tsr_value *given, const tsr_value *there, tsr_error *err)
{
    const tsr_tensor *from = tsr_tensor_of(given), *to = there ? tsr_tensor_of(there) : NULL;
    const tsr_dtype dtype = wanted_dtype(t, from->entry.dtype, to);
    tsr_tensor like = *from;
    like.entry.dtype = dtype;
    if (given == there && from->entry.dtype == dtype) return there;
    const bool fits = to && tsr_tensor_is_like(&like, to, true) && !is_lent(t, from, to);
    if (t->param && (!t->is_step || t->step_moves)) like.device = t->param->device;
    if (!fits && tsr_state_dict_allocate(t->memory, &like, &there, err) != TSR_OK) return NULL;
    return tsr_tensor_convert(from, tsr_tensor_of(there), t->passing, err) == TSR_OK ? there : NULL;
}

/* ---- trees ---- */

const tsr_value *tsr_optimizer_take(const tsr_taking *t, const tsr_value *given, const tsr_value *there, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(t->memory);
    if (given->kind == TSR_VALUE_TENSOR) return take_tensor(t, given, there, err);
    tsr_value *copy = tsr_value_new(arena, given->kind, err);
    const tsr_value **items = tsr_arena_array(arena, given->count, sizeof *items, err);
    if (!copy || !items) return NULL;
    *copy = *given;
    copy->items = items;
    if (given->text.data) copy->text = tsr_arena_str(arena, given->text, err);
    if (given->text.data && !copy->text.data) return NULL;
    const bool dict = given->kind == TSR_VALUE_DICT, into = dict && there && there->kind == TSR_VALUE_DICT;
    for (size_t i = 0; i < given->count; i++) {
        const tsr_value *inside = into && i % 2 ? tsr_dict_find(there, given->items[i - 1], i / 2) : NULL;
        const tsr_taking below = taking_below(t, dict && i % 2 ? given->items[i - 1] : NULL);
        if (!(items[i] = tsr_optimizer_take(&below, given->items[i], inside, err))) return NULL;
    }
    return copy;
}

/* ---- checking ---- */

static tsr_status bounded(const tsr_value *value, const tsr_host *host, uint32_t depth, uint64_t *visited, tsr_error *err)
{
    TSR_FAIL_IF(depth > host->limits.depth || ++*visited > host->limits.expansion, err, TSR_E_LIMIT,
                "optim: the state dict is nested too deeply, or has too many values");
    for (size_t i = 0; i < value->count; i++) TSR_TRY(bounded(value->items[i], host, depth + 1, visited, err));
    return TSR_OK;
}

tsr_status tsr_optimizer_bounded(const tsr_value *value, const tsr_host *host, uint64_t *visited, tsr_error *err)
{
    return bounded(value, host, 0, visited, err);
}

tsr_status tsr_optimizer_check_groups(const tsr_model_optimizer *optimizer, const tsr_value *loaded, tsr_error *err)
{
    const tsr_value *groups = tsr_value_get(loaded, TSR_STR("param_groups"));
    const tsr_value *state = tsr_value_get(loaded, TSR_STR("state"));
    TSR_FAIL_IF(!state || state->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT,
                "optim: 'state' of the state dict is not a dict");
    TSR_FAIL_IF(!groups || groups->count != optimizer->group_count, err, TSR_E_FORMAT,
                "optim: %zu param groups in the state dict, %zu in the optimizer", groups ? groups->count : 0,
                optimizer->group_count);
    for (size_t g = 0; g < groups->count; g++) {
        TSR_FAIL_IF(groups->items[g]->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "optim: param group %zu is not a dict", g);
        const tsr_value *params = tsr_value_get(groups->items[g], TSR_STR("params"));
        TSR_FAIL_IF(!params || params->count != optimizer->groups[g].count, err, TSR_E_FORMAT,
                    "optim: %zu parameters in group %zu of the state dict, %zu in the optimizer's",
                    params ? params->count : 0, g, optimizer->groups[g].count);
        TSR_FAIL_IF(groups->items[g]->count <= 2 && optimizer->groups[g].options->count, err, TSR_E_FORMAT,
                    "optim: the state dict has no options for param group %zu", g);
    }
    return TSR_OK;
}

/* Checks that `given` fits the existing value; `full`: `given` is not distributed yet. Dtypes may differ, see
 * tsr_optimizer_take. */
static tsr_status check_value(const tsr_loaded_state *l, const tsr_taking *taking, const tsr_value *given,
                              const tsr_value *there, tsr_error *err)
{
    const tsr_tensor *a = tsr_tensor_of(given), *b = there ? tsr_tensor_of(there) : NULL;
    TSR_FAIL_IF(a && a->meta, err, TSR_E_USAGE, "the tensor in the state dict is meta: it has no memory");
    if (a) TSR_TRY(optimizer_check_cast(taking, a, b, err));
    if (a && b) {
        tsr_tensor like = *b;
        like.entry.dtype = a->entry.dtype;
        const tsr_status status = tsr_tensor_same_place(
            a, &like, &(tsr_likeness){"the state dict", "the optimizer", !l->full}, l->names->arena, err);
        if (status == TSR_OK) return status;
        return tsr_tensor_same_place(a, b, &(tsr_likeness){"the state dict", "the optimizer", !l->full}, l->names->arena,
                                     err);
    }
    if (given->kind != TSR_VALUE_DICT || !there || there->kind != TSR_VALUE_DICT) return TSR_OK;
    for (size_t i = 0; i < given->count; i += 2) {
        const tsr_value *inside = tsr_dict_find(there, given->items[i], i / 2);
        const tsr_taking below = taking_below(taking, given->items[i]);
        const tsr_status status = check_value(l, &below, given->items[i + 1], inside, err);
        if (status == TSR_OK) continue;
        const tsr_step step = {.key = given->items[i], .depth = 1};
        tsr_step_context(&step, l->names->arena, status, err);
        return status;
    }
    return TSR_OK;
}

static const tsr_value *without_params(tsr_arena *arena, const tsr_value *group, tsr_error *err)
{
    size_t count = 0;
    const tsr_value **items = tsr_arena_array(arena, group->count, sizeof *items, err);
    for (size_t i = 0; items && i < group->count; i += 2) {
        if (tsr_str_equal(group->items[i]->text, TSR_STR("params"))) continue;
        items[count++] = group->items[i];
        items[count++] = group->items[i + 1];
    }
    return items ? tsr_value_items(arena, TSR_VALUE_DICT, items, count, err) : NULL;
}

typedef tsr_status param_function(const tsr_loaded_state *l, const tsr_taking *taking, tsr_model_param *param,
                                  const tsr_value *state, tsr_error *err);

/* The loaded options decide on which device "step" belongs, as in PyTorch. */
static bool step_moves(const tsr_value *group)
{
    static const char *const keys[] = {"fused", "capturable"};
    for (size_t i = 0; i < 2; i++) {
        const tsr_value *v = tsr_value_get(group, tsr_str_from(keys[i]));
        if (v && v->kind != TSR_VALUE_NONE && (v->kind != TSR_VALUE_BOOL || v->as.boolean)) return true;
    }
    return false;
}

/* Each parameter of an optimizer with its state in what is loaded, or NULL. */
static tsr_status each_param(const tsr_loaded_state *l, param_function *function, tsr_error *err)
{
    const tsr_value *state = tsr_value_get(l->state, TSR_STR("state"));
    const tsr_value *groups = tsr_value_get(l->state, TSR_STR("param_groups"));
    for (size_t g = 0, hint = 0; g < l->optimizer->group_count; g++) {
        const tsr_value *params = tsr_value_get(groups->items[g], TSR_STR("params"));
        for (size_t p = 0; p < params->count; p++, hint++) {
            tsr_model_param *param = &l->optimizer->groups[g].params[p];
            uint32_t id;
            TSR_TRY(tsr_optimizer_param_id(l->names, param, NULL, &id, err));
            const tsr_taking taking = {.memory = l->optimizer->memory,
                                       .passing = l->names->arena,
                                       .param = l->names->held[id],
                                       .step_moves = step_moves(groups->items[g]),
                                       .in_place = l->in_place,
                                       .lent = l->lent};
            const tsr_status status = function(l, &taking, param, tsr_dict_find(state, params->items[p], hint), err);
            if (status == TSR_OK) continue;
            tsr_error_context(err, "the state of '%.*s'", TSR_STR_ARG(l->names->first[id]));
            return status;
        }
    }
    return TSR_OK;
}

static tsr_status check_param(const tsr_loaded_state *l, const tsr_taking *taking, tsr_model_param *param,
                              const tsr_value *state, tsr_error *err)
{
    TSR_FAIL_IF(state && state->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "it is not a dict");
    return state ? check_value(l, taking, state, param->state, err) : TSR_OK;
}

/* What PyTorch does to state dicts of older versions (`__setstate__`): it turns numbers in states into tensors, and gives
 * defaults to options that the algorithm did not have yet. Programs in C need not have all of these options. */
typedef struct default_option {
    const char *name;
    tsr_value_kind kind; /* None, False or 0 */
} default_option;

typedef struct completion {
    tsr_algorithm algorithm;
    const char *scalars[3];
    bool on_device; /* the tensors are always on the parameter's device */
    default_option options[8];
} completion;

/* The options are in PyTorch's order. */
#define FALSE_AS(name) \
    { \
        name, TSR_VALUE_BOOL \
    }
#define NONE_AS(name) \
    { \
        name, TSR_VALUE_NONE \
    }
#define COMMON NONE_AS("foreach"), FALSE_AS("maximize"), FALSE_AS("differentiable")
#define ADAM_OPTIONS \
    FALSE_AS("amsgrad"), FALSE_AS("maximize"), NONE_AS("foreach"), FALSE_AS("capturable"), FALSE_AS("differentiable"), \
        FALSE_AS("decoupled_weight_decay"), NONE_AS("fused")
#define NADAM_OPTIONS \
    FALSE_AS("maximize"), NONE_AS("foreach"), FALSE_AS("capturable"), FALSE_AS("differentiable"), \
        FALSE_AS("decoupled_weight_decay")
static const completion completions[] = {
    {TSR_SGD,
     {NULL},
     false,
     {FALSE_AS("nesterov"), FALSE_AS("maximize"), NONE_AS("foreach"), FALSE_AS("differentiable"), FALSE_AS("fused")}},
    {TSR_ADAM, {"step"}, false, {ADAM_OPTIONS}},
    {TSR_ADAMW, {"step"}, false, {ADAM_OPTIONS}},
    {TSR_ADADELTA, {"step"}, false, {COMMON, FALSE_AS("capturable")}},
    {TSR_ADAGRAD, {"step"}, false, {COMMON, NONE_AS("fused")}},
    {TSR_ADAMAX, {"step"}, false, {COMMON, FALSE_AS("capturable")}},
    {TSR_ASGD, {"step", "eta", "mu"}, true, {COMMON, FALSE_AS("capturable")}},
    {TSR_NADAM, {"step", "mu_product"}, false, {NADAM_OPTIONS}},
    {TSR_RADAM, {"step"}, false, {COMMON, FALSE_AS("decoupled_weight_decay"), FALSE_AS("capturable")}},
    {TSR_RMSPROP, {"step"}, false, {{"momentum", TSR_VALUE_INT}, FALSE_AS("centered"), COMMON, FALSE_AS("capturable")}},
    {TSR_RPROP, {"step"}, false, {COMMON, FALSE_AS("capturable")}},
};
#undef FALSE_AS
#undef NONE_AS
#undef COMMON
#undef ADAM_OPTIONS
#undef NADAM_OPTIONS

/* NULL for algorithms that are not known. */
static const completion *completion_of(tsr_algorithm algorithm)
{
    for (size_t i = 0; i < sizeof completions / sizeof *completions; i++)
        if (completions[i].algorithm == algorithm) return &completions[i];
    return NULL;
}

/* Replaces a number in a state by a 0-d tensor. */
static tsr_status make_scalar(const tsr_loaded_state *l, const tsr_taking *taking, const completion *how, const char *name,
                              const tsr_value *state, tsr_error *err)
{
    const tsr_model_optimizer *o = l->optimizer;
    const tsr_value *given = tsr_value_get(state, tsr_str_from(name)), *made;
    const bool real = given && given->kind == TSR_VALUE_FLOAT;
    if (!given || (!real && given->kind != TSR_VALUE_INT && given->kind != TSR_VALUE_BOOL)) return TSR_OK;
    const double number = real                           ? given->as.real
                          : given->kind == TSR_VALUE_INT ? (double)given->as.integer
                                                         : given->as.boolean;
    const float single = (float)number;
    const bool wide = o->default_dtype == TSR_FLOAT64 && !taking->step_moves;
    tsr_tensor want = tsr_tensor_whole(wide ? TSR_FLOAT64 : TSR_FLOAT32, 0, NULL, NULL);
    if ((taking->step_moves || how->on_device) && taking->param) want.device = taking->param->device;
    TSR_TRY(tsr_state_dict_allocate(o->memory, &want, &made, err));
    TSR_TRY(tsr_device_upload(want.device, tsr_tensor_of(made)->data, wide ? (const void *)&number : &single,
                              wide ? sizeof number : sizeof single, err));
    for (size_t i = 0; i < state->count; i += 2)
        if (state->items[i + 1] == given) ((const tsr_value **)(uintptr_t)state->items)[i + 1] = made;
    return TSR_OK;
}

static tsr_status complete_state(const tsr_loaded_state *l, const tsr_taking *taking, const tsr_value *state, tsr_error *err)
{
    const completion *how = completion_of(l->optimizer->algorithm);
    for (size_t i = 0; how && i < sizeof how->scalars / sizeof *how->scalars && how->scalars[i]; i++)
        TSR_TRY(make_scalar(l, taking, how, how->scalars[i], state, err));
    return TSR_OK;
}

static tsr_status write_param(const tsr_loaded_state *l, const tsr_taking *taking, tsr_model_param *param,
                              const tsr_value *state, tsr_error *err)
{
    const tsr_value *taken = state ? tsr_optimizer_take(taking, state, param->state, err) : NULL;
    if (state && !taken) return err && err->status ? err->status : TSR_E_NOMEM;
    if (taken) TSR_TRY(complete_state(l, taking, taken, err));
    param->state = taken;
    return TSR_OK;
}

/* The optimizer keeps its parameter names if the state dict has none. */
static const tsr_value *with_own_names(tsr_arena *arena, const tsr_value *options, const tsr_value *own, tsr_error *err)
{
    const tsr_str key = TSR_STR("param_names");
    const tsr_value *names = tsr_value_get(own, key);
    if (!names || tsr_value_get(options, key)) return options;
    const tsr_value **items = tsr_arena_array(arena, options->count + 2, sizeof *items, err);
    if (!items) return NULL;
    if (options->count) memcpy(items, options->items, options->count * sizeof *items);
    items[options->count] = tsr_value_str(arena, key, err);
    items[options->count + 1] = names;
    return items[options->count] ? tsr_value_items(arena, TSR_VALUE_DICT, items, options->count + 2, err) : NULL;
}

static bool is_decoupled(const tsr_loaded_state *l, tsr_str option)
{
    return l->optimizer->algorithm == TSR_ADAMW && tsr_str_equal(option, TSR_STR("decoupled_weight_decay"));
}

/* The value of an option that the program's optimizer has: AdamW's is always True, whatever was loaded. */
static const tsr_value *default_of(const tsr_loaded_state *l, const default_option *option, tsr_error *err)
{
    tsr_arena *arena = l->names->arena;
    if (is_decoupled(l, tsr_str_from(option->name))) return tsr_value_bool(arena, true, err);
    if (option->kind == TSR_VALUE_NONE) return tsr_value_none(arena, err);
    return option->kind == TSR_VALUE_INT ? tsr_value_int(arena, 0, err) : tsr_value_bool(arena, false, err);
}

static const tsr_value *with_defaults(const tsr_loaded_state *l, const tsr_value *own, const tsr_value *options,
                                      tsr_error *err)
{
    const completion *how = completion_of(l->optimizer->algorithm);
    tsr_arena *arena = l->names->arena;
    if (!how) return options;
    const size_t most = sizeof how->options / sizeof *how->options;
    const tsr_value **items = tsr_arena_array(arena, options->count + 2 * most, sizeof *items, err);
    size_t count = options->count;
    if (!items) return NULL;
    if (count) memcpy(items, options->items, count * sizeof *items);
    for (size_t i = 0; i < count; i += 2)
        if (is_decoupled(l, items[i]->text) && !(items[i + 1] = tsr_value_bool(arena, true, err))) return NULL;
    for (size_t i = 0; i < most && how->options[i].name; i++) {
        const tsr_str name = tsr_str_from(how->options[i].name);
        if (tsr_value_get(options, name) || !tsr_value_get(own, name)) continue;
        items[count++] = tsr_value_str(arena, name, err);
        items[count++] = default_of(l, &how->options[i], err);
        if (!items[count - 2] || !items[count - 1]) return NULL;
    }
    return tsr_value_items(arena, TSR_VALUE_DICT, items, count, err);
}

static tsr_status write_groups(const tsr_loaded_state *l, tsr_error *err)
{
    const tsr_value *groups = tsr_value_get(l->state, TSR_STR("param_groups"));
    for (size_t g = 0; g < groups->count; g++) {
        tsr_model_group *group = &l->optimizer->groups[g];
        const tsr_value *options = without_params(l->names->arena, groups->items[g], err);
        const tsr_taking taking = {.memory = l->optimizer->memory, .passing = l->names->arena};
        options = options ? with_own_names(l->names->arena, options, group->options, err) : NULL;
        options = options ? with_defaults(l, group->options, options, err) : NULL;
        options = options ? tsr_optimizer_take(&taking, options, NULL, err) : NULL;
        if (!options) return err && err->status ? err->status : TSR_E_NOMEM;
        group->options = options;
    }
    return TSR_OK;
}

static tsr_str number_key(const tsr_value *key)
{
    return (tsr_str){(const char *)&key->as.integer, key->kind == TSR_VALUE_INT ? sizeof key->as.integer : 0};
}

static tsr_status map_params(const tsr_value *groups, tsr_map *map, tsr_error *err)
{
    for (size_t g = 0; g < groups->count; g++) {
        const tsr_value *params = tsr_value_get(groups->items[g], TSR_STR("params"));
        for (size_t p = 0; p < params->count; p++)
            TSR_TRY(tsr_map_put(map, number_key(params->items[p]), 1, NULL, NULL, err));
    }
    return TSR_OK;
}

/* The loaded state of parameters that no group lists; NULL: none. */
static tsr_status user_part(const tsr_loaded_state *l, const tsr_value **out, tsr_error *err)
{
    const tsr_value *state = tsr_value_get(l->state, TSR_STR("state"));
    const tsr_value **items = tsr_arena_array(l->names->arena, state->count, sizeof *items, err);
    tsr_map *params = tsr_map_new(l->names->host->allocator, 0, err);
    tsr_status status = items && params ? TSR_OK : TSR_E_NOMEM;
    size_t count = 0;
    *out = NULL;
    if (status == TSR_OK) status = map_params(tsr_value_get(l->state, TSR_STR("param_groups")), params, err);
    for (size_t i = 0; status == TSR_OK && i < state->count; i += 2) {
        const tsr_str key = number_key(state->items[i]);
        if (key.size && tsr_map_get(params, key, 0)) continue;
        items[count++] = state->items[i];
        items[count++] = state->items[i + 1];
    }
    if (status == TSR_OK && count) {
        *out = tsr_value_items(l->names->arena, TSR_VALUE_DICT, items, count, err);
        status = *out ? TSR_OK : TSR_E_NOMEM;
    }
    tsr_map_free(params);
    return status;
}

/* State of no parameter is in an optimizer's part of a state dict only if that came keyed by number; loading replaces all
 * state. */
static tsr_status write_user_state(const tsr_loaded_state *l, tsr_error *err)
{
    tsr_model_optimizer *optimizer = l->optimizer;
    const tsr_taking taking = {.memory = optimizer->memory, .passing = l->names->arena};
    const tsr_value *user;
    TSR_TRY(user_part(l, &user, err));
    if (user && !(user = tsr_optimizer_take(&taking, user, NULL, err)))
        return err && err->status ? err->status : TSR_E_NOMEM;
    const tsr_warnings warnings = {l->names->model->warn, l->names->model->ctx};
    if (!user && optimizer->user_state && optimizer->user_state->count)
        tsr_warn(&warnings, "the optimizer's state that belongs to no parameter is dropped: the state dict has none");
    optimizer->user_state = user;
    return TSR_OK;
}

/* ---- the whole ---- */

tsr_status tsr_optimizer_check_states(const tsr_loaded_state *loaded, tsr_error *err)
{
    return each_param(loaded, check_param, err);
}

tsr_status tsr_optimizer_write(const tsr_loaded_state *loaded, tsr_error *err)
{
    TSR_TRY(each_param(loaded, write_param, err));
    TSR_TRY(write_groups(loaded, err));
    return write_user_state(loaded, err);
}
