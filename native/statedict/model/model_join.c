/* State dicts of several modules as one of the model (`_unflatten_model_state_dict`). */
#include "statedict/model/model_names.h"
#include "tessera/sys/model_state.h"

typedef struct joining {
    const tsr_modules *modules;
    const tsr_named_module *named;
    size_t named_count;
    tsr_arena *arena;
    tsr_vec pairs; /* keys and values */
    tsr_map *places;
} joining;

static tsr_status prefix_of(const joining *j, tsr_module_ref module, tsr_str *out, tsr_error *err)
{
    for (size_t i = 0; i < j->named_count; i++) {
        tsr_str fqn;
        if (j->named[i].module != module) continue;
        if (j->named[i].raw.size == 0) return TSR_OK;
        TSR_TRY(tsr_model_fqn(j->modules, j->named[i].raw, j->arena, &fqn, NULL, err));
        *out = tsr_arena_format(j->arena, err, "%.*s.", TSR_STR_ARG(fqn));
        return out->data ? TSR_OK : TSR_E_NOMEM;
    }
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "module %u is not in the model", (unsigned)module);
}

/* As dict.update: a key that is there already gets the new value. */
static tsr_status put(joining *j, tsr_str prefix, const tsr_value *key, const tsr_value *value, tsr_error *err)
{
    uint32_t *at;
    bool fresh;
    TSR_FAIL_IF(key->kind != TSR_VALUE_STR, err, TSR_E_USAGE, "a key of a module's state is not a string");
    const tsr_str name = tsr_arena_format(j->arena, err, "%.*s%.*s", TSR_STR_ARG(prefix), TSR_STR_ARG(key->text));
    const tsr_value *text = name.data ? tsr_value_str(j->arena, name, err) : NULL;
    if (!text) return TSR_E_NOMEM;
    TSR_TRY(tsr_vec_reserve(&j->pairs, 2, err));
    TSR_TRY(tsr_map_put(j->places, name, (uint32_t)j->pairs.count, &at, &fresh, err));
    const tsr_value **items = j->pairs.items;
    if (fresh) {
        items[j->pairs.count] = text;
        j->pairs.count += 2;
    }
    items[*at + 1] = value;
    return TSR_OK;
}

static tsr_status join(joining *j, const tsr_module_state *parts, size_t count, const tsr_value **out, tsr_error *err)
{
    for (size_t p = 0; p < count; p++) {
        const tsr_value *state = parts[p].state;
        tsr_str prefix = TSR_STR("");
        TSR_FAIL_IF(!state || state->kind != TSR_VALUE_DICT, err, TSR_E_USAGE, "the state of module %u is not a dict",
                    (unsigned)parts[p].module);
        TSR_TRY(prefix_of(j, parts[p].module, &prefix, err));
        for (size_t i = 0; i < state->count; i += 2) TSR_TRY(put(j, prefix, state->items[i], state->items[i + 1], err));
    }
    const tsr_value **items = tsr_arena_array(j->arena, j->pairs.count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    if (j->pairs.count) memcpy(items, j->pairs.items, j->pairs.count * sizeof *items);
    *out = tsr_value_items(j->arena, TSR_VALUE_DICT, items, j->pairs.count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_model_state_join(const tsr_modules *modules, tsr_module_states parts, const tsr_host *host, tsr_arena *arena,
                                const tsr_value **out, tsr_error *err)
{
    tsr_named_module *named;
    size_t named_count;
    TSR_TRY(tsr_fqn_named_modules(modules, host, arena, &named, &named_count, err));
    joining j = {.modules = modules,
                 .named = named,
                 .named_count = named_count,
                 .arena = arena,
                 .pairs = tsr_vec_of(host->allocator, sizeof(const tsr_value *)),
                 .places = tsr_map_new(host->allocator, 0, err)};
    const tsr_status status = j.places ? join(&j, parts.items, parts.count, out, err) : TSR_E_NOMEM;
    tsr_map_free(j.places);
    tsr_vec_free(&j.pairs);
    return status;
}
