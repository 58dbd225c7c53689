/* Storages and dense tensors of a torch.save pickle.
 *
 *   _rebuild_tensor_v2(persistent id ──► ('storage', torch.FloatStorage, key, location, numel[, view]),
 *                      offset, size, stride, requires_grad, hooks[, {'conj': True, 'neg': True}])
 *
 * What a tensor claims is held against its storage here, and the storage against its bytes by the container. */
#include "base/cursor.h"

#include "formats/common/expansion.h"
#include "formats/pickle/torch_names.h"
#include "formats/torch/torch_build.h"
#include "formats/torch/torch_flatten.h"
#include "tessera/box.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

typedef struct placed_chunk {
    tsr_chunk *chunk;
    tsr_view *view; /* or NULL */
    tsr_dtype dtype;
    uint32_t storage;
} placed_chunk;

/* A part of a storage, in bytes: whole, but for views of the legacy form. */
typedef struct storage_part {
    uint32_t storage;
    uint64_t byte_offset;
    uint64_t byte_length;
} storage_part;

enum { LEAST_ROOM = 1 << 16 }; /* one honest strided shard, in a pickle of any size */

tsr_status tsr_torch_build_open(tsr_torch_build *build, tsr_error *err)
{
    build->storages = tsr_vec_of(build->host->allocator, sizeof(tsr_torch_storage));
    build->chunks = tsr_vec_of(build->host->allocator, sizeof(placed_chunk));
    build->storage_index = tsr_map_new(build->host->allocator, 0, err);
    build->room = LEAST_ROOM;
    tsr_expansion_add(&build->room, build->pickle_bytes.size);
    return build->storage_index ? TSR_OK : TSR_E_NOMEM;
}

void tsr_torch_build_close(tsr_torch_build *build)
{
    tsr_map_free(build->storage_index);
    tsr_map_free(build->rank_places);
    tsr_vec_free(&build->storages);
    tsr_vec_free(&build->chunks);
}

static tsr_status add_storage(tsr_torch_build *build, const tsr_torch_storage *storage, uint64_t position, uint32_t *index,
                              tsr_error *err)
{
    uint32_t *existing;
    bool inserted;
    TSR_TRY(tsr_map_put(build->storage_index, storage->key, (uint32_t)build->storages.count, &existing, &inserted, err));
    *index = *existing;
    if (!inserted) {
        const tsr_torch_storage *known = (const tsr_torch_storage *)build->storages.items + *index;
        TSR_FAIL_AT(known->byte_length != storage->byte_length, err, TSR_E_FORMAT, position,
                    "torch: storage '%.*s' has %llu bytes in one place and %llu bytes in another", TSR_STR_ARG(storage->key),
                    (unsigned long long)storage->byte_length, (unsigned long long)known->byte_length);
        return TSR_OK;
    }
    tsr_torch_storage *added = tsr_vec_push(&build->storages, err);
    if (!added) return TSR_E_NOMEM;
    *added = *storage;
    return TSR_OK;
}

/* The (key, offset, size) of a view on a storage, as files before PyTorch 0.4 have it. */
static tsr_status narrow(tsr_torch_build *build, tsr_ref view, uint32_t item_size, uint64_t position, storage_part *part,
                         tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    int64_t offset = tsr_pickle_int(pickle, tsr_pickle_item(pickle, view, 1));
    int64_t size = tsr_pickle_int(pickle, tsr_pickle_item(pickle, view, 2));
    uint64_t start, length, end;
    bool inside = tsr_pickle_count(pickle, view) == 3 && offset >= 0 && size >= 0 &&
                  tsr_mul_u64((uint64_t)offset, item_size, &start) && tsr_mul_u64((uint64_t)size, item_size, &length) &&
                  tsr_add_u64(start, length, &end) && end <= part->byte_length;
    TSR_FAIL_AT(!inside, err, TSR_E_FORMAT, position, "torch: a view of a storage reaches beyond it");
    part->byte_offset = start;
    part->byte_length = length;
    return TSR_OK;
}

