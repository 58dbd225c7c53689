/* See dcp_state.h. */
#include "formats/dcp/dcp_state.h"

#include "formats/common/end_sum.h"
#include "formats/pickle/torch_names.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* ---- names ---- */

/* Open addressing with linear probing over name numbers; at most half of the slots are taken. */

#define MOST_NAMES (1u << 28)

tsr_dcp_names tsr_dcp_names_of(const tsr_allocator *allocator, uint64_t room)
{
    return (tsr_dcp_names){
        .list = tsr_vec_of(allocator, sizeof(tsr_dcp_name)), .slots = tsr_vec_of(allocator, sizeof(uint32_t)), .room = room};
}

void tsr_dcp_names_free(tsr_dcp_names *names)
{
    if (!names->list.allocator) return;
    tsr_vec_free(&names->list);
    tsr_vec_free(&names->slots);
    names->last = 0;
}

static tsr_status rehash(tsr_dcp_names *names, tsr_error *err)
{
    const tsr_dcp_name *list = names->list.items;
    size_t wanted = names->slots.count ? 2 * names->slots.count : 64;
    tsr_vec slots = tsr_vec_of(names->slots.allocator, sizeof(uint32_t));
    TSR_TRY(tsr_vec_reserve(&slots, wanted, err));
    uint32_t *table = slots.items;
    memset(table, 0, wanted * sizeof *table);
    slots.count = wanted;
    for (uint32_t i = 0; i < names->list.count; i++) {
        size_t slot = list[i].hash & (wanted - 1);
        while (table[slot]) slot = (slot + 1) & (wanted - 1);
        table[slot] = i + 1;
    }
    tsr_vec_free(&names->slots);
    names->slots = slots;
    return TSR_OK;
}

/* The texts are usually the same bytes of the input, fetched from the pickle's memo, so that comparing the pointers saves
 * comparing long names. */
static bool same_text(tsr_str a, tsr_str b)
{
    return a.size == b.size && (a.data == b.data || tsr_str_equal(a, b));
}

static tsr_status look_up(tsr_dcp_names *names, tsr_str text, uint32_t *number, tsr_error *err)
{
    if (2 * (names->list.count + 1) > names->slots.count) TSR_TRY(rehash(names, err));
    TSR_FAIL_IF(text.size > names->room, err, TSR_E_LIMIT,
                "dcp: long names are repeated so often that reading them would exceed the limit for shared parts");
    names->room -= text.size;
    const tsr_dcp_name *list = names->list.items;
    uint32_t *table = names->slots.items, hash = (uint32_t)tsr_hash_bytes(text.data, text.size, (uintptr_t)names);
    size_t mask = names->slots.count - 1, slot = hash & mask;
    for (; table[slot]; slot = (slot + 1) & mask) {
        *number = table[slot] - 1;
        if (list[*number].hash == hash && same_text(list[*number].text, text)) return TSR_OK;
    }
    TSR_FAIL_IF(names->list.count >= MOST_NAMES, err, TSR_E_LIMIT, "dcp: more than %u names", MOST_NAMES);
    tsr_dcp_name *added = tsr_vec_push(&names->list, err);
    if (!added) return TSR_E_NOMEM;
    *added = (tsr_dcp_name){text, 0, hash};
    *number = (uint32_t)names->list.count - 1;
    table[slot] = *number + 1;
    return TSR_OK;
}

tsr_status tsr_dcp_names_add(tsr_dcp_names *names, tsr_str text, uint32_t *number, tsr_error *err)
{
    tsr_dcp_name *list = names->list.items;
    if (names->list.count) {
        *number = list[names->last].follower;
        if (!same_text(list[*number].text, text)) TSR_TRY(look_up(names, text, number, err));
        list = names->list.items;
        list[names->last].follower = *number;
    } else {
        TSR_TRY(look_up(names, text, number, err));
    }
    names->last = *number;
    return TSR_OK;
}

enum { TSR_DCP_DIMS_CACHE = 1 << 15 };

/* Begins as zeros except for `dims`. The caches are bounded and forget older values. */
typedef struct tsr_dcp_dims_store {
    tsr_vec *dims;                      /* of a tsr_dcp_metadata; borrowed */
    uint32_t cache[TSR_DCP_DIMS_CACHE]; /* 1 + id */
    uint32_t before[2];                 /* 1 + id of the last dims, and of those before them */
} tsr_dcp_dims_store;

/* ---- dims ---- */

/* Stores sizes and offsets so that equal ones are mostly stored once. */

