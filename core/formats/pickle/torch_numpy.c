#include "formats/pickle/torch_numpy.h"

#include "formats/pickle/torch_fits.h"

enum { MASKED_ITEMS = 7, MOST_KEYS = 64, MOST_DIMS = 64, MOST_DIGITS = 64 };

static bool is_value_for(const tsr_pickle *pickle, char sign, tsr_ref value);

/* ---- arrays and scalars ---- */

/* A nonnegative int. numpy does not accept a bool here. */
static bool is_dim(const tsr_pickle *pickle, tsr_ref ref)
{
    return is_type(pickle, ref, "Ij") && (!is_kind(pickle, ref, TSR_PICKLE_INT) || tsr_pickle_int(pickle, ref) >= 0);
}

static bool is_int_tensor(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_ref storage = tsr_pickle_persistent(pickle, item(pickle, tsr_pickle_args(pickle, ref), 0));
    return tsr_pickle_class_id(pickle, ref) == TSR_TORCH_REBUILD_TENSOR &&
           tsr_torch_storage_dtype(pickle, item(pickle, storage, 1)) == TSR_INT64;
}

/* One size, or a sequence of sizes. bytes count as a sequence of ints. */
static bool is_shape(const tsr_pickle *pickle, tsr_ref shape)
{
    size_t count;
    const tsr_ref *dims = tsr_pickle_items(pickle, shape, &count);
    if (is_kind(pickle, shape, TSR_PICKLE_STR)) return tsr_pickle_text(pickle, shape).size == 0;
    if (!is_kind(pickle, shape, TSR_PICKLE_TUPLE) && !is_kind(pickle, shape, TSR_PICKLE_LIST))
        return is_dim(pickle, shape) || is_int_tensor(pickle, shape) ||
               (is_type(pickle, shape, "YTLRUa") && tsr_pickle_text(pickle, shape).size <= MOST_DIMS);
    for (size_t i = 0; i < count; i++)
        if (!is_dim(pickle, dims[i])) return false;
    return count <= MOST_DIMS;
}

/* The number of bytes that a value provides as the raw data of an array; UINT64_MAX when it is not known. A str provides
 * one byte per character. */
static uint64_t raw_bytes(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_str text = tsr_pickle_text(pickle, ref);
    uint64_t count = 0;
    if (is_kind(pickle, ref, TSR_PICKLE_BYTES)) return text.size;
    if (is_kind(pickle, ref, TSR_PICKLE_OBJECT) && tsr_pickle_class_id(pickle, ref) == TSR_TORCH_ENCODE) {
        tsr_str codec = tsr_pickle_text(pickle, item(pickle, tsr_pickle_args(pickle, ref), 1));
        ref = item(pickle, tsr_pickle_args(pickle, ref), 0);
        text = tsr_pickle_text(pickle, ref);
        if (is_kind(pickle, ref, TSR_PICKLE_STR) && !tsr_str_starts(codec, TSR_STR("lat"))) return text.size; /* UTF-8 */
    }
    if (!is_kind(pickle, ref, TSR_PICKLE_STR)) return UINT64_MAX;
    for (size_t i = 0; i < text.size; i++) count += (text.data[i] & 0xc0) != 0x80;
    return count;
}

/* The number of elements; UINT64_MAX where that is not known. */
static uint64_t element_count(const tsr_pickle *pickle, tsr_ref shape)
{
    size_t ndim;
    uint64_t count = 1;
    const tsr_ref *dims = tsr_pickle_items(pickle, shape, &ndim);
    for (size_t i = 0; i < ndim; i++) {
        int64_t size = tsr_pickle_int(pickle, dims[i]);
        if (!is_kind(pickle, dims[i], TSR_PICKLE_INT) && !is_kind(pickle, dims[i], TSR_PICKLE_BOOL)) return UINT64_MAX;
        if (size < 0 || (size && count > UINT32_MAX)) return UINT64_MAX - 1; /* more than any file has */
        count *= (uint64_t)size;
    }
    return count;
}