static tsr_status read_storage(tsr_torch_build *build, tsr_ref ref, uint64_t position, storage_part *part, tsr_dtype *dtype,
                               tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_ref id = tsr_pickle_persistent(pickle, ref);
    size_t count = tsr_pickle_count(pickle, id);
    bool named = tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_PERSISTENT && (count == 5 || count == 6) &&
                 tsr_str_equal(tsr_pickle_text(pickle, tsr_pickle_item(pickle, id, 0)), TSR_STR("storage"));
    TSR_FAIL_AT(!named, err, TSR_E_FORMAT, position,
                "torch: a tensor's storage is not a persistent id of five or six parts");
    tsr_ref class_ref = tsr_pickle_item(pickle, id, 1), numel_ref = tsr_pickle_item(pickle, id, 4);
    tsr_torch_storage storage = {.key = tsr_pickle_text(pickle, tsr_pickle_item(pickle, id, 2)),
                                 .dtype = tsr_torch_storage_dtype(pickle, class_ref)};
    TSR_FAIL_AT(storage.dtype == TSR_DTYPE_NONE, err, TSR_E_UNSUPPORTED, position,
                "torch: unknown storage class '%.*s.%.*s'", TSR_STR_ARG(tsr_pickle_module(pickle, class_ref)),
                TSR_STR_ARG(tsr_pickle_name_of(pickle, class_ref)));
    int64_t numel = tsr_pickle_int(pickle, numel_ref);
    bool sized = tsr_pickle_kind_of(pickle, numel_ref) == TSR_PICKLE_INT && numel >= 0 &&
                 tsr_dtype_bytes(storage.dtype, (uint64_t)numel, &storage.byte_length);
    TSR_FAIL_AT(!sized, err, TSR_E_FORMAT, position, "torch: storage '%.*s' has an impossible number of elements (%lld)",
                TSR_STR_ARG(storage.key), (long long)numel);
    storage.meta = tsr_str_equal(tsr_pickle_text(pickle, tsr_pickle_item(pickle, id, 3)), TSR_STR("meta"));
    storage.unloadable = count == 6 && tsr_torch_is_untyped(pickle, class_ref);
    storage.pickled_at = position;
    TSR_TRY(add_storage(build, &storage, position, &part->storage, err));
    *dtype = storage.dtype;
    part->byte_offset = 0;
    part->byte_length = storage.byte_length;
    tsr_ref view = count == 6 ? tsr_pickle_item(pickle, id, 5) : TSR_REF_NONE;
    return view == TSR_REF_NONE ? TSR_OK : narrow(build, view, tsr_dtype_size(storage.dtype), position, part, err);
}

tsr_status tsr_torch_sizes(tsr_torch_build *build, tsr_ref ref, const uint64_t **out, uint32_t *count, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    uint64_t position = tsr_torch_position(build, ref);
    if (tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_OBJECT && tsr_pickle_class_id(pickle, ref) == TSR_TORCH_SIZE)
        ref = tsr_torch_arg(pickle, ref, 0);
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, ref);
    size_t n = tsr_pickle_count(pickle, ref);
    TSR_FAIL_AT((kind != TSR_PICKLE_TUPLE && kind != TSR_PICKLE_LIST) || n > TSR_MAX_NDIM, err, TSR_E_FORMAT, position,
                "torch: a size or stride is not a list of at most 64 integers");
    uint64_t *values = tsr_arena_array(build->arena, n, sizeof *values, err);
    if (!values) return TSR_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        tsr_ref item = tsr_pickle_item(pickle, ref, i);
        int64_t value = tsr_pickle_int(pickle, item);
        TSR_FAIL_AT(tsr_pickle_kind_of(pickle, item) != TSR_PICKLE_INT || value < 0, err, TSR_E_FORMAT, position,
                    "torch: a size or stride is not a list of non-negative integers");
        values[i] = (uint64_t)value;
    }
    *out = values;
    *count = (uint32_t)n;
    return TSR_OK;
}

/* Bytes from a box's first element to the end of its last; 0 for an empty box. false: overflow. */
static bool span(const uint64_t *sizes, const uint64_t *strides, uint32_t ndim, uint32_t item_size, uint64_t *bytes)
{
    uint64_t last = 0, step;
    *bytes = 0;
    for (uint32_t i = 0; i < ndim; i++)
        if (sizes[i] == 0) return true;
    for (uint32_t i = 0; i < ndim; i++) {
        if (!tsr_mul_u64(sizes[i] - 1, strides[i], &step) || !tsr_add_u64(last, step, &last)) return false;
    }
    return tsr_add_u64(last, 1, &last) && tsr_mul_u64(last, item_size, bytes);
}

