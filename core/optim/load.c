/* Plans the reads of sharded optimizer state (`load_sharded_optimizer_state_dict`, `_ReaderWithOffset` of PyTorch 2.13). */
#include <inttypes.h>

#include "base/cursor.h"
#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/optim_load.h"
#include "tessera/sys/try.h"

typedef struct tsr_optim_path {
    const tsr_path_item *items;
    uint32_t length;
} tsr_optim_path;

/* ---- load path ---- */

/* Finds the paths of optimizer state. DCP and torch.save store them; other formats only have flat names, which are split
 * here:
 *
 *   optim . state . layers.0.fc.weight . exp_avg          a parameter's FQN has dots, the name of a state has none
 *   optim . param_groups . 0 . lr
 *
 * The model's FQNs decide where a parameter's name ends, so that names of states may also have dots. */

enum { MOST_DIGITS = 9, MOST_NAMES = 6 };

static bool skip_prefix(tsr_str *text, tsr_str prefix)
{
    return text->size > prefix.size && tsr_str_skip(text, prefix);
}

/* Skips "key." in "key.rest". */
static bool skip_key(tsr_str *text, tsr_str key)
{
    tsr_str rest = *text;
    if (!skip_prefix(&rest, key) || !skip_prefix(&rest, TSR_STR("."))) return false;
    *text = rest;
    return true;
}

static tsr_str first_part(tsr_str name)
{
    const char *dot = name.size ? memchr(name.data, '.', name.size) : NULL;
    return dot ? (tsr_str){name.data, (size_t)(dot - name.data)} : name;
}

/* Where the parameter's FQN ends in "fc.weight.exp_avg"; 0 if there is no dot after one. */
static size_t parameter_end(tsr_str text, const tsr_map *parameters)
{
    size_t last = 0;
    for (size_t at = text.size; at-- > 1;) {
        if (text.data[at] != '.' || at + 1 == text.size) continue;
        if (last == 0) last = at;
        if (tsr_map_get(parameters, (tsr_str){text.data, at}, UINT32_MAX) != UINT32_MAX) return at;
    }
    return last;
}

static bool read_position(tsr_str digits, int64_t *position)
{
    *position = 0;
    if (digits.size == 0 || digits.size > MOST_DIGITS) return false;
    for (size_t i = 0; i < digits.size; i++) {
        if (!tsr_is_digit(digits.data[i])) return false;
        *position = *position * 10 + (digits.data[i] - '0');
    }
    return true;
}

static tsr_path_item key_item(tsr_str key)
{
    return (tsr_path_item){.kind = TSR_PATH_KEY, .key = key};
}

/* Splits what follows the key in a flat name into at most three items, and returns their number. */
static uint32_t split(tsr_str rest, const tsr_map *parameters, tsr_path_item *items)
{
    tsr_str below = rest;
    int64_t position;
    items[0] = key_item(rest);
    if (skip_key(&below, TSR_STR("state"))) {
        const size_t end = parameter_end(below, parameters);
        items[0] = key_item(TSR_STR("state"));
        items[1] = key_item(end ? (tsr_str){below.data, end} : below);
        if (end) items[2] = key_item(tsr_str_after(below, end + 1));
        return end ? 3 : 2;
    }
    if (!skip_key(&below, TSR_STR("param_groups"))) return 1;
    const tsr_str digits = first_part(below);
    if (digits.size + 1 >= below.size || !read_position(digits, &position)) return 1;
    items[0] = key_item(TSR_STR("param_groups"));
    items[1] = (tsr_path_item){.kind = TSR_PATH_INDEX, .integer = position};
    items[2] = key_item(tsr_str_after(below, digits.size + 1));
    return 3;
}

static bool is_key(const tsr_path_item *item, tsr_str key)
{
    return item->kind == TSR_PATH_KEY && tsr_str_equal(item->key, key);
}

/* The path of `entry`, whose first item is `key`; its length is 0 if the entry is not below `key`. For flat names, which
 * have no path, `parameters` (FQN → anything) determine where a parameter's name ends. The path is allocated in `arena`, or
 * part of the entry. */