/* Raw data for `count` elements. */
static bool is_data(const tsr_pickle *pickle, tsr_ref data, uint64_t count, const tsr_numpy_elements *of)
{
    uint64_t bytes = raw_bytes(pickle, data);
    if (tsr_str_equal(tsr_pickle_name_of(pickle, tsr_pickle_class(pickle, data)), TSR_STR("bytearray"))) return false;
    if (!is_type(pickle, data, of->known ? of->objects ? "L" : "SY" : "SYL")) return false;
    if (!of->known || count == UINT64_MAX) return true;
    if (!of->objects)
        return bytes == UINT64_MAX || (count <= bytes / (of->size ? of->size : 1) + 1 && bytes == count * of->size);
    return !is_kind(pickle, data, TSR_PICKLE_LIST) || tsr_pickle_count(pickle, data) >= count;
}

/* The fill value of a masked array whose dtype has this type letter, or None. */
static bool is_fill_value(const tsr_pickle *pickle, char letter, tsr_ref value)
{
    static const struct {
        const char *letters, *types;
    } rows[] = {
        {"f", "NBIJFjekXvaLTRUYo"}, {"c", "NBIJFCjekXvaLTRUYo"}, {"iu", "NBIFjekXvaLTRUYoO"}, {"Mm", "NBIFYLTRUqQwjekXao"}};
    double number;
    if (letter == 'b') return !is_type(pickle, value, "S") || tsr_torch_type(pickle, value) == TSR_TYPE_UNKNOWN;
    for (size_t i = 0; letter && i < sizeof rows / sizeof rows[0]; i++)
        if (strchr(rows[i].letters, letter) && !is_type(pickle, value, rows[i].types)) return false;
    if (!letter || strchr("OSUVT", letter)) return true;
    for (size_t i = 0; !is_kind(pickle, value, TSR_PICKLE_DICT) && i < tsr_pickle_count(pickle, value); i++)
        if (!is_type(pickle, item(pickle, value, i), "NBIJFCjekXvaLT") ||
            !tsr_torch_is_single(pickle, item(pickle, value, i)))
            return false;
    bool real = !is_kind(pickle, value, TSR_PICKLE_FLOAT) || strchr("fc", letter);
    tsr_str text = tsr_pickle_text(pickle, value);
    if (is_kind(pickle, value, TSR_PICKLE_BYTES)) return text.size && strchr("+-.0123456789 infINF", text.data[0]);
    return real || (tsr_torch_number(pickle, value, &number) && number - number == 0);
}

/* (version, shape, dtype, whether in Fortran's order, data), before numpy 1.0 without the version; of masked arrays two items
 * more, the mask's data and the value that fills it. */
static bool is_array_state(const tsr_pickle *pickle, tsr_ref state, bool masked)
{
    size_t count = tsr_pickle_count(pickle, state), at = count == 4 ? 0 : 1;
    double version;
    tsr_ref shape = item(pickle, state, at), dtype = item(pickle, state, at + 1), data = item(pickle, state, at + 3);
    if (masked ? count != MASKED_ITEMS : count != 4 && count != 5) return false;
    if (at && !masked && !is_type(pickle, item(pickle, state, 0), "IB")) return false;
    if (at && !masked && tsr_torch_number(pickle, item(pickle, state, 0), &version) && version != 0 && version != 1)
        return false;
    if (!is_type(pickle, shape, "T") || (is_kind(pickle, shape, TSR_PICKLE_TUPLE) && !is_shape(pickle, shape))) return false;
    if (!is_type(pickle, dtype, "V") || !is_type(pickle, item(pickle, state, at + 2), "IBj") ||
        !is_value_for(pickle, '#', item(pickle, state, at + 2)))
        return false;
    tsr_numpy_elements of = tsr_numpy_elements_of(pickle, dtype), flags = {.known = true, .size = 1};
    uint64_t size = is_kind(pickle, shape, TSR_PICKLE_TUPLE) ? element_count(pickle, shape) : UINT64_MAX;
    if (of.unsafe || !is_data(pickle, data, size, &of)) return false;
    if (!masked || tsr_numpy_letter(pickle, dtype) == 'V') return true; /* a mask of records has a flag per field */
    return is_data(pickle, item(pickle, state, 5), size, &flags) &&
           is_fill_value(pickle, tsr_numpy_letter(pickle, dtype), item(pickle, state, 6));
}

static bool fits_scalar(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_numpy_elements of = tsr_numpy_elements_of(pickle, item(pickle, args, 0));
    tsr_ref data = item(pickle, args, 1);
    uint64_t bytes = raw_bytes(pickle, data);
    if (of.unsafe || of.called) return false;
    if (!of.known || (tsr_pickle_count(pickle, args) < 2 && !of.objects)) return true;
    if (of.objects) return tsr_numpy_letter(pickle, item(pickle, args, 0)) != 'O' && is_type(pickle, data, "a");
    return is_type(pickle, data, "SY") && (bytes == UINT64_MAX || bytes >= of.size);
}

