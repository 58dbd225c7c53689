/* A signature is one word per argument: the letters of the types that it may be of (torch_fits.h), with '.' before the first
 * that may be absent, and '*' behind the last when there may be more of it. '/' separates alternatives. What is not known fits
 * everywhere. Beside the types:
 *
 *   A any  ! none  n a str that is a number  i a tuple or list of ints  g a str that names a device  m an int from 0 to 2
 *   c what can be iterated over  W what can be iterated over and gives ints  r what float() takes, but for str  x an int of
 *   Python's own  K an int that is not negative
 *
 * Source: torch/_utils.py, torch/_tensor.py of PyTorch 2.13, the constructors of CPython 3.11 and numpy 2. */
#include "formats/pickle/torch_fits.h"

#include "formats/pickle/torch_numpy.h"

/* ---- states ---- */

/* States that BUILD gives to objects of Python and PyTorch. Sources: Lib/uuid.py, torch/csrc/Generator.cpp,
 * torch/csrc/distributed/Placement.h, torch/distributed/device_mesh.py, torch/_utils.py (_set_obj_state) of PyTorch 2.13. */

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
static bool states_has_attributes(const tsr_pickle *pickle, tsr_ref state, const char *const *keys, const char *types)
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

/* False when an object of the listed class `name`, which has the number `id`, raises for the state. */
static bool torch_fits_state(const tsr_pickle *pickle, uint32_t id, tsr_str name, tsr_ref state)
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
    case TSR_TORCH_SHARD: return states_has_attributes(pickle, state, dim, "IBj");
    case TSR_TORCH_STRIDED_SHARD: return states_has_attributes(pickle, state, strided, "IBj");
    case TSR_TORCH_REPLICATE: return states_has_attributes(pickle, state, none, "");
    case TSR_TORCH_PARTIAL: return states_has_attributes(pickle, state, reduce, "S");
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

/* ---- signature ---- */

enum { MOST_DIMS = 64 };

