/* Source: numpy 2.4, numpy/_core/src/multiarray/descriptor.c (_convert_from_str), numpy/_core/_type_aliases.py, and
 * numpy/_core/_internal.py (_commastring). */
#include "formats/pickle/torch_numpy.h"

#include "formats/pickle/torch_names.h"

enum { LONGEST = 4096 /* bytes of text that are parsed; many dtypes may share one text, and each parses it again */ };

typedef struct named {
    const char *name, *type;
} named;

/* Single letters first, then names, each with its meaning on 64-bit systems, where checkpoints come from. */
/* clang-format off */
static const named aliases[] = {
    {"?", "b1"},   {"b", "i1"},   {"B", "u1"},  {"h", "i2"},  {"H", "u2"},  {"i", "i4"},  {"I", "u4"},  {"l", "i8"},  {"L", "u8"},
    {"q", "i8"},   {"Q", "u8"},   {"n", "i8"},  {"N", "u8"},  {"p", "i8"},  {"P", "u8"},  {"e", "f2"},  {"f", "f4"},  {"d", "f8"},
    {"g", "f16"},  {"F", "c8"},   {"D", "c16"}, {"G", "c32"}, {"O", "O8"},  {"S", "S0"},  {"a", "S0"},  {"U", "U0"},  {"V", "V0"},
    {"M", "M8"},   {"m", "m8"},   {"c", "S1"},  {"T", "T"},   {"bool", "b1"}, {"bool_", "b1"}, {"byte", "i1"}, {"ubyte", "u1"},
    {"short", "i2"}, {"ushort", "u2"}, {"intc", "i4"}, {"uintc", "u4"}, {"int", "i8"}, {"int_", "i8"}, {"uint", "u8"},
    {"long", "i8"}, {"ulong", "u8"}, {"intp", "i8"}, {"uintp", "u8"}, {"longlong", "i8"}, {"ulonglong", "u8"}, {"half", "f2"},
    {"single", "f4"}, {"double", "f8"}, {"float", "f8"}, {"longdouble", "f16"}, {"csingle", "c8"}, {"cdouble", "c16"},
    {"complex", "c16"}, {"clongdouble", "c32"}, {"object", "O8"}, {"object_", "O8"}, {"bytes", "S0"}, {"bytes_", "S0"},
    {"str", "U0"}, {"str_", "U0"}, {"unicode", "U0"}, {"void", "V0"}, {"datetime64", "M8"}, {"timedelta64", "m8"},
    {"int8", "i1"}, {"int16", "i2"}, {"int32", "i4"}, {"int64", "i8"}, {"uint8", "u1"}, {"uint16", "u2"}, {"uint32", "u4"},
    {"uint64", "u8"}, {"float16", "f2"}, {"float32", "f4"}, {"float64", "f8"}, {"float128", "f16"}, {"complex64", "c8"},
    {"complex128", "c16"}, {"complex256", "c32"},
};
/* clang-format on */

/* The number that the text stands for if it is one to nine digits; otherwise -1. */
static int64_t number(tsr_str text)
{
    int64_t value = 0;
    for (size_t i = 0; i < text.size; i++) {
        if (!tsr_is_digit(text.data[i]) || i == 9) return -1;
        value = value * 10 + (text.data[i] - '0');
    }
    return text.size ? value : -1;
}

/* A letter and the size of an element: "f8", "S3". */
static tsr_numpy_dtype sized(tsr_str text)
{
    static const struct {
        char letter;
        int64_t sizes; /* powers of two, added */
    } kinds[] = {{'b', 1}, {'i', 15}, {'u', 15}, {'f', 30}, {'c', 56}, {'O', 12}, {'M', 8}, {'m', 8}};
    char letter = text.data[0];
    int64_t size = number(tsr_str_after(text, 1));
    if (size < 0) return (tsr_numpy_dtype){0};
    if (letter == 'S' || letter == 'V' || letter == 'a')
        return (tsr_numpy_dtype){letter == 'a' ? 'S' : letter, (uint64_t)size};
    if (letter == 'U') return (tsr_numpy_dtype){'U', 4 * (uint64_t)size};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        bool power = size && (size & (size - 1)) == 0;
        if (kinds[i].letter == letter && power && (kinds[i].sizes & size))
            return (tsr_numpy_dtype){letter, letter == 'O' ? 8 : (uint64_t)size};
    }
    return (tsr_numpy_dtype){0};
}

static tsr_numpy_dtype alias(tsr_str text)
{
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        if (!tsr_str_equal(text, tsr_str_from(aliases[i].name))) continue;
        tsr_str type = tsr_str_from(aliases[i].type);
        return type.size == 1 ? (tsr_numpy_dtype){'T', 16} : sized(type);
    }
    return (tsr_numpy_dtype){0};
}

bool tsr_numpy_is_unit(tsr_str text)
{
    static const char *const units[] = {"Y",  "M",  "W",  "D",  "h",  "m",       "s",        "ms",
                                        "us", "ns", "ps", "fs", "as", "generic", "\xce\xbcs"};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (tsr_str_equal(text, tsr_str_from(units[i]))) return true;
    return false;
}

