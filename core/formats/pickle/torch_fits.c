/* Values that the constructors of Python's types accept. Source: CPython 3.11, Modules/_datetimemodule.c, Lib/fractions.py,
 * Lib/uuid.py, Modules/_decimal, Objects. */
#include "formats/pickle/torch_fits.h"

#include "formats/pickle/torch_numpy.h"

/* ---- type ---- */

/* What a call of a listed class or function makes. */

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

/* Whether Python can hash the value, as far as `depth` levels of tuples and `*left` items show: each item takes one off. */
static bool torch_is_hashable(const tsr_pickle *pickle, tsr_ref ref, unsigned depth, uint64_t *left)
{
    size_t count;
    if (tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_TUPLE) return tsr_pickle_is_hashable(pickle, ref);
    const tsr_ref *items = tsr_pickle_items(pickle, ref, &count);
    for (size_t i = 0; i < count && depth && *left; i++, --*left)
        if (!torch_is_hashable(pickle, items[i], depth - 1, left)) return false;
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

/* ---- fits ---- */

/* How far a tuple that is a dict key is checked for items that cannot be hashed. The limits keep the check fast: many
 * tuples may share the same items, and each of them is checked. */
enum { KEY_DEPTH = 8, KEY_ITEMS = 64 };

/* ---- numbers written as text ---- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
}

static tsr_str trim(tsr_str text)
{
    while (text.size && is_space(text.data[0])) text = tsr_str_after(text, 1);
    while (text.size && is_space(text.data[text.size - 1])) text.size--;
    return text;
}

static bool is_ascii(tsr_str text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.data[i] & 0x80) return false;
    return true;
}

static tsr_str without_sign(tsr_str text)
{
    bool sign = text.size && (text.data[0] == '+' || text.data[0] == '-');
    return sign ? tsr_str_after(text, 1) : text;
}

/* Skips digits that may have single underscores between them, and leaves `*at` after them. */
static bool skip_digits(tsr_str text, size_t *at)
{
    size_t from = *at;
    while (*at < text.size &&
           (tsr_is_digit(text.data[*at]) || (text.data[*at] == '_' && *at > from && *at + 1 < text.size &&
                                             tsr_is_digit(text.data[*at - 1]) && tsr_is_digit(text.data[*at + 1]))))
        ++*at;
    return *at > from;
}

bool tsr_torch_is_int_text(tsr_str text)
{
    size_t at = 0;
    if (!is_ascii(text)) return true; /* digits of other scripts */
    text = without_sign(trim(text));
    return skip_digits(text, &at) && at == text.size;
}

static bool is_word(tsr_str text, const char *lower)
{
    size_t i = 0;
    while (i < text.size && lower[i] && (text.data[i] | 0x20) == lower[i]) i++;
    return i == text.size && !lower[i];
}

static bool is_float_text(tsr_str text)
{
    size_t at = 0;
    if (!is_ascii(text)) return true;
    text = without_sign(trim(text));
    if (is_word(text, "inf") || is_word(text, "infinity") || is_word(text, "nan")) return true;
    bool digits = skip_digits(text, &at);
    if (at < text.size && text.data[at] == '.') {
        at++;
        digits |= skip_digits(text, &at);
    }
    if (!digits) return false;
    if (at == text.size || (text.data[at] | 0x20) != 'e') return at == text.size;
    at++;
    if (at < text.size && (text.data[at] == '+' || text.data[at] == '-')) at++;
    return skip_digits(text, &at) && at == text.size;
}

/* Texts that decimal.Decimal accepts but float does not: NaN followed by digits, and sNaN. */
static bool is_decimal_text(tsr_str text)
{
    tsr_str bare = without_sign(trim(text));
    if (bare.size && (bare.data[0] | 0x20) == 's') bare = tsr_str_after(bare, 1);
    bool nan = bare.size >= 3 && is_word((tsr_str){bare.data, 3}, "nan");
    for (size_t i = 3; nan && i < bare.size; i++) nan = tsr_is_digit(bare.data[i]);
    return nan || is_float_text(text);
}

/* ---- numbers ---- */

static bool is_at_least(const tsr_pickle *pickle, tsr_ref ref, double least)
{
    double value;
    return !tsr_torch_number(pickle, ref, &value) || value >= least;
}

static bool is_finite_number(const tsr_pickle *pickle, tsr_ref ref)
{
    double value;
    return tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_FLOAT || !tsr_torch_number(pickle, ref, &value) ||
           value - value == 0;
}

static bool fits_int(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_ref first = tsr_pickle_item(pickle, args, 0), base = tsr_pickle_item(pickle, args, 1);
    bool bytes = tsr_torch_type(pickle, first) == 'Y';
    first = tsr_numpy_text_of(pickle, first);
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, first);
    bool text = kind == TSR_PICKLE_STR || kind == TSR_PICKLE_BYTES;
    if (bytes && !is_ascii(tsr_pickle_text(pickle, first))) return false;
    if (tsr_pickle_count(pickle, args) < 2)
        return text ? tsr_torch_is_int_text(tsr_pickle_text(pickle, first)) : is_finite_number(pickle, first);
    int64_t value = tsr_pickle_int(pickle, base);
    if (!text || (value != 0 && (value < 2 || value > 36))) return kind == TSR_PICKLE_OBJECT;
    return value != 10 || tsr_torch_is_int_text(tsr_pickle_text(pickle, first));
}

