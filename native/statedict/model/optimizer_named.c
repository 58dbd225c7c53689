/* Loads a state dict into a named optimizer (NamedOptimizer.load_state_dict). Parameters are matched by name, groups by
 * the names of all their parameters, and the state dict may contain nothing that the optimizer lacks. */
#include <stdlib.h>

#include "statedict/model/optimizer_raw.h"
#include "statedict/tensor/path.h"
#include "statedict/tensor/state_dict.h"
#include "tessera/sys/map.h"

typedef struct taking {
    const tsr_raw *raw;
    const tsr_value *state, *groups; /* of what is loaded */
    tsr_map *states;                 /* name → index of its value in `state` */
    tsr_map *group_of;               /* all names of a group → its index in `groups` */
} taking;

static int by_text(const void *a, const void *b)
{
    return tsr_str_compare(*(const tsr_str *)a, *(const tsr_str *)b);
}

/* The names of a group, sorted, as one text. */
static tsr_status group_key(const taking *t, const tsr_str *names, size_t count, tsr_str *out, tsr_error *err)
{
    size_t size = 0;
    tsr_str *sorted = tsr_arena_array(t->raw->passing, count, sizeof *sorted, err);
    if (!sorted) return TSR_E_NOMEM;
    if (count) memcpy(sorted, names, count * sizeof *sorted);
    if (count) qsort(sorted, count, sizeof *sorted, by_text);
    for (size_t i = 0; i < count; i++) size += sorted[i].size + 1;
    char *text = tsr_arena_array(t->raw->passing, size + 1, 1, err);
    if (!text) return TSR_E_NOMEM;
    *out = (tsr_str){text, size};
    for (size_t i = 0; i < count; i++) {
        if (sorted[i].size) memcpy(text, sorted[i].data, sorted[i].size);
        text += sorted[i].size;
        *text++ = '/';
    }
    return TSR_OK;
}