/* "[ns]", "[25s]", "[s/3]" */
static bool is_unit_in_brackets(tsr_str text)
{
    if (text.size < 3 || text.data[0] != '[' || text.data[text.size - 1] != ']') return false;
    text = (tsr_str){text.data + 1, text.size - 2};
    while (text.size && tsr_is_digit(text.data[0])) text = tsr_str_after(text, 1);
    const char *slash = memchr(text.data, '/', text.size);
    size_t unit = slash ? (size_t)(slash - text.data) : text.size;
    return tsr_numpy_is_unit((tsr_str){text.data, unit}) && (!slash || number(tsr_str_after(text, unit + 1)) > 0);
}

static tsr_numpy_dtype simple(tsr_str text)
{
    bool ordered = text.size && strchr("<>=|", text.data[0]) && text.data[0];
    tsr_str bare = ordered ? tsr_str_after(text, 1) : text;
    if (!bare.size) return (tsr_numpy_dtype){0};
    const char *bracket = memchr(bare.data, '[', bare.size);
    if (bracket) {
        tsr_str before = {bare.data, (size_t)(bracket - bare.data)};
        tsr_numpy_dtype time = before.size > 2 && ordered ? (tsr_numpy_dtype){0} : simple(before);
        bool known = (time.letter == 'M' || time.letter == 'm') && before.size > 1;
        return known && is_unit_in_brackets(tsr_str_after(bare, before.size)) ? time : (tsr_numpy_dtype){0};
    }
    tsr_numpy_dtype found = bare.size > 1 ? sized(bare) : (tsr_numpy_dtype){0};
    if (!found.letter && (!ordered || bare.size == 1)) found = alias(bare);
    return found;
}

/* The length of the repeat count at the beginning of the text, such as "3" or "(2,3)". */
static size_t repeats(tsr_str text)
{
    size_t size = 0;
    if (text.size && text.data[0] == '(') {
        while (size < text.size && text.data[size] != ')') size++;
        return size < text.size ? size + 1 : 0;
    }
    while (size < text.size && tsr_is_digit(text.data[size])) size++;
    return size;
}

/* A list of types separated by commas, each with an optional repeat count. */
static tsr_numpy_dtype several(tsr_str text)
{
    while (text.size) {
        size_t size = 0, depth = 0;
        text = tsr_str_after(text, repeats(text));
        while (size < text.size && (depth || text.data[size] != ',')) {
            depth += text.data[size] == '[';
            depth -= depth && text.data[size] == ']';
            size++;
        }
        if (!simple((tsr_str){text.data, size}).letter) return (tsr_numpy_dtype){0};
        text = tsr_str_after(text, size + (size < text.size));
        while (text.size && text.data[0] == ' ') text = tsr_str_after(text, 1);
    }
    return (tsr_numpy_dtype){'V', 0};
}

tsr_numpy_dtype tsr_numpy_dtype_from(tsr_str text)
{
    if (text.size > LONGEST) return (tsr_numpy_dtype){0};
    tsr_numpy_dtype found = simple(text);
    bool list = text.size && (memchr(text.data, ',', text.size) || repeats(text));
    return found.letter || !list ? found : several(text);
}

/* ---- numpy elements ---- */

/* Flags of a dtype: LIST_PICKLE means that elements are pickled as a list, USE_GETITEM that the dtype has its own
 * function to read an element. */
enum { LIST_PICKLE = 2, USE_GETITEM = 0x20, OBJECT_FLAGS = 0x3f };
enum { COPIES = 4 /* how many dtypes made from other dtypes are followed */ };
enum { MOST_CHARACTERS = 16 }; /* of the text of a scalar's dtype that are parsed; many objects may share it */

tsr_ref tsr_numpy_text_of(const tsr_pickle *pickle, tsr_ref ref)
{
    return tsr_pickle_class_id(pickle, ref) == TSR_TORCH_ENCODE ? item(pickle, tsr_pickle_args(pickle, ref), 0) : ref;
}

bool tsr_numpy_is_text(const tsr_pickle *pickle, tsr_ref ref)
{
    return is_kind(pickle, ref, TSR_PICKLE_STR) || is_kind(pickle, ref, TSR_PICKLE_BYTES);
}

/* The dtype that a class stands for: a numpy scalar's, that of a Python type such as float, or object. */
static tsr_numpy_dtype dtype_of_class(const tsr_pickle *pickle, tsr_ref class_)
{
    static const char *const types[][2] = {{"bool", "b1"},     {"int", "i8"}, {"float", "f8"},
                                           {"complex", "c16"}, {"str", "U0"}, {"bytes", "S0"}};
    tsr_str module = tsr_pickle_module(pickle, class_), name = tsr_pickle_name_of(pickle, class_);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (tsr_str_equal(module, TSR_STR("builtins")) && tsr_str_equal(name, tsr_str_from(types[i][0])))
            return tsr_numpy_dtype_from(tsr_str_from(types[i][1]));
    if (tsr_str_equal(name, TSR_STR("record"))) return (tsr_numpy_dtype){'V', 0};
    if (tsr_pickle_id(pickle, class_)) return (tsr_numpy_dtype){'O', 8};
    return tsr_str_equal(module, TSR_STR("numpy")) ? tsr_numpy_dtype_from(name) : (tsr_numpy_dtype){0};
}

