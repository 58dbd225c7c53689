/* See deepspeed_engine.h. */
#include "formats/deepspeed/deepspeed_engine.h"

#include "formats/deepspeed/deepspeed_values.h"
#include "formats/pickle/enum_names.h"
#include "tessera/sys/try.h"

static bool is_one_of(tsr_str key, const char *const *list)
{
    for (size_t i = 0; list[i]; i++)
        if (tsr_str_equal(key, tsr_str_from(list[i]))) return true;
    return false;
}

/* torch.save's objects are {class, args, state, …}. Those of DeepSpeed's own classes keep all their data in the state. */
const tsr_value *tsr_ds_attributes(const tsr_value *value)
{
    if (value->kind != TSR_VALUE_OBJECT || !tsr_str_starts(value->text, TSR_STR("deepspeed."))) return NULL;
    return value->count > 1 && value->items[1] ? tsr_ds_kind_or_null(value->items[1], TSR_VALUE_DICT) : NULL;
}

static const tsr_value *plain(const tsr_value *value)
{
    if (value->kind != TSR_VALUE_OBJECT || !tsr_str_starts(value->text, TSR_STR("deepspeed."))) return value;
    const tsr_value *number = tsr_enum_value(value), *attributes = tsr_ds_attributes(value);
    return number ? number : attributes ? attributes : value;
}

tsr_value *tsr_ds_rest(const tsr_ds_files *files, const tsr_value *dict, const char *const *taken, tsr_error *err)
{
    size_t count = 0;
    const size_t most = dict ? dict->count : 0;
    const tsr_value **items = tsr_arena_array(files->checkpoint->arena, most, sizeof *items, err);
    if (!items) return NULL;
    for (size_t i = 0; i + 1 < most; i += 2) {
        const tsr_value *key = dict->items[i];
        if (key->kind == TSR_VALUE_STR && is_one_of(key->text, taken)) continue;
        items[count++] = key;
        items[count++] = plain(dict->items[i + 1]);
    }
    return tsr_value_items(files->checkpoint->arena, TSR_VALUE_DICT, items, count, err);
}

tsr_value *tsr_ds_with(tsr_arena *arena, const tsr_value *dict, tsr_str key, const tsr_value *value, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(arena, dict->count + 2, sizeof *items, err);
    if (!items) return NULL;
    if (dict->count) memcpy(items, dict->items, dict->count * sizeof *items);
    if (!value) return tsr_value_items(arena, TSR_VALUE_DICT, items, dict->count, err);
    items[dict->count] = tsr_value_str(arena, key, err);
    items[dict->count + 1] = value;
    return items[dict->count] ? tsr_value_items(arena, TSR_VALUE_DICT, items, dict->count + 2, err) : NULL;
}

tsr_status tsr_ds_engine(const tsr_ds_files *files, const tsr_value **out, tsr_error *err)
{
    static const char *const taken[] = {"module", "optimizer", "frozen_param_fragments", NULL};
    const tsr_ds_file *model = NULL;
    *out = NULL;
    for (uint32_t c = 0; c < files->column_count && !model; c++) model = files->columns[c].model;
    if (!model) return TSR_OK;
    *out = tsr_ds_rest(files, model->root, taken, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}