static bool same_dims(const tsr_vec *dims, uint32_t id, const int64_t *values, int ndim)
{
    const uint64_t *known = (const uint64_t *)dims->items + id;
    int same = (uint32_t)known[0] == (uint32_t)ndim ? 0 : -1;
    while (same >= 0 && same < ndim && known[1 + same] == (uint64_t)values[same]) same++;
    return same == ndim;
}

static tsr_status new_dims(tsr_dcp_dims_store *store, const int64_t *values, int ndim, uint64_t position, uint32_t *id,
                           tsr_error *err)
{
    tsr_vec *dims = store->dims;
    TSR_FAIL_AT(dims->count + TSR_DCP_MAX_NDIM + 1 >= TSR_DCP_DIMS_FLAG, err, TSR_E_LIMIT, position,
                "dcp: too many sizes and offsets (more than %u words)", TSR_DCP_DIMS_FLAG);
    TSR_TRY(tsr_vec_reserve(dims, (size_t)ndim + 1, err));
    uint64_t *words = (uint64_t *)dims->items + dims->count;
    words[0] = (uint64_t)ndim;
    memcpy(words + 1, values, (size_t)ndim * sizeof *values);
    *id = (uint32_t)dims->count;
    dims->count += (size_t)ndim + 1;
    return TSR_OK;
}

static tsr_status look_up_dims(tsr_dcp_dims_store *store, const int64_t *values, int ndim, uint64_t position, uint32_t *id,
                               tsr_error *err)
{
    uint64_t hash = (uint64_t)ndim;
    for (int i = 0; i < ndim; i++) {
        if (values[i] < 0)
            return tsr_raise(err, TSR_E_FORMAT, position, "dcp: sizes or offsets contain the negative value %lld",
                             (long long)values[i]);
        hash = (hash ^ (uint64_t)values[i]) * UINT64_C(0x9e3779b97f4a7c15) ^ hash >> 29;
    }
    uint32_t *slot = &store->cache[hash >> 40 & (TSR_DCP_DIMS_CACHE - 1)];
    *id = *slot - 1;
    if (*slot && same_dims(store->dims, *id, values, ndim)) return TSR_OK;
    TSR_TRY(new_dims(store, values, ndim, position, id, err));
    *slot = *id + 1;
    return TSR_OK;
}

/* Sets *id to the id of `ndim` values, which are stored if they are new. Errors, at `position` of the pickle: TSR_E_FORMAT for a
 * negative value, TSR_E_LIMIT for too many different ones.
 * Offsets and sizes alternate, and tensors often have the same ones as the tensor before. So the dims that followed the same
 * dims last time are tried before the cache. */
static tsr_status dcp_dims_add(tsr_dcp_dims_store *store, const int64_t *values, int ndim, uint64_t position, uint32_t *id,
                               tsr_error *err)
{
    tsr_vec *dims = store->dims;
    uint64_t *two_ago = store->before[1] ? (uint64_t *)dims->items + store->before[1] - 1 : NULL;
    uint32_t guess = two_ago ? tsr_dcp_high(*two_ago) : 0;
    if (guess && same_dims(dims, guess - 1, values, ndim)) {
        *id = guess - 1;
    } else {
        TSR_TRY(look_up_dims(store, values, ndim, position, id, err));
        two_ago = (uint64_t *)dims->items + store->before[1] - (store->before[1] != 0);
        if (store->before[1]) *two_ago = (uint32_t)*two_ago | (uint64_t)(*id + 1) << 32;
    }
    store->before[1] = store->before[0];
    store->before[0] = *id + 1;
    return TSR_OK;
}

/* ---- fold ---- */

enum class_id {
    ID_SIZE = 1,
    ID_CHUNK,
    ID_INDEX,
    ID_STORAGE,
    ID_TENSOR,
    ID_PROPERTIES,
    ID_BYTES,
    ID_MEMORY_FORMAT,
    ID_LAYOUT,
    ID_GETATTR,
    ID_ENUM,
    ID_FOLDED, /* the number of these */
    ID_METADATA = TSR_DCP_ID_METADATA,
    ID_LISTED = TSR_DCP_ID_LISTED
};

enum key {
    KEY_OTHER,
    KEY_OFFSETS,
    KEY_SIZES,
    KEY_FQN,
    KEY_OFFSET,
    KEY_INDEX,
    KEY_RELATIVE_PATH,
    KEY_LENGTH,
    KEY_TRANSFORMS,
    KEY_PROPERTIES,
    KEY_SIZE,
    KEY_CHUNKS
};