static bool fits_float(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_ref first = tsr_pickle_item(pickle, args, 0);
    double value;
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, first);
    if (kind == TSR_PICKLE_BIGINT) return tsr_torch_number(pickle, first, &value) && value - value == 0;
    return (kind != TSR_PICKLE_STR && kind != TSR_PICKLE_BYTES) || is_float_text(tsr_pickle_text(pickle, first));
}

static bool fits_decimal(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_ref first = tsr_pickle_item(pickle, args, 0);
    return tsr_pickle_kind_of(pickle, first) != TSR_PICKLE_STR || is_decimal_text(tsr_pickle_text(pickle, first));
}

/* "numerator/denominator" or a decimal number. */
static bool is_fraction_text(tsr_str text)
{
    const char *slash = text.size ? memchr(text.data, '/', text.size) : NULL;
    if (!slash)
        return is_float_text(text) && !is_word(without_sign(trim(text)), "nan") && !is_word(without_sign(trim(text)), "inf");
    tsr_str below = trim((tsr_str){slash + 1, text.size - (size_t)(slash + 1 - text.data)});
    bool zero = true;
    for (size_t i = 0; i < below.size; i++) zero &= below.data[i] == '0';
    return tsr_torch_is_int_text((tsr_str){text.data, (size_t)(slash - text.data)}) && below.size &&
           tsr_is_digit(below.data[0]) && tsr_torch_is_int_text(below) && !zero;
}

static bool fits_fraction(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_ref above = tsr_pickle_item(pickle, args, 0), below = tsr_pickle_item(pickle, args, 1);
    double value;
    if (below == TSR_REF_NONE) {
        bool text = tsr_pickle_kind_of(pickle, above) == TSR_PICKLE_STR;
        return text ? is_fraction_text(tsr_pickle_text(pickle, above)) : is_finite_number(pickle, above);
    }
    return !tsr_torch_number(pickle, below, &value) || value != 0;
}

static bool fits_range(const tsr_pickle *pickle, tsr_ref args)
{
    double step;
    return tsr_pickle_count(pickle, args) < 3 || !tsr_torch_number(pickle, tsr_pickle_item(pickle, args, 2), &step) ||
           step != 0;
}

/* ---- containers ---- */

/* The items of a node, except for an OBJECT's. */
static const tsr_ref *items_of(const tsr_pickle *pickle, tsr_ref ref, size_t *count)
{
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, ref);
    *count = 0;
    return kind == TSR_PICKLE_LIST || kind == TSR_PICKLE_TUPLE || kind == TSR_PICKLE_SET
               ? tsr_pickle_items(pickle, ref, count)
               : NULL;
}

static bool is_key(const tsr_pickle *pickle, tsr_ref ref)
{
    uint64_t left = KEY_ITEMS;
    return torch_is_hashable(pickle, ref, KEY_DEPTH, &left);
}

