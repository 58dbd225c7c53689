/* States that BUILD gives to objects of Python and PyTorch. Sources: Lib/uuid.py, torch/csrc/Generator.cpp,
 * torch/csrc/distributed/Placement.h, torch/distributed/device_mesh.py, torch/_utils.py (_set_obj_state) of PyTorch 2.13. */
#include "formats/pickle/torch_states.h"

#include "formats/pickle/torch_type.h"

enum { MOST_KEYS = 64 /* keys of a state that are checked; many tensors may share one dict of attributes */ };

static bool is_uuid_state(const tsr_pickle *pickle, tsr_ref state)
{
    bool found, told;
    if (tsr_pickle_kind_of(pickle, state) == TSR_PICKLE_OBJECT)
        return tsr_torch_is_one_of(pickle, state, "D") && !tsr_torch_is_false(pickle, state);
    tsr_pickle_get(pickle, state, "int", &found);
    tsr_ref safe = tsr_pickle_get(pickle, state, "is_safe", &told);
    int64_t value = tsr_pickle_int(pickle, safe);
    bool known = safe == TSR_REF_NONE || (strchr("IB", tsr_torch_type(pickle, safe)) && (value == 0 || value == -1));
    return found && (!told || known || tsr_torch_type(pickle, safe) == TSR_TYPE_UNKNOWN);
}

/* A uint8 tensor of `count` elements. A tensor whose size and dtype are not known counts as one. */
static bool is_byte_tensor(const tsr_pickle *pickle, tsr_ref tensor, int64_t count)
{
    int64_t sizes[8], product = 1;
    tsr_ref args = tsr_pickle_args(pickle, tensor),
            storage = tsr_pickle_persistent(pickle, tsr_pickle_item(pickle, args, 0));
    uint32_t id = tsr_pickle_class_id(pickle, tensor);
    if (id != TSR_TORCH_REBUILD_TENSOR && id != TSR_TORCH_REBUILD_TENSOR_V3) return tsr_torch_is_one_of(pickle, tensor, "X");
    tsr_dtype dtype = id == TSR_TORCH_REBUILD_TENSOR_V3
                          ? tsr_torch_dtype(pickle, tsr_pickle_item(pickle, args, 6))
                          : tsr_torch_storage_dtype(pickle, tsr_pickle_item(pickle, storage, 1));
    int ndim = tsr_pickle_ints(pickle, tsr_pickle_item(pickle, args, 2), sizes, 8);
    for (int i = 0; i < ndim && product <= count; i++)
        product = sizes[i] >= 0 && sizes[i] <= count ? product * sizes[i] : count + 1;
    return (ndim < 0 || product == count) && dtype == TSR_UINT8;
}

/* (seed, None, 5056 bytes): a generator of the CPU has no offset, and one of another device is not made without that device. */
static bool is_generator_state(const tsr_pickle *pickle, tsr_ref state)
{
    enum { STATE_BYTES = 5056 };
    double seed;
    tsr_ref first = tsr_pickle_item(pickle, state, 0);
    if (tsr_pickle_count(pickle, state) != 3 || !tsr_torch_is_one_of(pickle, first, "IJ")) return false;
    if (tsr_torch_number(pickle, first, &seed) && (seed < -0x1p63 || seed >= 0x1p64)) return false;
    return tsr_torch_is_one_of(pickle, tsr_pickle_item(pickle, state, 1), "N") &&
           is_byte_tensor(pickle, tsr_pickle_item(pickle, state, 2), STATE_BYTES);
}

/* (version, 625 ints, what gauss() kept) */
static bool is_random_state(const tsr_pickle *pickle, tsr_ref state)
{
    enum { STATE_INTS = 625 };
    const tsr_ref version = tsr_pickle_item(pickle, state, 0), ints = tsr_pickle_item(pickle, state, 1);
    size_t count;
    if (tsr_pickle_count(pickle, state) != 3 || !tsr_torch_is_one_of(pickle, ints, "T")) return false;
    if (tsr_torch_length(pickle, ints, &count) && count != STATE_INTS) return false;
    for (size_t i = 0; tsr_pickle_kind_of(pickle, ints) == TSR_PICKLE_TUPLE && i < STATE_INTS; i++)
        if (!tsr_torch_is_one_of(pickle, tsr_pickle_item(pickle, ints, i), "IB")) return false;
    return tsr_torch_is_one_of(pickle, version, "I") &&
           (tsr_pickle_kind_of(pickle, version) != TSR_PICKLE_INT || tsr_pickle_int(pickle, version) == 2 ||
            tsr_pickle_int(pickle, version) == 3);
}

/* (function, arguments, keywords, attributes) */
static bool is_partial_state(const tsr_pickle *pickle, tsr_ref state)
{
    static const char *const types[] = {"Gfu", "T", "DN"}; /* the attributes may be anything */
    for (size_t i = 0; i < 3; i++)
        if (!tsr_torch_is_one_of(pickle, tsr_pickle_item(pickle, state, i), types[i])) return false;
    return tsr_torch_is_one_of(pickle, state, "T") && tsr_pickle_count(pickle, state) == 4;
}