static const char *const key_names[] = {
    "",           "offsets", "sizes", "fqn", "offset", "index", "relative_path", "length", "transform_descriptors",
    "properties", "size",    "chunks"};

#define MADE  TSR_PICKLE_FOLD_MADE
#define BUILT TSR_PICKLE_FOLD_BUILT

/* These objects cannot be dict keys in Python. A MetadataIndex without a state cannot either: hashing it fails because it
 * has no attributes. The attributes of a plan include lists and chunks, which have no hash. */
#define UNHASHABLE TSR_PICKLE_UNHASHABLE
#define CLASSES(module, files) \
    {module, "ChunkStorageMetadata", ID_CHUNK | BUILT | UNHASHABLE}, \
        {module, "MetadataIndex", ID_INDEX | BUILT | UNHASHABLE}, \
        {module, "TensorStorageMetadata", ID_TENSOR | BUILT | UNHASHABLE}, \
        {module, "BytesStorageMetadata", ID_BYTES | MADE}, \
        {module, "TensorProperties", ID_PROPERTIES | BUILT | UNHASHABLE}, \
        {module, "_MEM_FORMAT_ENCODING", ID_MEMORY_FORMAT | MADE}, \
        {module, "MEM_FORMAT_ENCODING", ID_MEMORY_FORMAT | MADE}, {module, "Metadata", ID_METADATA | UNHASHABLE}, \
        {module, "StorageMeta", ID_LISTED | UNHASHABLE}, \
    { \
        files, "_StorageInfo", ID_STORAGE | BUILT | UNHASHABLE \
    }
#define PLANS(module) /* what Megatron adds: all_local_plans */ \
    {module, "SavePlan", ID_LISTED | UNHASHABLE}, {module, "WriteItem", ID_LISTED | UNHASHABLE}, \
    { \
        module, "TensorWriteData", ID_LISTED | UNHASHABLE \
    }
#define PATHS(module) \
    {module, "PosixPath", ID_LISTED}, {module, "WindowsPath", ID_LISTED}, {module, "PurePosixPath", ID_LISTED}, \
        {module, "PureWindowsPath", ID_LISTED}, \
    { \
        module, "Path", ID_LISTED \
    }

static const tsr_pickle_name names[] = {
    CLASSES("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"),
    CLASSES("torch.distributed._shard.checkpoint.metadata", "torch.distributed._shard.checkpoint.filesystem"),
    CLASSES("torch.distributed._shard.sharded_tensor.metadata", "torch.distributed._shard.checkpoint.filesystem"),
    {"olmo_core.distributed.checkpoint.filesystem", "_StorageInfo", ID_STORAGE | BUILT | UNHASHABLE},
    PATHS("pathlib"),
    PATHS("pathlib._local"),
    {"torch", "Size", ID_SIZE | MADE},
    {"torch.serialization", "_get_layout", ID_LAYOUT | MADE},
    {"builtins", "getattr", ID_GETATTR | MADE},
    {"collections", "OrderedDict", ID_LISTED | UNHASHABLE},
    PLANS("torch.distributed.checkpoint.planner"),
    PLANS("torch.distributed._shard.checkpoint.planner"),
    {"megatron.core.dist_checkpointing.strategies.torch", "MCoreSavePlan", ID_LISTED},
};

const tsr_pickle_name *tsr_dcp_listed(size_t *count)
{
    *count = sizeof names / sizeof *names;
    return names;
}

enum { KEY_CACHE = 8 };

/* An attribute name, as it was last seen at one position in the state of a class. Picklers write the same name as the same
 * ref each time, so comparing refs is usually enough. */
typedef struct known_key {
    tsr_ref ref;
    uint16_t key; /* an enum key */
    uint16_t bit; /* 1 << key */
} known_key;

/* State that only the parse needs. */
typedef struct decoder {
    tsr_dcp_metadata *metadata;
    uint64_t chunk_bound; /* limit on the chunks of all tensors together: each takes at least one byte of the file */
    uint64_t chunk_count;
    tsr_dcp_dims_store dims;
    known_key keys[ID_FOLDED][KEY_CACHE]; /* by class and position */
} decoder;

/* One object being folded. */
typedef struct item {
    decoder *decoder;
    const tsr_pickle *pickle;
    const tsr_pickle_parts *parts;
    tsr_error *err;
} item;

#define malformed(item_, ...) tsr_raise((item_)->err, TSR_E_FORMAT, (item_)->parts->position, __VA_ARGS__)