static bool fits_hashables(const tsr_pickle *pickle, tsr_ref args)
{
    size_t count;
    const tsr_ref *items = items_of(pickle, tsr_pickle_item(pickle, args, 0), &count);
    for (size_t i = 0; i < count; i++)
        if (!is_key(pickle, items[i])) return false;
    return true;
}

static size_t characters(tsr_str text)
{
    size_t count = 0;
    for (size_t i = 0; i < text.size; i++) count += (text.data[i] & 0xc0) != 0x80;
    return count;
}

/* A pair whose first item can be a dict key. */
static bool is_pair(const tsr_pickle *pickle, tsr_ref ref)
{
    switch (tsr_pickle_kind_of(pickle, ref)) {
    case TSR_PICKLE_STR: return characters(tsr_pickle_text(pickle, ref)) == 2;
    case TSR_PICKLE_BYTES: return tsr_pickle_text(pickle, ref).size == 2;
    case TSR_PICKLE_DICT: return tsr_pickle_count(pickle, ref) == 2;
    case TSR_PICKLE_TUPLE:
    case TSR_PICKLE_LIST:
    case TSR_PICKLE_SET: return tsr_pickle_count(pickle, ref) == 2 && is_key(pickle, tsr_pickle_item(pickle, ref, 0));
    case TSR_PICKLE_OBJECT: return tsr_type_is_iterable(tsr_torch_type(pickle, ref));
    default: return false;
    }
}

/* Whether the items of an OBJECT can be pairs. The items of a range, a torch.Size or a 1-d array are numbers, so they
 * cannot. */
static bool may_give_pairs(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_ref shape = tsr_pickle_item(pickle, tsr_pickle_state(pickle, ref), 1);
    char type = tsr_torch_type(pickle, ref);
    if (tsr_pickle_class_id(pickle, ref) == TSR_TORCH_SIZE)
        return tsr_pickle_count(pickle, tsr_pickle_item(pickle, tsr_pickle_args(pickle, ref), 0)) == 0;
    if (type == 'a')
        return tsr_pickle_kind_of(pickle, shape) != TSR_PICKLE_TUPLE ||
               tsr_pickle_int(pickle, tsr_pickle_item(pickle, shape, 1)) == 2;
    return type != 'R' && (type != 'Y' || tsr_pickle_text(pickle, tsr_numpy_text_of(pickle, ref)).size == 0);
}

static bool are_pairs(const tsr_pickle *pickle, tsr_ref ref)
{
    size_t count;
    const tsr_ref *items = items_of(pickle, ref, &count);
    for (size_t i = 0; i < count; i++)
        if (!is_pair(pickle, items[i])) return false;
    if (tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_OBJECT && !may_give_pairs(pickle, ref)) return false;
    return tsr_pickle_text(pickle, ref).size == 0; /* the items of a str or bytes are not pairs */
}

static bool fits_dict(const tsr_pickle *pickle, tsr_ref args)
{
    return are_pairs(pickle, tsr_pickle_item(pickle, args, 0));
}

static bool fits_default_dict(const tsr_pickle *pickle, tsr_ref args)
{
    return are_pairs(pickle, tsr_pickle_item(pickle, args, 1));
}

static bool fits_deque(const tsr_pickle *pickle, tsr_ref args)
{
    return is_at_least(pickle, tsr_pickle_item(pickle, args, 1), 0);
}

/* ---- bytes ---- */

static bool is_codec(tsr_str name)
{
    static const char *const codecs[] = {"latin1", "latin-1", "latin_1", "iso-8859-1", "utf-8", "utf8", "utf_8", "ascii"};
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(codecs[i]))) return true;
    return false;
}

/* Whether a codec with one byte per character can encode every character of the text. */
static bool is_encodable(tsr_str text, tsr_str codec)
{
    bool latin = codec.size && (codec.data[0] == 'l' || codec.data[0] == 'i'), ascii = codec.size && codec.data[0] == 'a';
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if ((latin && c > 0xc3) || (ascii && c > 0x7f)) return false;
    }
    return true;
}