/* PyTorch lays a tensor without strides out in row-major order. */
static tsr_status make_strides(tsr_torch_build *build, tsr_torch_dense *dense, uint64_t position, tsr_error *err)
{
    uint32_t i = dense->entry.ndim;
    uint64_t *strides = tsr_arena_array(build->arena, i, sizeof *strides, err), step = 1;
    if (!strides) return TSR_E_NOMEM;
    while (i-- > 0) {
        strides[i] = step;
        TSR_FAIL_AT(!tsr_mul_u64(step, dense->entry.shape[i] ? dense->entry.shape[i] : 1, &step), err, TSR_E_FORMAT,
                    position, "torch: the sizes of a tensor are too large");
    }
    dense->strides = strides;
    return TSR_OK;
}

static bool is_contiguous(const uint64_t *sizes, const uint64_t *strides, uint32_t ndim)
{
    uint64_t expected = 1;
    bool row_major = true;
    for (uint32_t i = ndim; i-- > 0;) {
        if (sizes[i] == 0) return true;
        if (sizes[i] == 1) continue;
        row_major = row_major && strides[i] == expected;
        expected *= sizes[i];
    }
    return row_major;
}

tsr_status tsr_torch_chunk(tsr_torch_build *build, const tsr_torch_dense *on, uint64_t byte_offset, tsr_box box,
                           tsr_chunk *out, tsr_error *err)
{
    const tsr_entry *entry = &on->entry;
    bool contiguous = is_contiguous(box.sizes, on->strides, box.ndim);
    uint64_t byte_length;
    span(box.sizes, on->strides, box.ndim, tsr_dtype_size(entry->dtype), &byte_length); /* no more than the tensor's own */
    *out = (tsr_chunk){box.offsets, box.sizes, byte_offset, byte_length, NULL, build->file};
    placed_chunk *placed = tsr_vec_push(&build->chunks, err);
    if (!placed) return TSR_E_NOMEM;
    *placed = (placed_chunk){out, NULL, entry->dtype, on->storage};
    if (contiguous && !on->conj && !on->neg) return TSR_OK;
    placed->view = TSR_ARENA_NEW(build->arena, tsr_view, err);
    if (!placed->view) return TSR_E_NOMEM;
    *placed->view = (tsr_view){.file = build->file,
                               .byte_offset = byte_offset,
                               .strides = contiguous ? NULL : on->strides,
                               .conj = on->conj,
                               .neg = on->neg};
    out->view = placed->view;
    return TSR_OK;
}

static tsr_status check_span(tsr_torch_build *build, const storage_part *part, int64_t offset, tsr_torch_dense *dense,
                             uint64_t position, tsr_error *err)
{
    const tsr_entry *entry = &dense->entry;
    uint32_t item_size = tsr_dtype_size(entry->dtype);
    uint64_t elements, needed, start, end;
    bool sane = tsr_entry_elements(entry, &elements) &&
                span(entry->shape, dense->strides, entry->ndim, item_size, &needed) && offset >= 0 &&
                tsr_mul_u64((uint64_t)offset, item_size, &start) && tsr_add_u64(start, needed, &end);
    const tsr_torch_storage *storage = (const tsr_torch_storage *)build->storages.items + part->storage;
    TSR_FAIL_AT(!sane || (needed && end > part->byte_length), err, TSR_E_FORMAT, position,
                "torch: a tensor of %u dimensions at element %lld reaches beyond its storage '%.*s' (%llu bytes)",
                entry->ndim, (long long)offset, TSR_STR_ARG(storage->key), (unsigned long long)part->byte_length);
    dense->byte_offset = part->byte_offset + (needed ? start : 0);
    dense->storage = part->storage;
    dense->entry.storage_id = part->storage + 1;
    if (storage->meta) dense->entry.kind = TSR_ENTRY_OPAQUE;
    return TSR_OK;
}