static tsr_status add_record(item *it, const uint64_t *words, size_t count, tsr_ref *out)
{
    tsr_vec *records = &it->decoder->metadata->records;
    TSR_FAIL_AT(records->count + count >= TSR_DCP_DIMS_FLAG, it->err, TSR_E_LIMIT, it->parts->position,
                "dcp: too many records (more than %u words)", TSR_DCP_DIMS_FLAG);
    TSR_TRY(tsr_vec_reserve(records, count, it->err));
    uint64_t *to = (uint64_t *)records->items + records->count;
    for (size_t i = 0; i < count; i++) to[i] = words[i];
    *out = tsr_pickle_folded((uint32_t)records->count);
    records->count += count;
    return TSR_OK;
}

const uint64_t *tsr_dcp_record(const tsr_dcp_metadata *metadata, tsr_ref ref, tsr_dcp_kind kind)
{
    if (tsr_pickle_kind_of(metadata->pickle, ref) != TSR_PICKLE_FOLDED) return NULL;
    uint32_t index = tsr_pickle_folded_index(ref);
    const uint64_t *record = (const uint64_t *)metadata->records.items + index;
    return !(index & TSR_DCP_DIMS_FLAG) && (*record & 15) == kind ? record : NULL;
}

static tsr_status add_dims(item *it, const int64_t *values, int ndim, uint32_t *id)
{
    return dcp_dims_add(&it->decoder->dims, values, ndim, it->parts->position, id, it->err);
}

/* The dims of a plain tuple or list. */
static tsr_status make_dims(item *it, tsr_ref tuple, uint32_t *id)
{
    int64_t values[TSR_DCP_MAX_NDIM];
    int ndim = tsr_pickle_ints(it->pickle, tuple, values, TSR_DCP_MAX_NDIM);
    if (ndim < 0) return malformed(it, "dcp: sizes or offsets are not a list of at most %d integers", TSR_DCP_MAX_NDIM);
    return add_dims(it, values, ndim, id);
}

/* The dims of an attribute, which is a folded torch.Size, or a plain tuple or list. */
static tsr_status take_dims(item *it, tsr_ref ref, uint32_t *id)
{
    if (tsr_pickle_kind_of(it->pickle, ref) != TSR_PICKLE_FOLDED) return make_dims(it, ref, id);
    uint32_t index = tsr_pickle_folded_index(ref);
    if (!(index & TSR_DCP_DIMS_FLAG)) return malformed(it, "dcp: expected sizes or offsets, found an object");
    *id = index & ~TSR_DCP_DIMS_FLAG;
    return TSR_OK;
}

static known_key know_key(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_str text = tsr_pickle_text(pickle, ref);
    for (int i = KEY_OTHER + 1; i <= KEY_CHUNKS; i++) {
        if (tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_STR && tsr_str_equal(text, tsr_str_from(key_names[i])))
            return (known_key){ref, (uint16_t)i, (uint16_t)(1u << i)};
    }
    return (known_key){ref, KEY_OTHER, 1u << KEY_OTHER};
}

static unsigned look_up_attributes(const item *it, known_key *known, tsr_ref *values)
{
    unsigned found = 0;
    for (size_t i = 0; i < it->parts->count / 2; i++) {
        known_key key = know_key(it->pickle, it->parts->items[2 * i]);
        if (i < KEY_CACHE) known[i] = key;
        values[key.key] = it->parts->items[2 * i + 1];
        found |= key.bit;
    }
    return found;
}

/* Stores attribute values by key, and sets *found to one bit per key that is present. The values of absent keys are not
 * set. */
static tsr_status take_attributes(item *it, const char *class_name, tsr_ref *values, unsigned *found)
{
    const tsr_pickle_parts *parts = it->parts;
    const tsr_ref *items = parts->items;
    known_key *known = it->decoder->keys[parts->class_id];
    size_t count = parts->count / 2;
    bool same = count <= KEY_CACHE;
    unsigned bits = 0;
    if (parts->kind != TSR_PICKLE_DICT) return malformed(it, "dcp: the state of a %s is not a dict", class_name);
    for (size_t i = 0; i < count && same; i++) same = known[i].ref == items[2 * i];
    if (!same) {
        *found = look_up_attributes(it, known, values);
        return TSR_OK;
    }
    for (size_t i = 0; i < count; i++) {
        values[known[i].key] = items[2 * i + 1];
        bits |= known[i].bit;
    }
    *found = bits;
    return TSR_OK;
}

