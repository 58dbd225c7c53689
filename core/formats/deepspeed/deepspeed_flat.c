/* Flat buffers, and rows: lists of named values. See deepspeed_weights.h. */
#include "formats/deepspeed/deepspeed_weights.h"

#include "formats/common/expansion.h"
#include "formats/common/rank_entries.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

tsr_status tsr_ds_buffer_new(tsr_arena *arena, uint32_t capacity, tsr_ds_buffer *out, tsr_error *err)
{
    *out = (tsr_ds_buffer){.pieces = tsr_arena_array(arena, capacity, sizeof *out->pieces, err)};
    return out->pieces ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ds_buffer_add(tsr_ds_buffer *buffer, const tsr_entry *tensor, uint64_t count, tsr_error *err)
{
    if (tensor) {
        const tsr_view *view = tensor->chunk_count ? tensor->chunks[0].view : NULL;
        const bool plain = tensor->ndim == 1 && tensor->chunk_count <= 1 && (!view || tsr_view_is_plain(view));
        TSR_FAIL_IF(!plain || tensor->dtype == TSR_DTYPE_NONE, err, TSR_E_FORMAT,
                    "a flat buffer is not one contiguous row of numbers");
        TSR_FAIL_IF(buffer->dtype != TSR_DTYPE_NONE && tensor->dtype != buffer->dtype, err, TSR_E_FORMAT,
                    "a flat buffer is %s, but that of a lower rank is %s", tsr_dtype_describe(tensor->dtype)->name,
                    tsr_dtype_describe(buffer->dtype)->name);
        TSR_FAIL_IF(count > tensor->shape[0] || (count && !tensor->chunk_count), err, TSR_E_FORMAT,
                    "a flat buffer has %llu elements; expected %llu", (unsigned long long)tensor->shape[0],
                    (unsigned long long)count);
        buffer->dtype = tensor->dtype;
    }
    TSR_FAIL_IF(count > UINT64_MAX / 16 - buffer->elements, err, TSR_E_LIMIT, "the flat buffers are too large");
    buffer->pieces[buffer->count++] = (tsr_ds_piece){tensor, buffer->elements, count};
    buffer->elements += count;
    return TSR_OK;
}

/* The last non-empty piece that begins at or before an element. */
static uint32_t piece_at(const tsr_ds_buffer *buffer, uint64_t element)
{
    uint32_t low = 0, high = buffer->count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (buffer->pieces[middle].first <= element) low = middle;
        else high = middle;
    }
    return low;
}

/* Adds the chunks of a run of the tensor's elements that is inside one piece. */
static tsr_status add_run(tsr_ds_chunks *chunks, const tsr_ds_piece *piece, uint64_t skipped, tsr_span run, tsr_error *err)
{
    const uint32_t most = chunks->ndim ? 2 * chunks->ndim - 1 : 1, row = chunks->ndim ? chunks->ndim : 1;
    TSR_TRY(tsr_expansion_take(&chunks->checkpoint->expansion, sizeof(tsr_chunk), chunks->checkpoint->host, err));
    uint64_t *offsets = tsr_arena_array(chunks->checkpoint->arena, (size_t)most * row, sizeof *offsets, err);
    uint64_t *sizes = tsr_arena_array(chunks->checkpoint->arena, (size_t)most * row, sizeof *sizes, err);
    if (!offsets || !sizes) return TSR_E_NOMEM;
    const tsr_chunk *source = piece->tensor ? &piece->tensor->chunks[0] : NULL;
    const uint64_t itemsize = piece->tensor ? tsr_dtype_size(piece->tensor->dtype) : 1;
    const uint32_t boxes = tsr_range_boxes(chunks->ndim, chunks->shape, run, offsets, sizes);
    for (uint32_t b = 0; b < boxes; b++) {
        uint64_t volume;
        tsr_chunk *added = tsr_vec_push(&chunks->chunks, err);
        if (!added) return TSR_E_NOMEM;
        tsr_box_volume((tsr_box){chunks->ndim, NULL, sizes + (size_t)b * row}, &volume);
        *added = (tsr_chunk){.offsets = offsets + (size_t)b * row,
                             .sizes = sizes + (size_t)b * row,
                             .byte_length = volume * itemsize,
                             .file = source ? source->file : TSR_NO_FILE};
        if (source) added->byte_offset = source->byte_offset + skipped * itemsize;
        skipped += volume;
    }
    return TSR_OK;
}

tsr_status tsr_ds_chunks_add(tsr_ds_chunks *chunks, const tsr_ds_buffer *buffer, uint64_t from, uint64_t count, uint64_t to,
                             tsr_error *err)
{
    TSR_FAIL_IF(from > buffer->elements || count > buffer->elements - from, err, TSR_E_FORMAT,
                "the ranks' flat buffers have %llu elements in total; expected %llu", (unsigned long long)buffer->elements,
                (unsigned long long)from + count);
    for (uint32_t i = count ? piece_at(buffer, from) : 0; count; i++) {
        const tsr_ds_piece *piece = &buffer->pieces[i];
        const uint64_t skipped = from - piece->first, left = piece->count > skipped ? piece->count - skipped : 0;
        const uint64_t taken = left < count ? left : count;
        if (taken == 0) continue;
        TSR_TRY(add_run(chunks, piece, skipped, (tsr_span){to, taken}, err));
        from += taken;
        to += taken;
        count -= taken;
    }
    return TSR_OK;
}

tsr_status tsr_ds_chunks_take(tsr_ds_chunks *chunks, tsr_dtype dtype, const tsr_value **out, tsr_error *err)
{
    tsr_entry *entry = TSR_ARENA_NEW(chunks->checkpoint->arena, tsr_entry, err);
    tsr_chunk *copy = tsr_arena_array(chunks->checkpoint->arena, chunks->chunks.count, sizeof *copy, err);
    if (!entry || !copy) return TSR_E_NOMEM;
    if (chunks->chunks.count) memcpy(copy, chunks->chunks.items, chunks->chunks.count * sizeof *copy);
    *entry = (tsr_entry){.kind = TSR_ENTRY_TENSOR,
                         .dtype = dtype,
                         .shape = chunks->shape,
                         .ndim = chunks->ndim,
                         .chunks = copy,
                         .chunk_count = chunks->chunks.count};
    chunks->chunks.count = 0;
    *out = tsr_value_tensor(chunks->checkpoint->arena, entry, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- rows ---- */

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