static tsr_status add_only_chunk(tsr_torch_build *build, tsr_torch_dense *dense, tsr_error *err)
{
    if (dense->entry.kind != TSR_ENTRY_TENSOR) return TSR_OK;
    uint64_t *zeros = tsr_arena_array(build->arena, dense->entry.ndim, sizeof *zeros, err);
    tsr_chunk *chunk = TSR_ARENA_NEW(build->arena, tsr_chunk, err);
    if (!zeros || !chunk) return TSR_E_NOMEM;
    TSR_TRY(tsr_torch_chunk(build, dense, dense->byte_offset, (tsr_box){dense->entry.ndim, zeros, dense->entry.shape}, chunk,
                            err));
    dense->entry.chunks = chunk;
    dense->entry.chunk_count = 1;
    return TSR_OK;
}

tsr_status tsr_torch_rebuild(tsr_torch_build *build, uint32_t id, tsr_ref args, tsr_torch_dense **out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    uint64_t position = tsr_torch_position(build, args);
    tsr_torch_dense *dense = TSR_ARENA_NEW(build->arena, tsr_torch_dense, err);
    if (!dense) return TSR_E_NOMEM;
    bool v3 = id == TSR_TORCH_REBUILD_TENSOR_V3;
    TSR_FAIL_AT(tsr_pickle_count(pickle, args) < (v3 ? 7u : 4u), err, TSR_E_FORMAT, position,
                "torch: too few arguments to rebuild a tensor (%zu)", tsr_pickle_count(pickle, args));
    storage_part part;
    tsr_entry *entry = &dense->entry;
    TSR_TRY(read_storage(build, tsr_pickle_item(pickle, args, 0), position, &part, &entry->dtype, err));
    if (v3) entry->dtype = tsr_torch_dtype(pickle, tsr_pickle_item(pickle, args, 6));
    TSR_FAIL_AT(entry->dtype == TSR_DTYPE_NONE || tsr_dtype_size(entry->dtype) == 0, err, TSR_E_UNSUPPORTED, position,
                "torch: a tensor of an unknown dtype");
    uint32_t stride_count;
    tsr_ref offset = tsr_pickle_item(pickle, args, 1);
    TSR_FAIL_AT(tsr_pickle_kind_of(pickle, offset) == TSR_PICKLE_OBJECT, err, TSR_E_UNSUPPORTED, position,
                "torch: the offset of a tensor into its storage is not an int");
    TSR_TRY(tsr_torch_sizes(build, tsr_pickle_item(pickle, args, 2), &entry->shape, &entry->ndim, err));
    TSR_TRY(tsr_torch_sizes(build, tsr_pickle_item(pickle, args, 3), &dense->strides, &stride_count, err));
    if (stride_count == 0 && entry->ndim) {
        TSR_TRY(make_strides(build, dense, position, err));
        stride_count = entry->ndim;
    }
    TSR_FAIL_AT(stride_count != entry->ndim, err, TSR_E_FORMAT, position, "torch: %u strides for %u dimensions",
                stride_count, entry->ndim);
    if (id != TSR_TORCH_REBUILD_QUANTIZED) entry->requires_grad = tsr_pickle_bool(pickle, tsr_pickle_item(pickle, args, 4));
    tsr_ref metadata = tsr_pickle_item(pickle, args, v3 ? 7 : 6);
    if (id != TSR_TORCH_REBUILD_QUANTIZED && metadata != TSR_REF_NONE) {
        tsr_pickle_get(pickle, metadata, "conj", &dense->conj); /* the key counts, whatever its value */
        tsr_pickle_get(pickle, metadata, "neg", &dense->neg);
    }
    TSR_TRY(check_span(build, &part, tsr_pickle_int(pickle, offset), dense, position, err));
    *out = dense;
    return add_only_chunk(build, dense, err);
}

tsr_status tsr_torch_require_storage(tsr_torch_build *build, tsr_ref persistent, uint64_t position, tsr_error *err)
{
    storage_part part;
    tsr_dtype dtype;
    return read_storage(build, persistent, position, &part, &dtype, err);
}

