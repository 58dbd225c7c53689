/* See deepspeed_slices.h. */
#include "formats/deepspeed/deepspeed_slices.h"

#include "formats/deepspeed/deepspeed_engine.h"
#include "formats/deepspeed/deepspeed_values.h"
#include "tessera/sys/try.h"

static const tsr_value *mappings_of(const tsr_ds_column *column, uint32_t rank)
{
    return tsr_ds_list(tsr_ds_optimizer(column->optims[rank]), "param_slice_mappings");
}

/* Adds up the elements of each parameter. One that is split between two ranks is the last in one dictionary and the first in
 * the next. */
static tsr_status add_slices(const tsr_value *dict, uint32_t group, tsr_map *names, tsr_vec *out, tsr_error *err)
{
    for (size_t i = 0; i < tsr_ds_count(dict); i++) {
        const tsr_value *name = dict->items[2 * i], *address = tsr_ds_attributes(dict->items[2 * i + 1]);
        uint64_t elements;
        bool fresh;
        uint32_t *number;
        if (name->kind != TSR_VALUE_STR || !tsr_ds_number(tsr_ds_get(address, "numel"), &elements)) continue;
        TSR_TRY(tsr_map_put(names, name->text, (uint32_t)out->count, &number, &fresh, err));
        tsr_ds_slice *slice = fresh ? tsr_vec_push(out, err) : (tsr_ds_slice *)out->items + *number;
        if (!slice) return TSR_E_NOMEM;
        if (fresh) *slice = (tsr_ds_slice){name->text, group, 0};
        slice->elements += elements;
    }
    return TSR_OK;
}

tsr_status tsr_ds_slices_open(const tsr_ds_files *files, const tsr_ds_column *column, tsr_vec *out, tsr_error *err)
{
    const tsr_allocator *allocator = files->checkpoint->host->allocator;
    size_t groups = 0;
    *out = tsr_vec_of(allocator, sizeof(tsr_ds_slice));
    for (uint32_t r = 0; r < column->world && column->optims && !groups; r++) groups = tsr_ds_count(mappings_of(column, r));
    tsr_map *names = tsr_map_new(allocator, 0, err);
    tsr_status status = names ? TSR_OK : TSR_E_NOMEM;
    for (uint32_t g = 0; g < groups && status == TSR_OK; g++)
        for (uint32_t r = 0; r < column->world && status == TSR_OK; r++)
            status =
                add_slices(tsr_ds_kind_or_null(tsr_ds_item(mappings_of(column, r), g), TSR_VALUE_DICT), g, names, out, err);
    tsr_map_free(names);
    return status;
}
