/* Reads of sharded optimizer state (`load_sharded_optimizer_state_dict`, `_ReaderWithOffset` of PyTorch 2.13). */
#include "tessera/optim_load.h"

#include <inttypes.h>

#include "base/cursor.h"
#include "base/try.h"
#include "tessera/map.h"

void tsr_rows_of_rank(uint64_t size, uint32_t world, uint32_t rank, bool clamp, uint64_t *begin, uint64_t *end)
{
    uint64_t part = size / world + (size % world != 0);
    *begin = part * rank; /* at most size + world rows: no overflow for sizes of real tensors */
    if (clamp && *begin > size) *begin = size;
    *end = *begin >= size ? *begin : size - *begin < part ? size : *begin + part;
}

typedef struct loading {
    const tsr_optim_mesh *mesh;
    const tsr_tp_slice *slices;
    tsr_map *by_fqn; /* → slice */
    tsr_arena *arena;
    tsr_vec reads;
} loading;

static bool has_key(const tsr_entry *entry, tsr_str key)
{
    return entry->path_length && entry->path[0].kind == TSR_PATH_KEY && tsr_str_equal(entry->path[0].key, key);
}

static tsr_status find_slice(const loading *l, const tsr_entry *entry, const tsr_tp_slice **out, tsr_error *err)
{
    *out = NULL;
    if (!l->mesh->tensor_parallel) return TSR_OK;
    TSR_FAIL_IF(entry->path_length < 3 || entry->path[2].kind != TSR_PATH_KEY, err, TSR_E_FORMAT, TSR_NO_POSITION,
                "optim: the path of '%.*s' names no parameter", TSR_STR_ARG(entry->fqn));
    uint32_t at = tsr_map_get(l->by_fqn, entry->path[2].key, UINT32_MAX);
    if (at == UINT32_MAX) return TSR_OK;
    const tsr_tp_slice *slice = &l->slices[at];
    TSR_FAIL_IF(slice->rank != entry->rank, err, TSR_E_FORMAT, TSR_NO_POSITION,
                "optim: '%.*s' has %" PRIu32 " dimensions, but the slice of '%.*s' has %" PRIu32, TSR_STR_ARG(entry->fqn),
                entry->rank, TSR_STR_ARG(slice->fqn), slice->rank);
    for (uint32_t d = 0; d < entry->rank; d++) {
        uint64_t end;
        TSR_FAIL_IF(!tsr_add_u64(slice->offsets ? slice->offsets[d] : 0, slice->sizes[d], &end) || end > entry->shape[d],
                    err, TSR_E_FORMAT, TSR_NO_POSITION,
                    "optim: the slice of '%.*s' ends beyond dimension %" PRIu32 " of '%.*s' (%" PRIu64 ")",
                    TSR_STR_ARG(slice->fqn), d, TSR_STR_ARG(entry->fqn), entry->shape[d]);
    }
    *out = slice;
    return TSR_OK;
}

/* The rank's rows of the slice, in the slice's and in the global tensor's offsets. */
static tsr_status fill_box(loading *l, const tsr_entry *entry, tsr_optim_read *read, tsr_error *err)
{
    const tsr_tp_slice *slice;
    uint64_t end, *numbers = tsr_arena_array(l->arena, 3 * (size_t)entry->rank, sizeof *numbers, err);
    if (!numbers) return TSR_E_NOMEM;
    TSR_TRY(find_slice(l, entry, &slice, err));
    uint64_t *storage = numbers, *dest = numbers + entry->rank, *sizes = numbers + 2 * entry->rank;
    read->kind = TSR_READ_BOX;
    read->dest_size = slice ? slice->sizes : entry->shape;
    for (uint32_t d = 0; d < entry->rank; d++) {
        sizes[d] = read->dest_size[d];
        if (d == 0) {
            tsr_rows_of_rank(read->dest_size[0], l->mesh->data_world, l->mesh->data_rank, !l->mesh->tensor_parallel,
                             &dest[0], &end);
            sizes[0] = end - dest[0];
        }
        storage[d] = dest[d] + (slice && slice->offsets ? slice->offsets[d] : 0);
    }
    read->storage_offsets = storage;
    read->dest_offsets = dest;
    read->sizes = sizes;
    return TSR_OK;
}

static tsr_status add_read(loading *l, const tsr_entry *entry, tsr_error *err)
{
    uint64_t elements = 0;
    tsr_optim_read *read = tsr_vec_push(&l->reads, err);
    if (!read) return TSR_E_NOMEM;
    *read = (tsr_optim_read){.entry = entry, .kind = TSR_READ_OBJECT};
    if (entry->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    read->kind = TSR_READ_WHOLE;
    TSR_FAIL_IF(!tsr_entry_elements(entry, &elements), err, TSR_E_FORMAT, TSR_NO_POSITION, "optim: '%.*s' is too large",
                TSR_STR_ARG(entry->fqn));
    return elements == 1 ? TSR_OK : fill_box(l, entry, read, err);
}

static tsr_status run(loading *l, const tsr_catalog *catalog, tsr_str key, size_t slice_count, tsr_optim_read **out,
                      size_t *count, tsr_error *err)
{
    for (size_t i = 0; i < slice_count; i++) TSR_TRY(tsr_map_put(l->by_fqn, l->slices[i].fqn, (uint32_t)i, NULL, NULL, err));
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        if (has_key(&catalog->entries[i], key)) TSR_TRY(add_read(l, &catalog->entries[i], err));
    }
    TSR_FAIL_IF(l->reads.count == 0, err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "optim: no entry's path begins with '%.*s'",
                TSR_STR_ARG(key));
    *count = l->reads.count;
    *out = tsr_arena_array(l->arena, *count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    memcpy(*out, l->reads.items, *count * sizeof **out);
    return TSR_OK;
}

tsr_status tsr_optim_load(const tsr_catalog *catalog, tsr_str optimizer_key, const tsr_optim_mesh *mesh,
                          const tsr_tp_slice *slices, size_t slice_count, const tsr_allocator *allocator, tsr_arena *arena,
                          tsr_optim_read **out, size_t *count, tsr_error *err)
{
    TSR_FAIL_IF(mesh->data_rank >= mesh->data_world, err, TSR_E_USAGE, TSR_NO_POSITION,
                "optim: rank %" PRIu32 " of %" PRIu32 " ranks", mesh->data_rank, mesh->data_world);
    loading l = {mesh, slices, tsr_map_new(allocator, slice_count, err), arena,
                 tsr_vec_of(allocator, sizeof(tsr_optim_read))};
    tsr_status status = l.by_fqn ? run(&l, catalog, optimizer_key, slice_count, out, count, err) : TSR_E_NOMEM;
    tsr_vec_free(&l.reads);
    tsr_map_free(l.by_fqn);
    return status;
}
