/* Writes tessera.optimizer/1: which state each parameter has in the checkpoint's optimizers. */
#include "shim.h"
#include "tessera/sys/optim.h"

static void put_tensor(tsr_json *json, const tsr_entry *entry)
{
    if (!entry) {
        tsr_json_null(json);
        return;
    }
    tsr_json_object(json);
    tsr_json_put_str(json, "fqn", entry->fqn);
    if (entry->kind == TSR_ENTRY_TENSOR) {
        tsr_json_put_text(json, "dtype", tsr_dtype_describe(entry->dtype)->name);
        tsr_json_put_u64s(json, "shape", entry->shape, entry->ndim);
    }
    tsr_json_object_end(json);
}

static void put_row(tsr_json *json, const tsr_param_states *row, uint32_t name_count)
{
    tsr_json_object(json);
    tsr_json_put_str(json, "parameter", row->parameter);
    tsr_json_put_bool(json, "in_group", row->in_group);
    tsr_json_key(json, "values");
    put_tensor(json, row->entry);
    tsr_json_put_array(json, "states");
    for (uint32_t i = 0; i < name_count; i++) put_tensor(json, row->states[i]);
    tsr_json_array_end(json);
    tsr_json_object_end(json);
}

static void put_optimizer(tsr_json *json, const tsr_optim_states *o)
{
    tsr_json_object(json);
    tsr_json_put_str(json, "optimizer", o->optimizer);
    tsr_json_put_strs(json, "names", o->names, o->name_count);
    tsr_json_put_array(json, "parameters");
    for (uint32_t i = 0; i < o->row_count; i++) put_row(json, &o->rows[i], o->name_count);
    tsr_json_array_end(json);
    tsr_json_object_end(json);
}

tsr_status tessera_write_optimizers(const opened *item, tsr_json *json, tsr_error *err)
{
    tsr_optim_states *list;
    uint32_t count;
    tsr_arena *arena = tsr_arena_new(item->host.allocator, 0, err);
    tsr_status status = arena ? tsr_optim_states_of(tsr_checkpoint_catalog(item->checkpoint), item->host.allocator, arena,
                                                    &list, &count, err)
                              : TSR_E_NOMEM;
    if (status == TSR_OK) {
        tsr_json_object(json);
        tsr_json_put_text(json, "schema", "tessera.optimizer/1");
        tsr_json_put_array(json, "optimizers");
        for (uint32_t i = 0; i < count; i++) put_optimizer(json, &list[i]);
        tsr_json_array_end(json);
        tsr_json_object_end(json);
        status = json->status;
    }
    tsr_arena_free(arena);
    return status;
}