static tsr_status need(item *it, const char *class_name, unsigned found, enum key key)
{
    if (found & 1u << key) return TSR_OK;
    return malformed(it, "dcp: a %s lacks '%s'", class_name, key_names[key]);
}

static tsr_status fold_chunk(item *it, tsr_ref *out)
{
    tsr_ref values[KEY_CHUNKS + 1];
    unsigned found;
    uint32_t offsets, sizes, offsets_ndim, sizes_ndim;
    TSR_TRY(take_attributes(it, "ChunkStorageMetadata", values, &found));
    TSR_TRY(need(it, "ChunkStorageMetadata", found, KEY_OFFSETS));
    TSR_TRY(need(it, "ChunkStorageMetadata", found, KEY_SIZES));
    TSR_TRY(take_dims(it, values[KEY_OFFSETS], &offsets));
    TSR_TRY(take_dims(it, values[KEY_SIZES], &sizes));
    tsr_dcp_dims(it->decoder->metadata, offsets, &offsets_ndim);
    tsr_dcp_dims(it->decoder->metadata, sizes, &sizes_ndim);
    if (offsets_ndim != sizes_ndim)
        return malformed(it, "dcp: a chunk has %u offsets but %u sizes", offsets_ndim, sizes_ndim);
    uint64_t word = TSR_DCP_CHUNK | (uint64_t)offsets << 4 | (uint64_t)sizes << 32;
    return add_record(it, &word, 1, out);
}

static tsr_status fold_index(item *it, tsr_ref *out)
{
    tsr_ref values[KEY_CHUNKS + 1] = {0};
    unsigned found;
    uint32_t offset = TSR_DCP_NO_DIMS, hint = UINT32_MAX;
    uint32_t fqn;
    TSR_TRY(take_attributes(it, "MetadataIndex", values, &found));
    if (tsr_pickle_kind_of(it->pickle, values[KEY_FQN]) != TSR_PICKLE_STR)
        return malformed(it, "dcp: a MetadataIndex lacks the string 'fqn'");
    TSR_TRY(tsr_dcp_names_add(&it->decoder->metadata->fqns, tsr_pickle_text(it->pickle, values[KEY_FQN]), &fqn, it->err));
    if (values[KEY_OFFSET]) TSR_TRY(take_dims(it, values[KEY_OFFSET], &offset));
    if (tsr_pickle_kind_of(it->pickle, values[KEY_INDEX]) == TSR_PICKLE_INT) {
        int64_t index = tsr_pickle_int(it->pickle, values[KEY_INDEX]);
        if (index >= 0 && index < UINT32_MAX) hint = (uint32_t)index;
    }
    uint64_t words[2] = {TSR_DCP_INDEX | (uint64_t)fqn << 32, hint | (uint64_t)offset << 32};
    return add_record(it, words, 2, out);
}

/* What the item went through. Anything but a single stream.zstd/1 can only be undone by the program that has the extension. */
static tsr_dcp_transform take_transforms(item *it, tsr_ref list)
{
    size_t count;
    const tsr_ref *items = tsr_pickle_items(it->pickle, list, &count);
    tsr_dcp_transform transform = TSR_DCP_PLAIN;
    for (size_t i = 0; i < count; i++) {
        const bool zstd = tsr_str_equal(tsr_pickle_text(it->pickle, items[i]), TSR_STR("stream.zstd/1"));
        transform = zstd && count == 1 ? TSR_DCP_ZSTD : TSR_DCP_EXTENDED;
        if ((!zstd || count > 1) && !it->decoder->metadata->extension) it->decoder->metadata->extension = items[i];
    }
    return transform;
}

static tsr_status fold_storage(item *it, tsr_ref *out)
{
    tsr_ref values[KEY_CHUNKS + 1] = {0};
    unsigned found;
    uint32_t path;
    TSR_TRY(take_attributes(it, "_StorageInfo", values, &found));
    if (tsr_pickle_kind_of(it->pickle, values[KEY_RELATIVE_PATH]) != TSR_PICKLE_STR) {
        return malformed(it, "dcp: a _StorageInfo lacks the string 'relative_path'");
    }
    if (tsr_pickle_kind_of(it->pickle, values[KEY_OFFSET]) != TSR_PICKLE_INT ||
        tsr_pickle_kind_of(it->pickle, values[KEY_LENGTH]) != TSR_PICKLE_INT) {
        return malformed(it, "dcp: 'offset' or 'length' of a _StorageInfo is not a 64-bit integer");
    }
    const tsr_dcp_transform transform = take_transforms(it, values[KEY_TRANSFORMS]);
    tsr_str text = tsr_pickle_text(it->pickle, values[KEY_RELATIVE_PATH]);
    TSR_TRY(tsr_dcp_names_add(&it->decoder->metadata->paths, text, &path, it->err));
    uint64_t words[3] = {TSR_DCP_STORAGE | (uint64_t)transform << 8 | (uint64_t)path << 32,
                         (uint64_t)tsr_pickle_int(it->pickle, values[KEY_OFFSET]),
                         (uint64_t)tsr_pickle_int(it->pickle, values[KEY_LENGTH])};
    return add_record(it, words, 3, out);
}