tsr_status tsr_torch_bare_storage(tsr_torch_build *build, tsr_ref persistent, tsr_torch_dense **out, tsr_error *err)
{
    static const uint64_t one = 1;
    tsr_torch_dense *dense = TSR_ARENA_NEW(build->arena, tsr_torch_dense, err);
    uint64_t *size = TSR_ARENA_NEW(build->arena, uint64_t, err);
    if (!dense || !size) return TSR_E_NOMEM;
    storage_part part;
    TSR_TRY(read_storage(build, persistent, build->pickle_offset, &part, &dense->entry.dtype, err));
    *size = part.byte_length / tsr_dtype_size(dense->entry.dtype);
    dense->entry.shape = size;
    dense->entry.ndim = 1;
    dense->strides = &one;
    TSR_TRY(check_span(build, &part, 0, dense, build->pickle_offset, err));
    *out = dense;
    return add_only_chunk(build, dense, err);
}

static tsr_status need_view(const tsr_torch_build *build, placed_chunk *p, tsr_error *err)
{
    if (p->view) return TSR_OK;
    p->view = TSR_ARENA_NEW(build->arena, tsr_view, err);
    if (!p->view) return TSR_E_NOMEM;
    p->view->file = build->file;
    p->chunk->view = p->view;
    return TSR_OK;
}

tsr_status tsr_torch_place(tsr_torch_build *build, bool swap, tsr_error *err)
{
    const tsr_torch_storage *storages = build->storages.items;
    placed_chunk *placed = build->chunks.items;
    for (size_t i = 0; i < build->chunks.count; i++) {
        placed_chunk *p = &placed[i];
        if (storages[p->storage].lost && p->chunk->byte_length) {
            p->chunk->file = TSR_NO_FILE;
            p->chunk->view = NULL;
            continue;
        }
        p->chunk->byte_offset += storages[p->storage].byte_offset;
        bool swapped = swap && tsr_dtype_describe(p->dtype)->swap_bytes > 1;
        if (swapped || build->zstd) TSR_TRY(need_view(build, p, err));
        if (!p->view) continue;
        p->view->byte_offset = p->chunk->byte_offset;
        p->view->swap = swapped;
        if (!build->zstd) continue;
        p->view->zstd = true;
        p->chunk->byte_offset = p->view->stream_offset = build->zstd->byte_offset;
        p->chunk->byte_length = p->view->stream_length = build->zstd->byte_length;
    }
    return TSR_OK;
}

/* Names for the tensors inside an object: the path from the object's root, so that a message or a listing can point at one.
 * Each container is looked into once, however many hold it, and a name is only written where a tensor takes it. */

enum { LONGEST_NAME = 1024 }; /* deeper tensors are not named */

typedef struct level {
    const tsr_value *container;
    size_t next;
    size_t named; /* bytes of the name before this container's items */
} level;

typedef struct naming {
    tsr_map *seen;
    tsr_vec levels;
    tsr_vec name; /* char */
    tsr_arena *arena;
    tsr_error *err;
} naming;

static bool holds_more(const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_LIST:
    case TSR_VALUE_TUPLE:
    case TSR_VALUE_SET:
    case TSR_VALUE_DICT:
    case TSR_VALUE_OBJECT: return value->count > 0;
    default: return false;
    }
}

/* The text for the step to item `index`: a key, a position, or the name of an object's part. */
static tsr_str step_name(const tsr_value *in, size_t index, char digits[24])
{
    static const char *const parts[] = {"args", "state", "items", "dict"};
    if (in->kind == TSR_VALUE_DICT && in->items[index - 1]->kind == TSR_VALUE_STR) return in->items[index - 1]->text;
    if (in->kind == TSR_VALUE_OBJECT && index < sizeof parts / sizeof parts[0]) return tsr_str_from(parts[index]);
    size_t rest = in->kind == TSR_VALUE_DICT ? index / 2 : index, at = 24;
    do digits[--at] = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    return (tsr_str){digits + at, 24 - at};
}

/* Makes `name` the first `keep` bytes and one more step; false when that is too long. */
static tsr_status add_step(naming *n, size_t keep, tsr_str step, bool *fits)
{
    *fits = step.size <= LONGEST_NAME;
    n->name.count = keep;
    if (!*fits) return TSR_OK;
    TSR_TRY(tsr_vec_reserve(&n->name, step.size + 1, n->err));
    char *text = n->name.items;
    if (keep) text[n->name.count++] = '.';
    memcpy(text + n->name.count, step.data, step.size);
    n->name.count += step.size;
    return TSR_OK;
}