/* _frombuffer(data, dtype, shape, order) */
static bool fits_buffer(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_numpy_elements of = tsr_numpy_elements_of(pickle, item(pickle, args, 1));
    tsr_ref shape = item(pickle, args, 2);
    uint64_t bytes = raw_bytes(pickle, item(pickle, args, 0));
    uint64_t count = is_kind(pickle, shape, TSR_PICKLE_TUPLE) ? element_count(pickle, shape) : UINT64_MAX;
    if (!is_type(pickle, item(pickle, args, 0), "Ya") || of.objects || of.unsafe) return false;
    if (!of.known || bytes == UINT64_MAX || count >= UINT64_MAX - 1) return true;
    return of.size && count <= bytes && bytes == count * of.size;
}

/* Whether numpy.dtype(ref) gives a dtype. */
static bool names_dtype(const tsr_pickle *pickle, tsr_ref ref);
/* Whether numpy accepts the state of `dtype`, a TUPLE. */
static bool is_dtype_state(const tsr_pickle *pickle, tsr_ref dtype, tsr_ref state);

static bool fits_dtype(const tsr_pickle *pickle, tsr_ref args)
{
    return names_dtype(pickle, item(pickle, args, 0));
}

static bool is_array_class(const tsr_pickle *pickle, tsr_ref class_)
{
    static const char *const names[] = {"ndarray", "matrix", "recarray", "MaskedArray"};
    tsr_str name = tsr_pickle_name_of(pickle, class_);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(names[i]))) return true;
    return tsr_pickle_id(pickle, class_) == 0;
}

/* (class of array, shape, dtype as text), for masked arrays with ndarray behind the class. */
static bool fits_reconstruct(const tsr_pickle *pickle, tsr_ref args)
{
    if (!is_array_class(pickle, item(pickle, args, 0))) return false;
    if (tsr_pickle_count(pickle, args) == 4 && !is_array_class(pickle, item(pickle, args, 1))) return false;
    tsr_ref last = item(pickle, args, tsr_pickle_count(pickle, args) - 1),
            shape = item(pickle, args, tsr_pickle_count(pickle, args) - 2);
    return is_shape(pickle, shape) && names_dtype(pickle, last);
}

/* ---- random generators ---- */

/* The keys of a generator's state, and of the dict "state" in it. A key begins with the sign of what its value must be:
 *
 *   #  an int of 32 bits  $  the same without a sign  %  one of 128 bits without a sign  @  64 bits each, four or one for all
 *   &  four items  +  two items  *  an array of 624 items */
static const struct {
    const char *name, *keys, *state_keys;
} generators[] = {
    {"PCG64", "#has_uint32 $uinteger", "%state %inc"},
    {"PCG64DXSM", "#has_uint32 $uinteger", "%state %inc"},
    {"SFC64", "#has_uint32 $uinteger", "@state"},
    {"Philox", "&buffer #buffer_pos #has_uint32 $uinteger", "&counter +key"},
    {"MT19937", "", "*key #pos"},
};
enum { GENERATORS = sizeof generators / sizeof generators[0] };

/* The row of a name; GENERATORS for any other. */
static size_t generator_named(tsr_str name)
{
    size_t i = 0;
    while (i < GENERATORS && !tsr_str_equal(name, tsr_str_from(generators[i].name))) i++;
    return i;
}

/* The row of __bit_generator_ctor's argument, which is a name, or the class itself since numpy 2. */
static size_t generator_of(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_ref first = item(pickle, args, 0);
    if (tsr_pickle_count(pickle, args) == 0) return GENERATORS - 1;
    return generator_named(is_kind(pickle, first, TSR_PICKLE_GLOBAL) ? tsr_pickle_name_of(pickle, first)
                                                                     : tsr_pickle_text(pickle, first));
}