/* A dict in which each of the keys has a value of one of the types. */
static bool has_attributes(const tsr_pickle *pickle, tsr_ref state, const char *const *keys, const char *types)
{
    if (tsr_pickle_kind_of(pickle, state) != TSR_PICKLE_DICT) return tsr_torch_is_one_of(pickle, state, "");
    for (; *keys; keys++) {
        bool found;
        tsr_ref value = tsr_pickle_get(pickle, state, *keys, &found);
        if (!found || !tsr_torch_is_one_of(pickle, value, types)) return false;
    }
    return true;
}

/* Whether objects without a __setstate__ accept the state: None, a dict, or a tuple of two, each a dict or None. */
static bool is_plain_state(const tsr_pickle *pickle, tsr_ref state)
{
    char type = tsr_torch_type(pickle, state);
    if (state == TSR_REF_NONE) return true;
    if (type != 'T' || tsr_pickle_kind_of(pickle, state) != TSR_PICKLE_TUPLE) return type == 'D' || type == TSR_TYPE_UNKNOWN;
    return tsr_pickle_count(pickle, state) == 2 && tsr_torch_is_one_of(pickle, tsr_pickle_item(pickle, state, 0), "DN") &&
           tsr_torch_is_one_of(pickle, tsr_pickle_item(pickle, state, 1), "DN");
}

/* Whether bool(value) is False. Only the size of text is looked at, because many values may share one text. */
static bool is_absent(const tsr_pickle *pickle, tsr_ref ref)
{
    if (tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_STR) return tsr_pickle_text(pickle, ref).size == 0;
    return tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_OBJECT && tsr_torch_is_false(pickle, ref);
}

/* A dict with str keys, or a value that is false, which PyTorch takes for no attributes. */
static bool are_attributes(const tsr_pickle *pickle, tsr_ref dict)
{
    if (tsr_pickle_kind_of(pickle, dict) != TSR_PICKLE_DICT)
        return is_absent(pickle, dict) || tsr_torch_is_one_of(pickle, dict, "D");
    for (size_t i = 0; i < tsr_pickle_count(pickle, dict) && i < MOST_KEYS; i++)
        if (!tsr_torch_is_one_of(pickle, tsr_pickle_key(pickle, dict, i), "S")) return false;
    return true;
}

bool tsr_torch_are_attributes(const tsr_pickle *pickle, tsr_ref state)
{
    if (tsr_pickle_kind_of(pickle, state) != TSR_PICKLE_TUPLE) return are_attributes(pickle, state);
    return tsr_pickle_count(pickle, state) == 2 && are_attributes(pickle, tsr_pickle_item(pickle, state, 0)) &&
           are_attributes(pickle, tsr_pickle_item(pickle, state, 1));
}

bool tsr_torch_fits_state(const tsr_pickle *pickle, uint32_t id, tsr_str name, tsr_ref state)
{
    /* clang-format off */
    static const char *const plain[] = {"DTensorSpec", "_MeshLayout", "_FlatLayout", "ShardedTensorMetadata", "ShardMetadata",
                                        "ChunkShardingSpec", "EnumerableShardingSpec", "_remote_device", "SimpleNamespace", "Counter",
                                        "IPv4Network", "IPv6Network", "IPv4Interface", "IPv6Interface", "getLogger"};
    /* clang-format on */
    static const char *const dim[] = {"dim", NULL}, *const strided[] = {"dim", "split_factor", NULL}, *const none[] = {NULL},
                             *const reduce[] = {"reduce_op", NULL};
    if (tsr_torch_type(pickle, state) == TSR_TYPE_UNKNOWN) return true;
    switch (id) {
    case TSR_TORCH_ORDERED_DICT: return is_plain_state(pickle, state);
    case TSR_TORCH_SHARD: return has_attributes(pickle, state, dim, "IBj");
    case TSR_TORCH_STRIDED_SHARD: return has_attributes(pickle, state, strided, "IBj");
    case TSR_TORCH_REPLICATE: return has_attributes(pickle, state, none, "");
    case TSR_TORCH_PARTIAL: return has_attributes(pickle, state, reduce, "S");
    default: break;
    }
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(plain[i]))) return is_plain_state(pickle, state);
    if (tsr_str_equal(name, TSR_STR("DeviceMesh"))) return tsr_torch_is_one_of(pickle, state, "D");
    if (tsr_str_equal(name, TSR_STR("UUID"))) return is_uuid_state(pickle, state);
    if (id == TSR_TORCH_PARTIAL_CALL) return is_partial_state(pickle, state);
    if (tsr_str_equal(name, TSR_STR("Random"))) return is_random_state(pickle, state);
    return !tsr_str_equal(name, TSR_STR("Generator")) || is_generator_state(pickle, state);
}
