/* Accessors for values that may contain anything. Each accepts NULL, and returns NULL if something is not as expected. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_VALUES_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_VALUES_H

#include "tessera/catalog.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"
#include "tessera/value.h"

TSR_INLINE const tsr_value *tsr_ds_kind_or_null(const tsr_value *value, tsr_value_kind kind)
{
    return value && value->kind == kind ? value : NULL;
}
TSR_INLINE const tsr_value *tsr_ds_get(const tsr_value *dict, const char *key)
{
    return dict && dict->kind == TSR_VALUE_DICT ? tsr_value_get(dict, tsr_str_from(key)) : NULL;
}
TSR_INLINE const tsr_value *tsr_ds_dict(const tsr_value *dict, const char *key)
{
    return tsr_ds_kind_or_null(tsr_ds_get(dict, key), TSR_VALUE_DICT);
}
TSR_INLINE const tsr_value *tsr_ds_list(const tsr_value *dict, const char *key)
{
    return tsr_ds_kind_or_null(tsr_ds_get(dict, key), TSR_VALUE_LIST);
}
TSR_INLINE const tsr_entry *tsr_ds_tensor(const tsr_value *value)
{
    return value && value->kind == TSR_VALUE_TENSOR ? value->as.tensor : NULL;
}
/* Reads a nonnegative number; returns false for any other value. */
TSR_INLINE bool tsr_ds_number(const tsr_value *value, uint64_t *out)
{
    if (!value || value->kind != TSR_VALUE_INT || value->as.integer < 0) return false;
    *out = (uint64_t)value->as.integer;
    return true;
}
/* The number of items of a LIST, or of pairs of a DICT. */
TSR_INLINE size_t tsr_ds_count(const tsr_value *value)
{
    return !value ? 0 : value->kind == TSR_VALUE_DICT ? tsr_value_pairs(value) : value->count;
}
TSR_INLINE const tsr_value *tsr_ds_item(const tsr_value *list, size_t index)
{
    return list && list->kind == TSR_VALUE_LIST && index < list->count ? list->items[index] : NULL;
}

/* Adds every string of a LIST to a set of names. */
static inline tsr_status tsr_ds_add_names(const tsr_value *list, tsr_map *names, tsr_error *err)
{
    for (size_t i = 0; i < tsr_ds_count(list); i++)
        if (list->items[i]->kind == TSR_VALUE_STR) TSR_TRY(tsr_map_put(names, list->items[i]->text, 1, NULL, NULL, err));
    return TSR_OK;
}

#endif