/* A value with `count` items, or with an unknown number of items. */
static bool has_items(const tsr_pickle *pickle, tsr_ref value, size_t count)
{
    size_t has =
        is_kind(pickle, value, TSR_PICKLE_BYTES) ? tsr_pickle_text(pickle, value).size : tsr_pickle_count(pickle, value);
    bool own = is_kind(pickle, value, TSR_PICKLE_BYTES) || is_kind(pickle, value, TSR_PICKLE_TUPLE) ||
               is_kind(pickle, value, TSR_PICKLE_LIST);
    for (size_t i = 0; own && i < count && i < tsr_pickle_count(pickle, value); i++)
        if (!is_type(pickle, item(pickle, value, i), "IBJFvjekaX")) return false;
    return own ? has >= count : is_type(pickle, value, "YTLRaXU");
}

/* An array of numbers whose first dimension has that length. */
static bool is_array_of(const tsr_pickle *pickle, tsr_ref value, int64_t count)
{
    tsr_ref size = item(pickle, item(pickle, tsr_pickle_state(pickle, value), 1), 0);
    return is_type(pickle, value, "a") && (!is_kind(pickle, size, TSR_PICKLE_INT) || tsr_pickle_int(pickle, size) >= count);
}

/* A value that numpy can copy into an array of four unsigned ints. */
static bool is_quad(const tsr_pickle *pickle, tsr_ref value)
{
    size_t count = tsr_pickle_count(pickle, value);
    double number;
    if (tsr_torch_number(pickle, value, &number)) return number >= 0 && number < 0x1p64;
    if (is_kind(pickle, value, TSR_PICKLE_STR) || is_kind(pickle, value, TSR_PICKLE_BYTES))
        return tsr_pickle_text(pickle, value).size > MOST_DIGITS || tsr_torch_is_int_text(tsr_pickle_text(pickle, value));
    if (is_kind(pickle, value, TSR_PICKLE_TUPLE) || is_kind(pickle, value, TSR_PICKLE_LIST))
        return count == 1 || (count == 4 && has_items(pickle, value, 4));
    return is_type(pickle, value, "RSYTLUaXvjeko");
}

/* Whether a value has the type that the sign before its key requires. */
static bool is_value_for(const tsr_pickle *pickle, char sign, tsr_ref value)
{
    double number, least = sign == '#' ? -0x1p31 : 0, end = sign == '#' ? 0x1p31 : sign == '$' ? 0x1p32 : 0x1p128;
    switch (sign) {
    case '@': return is_quad(pickle, value);
    case '&': return has_items(pickle, value, 4);
    case '+': return has_items(pickle, value, 2);
    case '*': return is_array_of(pickle, value, 624);
    case '%':
        if (!is_type(pickle, value, "IBJFve")) return false;
        break;
    default:
        if (!is_type(pickle, value, "IBJFvjekaX") || !tsr_torch_is_single(pickle, value)) return false;
    }
    return !tsr_torch_number(pickle, value, &number) || (number >= least && number < end);
}

static bool has_keys(const tsr_pickle *pickle, tsr_ref dict, const char *keys)
{
    char key[16];
    bool found = true;
    while (*keys && found) {
        char sign = *keys;
        keys++;
        size_t size = strcspn(keys, " ");
        memcpy(key, keys, size);
        key[size] = '\0';
        tsr_ref value = tsr_pickle_get(pickle, dict, key, &found);
        found = found && is_value_for(pickle, sign, value);
        keys += size + (keys[size] == ' ');
    }
    return found;
}

/* The state of a bit generator: a dict, or since numpy 2 a tuple of that dict and a seed sequence. */
static bool is_generator_state(const tsr_pickle *pickle, size_t row, tsr_ref state)
{
    if (is_kind(pickle, state, TSR_PICKLE_TUPLE)) {
        if (tsr_pickle_count(pickle, state) < 2) return false;
        state = item(pickle, state, 0);
    }
    if (!is_kind(pickle, state, TSR_PICKLE_DICT)) return is_type(pickle, state, "");
    tsr_ref inner = tsr_pickle_get(pickle, state, "state", NULL);
    tsr_str name = tsr_pickle_text(pickle, tsr_pickle_get(pickle, state, "bit_generator", NULL));
    if (row < GENERATORS && generator_named(name) != row) return false;
    row = generator_named(name);
    if (row == GENERATORS || !has_keys(pickle, state, generators[row].keys)) return false;
    if (tsr_pickle_count(pickle, inner) > MOST_KEYS) return true;
    if (is_kind(pickle, inner, TSR_PICKLE_OBJECT)) return is_type(pickle, inner, "D");
    return has_keys(pickle, inner, generators[row].state_keys);
}