static const struct {
    const char *name, *signature;
} signatures[] = {
    {"OrderedDict", ".c"},
    {"_rebuild_tensor_v2", "P I LT LTN B A .A"},
    {"_rebuild_parameter", "XN B A"},
    {"_rebuild_tensor", "P I LT LTN"},
    {"_rebuild_tensor_v3", "P I LT LTN B A tN .A"},
    {"_rebuild_parameter_with_state", "XN B A DNTO"},
    {"_rebuild_qtensor", "P I LT LT T B A"},
    {"_rebuild_sparse_tensor", "l LT"},
    {"_rebuild_nested_tensor", "X X X X"},
    {"_rebuild_meta_tensor_no_storage", "tN i i BN"},
    {"_rebuild_wrapper_subclass", "G t LT LT I l d B"},
    {"_rebuild_device_tensor_from_cpu_tensor", "X t Sd B"},
    {"_rebuild_device_tensor_from_numpy", "a t Sd B"},
    {"_rebuild_xla_tensor", "a t Sd B"},
    {"_rebuild_from_type", "f G T D"},
    {"_rebuild_from_type_v2", "f G T A"},
    {"_rebuild_njt", "D"},
    {"_reconstructor", "G G A"},
    {"Size", ".W"},
    {"device", "g .KN/Kd"},
    {"_get_layout", "S"},
    {"encode", "S .S .S"},
    {"_reconstruct", "G LTIjSYRUaX SYVGNLDT"},
    {"_mareconstruct", "G G LTIjSYRUaX SYVGNLDT"},
    {"MaskedConstant", ""},
    {"scalar", "V .A"},
    {"_frombuffer", "A SYV T S .A"},
    {"__bit_generator_ctor", ".SG"},
    {"__generator_ctor", ".b .A/S .f"},
    {"__randomstate_ctor", ".b .A/S .f"},
    {"__pyx_unpickle_SeedSequence", "G I TN"},
    {"dtype", "SYGVNLDTjeko .A .A .D"},
    {"object", ""},
    {"int", ".rSY .I"},
    {"float", ".rSY"},
    {"str", ".A/YX S .S"},
    {"bool", ".A"},
    {"complex", ".n/rC .rC"},
    {"list", ".c"},
    {"tuple", ".c"},
    {"set", ".c"},
    {"frozenset", ".c"},
    {"dict", ".c"},
    {"bytes", ".cIB/S S .S"},
    {"bytearray", ".cIB/S S .S"},
    {"slice", "A .A .A"},
    {"range", "IJB .IJB .IJB"},
    {"Counter", ".cN"},
    {"deque", ".c .IBN"},
    {"defaultdict", ".GfN .c"},
    {"date", "IB IB IB/YS"},
    {"datetime", "IB IB IB .IB .IB .IB .IB .zN/YS .zN"},
    {"time", ".IB .IB .IB .IB .zN/YS .zN"},
    {"timedelta", ".xF .xF .xF .xF .xF .xF .xF"},
    {"timezone", "w .S"},
    {"Decimal", ".SxF"},
    {"IPv4Address", "IB"},
    {"IPv6Address", "IJBSY"},
    {"IPv4Network", "IJBSY"},
    {"IPv6Network", "IJBSY"},
    {"IPv4Interface", "IJBSY"},
    {"IPv6Interface", "IJBSY"},
    {"count", ".IJBFCjekvaX .IJBFCjekvaX"},
    {"getLogger", ".SN"},
    {"Random", ".NIJFSY"},
    {"_compile", "SY I"},
    {"struct_time", "T .D"},
    {"_convert_to_stringdtype_kwargs", ".A .A"},
    {"Fraction", ".IJBFS .N/IJB IJB"},
    {"UUID", "S"},
    {"SimpleNamespace", ""},
    {"BytesIO", ".A"},
    {"StringIO", ".A .A"},
    {"array", "S .A"},
    {"_array_reconstructor", "G S I Y"},
    {"ZoneInfo", "S"},
    {"TorchVersion", ".A"},
    {"PCG64", ".NIJBLTajs"},
    {"PCG64DXSM", ".NIJBLTajs"},
    {"MT19937", ".NIJBLTajs"},
    {"Philox", ".NIJBLTajs"},
    {"SFC64", ".NIJBLTajs"},
    {"matrix", "LTRYaXrC .N"},
    {"recarray", "!"}, /* never called: _reconstruct makes them */
    {"record", "!"},
    {"MaskedArray", ".A*"},
    {"SeedSequence", ".NIJBLTaj .A*"},
    {"TensorMeta", "A A A"},
    {"ShardOrderEntry", "A A"},
    {"_MeshLayout", "A"},
    {"DTensorSpec", "A A .A .A .A"},
    {"Path", ".Sp*"},
    {"PosixPath", ".Sp*"},
    {"WindowsPath", ".Sp*"},
    {"PurePath", ".Sp*"},
    {"PurePosixPath", ".Sp*"},
    {"PureWindowsPath", ".Sp*"},
    {"Parameter", ".XN .A"},
    {"Buffer", ".XN .A"},
    {"Variable", ".XN .A .A"},
    {"UninitializedParameter", ".A"},
    {"UninitializedBuffer", ".A"},
    {"Generator", ".gd"},
    {"NestedTensor", "X X .A*"},
    {"DTensor", "X O B"},
    {"DeviceMesh", "Sd LTX"},
    {"Shard", "I"},
    {"Replicate", ""},
    {"ndarray", "LTI .SYVGNLDTjeko .A*"},
    {"MEM_FORMAT_ENCODING", "m"},
    {"_remote_device", "Sd"},
    {"_DimRange", "A A A"},
};

/* The same of the items of the tuple that is an argument: a quantizer, and the parts of a sparse tensor. */
static const struct {
    const char *name, *signature;
    size_t at;
} tuples[] = {
    {"_rebuild_qtensor", "t IBJFje I/t X X I", 4},
    {"_rebuild_sparse_tensor", "X X i .BN/X X X i", 1},
};