/* Finds where the CHUNK records of a list are stored one after the other, copying them there if they are not. */
static tsr_status gather_chunks(item *it, const tsr_ref *chunks, size_t count, uint64_t *first, tsr_error *err)
{
    tsr_dcp_metadata *metadata = it->decoder->metadata;
    bool consecutive = true;
    for (size_t i = 0; i < count; i++) {
        if (!tsr_dcp_record(metadata, chunks[i], TSR_DCP_CHUNK)) {
            return malformed(it, "dcp: item %zu of the chunks of a tensor is not a ChunkStorageMetadata", i);
        }
        consecutive &= tsr_pickle_folded_index(chunks[i]) == tsr_pickle_folded_index(chunks[0]) + i;
    }
    *first = count && consecutive ? tsr_pickle_folded_index(chunks[0]) : metadata->records.count;
    if (consecutive) return TSR_OK;
    TSR_TRY(tsr_vec_reserve(&metadata->records, count, err));
    for (size_t i = 0; i < count; i++) {
        ((uint64_t *)metadata->records.items)[metadata->records.count++] =
            *tsr_dcp_record(metadata, chunks[i], TSR_DCP_CHUNK);
    }
    return TSR_OK;
}

static tsr_status fold_tensor(item *it, tsr_ref *out)
{
    tsr_ref values[KEY_CHUNKS + 1] = {0};
    unsigned found;
    uint32_t size;
    size_t count;
    TSR_TRY(take_attributes(it, "TensorStorageMetadata", values, &found));
    for (int key = KEY_PROPERTIES; key <= KEY_CHUNKS; key++)
        TSR_TRY(need(it, "TensorStorageMetadata", found, (enum key)key));
    const uint64_t *properties = tsr_dcp_record(it->decoder->metadata, values[KEY_PROPERTIES], TSR_DCP_PROPERTIES);
    if (!properties) return malformed(it, "dcp: the 'properties' of a TensorStorageMetadata are not TensorProperties");
    uint64_t kept = *properties & 0xFFFF00; /* dtype and requires_grad, which a TENSOR has at the same bits */
    TSR_TRY(take_dims(it, values[KEY_SIZE], &size));
    const tsr_ref *chunks = tsr_pickle_items(it->pickle, values[KEY_CHUNKS], &count);
    it->decoder->chunk_count += count;
    TSR_FAIL_AT(it->decoder->chunk_count > it->decoder->chunk_bound, it->err, TSR_E_LIMIT, it->parts->position,
                "dcp: tensors share lists of chunks and have more chunks in total than the file has bytes");
    uint64_t words[3] = {TSR_DCP_TENSOR | kept | (uint64_t)size << 32, count};
    TSR_TRY(gather_chunks(it, chunks, count, &words[2], it->err));
    return add_record(it, words, 3, out);
}

/* Parses (dtype, layout, requires_grad, memory format, pin_memory), the state that TensorProperties.__getstate__ of PyTorch
 * 2.3 to 2.14 returns. PyTorch 2.15 adds the strides in memory, which do not affect the stored bytes; older versions reject
 * that tuple. */
static tsr_status fold_properties(item *it, tsr_ref *out)
{
    const tsr_pickle_parts *parts = it->parts;
    if (parts->kind != TSR_PICKLE_TUPLE || parts->count < 5)
        return malformed(it, "dcp: the state of TensorProperties is not a tuple of five items");
    tsr_str module = tsr_pickle_module(it->pickle, parts->items[0]), name = tsr_pickle_name_of(it->pickle, parts->items[0]);
    tsr_dtype dtype = tsr_str_equal(module, TSR_STR("torch")) ? tsr_dtype_from_name(name) : TSR_DTYPE_NONE;
    if (!dtype) return malformed(it, "dcp: '%.*s.%.*s' is not a known torch dtype", TSR_STR_ARG(module), TSR_STR_ARG(name));
    if (parts->count > 5) it->decoder->metadata->newer = parts->position;
    if (!tsr_dcp_record(it->decoder->metadata, parts->items[3], TSR_DCP_NOTE))
        it->decoder->metadata->unloadable = parts->position;
    uint64_t word = TSR_DCP_PROPERTIES | (uint64_t)dtype << 8 | (uint64_t)tsr_pickle_bool(it->pickle, parts->items[2]) << 16;
    return add_record(it, &word, 1, out);
}