static bool is_byte(const tsr_pickle *pickle, tsr_ref ref)
{
    double value;
    if (tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_OBJECT) return strchr("IBj?Xa", tsr_torch_type(pickle, ref)) != NULL;
    return tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_FLOAT && tsr_torch_number(pickle, ref, &value) && value >= 0 &&
           value < 256;
}

/* bytes and bytearray: a size, text with a codec, or numbers. */
static bool fits_bytes(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_ref first = tsr_pickle_item(pickle, args, 0);
    tsr_str codec = tsr_pickle_text(pickle, tsr_pickle_item(pickle, args, 1));
    size_t count;
    if (tsr_pickle_kind_of(pickle, first) == TSR_PICKLE_STR)
        return is_codec(codec) && is_encodable(tsr_pickle_text(pickle, first), codec);
    const tsr_ref *items = items_of(pickle, first, &count);
    for (size_t i = 0; i < count; i++)
        if (!is_byte(pickle, items[i])) return false;
    for (size_t i = 0; tsr_pickle_kind_of(pickle, first) == TSR_PICKLE_DICT && i < tsr_pickle_count(pickle, first); i++)
        if (!is_byte(pickle, tsr_pickle_key(pickle, first, i))) return false;
    return is_at_least(pickle, first, 0);
}

bool tsr_torch_are_bytes(const tsr_pickle *pickle, tsr_ref list)
{
    size_t count;
    const tsr_ref *items = items_of(pickle, list, &count);
    for (size_t i = 0; i < count; i++)
        if (!is_byte(pickle, items[i])) return false;
    return true;
}

static bool fits_encode(const tsr_pickle *pickle, tsr_ref args)
{
    return is_encodable(tsr_pickle_text(pickle, tsr_pickle_item(pickle, args, 0)),
                        tsr_pickle_text(pickle, tsr_pickle_item(pickle, args, 1)));
}

/* ---- datetime ---- */

static bool are_within(const tsr_pickle *pickle, tsr_ref args, const int64_t (*bounds)[2], size_t count)
{
    for (size_t i = 0; i < count && i < tsr_pickle_count(pickle, args); i++) {
        double value;
        tsr_ref arg = tsr_pickle_item(pickle, args, i);
        if (tsr_torch_number(pickle, arg, &value) && (value < (double)bounds[i][0] || value > (double)bounds[i][1]))
            return false;
    }
    return true;
}

static const int64_t day_bounds[][2] = {{1, 9999}, {1, 12}, {1, 31}, {0, 23}, {0, 59}, {0, 59}, {0, 999999}};

/* Year, month and day, followed by `more` parts of the time (hour, minute, …). */
static bool is_day(const tsr_pickle *pickle, tsr_ref args, size_t more)
{
    static const int days[] = {0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (!are_within(pickle, args, day_bounds, 3 + more)) return false;
    int64_t year = tsr_pickle_int(pickle, tsr_pickle_item(pickle, args, 0)),
            month = tsr_pickle_int(pickle, tsr_pickle_item(pickle, args, 1));
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    bool known = month >= 1 && month <= 12; /* otherwise it is an object */
    return !known || tsr_pickle_int(pickle, tsr_pickle_item(pickle, args, 2)) <= days[month] + (leap && month == 2);
}

/* Byte `at` of the `size` bytes that a date or time is packed into, or -1. They may also be text with one code point up
 * to 255 per byte: up to protocol 2, bytes are such text, given to _codecs.encode. */
static int packed_byte(const tsr_pickle *pickle, tsr_ref ref, size_t size, size_t at)
{
    if (tsr_pickle_class_id(pickle, ref) == TSR_TORCH_ENCODE) {
        tsr_str codec = tsr_pickle_text(pickle, tsr_pickle_item(pickle, tsr_pickle_args(pickle, ref), 1));
        ref = tsr_pickle_item(pickle, tsr_pickle_args(pickle, ref), 0);
        if (!tsr_str_starts(codec, TSR_STR("lat")) && !is_ascii(tsr_pickle_text(pickle, ref))) return -1;
    }
    tsr_str text = tsr_pickle_text(pickle, ref);
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, ref);
    if (kind == TSR_PICKLE_BYTES) return text.size == size ? (unsigned char)text.data[at] : -1;
    if (kind != TSR_PICKLE_STR || characters(text) != size || !is_encodable(text, TSR_STR("latin1"))) return -1;
    for (size_t i = 0; i < text.size; i++) {
        if ((text.data[i] & 0xc0) == 0x80) continue;
        unsigned char c = (unsigned char)text.data[i];
        if (at-- == 0) return c < 0x80 ? c : (c << 6 & 0xc0) | ((unsigned char)text.data[i + 1] & 0x3f);
    }
    return -1;
}

