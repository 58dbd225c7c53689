/* See deepspeed_rows.h. */
#include "formats/deepspeed/deepspeed_rows.h"

#include "formats/common/expansion.h"
#include "formats/common/joined_entries.h"
#include "formats/deepspeed/deepspeed_values.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

tsr_status tsr_ds_rows_open(tsr_ds_rows *rows, tsr_checkpoint *checkpoint, uint32_t ranks, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    *rows = (tsr_ds_rows){.checkpoint = checkpoint,
                          .arena = checkpoint->arena,
                          .rows = tsr_vec_of(allocator, sizeof(tsr_ds_row)),
                          .ranks = ranks};
    rows->names = tsr_map_new(allocator, 0, err);
    return rows->names ? TSR_OK : TSR_E_NOMEM;
}

void tsr_ds_rows_close(tsr_ds_rows *rows)
{
    tsr_map_free(rows->names);
    if (rows->rows.items) tsr_vec_free(&rows->rows);
}

static tsr_ds_row *row_at(const tsr_ds_rows *rows, uint32_t number)
{
    return (tsr_ds_row *)rows->rows.items + number;
}

static tsr_ds_row *find(const tsr_ds_rows *rows, tsr_str name, tsr_str key)
{
    uint32_t at = tsr_map_get(rows->names, name, UINT32_MAX);
    while (at != UINT32_MAX && !tsr_str_equal(row_at(rows, at)->key, key)) at = row_at(rows, at)->next;
    return at == UINT32_MAX ? NULL : row_at(rows, at);
}

const tsr_value *tsr_ds_rows_get(const tsr_ds_rows *rows, tsr_str name, tsr_str key)
{
    const tsr_ds_row *row = find(rows, name, key);
    return row ? row->value : NULL;
}

static bool is_copy(const tsr_entry *first, const tsr_entry *second)
{
    return first->dtype == second->dtype && tsr_entry_same_shape(first, second);
}