bool tsr_torch_is_device(const tsr_pickle *pickle, tsr_ref ref)
{
    static const char *const types[] = {"cuda",   "meta", "mps",           "xpu", "hpu",    "xla",  "npu", "mtia",
                                        "maia",   "ipu",  "privateuseone", "hip", "vulkan", "lazy", "ve",  "fpga",
                                        "mkldnn", "mlu",  "musa",          "gcu", "sdaa",   "rbln"};
    tsr_str text = tsr_pickle_text(pickle, ref);
    if (tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_STR) return false;
    if (tsr_str_equal(text, TSR_STR("cpu"))) return true;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        size_t size = strlen(types[i]);
        if (tsr_str_starts(text, tsr_str_from(types[i])) && (text.size == size || text.data[size] == ':')) return true;
    }
    return false;
}

static bool is_number(tsr_str text)
{
    bool digits = false;
    for (size_t i = 0; i < text.size; i++) {
        if (tsr_is_digit(text.data[i])) digits = true;
        else if (!text.data[i] || !strchr("+-._eEjinfaNIF ", text.data[i])) return false;
    }
    return digits;
}

static bool is_int(const tsr_pickle *pickle, tsr_ref ref, const char *types)
{
    return tsr_torch_is_one_of(pickle, ref, types) && tsr_torch_is_single(pickle, ref);
}

static bool is_ints(const tsr_pickle *pickle, tsr_ref ref)
{
    size_t count;
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, ref);
    const tsr_ref *items = tsr_pickle_items(pickle, ref, &count);
    if (kind == TSR_PICKLE_OBJECT) return strchr("TLRX", tsr_torch_type(pickle, ref)) != NULL;
    for (size_t i = 0; i < count; i++)
        if (!is_int(pickle, items[i], "IXjk")) return false;
    return kind == TSR_PICKLE_TUPLE || kind == TSR_PICKLE_LIST;
}

static bool gives_ints(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, ref);
    size_t count = tsr_pickle_count(pickle, ref);
    if (kind == TSR_PICKLE_STR) return tsr_pickle_text(pickle, ref).size == 0;
    for (size_t i = 0; i < count; i++) {
        tsr_ref item = kind == TSR_PICKLE_DICT ? tsr_pickle_key(pickle, ref, i) : tsr_pickle_item(pickle, ref, i);
        if (!is_int(pickle, item, "IBJXjk")) return false;
    }
    return strchr("YTLRXDEUa", tsr_torch_type(pickle, ref)) != NULL;
}

static bool is_letter(const tsr_pickle *pickle, tsr_ref ref, char letter)
{
    const char type = tsr_torch_type(pickle, ref);
    if (type == TSR_TYPE_UNKNOWN) return letter != '!';
    if (type == 'k') return strchr("AIJBFCSYnimr", letter) != NULL; /* which of them is not known here */
    if (type == 'j') return strchr("AIJKjnr", letter) != NULL;
    if (type == 'u') return strchr("AGft", letter) != NULL; /* a class, a function, or a dtype of a newer PyTorch */
    switch (letter) {
    case 'A': return true;
    case '!': return false;
    case 'c': return tsr_type_is_iterable(type);
    case 'n': return is_number(tsr_pickle_text(pickle, ref));
    case 'i': return is_ints(pickle, ref);
    case 'W': return gives_ints(pickle, ref);
    case 'r': return strchr("IJBFjevaX", type) != NULL && tsr_torch_is_single(pickle, ref);
    case 'x': return strchr("IJB", type) != NULL;
    case 'K': return tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_INT && tsr_pickle_int(pickle, ref) >= 0;
    case 'g': return tsr_torch_is_device(pickle, ref);
    case 'm':
        return tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_INT && tsr_pickle_int(pickle, ref) >= 0 &&
               tsr_pickle_int(pickle, ref) <= 2;
    default: return type == letter;
    }
}

/* The end of a word, and whether the argument is of one of its kinds. */
static const char *match_word(const tsr_pickle *pickle, tsr_ref ref, const char *word, bool *matches)
{
    *matches = false;
    for (; *word && *word != ' ' && *word != '/' && *word != '*'; word++) *matches |= is_letter(pickle, ref, *word);
    return word;
}