/* Whether the first argument may be the packed form of the class, rather than a year or an hour. */
static bool is_packed(const tsr_pickle *pickle, tsr_ref args)
{
    return tsr_pickle_kind_of(pickle, tsr_pickle_item(pickle, args, 0)) != TSR_PICKLE_INT;
}

static bool is_object_arg(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_ref first = tsr_pickle_item(pickle, args, 0);
    tsr_str name = tsr_pickle_name_of(pickle, tsr_pickle_class(pickle, first));
    bool bytes = strchr("YSk?", tsr_torch_type(pickle, first)) && !tsr_str_equal(name, TSR_STR("bytearray"));
    return tsr_pickle_kind_of(pickle, first) == TSR_PICKLE_OBJECT && bytes &&
           tsr_pickle_class_id(pickle, first) != TSR_TORCH_ENCODE;
}

static bool fits_date(const tsr_pickle *pickle, tsr_ref args)
{
    if (tsr_pickle_count(pickle, args) == 3) return is_day(pickle, args, 0);
    int month = packed_byte(pickle, tsr_pickle_item(pickle, args, 0), 4, 2);
    return is_object_arg(pickle, args) || (month >= 1 && month <= 12);
}

static bool fits_datetime(const tsr_pickle *pickle, tsr_ref args)
{
    if (tsr_pickle_count(pickle, args) >= 3) return is_day(pickle, args, 4);
    int month = packed_byte(pickle, tsr_pickle_item(pickle, args, 0), 10, 2) & ~0x80;
    return is_object_arg(pickle, args) || (month >= 1 && month <= 12);
}

static bool fits_time(const tsr_pickle *pickle, tsr_ref args)
{
    bool none = tsr_pickle_count(pickle, args) == 0;
    bool numbers =
        none || tsr_pickle_kind_of(pickle, tsr_pickle_item(pickle, args, 0)) == TSR_PICKLE_BOOL || !is_packed(pickle, args);
    if (numbers) return are_within(pickle, args, day_bounds + 3, 4);
    int hour = packed_byte(pickle, tsr_pickle_item(pickle, args, 0), 6, 0);
    return is_object_arg(pickle, args) || (hour >= 0 && (hour & 0x7f) < 24);
}

/* The sum of timedelta's arguments in seconds; false when one of them is not a finite number. */
static bool seconds_of(const tsr_pickle *pickle, tsr_ref args, double *out)
{
    static const double units[] = {86400, 1, 1e-6, 1e-3, 60, 3600, 604800};
    *out = 0;
    for (size_t i = 0; i < tsr_pickle_count(pickle, args) && i < 7; i++) {
        double value;
        tsr_ref arg = tsr_pickle_item(pickle, args, i);
        if (tsr_torch_number(pickle, arg, &value)) *out += value * units[i];
    }
    return *out - *out == 0;
}

static bool fits_timedelta(const tsr_pickle *pickle, tsr_ref args)
{
    double seconds;
    return seconds_of(pickle, args, &seconds) && seconds >= -999999999.0 * 86400 && seconds < 1000000000.0 * 86400;
}

/* timezone(offset, name): the offset must be less than a day. */
static bool fits_timezone(const tsr_pickle *pickle, tsr_ref args)
{
    double seconds;
    tsr_ref offset = tsr_pickle_item(pickle, args, 0);
    if (tsr_torch_type(pickle, offset) != 'w') return true;
    return !seconds_of(pickle, tsr_pickle_args(pickle, offset), &seconds) || (seconds > -86400 && seconds < 86400);
}

/* ---- others ---- */