static tsr_status fold_size(item *it, tsr_ref *out)
{
    uint32_t id;
    static const int64_t none[1];
    const tsr_pickle_parts *parts = it->parts;
    if (!parts->ints && parts->count)
        return malformed(it, "dcp: a torch.Size is not a list of at most %d integers", TSR_DCP_MAX_NDIM);
    TSR_TRY(add_dims(it, parts->ints ? parts->ints : none, (int)parts->int_count, &id));
    *out = tsr_pickle_folded(id | TSR_DCP_DIMS_FLAG);
    return TSR_OK;
}

static bool is_text_of(const item *it, tsr_ref ref, const char *const *texts, size_t count)
{
    tsr_str text = tsr_pickle_text(it->pickle, ref);
    for (size_t i = 0; i < count && tsr_pickle_kind_of(it->pickle, ref) == TSR_PICKLE_STR; i++)
        if (tsr_str_equal(text, tsr_str_from(texts[i]))) return true;
    return false;
}

/* torch.serialization._get_layout(name). */
static tsr_status fold_layout(item *it, tsr_ref *out)
{
    static const char *const layouts[] = {"torch.strided",    "torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc",
                                          "torch.sparse_bsr", "torch.sparse_bsc", "torch._mkldnn",    "torch.jagged"};
    uint64_t word = TSR_DCP_NOTE;
    const tsr_pickle_parts *parts = it->parts;
    bool known =
        !parts->ints && parts->count == 1 && is_text_of(it, parts->items[0], layouts, sizeof layouts / sizeof layouts[0]);
    if (!known) it->decoder->metadata->unloadable = parts->position;
    return add_record(it, &word, 1, out);
}

/* _MEM_FORMAT_ENCODING(0 … 2). */
static tsr_status fold_memory_format(item *it, tsr_ref *out)
{
    uint64_t word = TSR_DCP_NOTE;
    const tsr_pickle_parts *parts = it->parts;
    bool known = !parts->ints && parts->count == 1 && tsr_pickle_kind_of(it->pickle, parts->items[0]) == TSR_PICKLE_INT;
    int64_t value = known ? tsr_pickle_int(it->pickle, parts->items[0]) : -1;
    if (value < 0 || value > 2) it->decoder->metadata->unloadable = parts->position;
    return add_record(it, &word, 1, out);
}

/* A member of an enum, pickled as Class(value). */
static tsr_status fold_enum(item *it, tsr_ref *out)
{
    const uint64_t word = TSR_DCP_NOTE;
    const tsr_pickle_parts *parts = it->parts;
    const bool one = parts->count == 1 && !parts->ints;
    if (!one || !tsr_enum_is_plain(tsr_pickle_kind_of(it->pickle, parts->items[0])))
        it->decoder->metadata->odd_enum = parts->position;
    return add_record(it, &word, 1, out);
}

/* Python 3.11 writes an enum member as getattr(class, name). */
static tsr_status fold_getattr(item *it, tsr_ref *out)
{
    uint64_t word = TSR_DCP_NOTE;
    const tsr_pickle_parts *parts = it->parts;
    static const char *const members[] = {"TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST", "TORCH_PRESERVE_FORMAT"};
    bool member = !parts->ints && parts->count == 2 && tsr_pickle_id(it->pickle, parts->items[0]) == ID_MEMORY_FORMAT;
    bool listed = !parts->ints && parts->count == 2 && tsr_pickle_id(it->pickle, parts->items[0]) == ID_ENUM;
    if ((member && is_text_of(it, parts->items[1], members, sizeof members / sizeof members[0])) ||
        (listed && tsr_enum_is_member(it->pickle, parts->items[1])))
        return add_record(it, &word, 1, out);
    it->decoder->metadata->odd_getattr = parts->position;
    return TSR_OK;
}

/* Records calls that cannot produce an instance: functions have no instances, and the dataclasses cannot be called without
 * the fields that have no default, or with more arguments than fields. */