/* The type of a numpy scalar depends on its dtype, so that a dtype is told from its class alone here. */
static bool is_dtype(const tsr_pickle *pickle, tsr_ref ref)
{
    return tsr_pickle_class_id(pickle, ref) == TSR_TORCH_LISTED &&
           tsr_str_equal(tsr_pickle_name_of(pickle, tsr_pickle_class(pickle, ref)), TSR_STR("dtype"));
}

/* The type letter and the size that numpy.dtype's first argument gives. Text longer than `most` characters is not parsed. */
static tsr_numpy_dtype made_from_short(const tsr_pickle *pickle, tsr_ref dtype, size_t most)
{
    for (int i = 0; i < COPIES && is_dtype(pickle, dtype); i++) {
        tsr_ref first = tsr_numpy_text_of(pickle, item(pickle, tsr_pickle_args(pickle, dtype), 0));
        if (tsr_numpy_is_text(pickle, first)) {
            tsr_str text = tsr_pickle_text(pickle, first);
            return text.size <= most ? tsr_numpy_dtype_from(text) : (tsr_numpy_dtype){0};
        }
        if (first == TSR_REF_NONE) return (tsr_numpy_dtype){'f', 8};
        if (is_kind(pickle, first, TSR_PICKLE_LIST) || is_kind(pickle, first, TSR_PICKLE_DICT))
            return (tsr_numpy_dtype){'V', 0};
        if (is_kind(pickle, first, TSR_PICKLE_GLOBAL)) return dtype_of_class(pickle, first);
        dtype = first;
    }
    return (tsr_numpy_dtype){0};
}

static tsr_numpy_dtype made_from(const tsr_pickle *pickle, tsr_ref dtype)
{
    return made_from_short(pickle, dtype, SIZE_MAX);
}

char tsr_numpy_scalar_type(const tsr_pickle *pickle, tsr_ref dtype)
{
    tsr_numpy_dtype of = made_from_short(pickle, dtype, MOST_CHARACTERS);
    switch (of.letter) {
    case 0: return 'k';
    case 'i':
    case 'u': return 'j';
    case 'f': return of.size == 8 ? 'F' : 'e';
    case 'c': return of.size == 16 ? 'C' : 'e';
    case 'b': return 'e';
    case 'U': return 'S';
    case 'S': return 'Y';
    default: return 'o';
    }
}

char tsr_numpy_letter(const tsr_pickle *pickle, tsr_ref dtype)
{
    return made_from(pickle, dtype).letter;
}

tsr_numpy_elements tsr_numpy_elements_of(const tsr_pickle *pickle, tsr_ref dtype)
{
    tsr_ref state = tsr_pickle_state(pickle, dtype), size = item(pickle, state, 5), flags = item(pickle, state, 7);
    tsr_numpy_dtype from = made_from(pickle, dtype);
    bool fields = item(pickle, state, 2) != TSR_REF_NONE || item(pickle, state, 3) != TSR_REF_NONE;
    if (!from.letter || from.letter == 'T' || (fields && from.letter != 'V')) return (tsr_numpy_elements){0};
    tsr_numpy_elements found = {.objects = from.letter == 'O', .size = from.size};
    bool told = is_kind(pickle, size, TSR_PICKLE_INT) && tsr_pickle_int(pickle, size) >= 0;
    if (strchr("SUV", from.letter) && told) found.size = (uint64_t)tsr_pickle_int(pickle, size);
    if (is_kind(pickle, flags, TSR_PICKLE_INT)) {
        int64_t set = tsr_pickle_int(pickle, flags);
        found.unsafe = from.letter == 'O' ? set != OBJECT_FLAGS : !fields && (set & LIST_PICKLE);
        found.objects = set & LIST_PICKLE;
        found.called = !fields && from.letter != 'O' && (set & USE_GETITEM);
    }
    tsr_ref version = item(pickle, state, 0);
    bool old =
        tsr_pickle_count(pickle, state) > 5 && tsr_pickle_int(pickle, version) < 3; /* then numpy works out the flags */
    if (tsr_pickle_count(pickle, state) == 7 && from.letter == 'O') found.unsafe = !old;
    if (old && !fields) found.unsafe = from.letter == 'U';
    if (old && !fields) found.objects = from.letter == 'O';
    bool subarray = item(pickle, state, 2) != TSR_REF_NONE;
    tsr_ref first = item(pickle, tsr_pickle_args(pickle, dtype), 0);
    bool empty = is_kind(pickle, first, TSR_PICKLE_LIST) || is_kind(pickle, first, TSR_PICKLE_DICT); /* fields: none */
    empty = empty && tsr_pickle_count(pickle, first) == 0;
    found.known = !subarray && (found.objects || found.size || empty);
    return found;
}
