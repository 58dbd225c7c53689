/* What a call of a listed class or function makes. */
#include "formats/pickle/torch_type.h"

#include "formats/pickle/torch_numpy_elements.h"

/* By the name alone: the module has been compared when the GLOBAL got its id. */
/* clang-format off */
static const struct {
    const char *name;
    char type;
} made[] = {
    {"object", 'v'},       {"list", 'L'},         {"tuple", 'T'},       {"int", 'I'},        {"float", 'F'},
    {"str", 'S'},          {"bool", 'B'},         {"slice", 'H'},       {"range", 'R'},      {"deque", 'U'},
    {"date", 'q'},         {"datetime", 'Q'},     {"time", 'h'},        {"timedelta", 'w'},  {"timezone", 'z'},
    {"Path", 'p'},         {"PosixPath", 'p'},    {"PurePath", 'p'},    {"PurePosixPath", 'p'}, {"WindowsPath", 'p'},
    {"PureWindowsPath", 'p'}, {"ndarray", 'a'},   {"dtype", 'V'},       {"_reconstruct", 'a'}, {"_frombuffer", 'a'},
    {"_mareconstruct", 'a'}, {"MaskedConstant", 'a'}, {"__bit_generator_ctor", 'b'},
    {"__pyx_unpickle_SeedSequence", 's'},         {"UninitializedParameter", 'X'}, {"UninitializedBuffer", 'X'},
    {"NestedTensor", 'X'}, {"Decimal", 'v'},      {"Fraction", 'v'},      {"MEM_FORMAT_ENCODING", 'M'},
    {"IPv4Address", 'v'},  {"IPv6Address", 'v'},  {"count", 'v'},      {"_compile", 'v'},
    {"struct_time", 'T'},  {"_convert_to_stringdtype_kwargs", 'V'},
};
/* clang-format on */

static char type_by_name(tsr_str name)
{
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(made[i].name))) return made[i].type;
    return 'O';
}

static char type_of_object(const tsr_pickle *pickle, tsr_ref object)
{
    uint32_t id = tsr_pickle_class_id(pickle, object);
    switch (id) {
    case 0:
    case TSR_TORCH_RECONSTRUCTOR: return TSR_TYPE_UNKNOWN;
    case TSR_TORCH_GETATTR: return TSR_TYPE_UNKNOWN;
    case TSR_TORCH_ORDERED_DICT:
    case TSR_TORCH_PLAIN_DICT:
    case TSR_TORCH_DEFAULT_DICT: return 'D';
    case TSR_TORCH_SET: return 'E';
    case TSR_TORCH_COMPLEX: return 'C';
    case TSR_TORCH_BYTES:
    case TSR_TORCH_ENCODE: return 'Y';
    case TSR_TORCH_SIZE:
    case TSR_TORCH_RETURN_TYPE: return 'T';
    case TSR_TORCH_DEVICE: return 'd';
    case TSR_TORCH_LAYOUT: return 'l';
    case TSR_TORCH_ENUM: return 'M';
    case TSR_TORCH_LISTED:
    case TSR_TORCH_FUNCTION: {
        tsr_str name = tsr_pickle_name_of(pickle, tsr_pickle_class(pickle, object));
        bool scalar = tsr_str_equal(name, TSR_STR("scalar"));
        return scalar ? tsr_numpy_scalar_type(pickle, tsr_pickle_item(pickle, tsr_pickle_args(pickle, object), 0))
                      : type_by_name(name);
    }
    default: return id >= TSR_TORCH_TENSOR && id <= TSR_TORCH_SHARDED_TENSOR ? 'X' : 'O';
    }
}

bool tsr_torch_is_function(uint32_t id)
{
    return id == TSR_TORCH_GETATTR || id == TSR_TORCH_ENCODE || id == TSR_TORCH_LAYOUT || id == TSR_TORCH_RECONSTRUCTOR ||
           id == TSR_TORCH_FUNCTION || (id >= TSR_TORCH_REBUILD_TENSOR && id <= TSR_TORCH_REBUILD_FROM_TYPE);
}

static char type_of_global(const tsr_pickle *pickle, tsr_ref global)
{
    uint32_t id = tsr_pickle_id(pickle, global);
    if (tsr_torch_dtype(pickle, global) || id == TSR_TORCH_QSCHEME) return 't';
    bool untyped = tsr_str_equal(tsr_pickle_name_of(pickle, global), TSR_STR("UntypedStorage"));
    if (tsr_torch_storage_dtype(pickle, global)) return untyped ? 'G' : 'f'; /* torch.load makes a value of a typed one */
    if (!id) return 'u';
    return tsr_torch_is_function(id) ? 'f' : 'G';
}

char tsr_torch_type(const tsr_pickle *pickle, tsr_ref ref)
{
    static const char types[] = {
        [TSR_PICKLE_NONE] = 'N',  [TSR_PICKLE_BOOL] = 'B', [TSR_PICKLE_INT] = 'I',   [TSR_PICKLE_BIGINT] = 'J',
        [TSR_PICKLE_FLOAT] = 'F', [TSR_PICKLE_STR] = 'S',  [TSR_PICKLE_BYTES] = 'Y', [TSR_PICKLE_LIST] = 'L',
        [TSR_PICKLE_TUPLE] = 'T', [TSR_PICKLE_DICT] = 'D', [TSR_PICKLE_SET] = 'E',   [TSR_PICKLE_PERSISTENT] = 'P',
        [TSR_PICKLE_FOLDED] = '?'};
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, ref);
    if (kind == TSR_PICKLE_OBJECT) return type_of_object(pickle, ref);
    return kind == TSR_PICKLE_GLOBAL ? type_of_global(pickle, ref) : types[kind];
}