static tsr_status enter(naming *n, const tsr_value *container)
{
    bool fresh;
    const tsr_str key = {(const char *)&container->items, sizeof container->items};
    if (!holds_more(container) || n->name.count > LONGEST_NAME) return TSR_OK;
    TSR_TRY(tsr_map_put(n->seen, key, 1, NULL, &fresh, n->err));
    if (!fresh) return TSR_OK;
    level *pushed = tsr_vec_push(&n->levels, n->err);
    if (!pushed) return TSR_E_NOMEM;
    *pushed = (level){container, container->kind == TSR_VALUE_DICT ? 1 : 0, n->name.count};
    return TSR_OK;
}

static tsr_status visit(naming *n, const tsr_value *in, size_t index, size_t named)
{
    const tsr_value *item = in->items[index];
    char digits[24];
    bool fits;
    if (item->kind != TSR_VALUE_TENSOR && !holds_more(item)) return TSR_OK;
    if (in->kind == TSR_VALUE_OBJECT && in->count == 1 && item->kind == TSR_VALUE_DICT) {
        n->name.count = named; /* the dictionary of a tensor's parts adds no step of its own */
        return enter(n, item);
    }
    TSR_TRY(add_step(n, named, step_name(in, index, digits), &fits));
    if (!fits) return TSR_OK;
    if (item->kind != TSR_VALUE_TENSOR) return enter(n, item);
    tsr_entry *entry = (tsr_entry *)item->as.tensor; /* made by the reader of this very tree */
    if (entry->fqn.data) return TSR_OK;
    entry->fqn = tsr_arena_str(n->arena, (tsr_str){n->name.items, n->name.count}, n->err);
    return entry->fqn.data ? TSR_OK : TSR_E_NOMEM;
}

/* Gives the tensors inside an object their path in it as `fqn` ("0.weight", "indices"), where they have none
 * yet. `seen` keeps the containers looked into: one for all objects of a tree. Stops quietly where
 * names grow beyond a kilobyte. */
static tsr_status torch_name_inner(const tsr_value *object, const tsr_host *host, tsr_map *seen, tsr_arena *arena,
                                   tsr_error *err)
{
    naming n = {seen, tsr_vec_of(host->allocator, sizeof(level)), tsr_vec_of(host->allocator, 1), arena, err};
    tsr_status status = enter(&n, object);
    while (status == TSR_OK && n.levels.count) {
        level *top = (level *)n.levels.items + n.levels.count - 1;
        const level at = *top;
        top->next += at.container->kind == TSR_VALUE_DICT ? 2 : 1;
        if (at.next >= at.container->count) n.levels.count--;
        else status = visit(&n, at.container, at.next, at.named);
    }
    tsr_vec_free(&n.levels);
    tsr_vec_free(&n.name);
    return status;
}

/* ---- leaf ---- */

/* The kind, type and value of leaves of a state dict that are not dense tensors. */

/* numpy's _reconstruct and copyreg's _reconstructor make an object of the class that is their first argument; getattr may pick a
 * member of an enum. */
static tsr_str class_name(const tsr_value *object)
{
    const tsr_value *args = object->items[0];
    const tsr_str enum_class = tsr_enum_picked(object);
    if (enum_class.size) return enum_class;
    bool makes = tsr_str_ends(object->text, TSR_STR("._reconstruct")) ||
                 tsr_str_equal(object->text, TSR_STR("copyreg._reconstructor"));
    bool names = makes && args->kind == TSR_VALUE_TUPLE && args->count && args->items[0]->kind == TSR_VALUE_GLOBAL;
    return names ? args->items[0]->text : object->text;
}

/* The names that classes have now, where protocol 2 or a method of the class stands for them. */
static tsr_str present_name(tsr_str name)
{
    static const struct {
        const char *pickled, *name;
    } rows[] = {{TSR_TORCH_ZONE, "zoneinfo.ZoneInfo"},
                {"array._array_reconstructor", "array.array"},
                {"re._compile", "re.Pattern"},
                {"logging.getLogger", "logging.Logger"},
                {"UserDict.IterableUserDict", "collections.UserDict"},
                {"UserDict.UserDict", "collections.UserDict"},
                {"UserList.UserList", "collections.UserList"},
                {"UserString.UserString", "collections.UserString"}};
    const tsr_str exceptions = TSR_STR("exceptions.");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(rows[i].pickled))) return tsr_str_from(rows[i].name);
    if (!tsr_str_starts(name, exceptions)) return name;
    return tsr_str_after(name, exceptions.size); /* "ValueError", as for "int" */
}