/* That of a RandomState: its generator's, which is always an MT19937, with the normal number that is left over. */
static bool is_legacy_state(const tsr_pickle *pickle, tsr_ref state)
{
    bool found;
    if (is_kind(pickle, item(pickle, state, 0), TSR_PICKLE_STR)) {
        size_t count = tsr_pickle_count(pickle, state);
        bool named = tsr_str_equal(tsr_pickle_text(pickle, item(pickle, state, 0)), TSR_STR("MT19937"));
        return is_kind(pickle, state, TSR_PICKLE_TUPLE) && named && (count == 3 || count == 5);
    }
    tsr_ref has_gauss = tsr_pickle_get(pickle, state, "has_gauss", &found);
    if (found && !is_value_for(pickle, '#', has_gauss)) return false;
    tsr_ref gauss = tsr_pickle_get(pickle, state, "gauss", &found);
    if (found && !is_type(pickle, gauss, "IBJFvjekaX")) return false;
    return is_generator_state(pickle, generator_named(TSR_STR("MT19937")), state);
}

static bool fits_bit_generator(const tsr_pickle *pickle, tsr_ref args)
{
    return is_kind(pickle, item(pickle, args, 0), TSR_PICKLE_OBJECT) || generator_of(pickle, args) < GENERATORS;
}

/* (a bit generator), up to numpy 1.26 (its name, __bit_generator_ctor) */
static bool fits_generator(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_ref first = item(pickle, args, 0);
    return tsr_pickle_count(pickle, args) == 0 || is_type(pickle, first, "b") || fits_bit_generator(pickle, args);
}

/* (entropy, how many were spawned, pool, its size, spawn key) */
static bool is_seed_state(const tsr_pickle *pickle, tsr_ref state)
{
    if (!is_kind(pickle, state, TSR_PICKLE_TUPLE)) return is_type(pickle, state, "");
    return tsr_pickle_count(pickle, state) == 5 && is_value_for(pickle, '$', item(pickle, state, 1)) &&
           is_type(pickle, item(pickle, state, 3), "IBja") && is_type(pickle, item(pickle, state, 4), "TN");
}

/* (the class, a checksum, the state). The checksums are those by which Cython's code knows the attributes of numpy's
 * SeedSequence. */
static bool fits_seed(const tsr_pickle *pickle, tsr_ref args)
{
    static const int64_t checksums[] = {0x3eaa222, 0xc464c19, 0xf88304a};
    int64_t sum = tsr_pickle_int(pickle, item(pickle, args, 1));
    bool known = false;
    for (size_t i = 0; i < sizeof checksums / sizeof checksums[0]; i++) known |= sum == checksums[i];
    if (item(pickle, args, 2) != TSR_REF_NONE && !is_seed_state(pickle, item(pickle, args, 2))) return false;
    return known && tsr_str_equal(tsr_pickle_name_of(pickle, item(pickle, args, 0)), TSR_STR("SeedSequence"));
}

/* ---- by name ---- */

bool tsr_numpy_fits(const tsr_pickle *pickle, tsr_str name, tsr_ref args)
{
    static const struct {
        const char *name;
        bool (*fits)(const tsr_pickle *pickle, tsr_ref args);
    } rows[] = {
        {"dtype", fits_dtype},
        {"scalar", fits_scalar},
        {"_frombuffer", fits_buffer},
        {"_reconstruct", fits_reconstruct},
        {"_mareconstruct", fits_reconstruct},
        {"__bit_generator_ctor", fits_bit_generator},
        {"__generator_ctor", fits_generator},
        {"__randomstate_ctor", fits_generator},
        {"__pyx_unpickle_SeedSequence", fits_seed},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(rows[i].name))) return rows[i].fits(pickle, args);
    return true;
}