static tsr_status optim_path_of(const tsr_entry *entry, tsr_str key, const tsr_map *parameters, tsr_arena *arena,
                                tsr_optim_path *out, tsr_error *err)
{
    *out = (tsr_optim_path){NULL, 0};
    if (entry->path_length && is_key(&entry->path[0], key)) {
        *out = (tsr_optim_path){entry->path, entry->path_length};
        return TSR_OK;
    }
    tsr_str name = entry->path_length ? entry->path[0].key : entry->fqn;
    if (entry->path_length > 1 || (entry->path_length && entry->path[0].kind != TSR_PATH_KEY)) return TSR_OK;
    const bool is_whole = tsr_str_equal(name, key);
    if (!is_whole && !skip_key(&name, key)) return TSR_OK;
    tsr_path_item *items = tsr_arena_array(arena, 4, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    items[0] = key_item(key);
    *out = (tsr_optim_path){items, 1 + (is_whole ? 0 : split(name, parameters, items + 1))};
    return TSR_OK;
}

/* Fails with TSR_E_NOT_FOUND because nothing is below `key`. The message lists the first names that exist. */
static tsr_status optim_raise_no_key(const tsr_catalog *catalog, tsr_str key, tsr_arena *arena, tsr_error *err)
{
    tsr_str names[MOST_NAMES], text = TSR_STR("");
    size_t count = 0;
    for (uint64_t i = 0; i < catalog->entry_count && count < MOST_NAMES; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        const bool has_path = entry->path_length && entry->path[0].kind == TSR_PATH_KEY;
        const tsr_str name = has_path && entry->path_length > 1 ? entry->path[0].key : first_part(entry->fqn);
        size_t at = 0;
        while (at < count && !tsr_str_equal(names[at], name)) at++;
        if (at < count) continue;
        names[count++] = name;
        text = tsr_arena_format(arena, err, "%.*s%s'%.*s'", TSR_STR_ARG(text), count > 1 ? ", " : "", TSR_STR_ARG(name));
        if (!text.data) return TSR_E_NOMEM;
    }
    if (count == 0) text = TSR_STR("nothing");
    return tsr_fail(err, TSR_E_NOT_FOUND,
                    "optim: the checkpoint has no entries under the key '%.*s'; at its top it has %.*s%s", TSR_STR_ARG(key),
                    TSR_STR_ARG(text), count == MOST_NAMES ? ", …" : "");
}

/* ---- load ---- */

void tsr_rows_of_rank(uint64_t size, uint32_t world, uint32_t rank, bool clamp, uint64_t *begin, uint64_t *end)
{
    uint64_t part = size / world + (size % world != 0);
    *begin = part * rank; /* at most size + world rows, so real tensors cannot overflow it */
    if (clamp && *begin > size) *begin = size;
    *end = *begin >= size ? *begin : size - *begin < part ? size : *begin + part;
}

typedef struct loading {
    const tsr_optim_mesh *mesh;
    tsr_map *by_fqn; /* → slice */
    tsr_arena *arena;
    tsr_vec reads;
} loading;

/* Checks that the state has the parameter's shape; otherwise the parameter's slice does not apply to it. */
static tsr_status check_shapes(const loading *l, const tsr_optim_read *read, const tsr_tp_slice *slice, tsr_error *err)
{
    const tsr_entry *entry = read->entry;
    TSR_FAIL_IF(slice->ndim != entry->ndim, err, TSR_E_FORMAT,
                "optim: '%.*s' has %" PRIu32 " dimensions, but the slice of '%.*s' has %" PRIu32, TSR_STR_ARG(entry->fqn),
                entry->ndim, TSR_STR_ARG(slice->fqn), slice->ndim);
    for (uint32_t d = 0; d < entry->ndim && slice->shape; d++)
        TSR_FAIL_IF(
            slice->shape[d] != read->shape[d], err, TSR_E_FORMAT,
            "optim: '%.*s' is %.*s in the checkpoint, but '%.*s' is %.*s in the model's state; their slices do not match",
            TSR_STR_ARG(entry->fqn), TSR_STR_ARG(tsr_shape_brief(entry->ndim, read->shape, l->arena)),
            TSR_STR_ARG(slice->fqn), TSR_STR_ARG(tsr_shape_brief(slice->ndim, slice->shape, l->arena)));
    return TSR_OK;
}

static tsr_status find_slice(const loading *l, const tsr_optim_read *read, const tsr_tp_slice **out, tsr_error *err)
{
    const tsr_entry *entry = read->entry;
    *out = NULL;
    if (!l->mesh->tensor_parallel) return TSR_OK;
    TSR_FAIL_IF(read->path_length < 3, err, TSR_E_FORMAT,
                "optim: the path of '%.*s' does not name a parameter, so its slice cannot be found",
                TSR_STR_ARG(entry->fqn));
    if (read->path[2].kind != TSR_PATH_KEY) return TSR_OK;
    uint32_t at = tsr_map_get(l->by_fqn, read->path[2].key, UINT32_MAX);
    if (at == UINT32_MAX) return TSR_OK;
    const tsr_tp_slice *slice = &l->mesh->slices[at];
    TSR_TRY(check_shapes(l, read, slice, err));
    for (uint32_t d = 0; d < entry->ndim; d++) {
        uint64_t end;
        TSR_FAIL_IF(!tsr_add_u64(slice->offsets ? slice->offsets[d] : 0, slice->sizes[d], &end) || end > read->shape[d], err,
                    TSR_E_FORMAT, "optim: the slice of '%.*s' ends beyond dimension %" PRIu32 " of '%.*s' (%" PRIu64 ")",
                    TSR_STR_ARG(slice->fqn), d, TSR_STR_ARG(entry->fqn), read->shape[d]);
    }
    *out = slice;
    return TSR_OK;
}

/* Sets the rank's rows of the slice, with offsets both in the slice and in the global tensor. */
static tsr_status fill_box(loading *l, tsr_optim_read *read, tsr_error *err)
{
    const tsr_tp_slice *slice;
    const uint32_t ndim = read->entry->ndim;
    uint64_t end, *numbers = tsr_arena_array(l->arena, 3 * (size_t)ndim, sizeof *numbers, err);
    if (!numbers) return TSR_E_NOMEM;
    TSR_TRY(find_slice(l, read, &slice, err));
    uint64_t *storage = numbers, *dest = numbers + ndim, *sizes = numbers + 2 * ndim;
    read->kind = TSR_READ_BOX;
    read->dest_size = slice ? slice->sizes : read->shape;
    for (uint32_t d = 0; d < ndim; d++) {
        sizes[d] = read->dest_size[d];
        if (d == 0) {
            /* Clamped, because PyTorch's ChunkShardingSpec lets empty shards begin beyond the tensor, and later rejects
             * them. */
            tsr_rows_of_rank(sizes[0], l->mesh->data_world, l->mesh->data_rank, true, &dest[0], &end);
            read->has_shard = l->mesh->tensor_parallel || sizes[0] == 0 || end > dest[0];
            sizes[0] = end - dest[0];
        }
        storage[d] = dest[d] + (slice && slice->offsets ? slice->offsets[d] : 0);
    }
    read->storage_offsets = storage;
    read->dest_offsets = dest;
    read->sizes = sizes;
    return TSR_OK;
}

/* For entries below "state": sets the name of the parameter, which the model's state should also have. */
static tsr_status name_parameter(const loading *l, tsr_optim_read *read, tsr_error *err)
{
    const tsr_path_item *path = read->path;
    if (read->path_length < 3 || path[1].kind != TSR_PATH_KEY) return TSR_OK;
    if (!tsr_str_equal(path[1].key, TSR_STR("state"))) return TSR_OK;
    if (path[2].kind == TSR_PATH_KEY) read->parameter = path[2].key;
    else read->parameter = tsr_arena_format(l->arena, err, "%" PRId64, path[2].integer);
    read->is_unknown = tsr_map_get(l->by_fqn, read->parameter, UINT32_MAX) == UINT32_MAX;
    return read->parameter.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status fill_tensor(loading *l, tsr_optim_read *read, tsr_error *err)
{
    const tsr_entry *entry = read->entry;
    uint64_t elements = 1, *shape = tsr_arena_array(l->arena, entry->ndim, sizeof *shape, err);
    if (!shape) return TSR_E_NOMEM;
    if (entry->ndim) memcpy(shape, entry->shape, entry->ndim * sizeof *shape);
    read->kind = TSR_READ_WHOLE;
    read->dtype = entry->dtype;
    read->shape = shape;
    TSR_FAIL_IF(!tsr_entry_elements(entry, &elements), err, TSR_E_FORMAT, "optim: '%.*s' is too large",
                TSR_STR_ARG(entry->fqn));
    if (entry->ndim && tsr_dtype_pack(&read->dtype, &shape[entry->ndim - 1]) && read->dtype != entry->dtype) elements /= 2;
    return elements == 1 ? TSR_OK : fill_box(l, read, err);
}

static tsr_status add_entry(loading *l, const tsr_entry *entry, tsr_str key, tsr_error *err)
{
    tsr_optim_path path;
    TSR_TRY(optim_path_of(entry, key, l->by_fqn, l->arena, &path, err));
    if (path.length == 0) return TSR_OK;
    tsr_optim_read *read = tsr_vec_push(&l->reads, err);
    if (!read) return TSR_E_NOMEM;
    *read = (tsr_optim_read){.entry = entry, .kind = TSR_READ_OBJECT, .path = path.items, .path_length = path.length};
    TSR_TRY(name_parameter(l, read, err));
    return entry->kind == TSR_ENTRY_TENSOR ? fill_tensor(l, read, err) : TSR_OK;
}

/* Adds empty dicts, which belong to parameters without state and are not entries. Only torch.save files have them. */
static tsr_status add_empty_dicts(loading *l, const tsr_catalog *catalog, tsr_str key, tsr_error *err)
{
    for (uint64_t i = 0; i < catalog->mapping_count; i++) {
        const tsr_mapping *mapping = &catalog->mappings[i];
        if (mapping->value->count || mapping->path_length == 0) continue;
        tsr_entry *entry = TSR_ARENA_NEW(l->arena, tsr_entry, err);
        if (!entry) return TSR_E_NOMEM;
        *entry = (tsr_entry){.fqn = mapping->fqn,
                             .kind = TSR_ENTRY_OBJECT,
                             .value = mapping->value,
                             .path = mapping->path,
                             .path_length = mapping->path_length};
        TSR_TRY(add_entry(l, entry, key, err));
    }
    return TSR_OK;
}

static tsr_status run(loading *l, const tsr_catalog *catalog, tsr_str key, tsr_optim_reads *out, tsr_error *err)
{
    for (size_t i = 0; i < l->mesh->slice_count; i++)
        TSR_TRY(tsr_map_put(l->by_fqn, l->mesh->slices[i].fqn, (uint32_t)i, NULL, NULL, err));
    for (uint64_t i = 0; i < catalog->entry_count; i++) TSR_TRY(add_entry(l, &catalog->entries[i], key, err));
    TSR_TRY(add_empty_dicts(l, catalog, key, err));
    if (l->reads.count == 0) return optim_raise_no_key(catalog, key, l->arena, err);
    *out = (tsr_optim_reads){tsr_arena_array(l->arena, l->reads.count, sizeof *out->reads, err), l->reads.count};
    if (!out->reads) return TSR_E_NOMEM;
    memcpy(out->reads, l->reads.items, out->count * sizeof *out->reads);
    return TSR_OK;
}

tsr_status tsr_optim_load(const tsr_catalog *catalog, tsr_str optimizer_key, const tsr_optim_mesh *mesh, tsr_arena *arena,
                          tsr_optim_reads *out, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_arena_allocator(arena);
    TSR_FAIL_IF(mesh->data_rank >= mesh->data_world, err, TSR_E_USAGE,
                "optim: rank %" PRIu32 " is not one of the %" PRIu32 " ranks", mesh->data_rank, mesh->data_world);
    loading l = {mesh, tsr_map_new(allocator, mesh->slice_count, err), arena, tsr_vec_of(allocator, sizeof(tsr_optim_read))};
    tsr_status status = l.by_fqn ? run(&l, catalog, optimizer_key, out, err) : TSR_E_NOMEM;
    tsr_vec_free(&l.reads);
    tsr_map_free(l.by_fqn);
    return status;
}