static void judge_made(item *it)
{
    const tsr_pickle_parts *parts = it->parts;
    const uint32_t id = parts->class_id;
    const bool called = parts->how == TSR_PICKLE_CALLED, function = id == ID_GETATTR || id == ID_LAYOUT;
    const bool fields = id == ID_CHUNK || id == ID_INDEX || id == ID_STORAGE || id == ID_TENSOR;
    const bool bare = id == ID_BYTES && !parts->built && (parts->ints || parts->count);
    if (called ? (fields && parts->made_of == 0) || bare : function) it->decoder->metadata->misused = parts->position;
}

static tsr_status fold(void *ctx, const tsr_pickle *pickle, const tsr_pickle_parts *parts, tsr_ref *out, tsr_error *err)
{
    item it = {ctx, pickle, parts, err};
    uint64_t bytes = TSR_DCP_BYTES;
    judge_made(&it);
    switch (parts->class_id) {
    case ID_SIZE: return fold_size(&it, out);
    case ID_CHUNK: return fold_chunk(&it, out);
    case ID_INDEX: return fold_index(&it, out);
    case ID_STORAGE: return fold_storage(&it, out);
    case ID_TENSOR: return fold_tensor(&it, out);
    case ID_PROPERTIES: return fold_properties(&it, out);
    case ID_BYTES: return add_record(&it, &bytes, 1, out);
    case ID_GETATTR: return fold_getattr(&it, out);
    case ID_LAYOUT: return fold_layout(&it, out);
    case ID_MEMORY_FORMAT: return fold_memory_format(&it, out);
    case ID_ENUM: return fold_enum(&it, out);
    default: return TSR_OK; /* only these classes are flagged to be folded */
    }
}

static uint32_t enum_id(tsr_str module, tsr_str name)
{
    return tsr_enum_is_listed(module, name) ? ID_ENUM | MADE : 0;
}

/* Whether Python can hash an object, as dict keys require. Sizes, indices and enum members can be hashed; the other classes
 * define equality and therefore no hash. */
static bool is_hashable(void *ctx, tsr_ref record)
{
    const tsr_dcp_metadata *metadata = ((decoder *)ctx)->metadata;
    if (tsr_pickle_folded_index(record) & TSR_DCP_DIMS_FLAG) return true;
    const uint64_t kind = ((const uint64_t *)metadata->records.items)[tsr_pickle_folded_index(record)] & 15;
    return kind == TSR_DCP_INDEX || kind == TSR_DCP_NOTE;
}

static void restart(void *ctx)
{
    decoder *f = ctx;
    f->metadata->dims.count = f->metadata->records.count = 0;
    tsr_dcp_names_free(&f->metadata->fqns);
    tsr_dcp_names_free(&f->metadata->paths);
    f->metadata->odd_getattr = f->metadata->unloadable = f->metadata->misused = f->metadata->newer = TSR_NO_POSITION;
    f->metadata->extension = TSR_REF_NONE;
    f->chunk_count = 0;
    memset(f->dims.cache, 0, sizeof f->dims.cache);
    memset(f->dims.before, 0, sizeof f->dims.before);
    memset(f->keys, 0, sizeof f->keys);
}

tsr_status tsr_dcp_fold(tsr_str bytes, const tsr_host *host, tsr_dcp_metadata *out, tsr_error *err)
{
    decoder *f = tsr_alloc(host->allocator, 1, sizeof *f, err);
    if (!f) return TSR_E_NOMEM;
    memset(f, 0, sizeof *f);
    f->metadata = out;
    f->chunk_bound = bytes.size;
    f->dims.dims = &out->dims;
    tsr_pickle_sink sink = {.names = names,
                            .count = sizeof names / sizeof *names,
                            .other = enum_id,
                            .fold = fold,
                            .restart = restart,
                            .is_hashable = is_hashable,
                            .ctx = f};
    const tsr_status status = tsr_pickle_parse(bytes, host, &sink, &out->pickle, &out->pickle_end, err);
    if (status == TSR_OK) out->has_end_sum = tsr_end_sum_is(tsr_str_after(bytes, (size_t)out->pickle_end));
    tsr_free(host->allocator, f, 1, sizeof *f);
    if (status != TSR_OK) return status;
    /* Python's unpickler allocates memory for all slots up to the highest. */
    enum { HARMLESS_SLOTS = 1 << 16 };
    const uint64_t highest = tsr_pickle_highest_far(out->pickle);
    TSR_FAIL_IF(highest > bytes.size && highest > HARMLESS_SLOTS, err, TSR_E_LIMIT,
                "dcp: the pickle has %zu bytes, but a memo slot with the number %llu", bytes.size,
                (unsigned long long)highest);
    return TSR_OK;
}