static tsr_str type_name(const tsr_value *value)
{
    if (value->variant == TSR_VARIANT_FROZENSET) return TSR_STR("frozenset");
    if (value->variant == TSR_VARIANT_BYTEARRAY) return TSR_STR("bytearray");
    if (value->variant == TSR_VARIANT_SUBCLASS) return value->text;
    /* clang-format off */
    static const char *const names[] = {
        [TSR_VALUE_NONE] = "NoneType", [TSR_VALUE_BOOL] = "bool", [TSR_VALUE_INT] = "int", [TSR_VALUE_BIGINT] = "int",
        [TSR_VALUE_FLOAT] = "float", [TSR_VALUE_COMPLEX] = "complex", [TSR_VALUE_STR] = "str", [TSR_VALUE_BYTES] = "bytes",
        [TSR_VALUE_LIST] = "list", [TSR_VALUE_TUPLE] = "tuple", [TSR_VALUE_SET] = "set", [TSR_VALUE_DICT] = "dict",
        [TSR_VALUE_SIZE] = "torch.Size", [TSR_VALUE_DTYPE] = "torch.dtype", [TSR_VALUE_DEVICE] = "torch.device",
        [TSR_VALUE_TENSOR] = "torch.Tensor", [TSR_VALUE_GLOBAL] = "type"};
    /* clang-format on */
    return value->kind == TSR_VALUE_OBJECT ? present_name(class_name(value)) : tsr_str_from(names[value->kind]);
}

/* The dtype and shape of a quantized, sparse or other special tensor, from its named parts. */
static tsr_status describe_parts(const tsr_value *value, tsr_arena *arena, tsr_entry *entry, tsr_error *err)
{
    const tsr_value *parts = value->items[0];
    if (parts->kind != TSR_VALUE_DICT) return TSR_OK;
    const tsr_value *dtype = tsr_value_get(parts, TSR_STR("dtype")), *size = tsr_value_get(parts, TSR_STR("size"));
    const tsr_value *data = tsr_value_get(parts, TSR_STR("data")), *values = tsr_value_get(parts, TSR_STR("values"));
    if (!values || values->kind != TSR_VALUE_TENSOR) values = data;
    if (values && values->kind == TSR_VALUE_TENSOR) entry->dtype = values->as.tensor->dtype;
    if (dtype && dtype->kind == TSR_VALUE_DTYPE) entry->dtype = dtype->as.dtype;
    if (data && data->kind == TSR_VALUE_TENSOR) {
        entry->ndim = data->as.tensor->ndim;
        entry->shape = data->as.tensor->shape;
    }
    if (!size || (size->kind != TSR_VALUE_SIZE && size->kind != TSR_VALUE_TUPLE)) return TSR_OK;
    uint64_t *shape = tsr_arena_array(arena, size->count, sizeof *shape, err);
    if (!shape) return TSR_E_NOMEM;
    for (size_t i = 0; i < size->count; i++) {
        if (size->items[i]->kind != TSR_VALUE_INT || size->items[i]->as.integer < 0) return TSR_OK;
        shape[i] = (uint64_t)size->items[i]->as.integer;
    }
    entry->ndim = (uint32_t)size->count;
    entry->shape = shape;
    return TSR_OK;
}

/* States where the tensors are that a shard of a tensor subclass consists of: how many bytes, and where the first ones begin. */
static void place_shard(const tsr_value *shard, tsr_chunk *chunk)
{
    const tsr_value *state = tsr_value_get(shard->items[0], TSR_STR("state"));
    for (size_t i = 1; state && state->kind == TSR_VALUE_DICT && i < state->count; i += 2) {
        const tsr_value *part = state->items[i];
        if (part->kind != TSR_VALUE_TENSOR || part->as.tensor->chunk_count != 1) continue;
        const tsr_chunk *own = part->as.tensor->chunks;
        if (!chunk->byte_length || own->byte_offset < chunk->byte_offset) chunk->byte_offset = own->byte_offset;
        chunk->byte_length += own->byte_length;
    }
}