bool tsr_numpy_accepts_state(const tsr_pickle *pickle, tsr_str name, tsr_ref object)
{
    tsr_ref state = tsr_pickle_state(pickle, object);
    bool tuple = is_kind(pickle, state, TSR_PICKLE_TUPLE);
    if (!tuple && tsr_torch_type(pickle, state) == TSR_TYPE_UNKNOWN) return true;
    if (tsr_str_equal(name, TSR_STR("_reconstruct")) || tsr_str_equal(name, TSR_STR("ndarray")) ||
        tsr_str_equal(name, TSR_STR("_frombuffer")))
        return tuple && is_array_state(pickle, state, false);
    if (tsr_str_equal(name, TSR_STR("_mareconstruct")) || tsr_str_equal(name, TSR_STR("MaskedConstant")))
        return tuple && is_array_state(pickle, state, true);
    if (tsr_str_equal(name, TSR_STR("dtype"))) return tuple && is_dtype_state(pickle, object, state);
    if (tsr_str_equal(name, TSR_STR("__bit_generator_ctor")))
        return is_generator_state(pickle, generator_of(pickle, tsr_pickle_args(pickle, object)), state);
    if (tsr_str_equal(name, TSR_STR("__randomstate_ctor"))) return is_legacy_state(pickle, state);
    if (generator_named(name) < GENERATORS) return is_generator_state(pickle, generator_named(name), state);
    if (tsr_str_equal(name, TSR_STR("__generator_ctor")))
        return !is_kind(pickle, state, TSR_PICKLE_DICT) || is_generator_state(pickle, GENERATORS, state);
    return !tsr_str_ends(name, TSR_STR("SeedSequence")) || is_seed_state(pickle, state);
}

/* Source: numpy 2.4, numpy/_core/src/multiarray/descriptor.c (arraydescr_new, arraydescr_setstate), datetime.c
 * (convert_datetime_metadata_tuple_to_datetime_metadata, convert_datetime_divisor_to_multiple). */

/* Limits on the names, fields and sizes of a dtype that are checked. Many objects may share one dtype, and each checks it
 * again. */
enum { MOST_NAMES = 64 };

/* ---- arguments of numpy.dtype ---- */

/* [(name, dtype), …] */
static bool is_field_list(const tsr_pickle *pickle, tsr_ref list)
{
    size_t count;
    const tsr_ref *fields = tsr_pickle_items(pickle, list, &count);
    for (size_t i = 0; i < count; i++) {
        size_t parts = tsr_pickle_count(pickle, fields[i]);
        if (!is_type(pickle, fields[i], "T")) return false;
        if (is_kind(pickle, fields[i], TSR_PICKLE_TUPLE) && (parts < 2 || parts > 3)) return false;
    }
    return true;
}

/* {'names': […], 'formats': […]} or {name: (dtype, offset)} */
static bool is_field_dict(const tsr_pickle *pickle, tsr_ref dict)
{
    if (is_kind(pickle, dict, TSR_PICKLE_OBJECT))
        return !tsr_str_equal(tsr_pickle_name_of(pickle, tsr_pickle_class(pickle, dict)), TSR_STR("Counter"));
    bool names, formats;
    tsr_pickle_get(pickle, dict, "names", &names);
    tsr_pickle_get(pickle, dict, "formats", &formats);
    if (names && formats) return true;
    for (size_t i = 0; i < tsr_pickle_count(pickle, dict); i++) {
        tsr_ref value = tsr_pickle_value(pickle, dict, i);
        if (!is_type(pickle, value, "T") ||
            (is_kind(pickle, value, TSR_PICKLE_TUPLE) && tsr_pickle_count(pickle, value) < 2))
            return false;
    }
    return true;
}

/* False for text that names no dtype; true for anything that is not text. */
static bool is_name(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_ref text = tsr_numpy_text_of(pickle, ref);
    if (tsr_numpy_is_text(pickle, text)) return tsr_numpy_dtype_from(tsr_pickle_text(pickle, text)).letter != 0;
    return !tsr_str_equal(tsr_pickle_name_of(pickle, tsr_pickle_class(pickle, ref)), TSR_STR("bytearray"));
}

/* The first item of (dtype, shape). */
static bool is_base(const tsr_pickle *pickle, tsr_ref ref)
{
    if (tsr_pickle_count(pickle, ref) > MOST_NAMES) return true;
    if (is_kind(pickle, ref, TSR_PICKLE_LIST)) return is_field_list(pickle, ref);
    return is_kind(pickle, ref, TSR_PICKLE_DICT) ? is_field_dict(pickle, ref) : is_name(pickle, ref);
}