/* Lists what the ranks hold under one name, if nothing says how to join it. */
static tsr_status add_differing(const tsr_ds_rows *rows, uint32_t owner, tsr_entry *first, const tsr_entry *second,
                                tsr_error *err)
{
    const tsr_entry **tensors = first->per_rank ? (const tsr_entry **)first->per_rank->tensors : NULL;
    if (!tensors) {
        tensors = tsr_arena_array(rows->arena, rows->ranks, sizeof *tensors, err);
        tsr_entry *copy = TSR_ARENA_NEW(rows->arena, tsr_entry, err);
        if (!tensors || !copy) return TSR_E_NOMEM;
        *copy = *first;
        tensors[owner < rows->ranks ? owner : 0] = copy;
        TSR_TRY(tsr_entry_list_per_rank(first, tensors, rows->ranks, rows->arena, err));
    }
    if (rows->rank >= rows->ranks || second->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    const tsr_entry *held = tensors[rows->rank];
    if (held && is_copy(held, second)) return tsr_entry_add_replicas((tsr_entry *)held, second, rows->arena, err);
    tensors[rows->rank] = second;
    if (second->dtype != first->dtype) first->dtype = TSR_DTYPE_NONE;
    return TSR_OK;
}

static tsr_status add_again(tsr_ds_rows *rows, tsr_ds_row *row, const tsr_value *value, tsr_error *err)
{
    const tsr_entry *first = tsr_ds_tensor(row->value), *second = tsr_ds_tensor(value);
    if (!first || !second) return TSR_OK;
    if (row->rank == rows->rank && !first->per_rank && is_copy(first, second))
        return tsr_entry_add_replicas((tsr_entry *)first, second, rows->arena, err);
    return add_differing(rows, row->rank, (tsr_entry *)first, second, err);
}

/* Replaces a tensor with a copy, so that it can be changed when another rank's is added. */
static tsr_status own(tsr_ds_rows *rows, const tsr_value **value, tsr_error *err)
{
    const tsr_entry *tensor = tsr_ds_tensor(*value);
    if (!tensor) return TSR_OK;
    tsr_entry *copy = TSR_ARENA_NEW(rows->arena, tsr_entry, err);
    if (!copy) return TSR_E_NOMEM;
    *copy = *tensor;
    *value = tsr_value_tensor(rows->arena, copy, err);
    return *value ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ds_rows_add(tsr_ds_rows *rows, tsr_str name, tsr_str key, const tsr_value *value, tsr_error *err)
{
    const uint32_t number = (uint32_t)rows->rows.count;
    tsr_ds_row *row = find(rows, name, key);
    bool fresh;
    uint32_t *head;
    TSR_TRY(tsr_expansion_take(&rows->checkpoint->expansion, sizeof(tsr_entry), rows->checkpoint->host, err));
    TSR_TRY(own(rows, &value, err));
    if (row) return add_again(rows, row, value, err);
    TSR_TRY(tsr_map_put(rows->names, name, number, &head, &fresh, err));
    const uint32_t first = *head;
    row = tsr_vec_push(&rows->rows, err);
    if (!row) return TSR_E_NOMEM;
    *row = (tsr_ds_row){name, key, value, UINT32_MAX, number, rows->rank, fresh};
    if (!fresh) {
        row_at(rows, row_at(rows, first)->last)->next = number;
        row_at(rows, first)->last = number;
    }
    return TSR_OK;
}

tsr_status tsr_ds_rows_add_stored(tsr_ds_rows *rows, const tsr_ds_files *files, const tsr_ds_file *file, tsr_str name,
                                  const tsr_value *stored, tsr_error *err)
{
    const tsr_entry *tensor = tsr_ds_tensor(stored);
    if (!tensor || !tensor->storage_id) return tsr_ds_rows_add(rows, name, TSR_STR(""), stored, err);
    tsr_entry *copy = TSR_ARENA_NEW(rows->arena, tsr_entry, err);
    if (!copy) return TSR_E_NOMEM;
    *copy = *tensor;
    copy->storage_id += files->file_storages + file->storage_base;
    const tsr_value *value = tsr_value_tensor(rows->arena, copy, err);
    return value ? tsr_ds_rows_add(rows, name, TSR_STR(""), value, err) : TSR_E_NOMEM;
}

void tsr_ds_rows_untie(tsr_ds_rows *rows)
{
    for (uint32_t r = 0; r < rows->rows.count; r++) {
        tsr_entry *entry = (tsr_entry *)tsr_ds_tensor(row_at(rows, r)->value);
        if (entry) entry->storage_id = 0;
    }
}

/* {key: value} for one name. */
static tsr_value *keys_of(const tsr_ds_rows *rows, uint32_t first, tsr_error *err)
{
    size_t count = 0, at = 0;
    for (uint32_t r = first; r != UINT32_MAX; r = row_at(rows, r)->next) count++;
    const tsr_value **items = tsr_arena_array(rows->arena, 2 * count, sizeof *items, err);
    for (uint32_t r = first; items && r != UINT32_MAX; r = row_at(rows, r)->next) {
        items[at++] = tsr_value_str(rows->arena, row_at(rows, r)->key, err);
        items[at++] = row_at(rows, r)->value;
        if (!items[at - 2]) return NULL;
    }
    return items ? tsr_value_items(rows->arena, TSR_VALUE_DICT, items, 2 * count, err) : NULL;
}

tsr_value *tsr_ds_rows_tree(const tsr_ds_rows *rows, tsr_error *err)
{
    size_t at = 0;
    const tsr_value **items = tsr_arena_array(rows->arena, 2 * tsr_map_count(rows->names), sizeof *items, err);
    if (!items) return NULL;
    for (uint32_t r = 0; r < rows->rows.count; r++) {
        const tsr_ds_row *row = row_at(rows, r);
        if (!row->first) continue;
        items[at++] = tsr_value_str(rows->arena, row->name, err);
        items[at++] = row->key.size ? keys_of(rows, r, err) : row->value;
        if (!items[at - 2] || !items[at - 1]) return NULL;
    }
    return tsr_value_items(rows->arena, TSR_VALUE_DICT, items, at, err);
}
