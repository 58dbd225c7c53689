/* Flat state for live optimizers: what must be in it, and whether options that are tensors are equal. */
#include "statedict/model/optimizer_names.h"
#include "tessera/sys/map.h"

/* ---- tensors as options ---- */

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

tsr_status tsr_optimizer_same_tensor(void *arena, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err)
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

tsr_status tsr_optimizer_own_keys(const tsr_value *flat, const tsr_name_list *lists, size_t count, tsr_arena *arena,
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

tsr_status tsr_optimizer_check_flat(const tsr_value *flat, const tsr_model_optimizer *optimizer, const tsr_name_list *names,
                                    const tsr_host *host, tsr_arena *arena, tsr_error *err)
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

tsr_status tsr_optimizer_check_held(const tsr_value *nested, tsr_str name, const tsr_value *held, tsr_error *err)
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