tsr_status tsr_torch_leaf(const tsr_value *value, const tsr_host *host, tsr_map *seen, tsr_arena *arena, tsr_entry *entry,
                          tsr_error *err)
{
    if (value->kind == TSR_VALUE_OBJECT && value->as.tensor) {
        *entry = *value->as.tensor;
        tsr_chunk *chunk = entry->chunk_count ? (tsr_chunk *)entry->chunks : NULL; /* made by the reader of this very tree */
        if (chunk && !chunk->byte_length) place_shard(entry->value->items[0], chunk);
        return torch_name_inner(entry->value, host, seen, arena, err);
    }
    const tsr_str enum_class = tsr_enum_named(value);
    bool named = value->kind == TSR_VALUE_GLOBAL && !tsr_str_starts(value->text, TSR_STR("torch."));
    bool member = enum_class.size || tsr_enum_value(value);
    entry->kind = !member && (value->kind == TSR_VALUE_OBJECT || named) ? TSR_ENTRY_OPAQUE : TSR_ENTRY_OBJECT;
    entry->value = value;
    entry->type = enum_class.size ? enum_class : type_name(value);
    if (value->kind == TSR_VALUE_OBJECT) TSR_TRY(describe_parts(value, arena, entry, err));
    return torch_name_inner(value, host, seen, arena, err);
}

/* ---- node ---- */

/* Parts and texts of single nodes of a torch.save pickle. */

enum { ATTRIBUTES_MAX = 4096 }; /* the objects that are searched have only a few attributes */

tsr_ref tsr_torch_attribute(const tsr_pickle *pickle, tsr_ref holder, const char *name)
{
    if (tsr_pickle_kind_of(pickle, holder) == TSR_PICKLE_OBJECT) holder = tsr_pickle_state(pickle, holder);
    bool pair = tsr_pickle_kind_of(pickle, holder) == TSR_PICKLE_TUPLE;
    tsr_ref dicts[] = {pair ? tsr_pickle_item(pickle, holder, 1) : holder,
                       pair ? tsr_pickle_item(pickle, holder, 0) : TSR_REF_NONE};
    for (size_t i = 0; i < 2; i++) {
        bool found;
        if (tsr_pickle_count(pickle, dicts[i]) > ATTRIBUTES_MAX) continue;
        tsr_ref value = tsr_pickle_get(pickle, dicts[i], name, &found);
        if (found) return value;
    }
    return TSR_REF_NONE;
}

/* Text that may outlive the pickle: text that the parser had to decode is copied. */
tsr_status tsr_torch_keep_text(tsr_torch_build *build, tsr_ref ref, tsr_str *out, tsr_error *err)
{
    tsr_str bytes = build->pickle_bytes, text = tsr_pickle_text(build->pickle, ref);
    uintptr_t from = (uintptr_t)bytes.data, at = (uintptr_t)text.data;
    *out = text;
    if (text.size == 0 || (at >= from && at < from + bytes.size)) return TSR_OK;
    *out = tsr_arena_str(build->arena, text, err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* "module.name" of a class, a function, or a node that stands for one. */
tsr_str tsr_torch_class_text(tsr_torch_build *build, tsr_ref ref, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_str attribute = {NULL, 0};
    if (tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_PERSISTENT)
        ref = tsr_pickle_item(pickle, tsr_pickle_persistent(pickle, ref), 1); /* ('module', class, file, source) */
    if (tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_OBJECT && tsr_pickle_class_id(pickle, ref) == TSR_TORCH_GETATTR) {
        attribute = tsr_pickle_text(pickle, tsr_torch_arg(pickle, ref, 1));
        ref = tsr_torch_arg(pickle, ref, 0);
    }
    if (tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_GLOBAL) return TSR_STR("(not a class)");
    return tsr_arena_format(build->arena, err, "%.*s.%.*s%s%.*s", TSR_STR_ARG(tsr_pickle_module(pickle, ref)),
                            TSR_STR_ARG(tsr_pickle_name_of(pickle, ref)), attribute.size ? "." : "", TSR_STR_ARG(attribute));
}