/* One alternative, which begins at `word`. */
static bool match(const tsr_pickle *pickle, const tsr_ref *args, size_t count, const char *word)
{
    bool optional = false, matches;
    size_t given = 0;
    while (*word && *word != '/') {
        if (*word == ' ') word++;
        optional |= *word == '.';
        if (*word == '.') word++;
        if (given == count) return optional;
        const char *end = match_word(pickle, args[given++], word, &matches);
        if (!matches) return false;
        if (*end != '*') word = end;
        else if (given == count) return true;
    }
    return given == count;
}

static bool match_any(const tsr_pickle *pickle, tsr_ref tuple, const char *signature)
{
    size_t count;
    const tsr_ref *items = tsr_pickle_items(pickle, tuple, &count);
    for (const char *at = signature; at; at = strchr(at, '/') ? strchr(at, '/') + 1 : NULL)
        if (match(pickle, items, count, at)) return true;
    return false;
}

/* The types that have a __dict__, or set what they are given as a state; O is what has none of the letters. */
static bool has_attributes(char type, uint32_t id)
{
    return strchr("OXMabkjeo?", type) || id == TSR_TORCH_ORDERED_DICT || id == TSR_TORCH_PLAIN_DICT;
}

/* Whether a class has a __setstate__, which fails for None; Python ignores None where there is none. */
static bool refuses_none(uint32_t id, tsr_str name, char type)
{
    static const char *const classes[] = {"UUID",      "Generator", "DeviceMesh", "MT19937",      "PCG64",
                                          "PCG64DXSM", "Philox",    "SFC64",      "SeedSequence", "Random"};
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(classes[i]))) return true;
    return strchr("aVbs", type) || (id >= TSR_TORCH_SHARD && id <= TSR_TORCH_PARTIAL);
}

bool tsr_torch_accepts_state(const tsr_pickle *pickle, tsr_ref object)
{
    const tsr_ref class_ = tsr_pickle_class(pickle, object), state = tsr_pickle_state(pickle, object);
    const tsr_str name = tsr_pickle_name_of(pickle, class_);
    const uint32_t id = tsr_pickle_id(pickle, class_);
    const char type = tsr_torch_type(pickle, object);
    if (!id || !tsr_pickle_has_state(pickle, object)) return true;
    if (state == TSR_REF_NONE && !refuses_none(id, name, type)) return true;
    if (tsr_str_equal(name, TSR_STR("scalar"))) return true; /* numpy ignores it */
    if (!has_attributes(type, id) && !strchr("Vbs", type)) return false;
    if (tsr_str_equal(name, TSR_STR("dict")) || tsr_str_equal(name, TSR_STR("object"))) return false;
    return torch_fits_state(pickle, id, name, state) && tsr_numpy_accepts_state(pickle, name, object);
}

/* A tensor that is quantized, or has no storage, has as many strides as sizes. */
static bool has_strides(const tsr_pickle *pickle, tsr_str name, tsr_ref args)
{
    const bool meta = tsr_str_equal(name, TSR_STR("_rebuild_meta_tensor_no_storage"));
    const size_t at = meta ? 1 : 2;
    size_t sizes, strides;
    tsr_ref size = tsr_pickle_item(pickle, args, at), stride = tsr_pickle_item(pickle, args, at + 1);
    const bool quantized = tsr_str_equal(name, TSR_STR("_rebuild_qtensor"));
    if (!meta && !quantized && !tsr_str_equal(name, TSR_STR("_rebuild_wrapper_subclass"))) return true;
    for (size_t i = 0; i < tsr_pickle_count(pickle, size); i++)
        if (tsr_pickle_int(pickle, tsr_pickle_item(pickle, size, i)) < 0) return false;
    return !tsr_torch_length(pickle, size, &sizes) || !tsr_torch_length(pickle, stride, &strides) || sizes == strides;
}