static bool names_dtype(const tsr_pickle *pickle, tsr_ref ref)
{
    if (!is_name(pickle, ref)) return false;
    switch (tsr_torch_type(pickle, ref)) {
    case 'L': return is_field_list(pickle, ref);
    case 'D': return is_field_dict(pickle, ref);
    case 'T':
        return !is_kind(pickle, ref, TSR_PICKLE_TUPLE) ||
               (tsr_pickle_count(pickle, ref) == 2 && is_type(pickle, item(pickle, ref, 0), "SYVGNuLD") &&
                is_base(pickle, item(pickle, ref, 0)) &&
                !tsr_numpy_is_text(pickle, tsr_numpy_text_of(pickle, item(pickle, ref, 1))));
    default: return true;
    }
}

/* ---- the state of a dtype ---- */

static bool is_at_least(const tsr_pickle *pickle, tsr_ref ref, double least)
{
    double value;
    return !tsr_torch_number(pickle, ref, &value) || value >= least;
}

/* A number, or a tuple of nonnegative numbers. */
static bool is_subarray_shape(const tsr_pickle *pickle, tsr_ref shape)
{
    size_t count;
    const tsr_ref *dims = tsr_pickle_items(pickle, shape, &count);
    if (!is_kind(pickle, shape, TSR_PICKLE_TUPLE)) return is_type(pickle, shape, "IBJFjk");
    for (size_t i = 0; i < count && count <= MOST_DIMS; i++)
        if (!is_type(pickle, dims[i], "IBj") || !is_at_least(pickle, dims[i], 0)) return false;
    return true;
}

/* (dtype, shape) */
static bool is_subarray(const tsr_pickle *pickle, tsr_ref ref)
{
    if (ref == TSR_REF_NONE || is_kind(pickle, ref, TSR_PICKLE_OBJECT)) return is_type(pickle, ref, "N");
    return is_kind(pickle, ref, TSR_PICKLE_TUPLE) && tsr_pickle_count(pickle, ref) == 2 &&
           is_type(pickle, item(pickle, ref, 0), "V") && is_subarray_shape(pickle, item(pickle, ref, 1));
}

/* Whether a `den`-th of the time unit is a whole number of one of the smaller units. */
static bool divides(tsr_str unit, int64_t den)
{
    static const struct {
        const char *unit;
        int64_t parts[4];
    } rows[] = {{"Y", {12, 52, 365}},    {"M", {4, 30, 720}},     {"W", {7, 168, 10080, 604800}}, {"D", {24, 1440, 86400}},
                {"h", {60, 3600}},       {"m", {60, 60000}},      {"s", {1000, 1000000}},         {"ms", {1000, 1000000}},
                {"us", {1000, 1000000}}, {"ns", {1000, 1000000}}, {"ps", {1000, 1000000}},        {"fs", {1000}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t k = 0; k < 4 && tsr_str_equal(unit, tsr_str_from(rows[i].unit)); k++)
            if (rows[i].parts[k] && rows[i].parts[k] % den == 0) return true;
    }
    return den == 1;
}

/* From 1 to INT32_MAX. */
static bool is_count(const tsr_pickle *pickle, tsr_ref ref)
{
    double value;
    return !tsr_torch_number(pickle, ref, &value) || (value >= 1 && value < 0x1p31);
}

/* (unit, count) or (unit, count, divisor, event) */
static bool is_time_unit(const tsr_pickle *pickle, tsr_ref unit)
{
    size_t count = tsr_pickle_count(pickle, unit);
    if (!is_kind(pickle, unit, TSR_PICKLE_TUPLE)) return is_type(pickle, unit, "");
    if (count != 2 && count != 4) return false;
    tsr_ref divisor = item(pickle, unit, 2);
    for (size_t i = 1; i <= count / 2; i++)
        if (!is_type(pickle, item(pickle, unit, i), "IBj") || !is_count(pickle, item(pickle, unit, i))) return false;
    tsr_ref text = tsr_numpy_text_of(pickle, item(pickle, unit, 0));
    tsr_str name = tsr_pickle_text(pickle, text);
    bool whole = !is_kind(pickle, divisor, TSR_PICKLE_INT) || divides(name, tsr_pickle_int(pickle, divisor));
    return is_type(pickle, item(pickle, unit, 0), "SY") &&
           (!tsr_numpy_is_text(pickle, text) || (tsr_numpy_is_unit(name) && whole));
}

/* (a dict or None, the unit) of datetime64 and timedelta64 */
static bool is_datetime_metadata(const tsr_pickle *pickle, tsr_ref ref)
{
    if (!is_kind(pickle, ref, TSR_PICKLE_TUPLE)) return is_type(pickle, ref, "") || (is_type(pickle, ref, "T") && ref);
    return tsr_pickle_count(pickle, ref) == 2 && is_time_unit(pickle, item(pickle, ref, 1));
}