static tsr_status index_group(taking *t, size_t at, tsr_error *err)
{
    const tsr_value *group = t->groups->items[at];
    const tsr_value *params = group->kind == TSR_VALUE_DICT ? tsr_value_get(group, TSR_STR("params")) : NULL;
    TSR_FAIL_IF(!params, err, TSR_E_FORMAT, "optim: param_groups[%zu] has no list 'params'", at);
    tsr_str key, *names = tsr_arena_array(t->raw->passing, params->count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (size_t p = 0; p < params->count; p++) {
        TSR_FAIL_IF(params->items[p]->kind != TSR_VALUE_STR, err, TSR_E_FORMAT,
                    "optim: param_groups[%zu] must list names of parameters, because the optimizer is a named one", at);
        names[p] = params->items[p]->text;
    }
    uint32_t *place;
    TSR_TRY(group_key(t, names, params->count, &key, err));
    TSR_TRY(tsr_map_put(t->group_of, key, (uint32_t)at, &place, NULL, err));
    *place = (uint32_t)at; /* the last one of several groups with the same names counts */
    return TSR_OK;
}

static tsr_status index_given(taking *t, const tsr_value *given, tsr_error *err)
{
    t->state = tsr_value_get(given, TSR_STR("state"));
    t->groups = tsr_value_get(given, TSR_STR("param_groups"));
    TSR_FAIL_IF(!t->state || t->state->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT,
                "optim: no dict 'state' in the state dict");
    TSR_FAIL_IF(!t->groups || t->groups->kind != TSR_VALUE_LIST, err, TSR_E_FORMAT,
                "optim: no list 'param_groups' in the state dict");
    for (size_t i = 0; i < t->state->count; i += 2)
        if (t->state->items[i]->kind == TSR_VALUE_STR)
            TSR_TRY(tsr_map_put(t->states, t->state->items[i]->text, (uint32_t)i + 1, NULL, NULL, err));
    for (size_t g = 0; g < t->groups->count; g++) TSR_TRY(index_group(t, g, err));
    return TSR_OK;
}

/* ---- states ---- */

/* The state of one parameter: the optimizer's own keys with the loaded values. */
static tsr_status take_state(const taking *t, tsr_str name, const tsr_value *own, const tsr_value **out, tsr_error *err)
{
    const uint32_t place = tsr_map_get(t->states, name, 0);
    const tsr_value *given = place ? t->state->items[place] : NULL;
    *out = own;
    if (!given) return TSR_OK;
    TSR_FAIL_IF(!own, err, TSR_E_FORMAT, "optim: the state dict has state for '%.*s', and the optimizer holds none",
                TSR_STR_ARG(name));
    TSR_FAIL_IF(given->kind != TSR_VALUE_DICT || given->count != own->count, err, TSR_E_FORMAT,
                "optim: %zu states of '%.*s' in the state dict, %zu in the optimizer", given->count / 2, TSR_STR_ARG(name),
                own->count / 2);
    const tsr_value **items = tsr_arena_array(t->raw->passing, own->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < own->count; i += 2) {
        const tsr_step step = {.key = own->items[i], .depth = 1};
        const tsr_str key = tsr_step_text(&step, t->raw->passing, err);
        if (!key.data) return TSR_E_NOMEM;
        items[i] = own->items[i];
        items[i + 1] = tsr_dict_find(given, own->items[i], i / 2);
        TSR_FAIL_IF(!items[i + 1], err, TSR_E_FORMAT, "optim: the state dict has no '%.*s' for '%.*s'", TSR_STR_ARG(key),
                    TSR_STR_ARG(name));
        TSR_FAIL_IF(tsr_tensor_of(own->items[i + 1]) && !tsr_tensor_of(items[i + 1]), err, TSR_E_FORMAT,
                    "optim: '%.*s' of '%.*s' is a tensor in the optimizer only", TSR_STR_ARG(key), TSR_STR_ARG(name));
    }
    *out = tsr_value_items(t->raw->passing, TSR_VALUE_DICT, items, own->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- groups ---- */

/* Only groups without parameters can have the same names. PyTorch loads the last of them. */
static bool has_later_twin(const taking *t, size_t g)
{
    const tsr_group_names *own = &t->raw->raw;
    bool later = false;
    for (size_t i = g + 1; i < own->count; i++) later = later || own->groups[i].count == 0;
    return later && own->groups[g].count == 0;
}

static tsr_status take_options(const taking *t, size_t g, const tsr_value **out, tsr_error *err)
{
    const tsr_name_list *names = &t->raw->raw.groups[g];
    const tsr_value *own = t->raw->optimizer->groups[g].options;
    tsr_str key;
    TSR_TRY(group_key(t, names->names, names->count, &key, err));
    const uint32_t place = tsr_map_get(t->group_of, key, UINT32_MAX);
    *out = own;
    if (place == UINT32_MAX || has_later_twin(t, g)) return TSR_OK;
    const tsr_value *given = t->groups->items[place];
    TSR_FAIL_IF(given->count != own->count + 2, err, TSR_E_FORMAT,
                "optim: param_groups[%u] of the state dict has %zu options, the optimizer's has %zu", (unsigned)place,
                given->count / 2 - 1, own->count / 2);
    const tsr_value **items = tsr_arena_array(t->raw->passing, own->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < own->count; i += 2) {
        items[i] = own->items[i];
        items[i + 1] = tsr_value_get(given, own->items[i]->text);
        TSR_FAIL_IF(!items[i + 1], err, TSR_E_FORMAT, "optim: param_groups[%u] of the state dict has no option '%.*s'",
                    (unsigned)place, TSR_STR_ARG(own->items[i]->text));
    }
    *out = tsr_value_items(t->raw->passing, TSR_VALUE_DICT, items, own->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- all ---- */

/* The optimizer's state dict with the loaded values, which is then written like any other state dict. */
static tsr_status take_all(const taking *t, tsr_model_optimizer *out, tsr_error *err)
{
    const tsr_model_optimizer *own = t->raw->optimizer;
    *out = *own;
    out->groups = tsr_arena_array(t->raw->passing, own->group_count, sizeof *out->groups, err);
    if (!out->groups) return TSR_E_NOMEM;
    for (size_t g = 0; g < own->group_count; g++) {
        tsr_model_group *group = &out->groups[g];
        *group = own->groups[g];
        group->params = tsr_arena_array(t->raw->passing, group->count, sizeof *group->params, err);
        if (!group->params) return TSR_E_NOMEM;
        TSR_TRY(take_options(t, g, &group->options, err));
        for (size_t p = 0; p < group->count; p++) {
            group->params[p] = own->groups[g].params[p];
            TSR_TRY(take_state(t, t->raw->raw.groups[g].names[p], group->params[p].state, &group->params[p].state, err));
        }
    }
    return TSR_OK;
}

static bool has_state(const tsr_model_optimizer *optimizer)
{
    if (optimizer->user_state && optimizer->user_state->count) return true;
    for (size_t g = 0; g < optimizer->group_count; g++)
        for (size_t p = 0; p < optimizer->groups[g].count; p++)
            if (optimizer->groups[g].params[p].state) return true;
    return false;
}

tsr_status tsr_raw_named_load(const tsr_raw *raw, const tsr_value *state, const tsr_value **out, tsr_error *err)
{
    taking t = {.raw = raw,
                .states = tsr_map_new(raw->names.host->allocator, 0, err),
                .group_of = tsr_map_new(raw->names.host->allocator, 0, err)};
    tsr_model_optimizer taken;
    tsr_status status = t.states && t.group_of ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK && !has_state(raw->optimizer))
        status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                           "the named optimizer holds no state that could be loaded into: take a step before loading");
    if (status == TSR_OK) status = index_given(&t, state, err);
    if (status == TSR_OK) status = take_all(&t, &taken, err);
    if (status == TSR_OK) status = tsr_optimizer_native(&taken, raw->passing, out, err);
    tsr_map_free(t.group_of);
    tsr_map_free(t.states);
    return status;
}