/* The sizes of a tensor that has a storage; -1 where they are not known. */
static int sizes_of(const tsr_pickle *pickle, tsr_ref tensor, int64_t *sizes)
{
    bool known = tsr_pickle_class_id(pickle, tensor) == TSR_TORCH_REBUILD_TENSOR;
    return known ? tsr_pickle_ints(pickle, tsr_pickle_item(pickle, tsr_pickle_args(pickle, tensor), 2), sizes, MOST_DIMS)
                 : -1;
}

/* (indices, values, size, …) of the layout torch.sparse_coo: a row of indices per sparse dimension, a value per column. */
static bool is_sparse(const tsr_pickle *pickle, tsr_ref parts)
{
    int64_t indices[MOST_DIMS], values[MOST_DIMS];
    size_t ndim;
    int rows = sizes_of(pickle, tsr_pickle_item(pickle, parts, 0), indices);
    int dims = sizes_of(pickle, tsr_pickle_item(pickle, parts, 1), values);
    if (rows < 0 || dims < 0) return true;
    if (rows != 2 || dims < 1 || indices[1] != values[0]) return false;
    return !tsr_torch_length(pickle, tsr_pickle_item(pickle, parts, 2), &ndim) || (int64_t)ndim == indices[0] + dims - 1;
}

static bool fits_sparse(const tsr_pickle *pickle, tsr_str name, tsr_ref args)
{
    tsr_ref layout = tsr_pickle_item(pickle, tsr_pickle_args(pickle, tsr_pickle_item(pickle, args, 0)), 0);
    tsr_ref parts = tsr_pickle_item(pickle, args, 1);
    if (!tsr_str_equal(name, TSR_STR("_rebuild_sparse_tensor"))) return true;
    return !tsr_str_equal(tsr_pickle_text(pickle, layout), TSR_STR("torch.sparse_coo")) || is_sparse(pickle, parts);
}

static bool accepts_tuple(const tsr_pickle *pickle, tsr_str name, tsr_ref args)
{
    for (size_t i = 0; i < sizeof tuples / sizeof tuples[0]; i++) {
        tsr_ref tuple = tsr_pickle_item(pickle, args, tuples[i].at);
        if (!tsr_str_equal(name, tsr_str_from(tuples[i].name)) || tsr_pickle_kind_of(pickle, tuple) == TSR_PICKLE_OBJECT)
            continue;
        return match_any(pickle, tuple, tuples[i].signature);
    }
    return true;
}

/* (the tuple, a dict) */
static bool is_return(const tsr_pickle *pickle, tsr_str name, tsr_ref args)
{
    tsr_ref items = tsr_pickle_item(pickle, args, 0);
    size_t length;
    return match_any(pickle, args, "c .D") &&
           (!tsr_torch_length(pickle, items, &length) || length == tsr_torch_return_size(name));
}

bool tsr_torch_accepts(const tsr_pickle *pickle, tsr_ref callee, tsr_ref args)
{
    tsr_str name = tsr_pickle_name_of(pickle, callee);
    size_t i = 0;
    const size_t rows = sizeof signatures / sizeof signatures[0];
    if (!tsr_pickle_id(pickle, callee)) return true;
    if (tsr_pickle_id(pickle, callee) == TSR_TORCH_RETURN_TYPE) return is_return(pickle, name, args);
    if (tsr_pickle_id(pickle, callee) == TSR_TORCH_TENSOR && tsr_str_ends(name, TSR_STR("Tensor")))
        return match_any(pickle, args, ".Ij IjB*/LTRXPaE");
    while (i < rows && !(signatures[i].name[0] == name.data[0] && tsr_str_equal(name, tsr_str_from(signatures[i].name))))
        i++;
    if (i == rows) return true;
    return match_any(pickle, args, signatures[i].signature) && accepts_tuple(pickle, name, args) &&
           has_strides(pickle, name, args) && fits_sparse(pickle, name, args) && tsr_torch_fits(pickle, name, args) &&
           tsr_numpy_fits(pickle, name, args);
}