bool tsr_torch_is_one_of(const tsr_pickle *pickle, tsr_ref ref, const char *types)
{
    char type = tsr_torch_type(pickle, ref);
    return type == TSR_TYPE_UNKNOWN || strchr(types, type) != NULL;
}

bool tsr_torch_is_single(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_ref state = tsr_pickle_state(pickle, ref), args = tsr_pickle_args(pickle, ref);
    const char type = tsr_torch_type(pickle, ref);
    int64_t sizes[8];
    if (type == 'a') {
        tsr_ref shape = state ? tsr_pickle_item(pickle, state, 1) : tsr_pickle_item(pickle, args, 1);
        return tsr_pickle_kind_of(pickle, shape) != TSR_PICKLE_TUPLE || tsr_pickle_count(pickle, shape) == 0;
    }
    if (type != 'X' || tsr_pickle_class_id(pickle, ref) == TSR_TORCH_REBUILD_PARAMETER) return type != 'X';
    int ndim = tsr_pickle_ints(pickle, tsr_pickle_item(pickle, args, 2), sizes, 8);
    for (int i = 0; i < ndim; i++)
        if (sizes[i] != 1) return false;
    return true;
}

bool tsr_torch_length(const tsr_pickle *pickle, tsr_ref ref, size_t *length)
{
    const tsr_str text = tsr_pickle_text(pickle, ref);
    *length = tsr_pickle_count(pickle, ref);
    switch (tsr_pickle_kind_of(pickle, ref)) {
    case TSR_PICKLE_STR:
        for (size_t i = 0; i < text.size; i++) *length += (text.data[i] & 0xc0) != 0x80;
        return true;
    case TSR_PICKLE_BYTES: *length = text.size; return true;
    case TSR_PICKLE_LIST:
    case TSR_PICKLE_TUPLE: return true;
    case TSR_PICKLE_SET:
    case TSR_PICKLE_DICT: return *length < 2; /* of more, some may be equal */
    case TSR_PICKLE_OBJECT:
        if (tsr_pickle_class_id(pickle, ref) == TSR_TORCH_SIZE) {
            tsr_ref items = tsr_pickle_item(pickle, tsr_pickle_args(pickle, ref), 0);
            *length = tsr_pickle_count(pickle, items);
            return items == TSR_REF_NONE || tsr_pickle_kind_of(pickle, items) == TSR_PICKLE_TUPLE;
        }
        if (tsr_pickle_class_id(pickle, ref) == TSR_TORCH_ENCODE) {
            const tsr_ref args = tsr_pickle_args(pickle, ref);
            const tsr_str codec = tsr_pickle_text(pickle, tsr_pickle_item(pickle, args, 1));
            const tsr_str encoded = tsr_pickle_text(pickle, tsr_pickle_item(pickle, args, 0));
            *length = 0;
            for (size_t i = 0; i < encoded.size; i++) *length += (encoded.data[i] & 0xc0) != 0x80;
            return tsr_str_starts(codec, TSR_STR("lat")) || *length == encoded.size;
        }
        return strchr("LTDEU", tsr_torch_type(pickle, ref)) && tsr_pickle_count(pickle, tsr_pickle_args(pickle, ref)) == 0 &&
               !tsr_pickle_appended(pickle, ref) && !tsr_pickle_dict_items(pickle, ref);
    default: return false;
    }
}

bool tsr_torch_is_false(const tsr_pickle *pickle, tsr_ref ref)
{
    double number;
    size_t length;
    if (tsr_torch_number(pickle, ref, &number)) return number == 0;
    return ref == TSR_REF_NONE || (tsr_torch_length(pickle, ref, &length) && length == 0);
}

bool tsr_type_is_iterable(char type)
{
    return strchr("STYLDERUaX?", type) != NULL;
}

bool tsr_torch_is_hashable(const tsr_pickle *pickle, tsr_ref ref, unsigned depth, uint64_t *left)
{
    size_t count;
    if (tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_TUPLE) return tsr_pickle_is_hashable(pickle, ref);
    const tsr_ref *items = tsr_pickle_items(pickle, ref, &count);
    for (size_t i = 0; i < count && depth && *left; i++, --*left)
        if (!tsr_torch_is_hashable(pickle, items[i], depth - 1, left)) return false;
    return true;
}

bool tsr_torch_number(const tsr_pickle *pickle, tsr_ref ref, double *out)
{
    const tsr_str text = tsr_pickle_text(pickle, ref);
    switch (tsr_pickle_kind_of(pickle, ref)) {
    case TSR_PICKLE_BOOL:
    case TSR_PICKLE_INT: *out = (double)tsr_pickle_int(pickle, ref); return true;
    case TSR_PICKLE_FLOAT: *out = tsr_pickle_float(pickle, ref); return true;
    case TSR_PICKLE_BIGINT: break;
    default: return false;
    }
    *out = text.size && (signed char)text.data[text.size - 1] < 0 ? -1 : 0; /* two's complement, the lowest byte first */
    for (size_t i = text.size; i-- > 0;) *out = *out * 256 + (unsigned char)text.data[i];
    return true;
}
