/* Keys of a loaded state dict that the optimizer does not hold, added to it as PyTorch does (the end of
 * `_load_optim_state_dict`). Both are keyed by number. */
#include <inttypes.h>

#include "statedict/model/optimizer_names.h"
#include "statedict/tensor/path.h"

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
        if (p < group->count && tsr_optimizer_param_id(a->names, &group->params[p], &id, NULL) == TSR_OK)
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
    return path.data
               ? tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION,
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
    return path.data
               ? tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "'%.*s' is a %s in the state dict, and a %s in the optimizer",
                           TSR_STR_ARG(path), tsr_python_type(given), tsr_python_type(held))
               : TSR_E_NOMEM;
}

tsr_status tsr_optimizer_add(const tsr_optimizer_names *names, const tsr_model_optimizer *optimizer, const tsr_value *given,
                             bool tensors_only, const tsr_value **tree, tsr_error *err)
{
    const adding a = {names, optimizer, tensors_only, names->arena};
    return add(&a, *tree, given, NULL, tree, err);
}