/* 32 hexadecimal digits, plus the characters that uuid.UUID removes from its argument. */
static bool fits_uuid(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_str text = tsr_pickle_text(pickle, tsr_pickle_item(pickle, args, 0));
    size_t digits = 0;
    if (tsr_str_starts(text, TSR_STR("urn:uuid:"))) text = tsr_str_after(text, 9);
    for (size_t i = 0; i < text.size; i++) {
        char c = text.data[i], lower = (char)(c | 0x20);
        if (!tsr_is_digit(c) && (lower < 'a' || lower > 'f') && !(c && strchr("{}-", c))) return false;
        digits += !strchr("{}-", c);
    }
    return digits == 32;
}

/* What an address or a network is made of: four decimal numbers, two or more colons, a number, or the bytes of one. */
static bool fits_address(const tsr_pickle *pickle, tsr_ref args)
{
    const tsr_ref arg = tsr_pickle_item(pickle, args, 0);
    const tsr_str text = tsr_pickle_text(pickle, arg);
    size_t dots = 0, colons = 0;
    double number;
    if (tsr_torch_number(pickle, arg, &number)) return number >= 0;
    if (tsr_pickle_kind_of(pickle, arg) == TSR_PICKLE_BYTES) return text.size == 4 || text.size == 16;
    if (tsr_pickle_kind_of(pickle, arg) != TSR_PICKLE_STR) return true;
    for (size_t i = 0; i < text.size; i++) {
        const char c = text.data[i], lower = (char)(c | 0x20);
        if (c == '%' && colons > 1) return true; /* the name of a scope follows */
        if (!tsr_is_digit(c) && (lower < 'a' || lower > 'f') && !(c && strchr(".:/", c))) return false;
        dots += c == '.';
        colons += c == ':';
    }
    return dots >= 3 || colons >= 2;
}

/* (pattern, flags): LOCALE is for bytes only, UNICODE for str only. */
static bool fits_pattern(const tsr_pickle *pickle, tsr_ref args)
{
    enum { LOCALE = 4, UNICODE = 32 };
    const tsr_ref flags = tsr_pickle_item(pickle, args, 1);
    const bool is_text = tsr_torch_type(pickle, tsr_pickle_item(pickle, args, 0)) == 'S';
    if (tsr_pickle_kind_of(pickle, flags) != TSR_PICKLE_INT) return true;
    const int64_t value = tsr_pickle_int(pickle, flags);
    return value >= INT32_MIN && value <= INT32_MAX && !(value & (is_text ? LOCALE : UNICODE));
}

static bool fits_time_tuple(const tsr_pickle *pickle, tsr_ref args)
{
    size_t length;
    return !tsr_torch_length(pickle, tsr_pickle_item(pickle, args, 0), &length) || (length >= 9 && length <= 11);
}

bool tsr_torch_fits(const tsr_pickle *pickle, tsr_str name, tsr_ref args)
{
    /* clang-format off */
    static const struct {
        const char *name;
        bool (*fits)(const tsr_pickle *pickle, tsr_ref args);
    } rows[] = {
        {"int", fits_int},           {"float", fits_float},      {"Decimal", fits_decimal},         {"Fraction", fits_fraction},
        {"range", fits_range},       {"set", fits_hashables},    {"frozenset", fits_hashables},     {"Counter", fits_hashables},
        {"OrderedDict", fits_dict},  {"dict", fits_dict},        {"defaultdict", fits_default_dict}, {"deque", fits_deque},
        {"bytes", fits_bytes},       {"bytearray", fits_bytes},  {"encode", fits_encode},           {"date", fits_date},
        {"datetime", fits_datetime}, {"time", fits_time},        {"timedelta", fits_timedelta},     {"timezone", fits_timezone},
        {"UUID", fits_uuid},         {"struct_time", fits_time_tuple}, {"_compile", fits_pattern},
        {"IPv4Network", fits_address}, {"IPv6Network", fits_address}, {"IPv4Interface", fits_address}, {"IPv6Interface", fits_address},
        {"IPv6Address", fits_address},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(rows[i].name))) return rows[i].fits(pickle, args);
    return true;
}