static bool has_key(const tsr_pickle *pickle, tsr_ref dict, tsr_ref key)
{
    for (size_t i = 0; i < tsr_pickle_count(pickle, dict); i++) {
        tsr_ref other = tsr_pickle_key(pickle, dict, i);
        bool same = is_kind(pickle, other, tsr_pickle_kind_of(pickle, key)) &&
                    tsr_str_equal(tsr_pickle_text(pickle, other), tsr_pickle_text(pickle, key));
        if (same && tsr_numpy_is_text(pickle, key)) return true;
    }
    return false;
}

/* The names are a tuple of str and the fields a dict. numpy looks into the dict only when a name is bytes, as Python 2
 * wrote it. */
static bool are_fields(const tsr_pickle *pickle, tsr_ref names, tsr_ref fields)
{
    size_t count;
    const tsr_ref *each = tsr_pickle_items(pickle, names, &count);
    bool bytes = false;
    if ((fields == TSR_REF_NONE) != (names == TSR_REF_NONE)) return false;
    if (fields == TSR_REF_NONE) return true;
    if (!is_type(pickle, names, "T") || !is_type(pickle, fields, "D")) return false;
    if (!is_kind(pickle, names, TSR_PICKLE_TUPLE)) return true;
    for (size_t i = 0; i < count; i++) {
        if (!is_type(pickle, each[i], "SY")) return false;
        bytes |= is_kind(pickle, each[i], TSR_PICKLE_BYTES);
    }
    if (!bytes || !is_kind(pickle, fields, TSR_PICKLE_DICT) || count > MOST_NAMES) return true;
    for (size_t i = 0; i < count && tsr_pickle_count(pickle, fields) <= MOST_NAMES; i++)
        if (!has_key(pickle, fields, each[i])) return false;
    return true;
}

/* The versions 0 and 1 keep the names under the key -1. */
static bool are_old_fields(const tsr_pickle *pickle, tsr_ref fields)
{
    if (!is_kind(pickle, fields, TSR_PICKLE_DICT)) return is_type(pickle, fields, "N");
    for (size_t i = 0; i < tsr_pickle_count(pickle, fields); i++) {
        tsr_ref key = tsr_pickle_key(pickle, fields, i);
        if (is_kind(pickle, key, TSR_PICKLE_INT) && tsr_pickle_int(pickle, key) == -1) return true;
    }
    return false;
}

/* "<" and the like. */
static bool is_byte_order(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_ref text = tsr_numpy_text_of(pickle, ref);
    tsr_str order = tsr_pickle_text(pickle, text);
    return is_type(pickle, ref, "SY") &&
           (is_kind(pickle, text, TSR_PICKLE_OBJECT) || (order.size == 1 && !(order.data[0] & 0x80)));
}

static bool is_dtype_state(const tsr_pickle *pickle, tsr_ref dtype, tsr_ref state)
{
    size_t count = tsr_pickle_count(pickle, state), order = count == 5 ? 0 : 1, sizes = count > 7 ? 5 : count - 2;
    int64_t version = count == 5 ? 0 : tsr_pickle_int(pickle, item(pickle, state, 0));
    tsr_ref fields = item(pickle, state, count > 6 ? 4 : order + 2);
    char letter = tsr_numpy_letter(pickle, dtype);
    if (count < 5 || count > 9) return false;
    if (count != 5 && (!is_type(pickle, item(pickle, state, 0), "IBj") || version < 0 || version > 4)) return false;
    if (!is_byte_order(pickle, item(pickle, state, order)) || !is_subarray(pickle, item(pickle, state, order + 1)))
        return false;
    bool named =
        version < 2 ? are_old_fields(pickle, fields) : count >= 7 && are_fields(pickle, item(pickle, state, 3), fields);
    if (!named) return false;
    for (size_t i = sizes; i < sizes + 2; i++)
        if (!is_type(pickle, item(pickle, state, i), "IBj")) return false;
    if (count > 7 && !is_type(pickle, item(pickle, state, 7), "IBJ")) return false;
    if (letter != 'M' && letter != 'm') return true;
    return count == 9 && is_datetime_metadata(pickle, item(pickle, state, 8)); /* without it, numpy crashes */
}
