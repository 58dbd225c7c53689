#include "formats/torch/torch_numpy.h"

#include "formats/torch/torch_numpy_dtype.h"
#include "formats/torch/torch_type.h"

enum { LIST_PICKLE = 2 /* a dtype's flag: elements are objects, pickled as a list */, MASKED_ITEMS = 7, MOST_KEYS = 64 };

/* What is known of the elements of an array. */
typedef struct elements {
    bool known;
    bool objects;  /* pickled as a list */
    uint64_t size; /* bytes of each otherwise */
} elements;

static tsr_ref item(const tsr_pickle *pickle, tsr_ref tuple, size_t at)
{
    return tsr_pickle_item(pickle, tuple, at);
}

static bool is_type(const tsr_pickle *pickle, tsr_ref ref, const char *letters)
{
    char type = tsr_torch_type(pickle, ref);
    return type == TSR_TYPE_UNKNOWN || strchr(letters, type) != NULL;
}

static bool is_kind(const tsr_pickle *pickle, tsr_ref ref, tsr_pickle_kind kind)
{
    return tsr_pickle_kind_of(pickle, ref) == kind;
}

/* A STR or BYTES, or what _codecs.encode makes bytes of. */
static tsr_ref text_of(const tsr_pickle *pickle, tsr_ref ref)
{
    return tsr_pickle_class_id(pickle, ref) == TSR_TORCH_ENCODE ? item(pickle, tsr_pickle_args(pickle, ref), 0) : ref;
}

static bool is_text(const tsr_pickle *pickle, tsr_ref ref)
{
    return is_kind(pickle, ref, TSR_PICKLE_STR) || is_kind(pickle, ref, TSR_PICKLE_BYTES);
}

/* ---- dtypes ---- */

static bool is_shape(const tsr_pickle *pickle, tsr_ref shape)
{
    size_t count;
    const tsr_ref *dims = tsr_pickle_items(pickle, shape, &count);
    if (!is_kind(pickle, shape, TSR_PICKLE_TUPLE)) return is_type(pickle, shape, "IB");
    for (size_t i = 0; i < count; i++) {
        double value;
        if (!is_type(pickle, dims[i], "IBk") || (tsr_torch_number(pickle, dims[i], &value) && value < 0)) return false;
    }
    return true;
}

/* (dtype, shape) */
static bool is_subarray(const tsr_pickle *pickle, tsr_ref ref)
{
    if (ref == TSR_REF_NONE || is_kind(pickle, ref, TSR_PICKLE_OBJECT)) return is_type(pickle, ref, "NT");
    return is_kind(pickle, ref, TSR_PICKLE_TUPLE) && tsr_pickle_count(pickle, ref) == 2 &&
           is_type(pickle, item(pickle, ref, 0), "V") && is_shape(pickle, item(pickle, ref, 1));
}

/* ({…}, (unit, count, 1, 1)) of datetime64 and timedelta64 */
static bool is_datetime_metadata(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_ref unit = item(pickle, ref, 1);
    if (is_kind(pickle, ref, TSR_PICKLE_OBJECT)) return true;
    if (!is_kind(pickle, ref, TSR_PICKLE_TUPLE) || tsr_pickle_count(pickle, ref) != 2) return false;
    size_t count = tsr_pickle_count(pickle, unit);
    if (!is_kind(pickle, unit, TSR_PICKLE_TUPLE)) return is_type(pickle, unit, "");
    for (size_t i = 1; i < count && i < 3; i++) {
        double value;
        if (!is_type(pickle, item(pickle, unit, i), "IB")) return false;
        if (tsr_torch_number(pickle, item(pickle, unit, i), &value) && value < 1) return false;
    }
    tsr_str name = tsr_pickle_text(pickle, text_of(pickle, item(pickle, unit, 0)));
    return count >= 2 && count <= 4 && is_type(pickle, item(pickle, unit, 0), "SY") && (!name.size || tsr_numpy_is_unit(name));
}

/* The letter and size that the text of the dtype's first argument tells. */
static tsr_numpy_dtype dtype_text(const tsr_pickle *pickle, tsr_ref dtype)
{
    tsr_ref text = text_of(pickle, item(pickle, tsr_pickle_args(pickle, dtype), 0));
    return tsr_numpy_dtype_from(tsr_pickle_text(pickle, text));
}

/* Names: a tuple of str; fields: a dict with each of them. */
static bool are_fields(const tsr_pickle *pickle, tsr_ref names, tsr_ref fields)
{
    size_t count;
    const tsr_ref *each = tsr_pickle_items(pickle, names, &count);
    if ((fields == TSR_REF_NONE) != (names == TSR_REF_NONE)) return false;
    if (fields == TSR_REF_NONE) return true;
    if (!is_type(pickle, names, "T") || !is_type(pickle, fields, "D")) return false;
    for (size_t i = 0; is_kind(pickle, names, TSR_PICKLE_TUPLE) && i < count; i++)
        if (!is_type(pickle, each[i], "SY")) return false;
    return true;
}

/* "<" and the like. */
static bool is_byte_order(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_ref text = text_of(pickle, ref);
    return is_type(pickle, ref, "SY") && (is_kind(pickle, text, TSR_PICKLE_OBJECT) || tsr_pickle_text(pickle, text).size == 1);
}

/* The state of dtypes of numpy before 1.1: without flags, and before that without names, and without a version. */
static bool is_old_dtype_state(const tsr_pickle *pickle, tsr_ref state)
{
    size_t count = tsr_pickle_count(pickle, state), order = count == 5 ? 0 : 1;
    if (count < 5 || !is_byte_order(pickle, item(pickle, state, order)) || !is_subarray(pickle, item(pickle, state, order + 1)))
        return false;
    if (count == 7 && !are_fields(pickle, item(pickle, state, 3), item(pickle, state, 4))) return false;
    return is_type(pickle, item(pickle, state, count - 2), "IB") && is_type(pickle, item(pickle, state, count - 1), "IB");
}

/* (version, byte order, subarray, names, fields, size, alignment, flags, metadata), the last since version 4. */
static bool is_dtype_state(const tsr_pickle *pickle, tsr_ref dtype, tsr_ref state)
{
    size_t count = tsr_pickle_count(pickle, state);
    int64_t version = tsr_pickle_int(pickle, item(pickle, state, 0));
    char letter = dtype_text(pickle, dtype).letter;
    if (count != 5 && (!is_type(pickle, item(pickle, state, 0), "IB") || version < 0 || version > 4)) return false;
    if (count < 8) return is_old_dtype_state(pickle, state);
    if (count > 9 || !is_byte_order(pickle, item(pickle, state, 1)) || !is_subarray(pickle, item(pickle, state, 2))) return false;
    for (size_t i = 5; i < 8; i++)
        if (!is_type(pickle, item(pickle, state, i), i == 7 ? "IBJ" : "IB")) return false;
    if (!are_fields(pickle, item(pickle, state, 3), item(pickle, state, 4))) return false;
    return count < 9 || (letter != 'M' && letter != 'm') || is_datetime_metadata(pickle, item(pickle, state, 8));
}

/* The elements of arrays of a dtype, an OBJECT that numpy.dtype and BUILD have made. */
static elements elements_of(const tsr_pickle *pickle, tsr_ref dtype)
{
    tsr_ref state = tsr_pickle_state(pickle, dtype), size = item(pickle, state, 5), flags = item(pickle, state, 7);
    tsr_numpy_dtype from = dtype_text(pickle, dtype);
    if (tsr_torch_type(pickle, dtype) != 'V' || !from.letter || item(pickle, state, 2) != TSR_REF_NONE || from.letter == 'T')
        return (elements){0};
    elements found = {.known = true, .objects = from.letter == 'O', .size = from.size};
    bool told = is_kind(pickle, size, TSR_PICKLE_INT) && tsr_pickle_int(pickle, size) >= 0;
    if (strchr("SUVa", from.letter) && told) found.size = (uint64_t)tsr_pickle_int(pickle, size);
    if (is_kind(pickle, flags, TSR_PICKLE_INT)) found.objects = tsr_pickle_int(pickle, flags) & LIST_PICKLE;
    found.known = found.objects || found.size;
    return found;
}

/* ---- arrays and scalars ---- */

/* How many bytes a value gives as the raw data of an array; UINT64_MAX where that is not known. A str stands for one byte per
 * character. */
static uint64_t raw_bytes(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_str text = tsr_pickle_text(pickle, ref);
    uint64_t count = 0;
    if (is_kind(pickle, ref, TSR_PICKLE_BYTES)) return text.size;
    if (is_kind(pickle, ref, TSR_PICKLE_OBJECT) && tsr_pickle_class_id(pickle, ref) == TSR_TORCH_ENCODE) {
        tsr_str codec = tsr_pickle_text(pickle, item(pickle, tsr_pickle_args(pickle, ref), 1));
        if (!tsr_str_starts(codec, TSR_STR("lat"))) return UINT64_MAX;
        ref = item(pickle, tsr_pickle_args(pickle, ref), 0);
        text = tsr_pickle_text(pickle, ref);
    }
    if (!is_kind(pickle, ref, TSR_PICKLE_STR)) return UINT64_MAX;
    for (size_t i = 0; i < text.size; i++) count += (text.data[i] & 0xc0) != 0x80;
    return count;
}

/* The number of elements; UINT64_MAX where that is not known. */
static uint64_t element_count(const tsr_pickle *pickle, tsr_ref shape)
{
    size_t rank;
    uint64_t count = 1;
    const tsr_ref *dims = tsr_pickle_items(pickle, shape, &rank);
    for (size_t i = 0; i < rank; i++) {
        int64_t size = tsr_pickle_int(pickle, dims[i]);
        if (!is_kind(pickle, dims[i], TSR_PICKLE_INT) && !is_kind(pickle, dims[i], TSR_PICKLE_BOOL)) return UINT64_MAX;
        if (size < 0 || (size && count > UINT32_MAX)) return UINT64_MAX - 1; /* more than any file has */
        count *= (uint64_t)size;
    }
    return count;
}

/* Raw data for `count` elements. */
static bool is_data(const tsr_pickle *pickle, tsr_ref data, uint64_t count, const elements *of)
{
    uint64_t bytes = raw_bytes(pickle, data);
    if (!is_type(pickle, data, of->known ? of->objects ? "L" : "SY" : "SYL")) return false;
    if (!of->known || count == UINT64_MAX) return true;
    if (!of->objects) return bytes == UINT64_MAX || (count <= bytes / (of->size ? of->size : 1) + 1 && bytes == count * of->size);
    return !is_kind(pickle, data, TSR_PICKLE_LIST) || tsr_pickle_count(pickle, data) >= count;
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
    if (at && !masked && tsr_torch_number(pickle, item(pickle, state, 0), &version) && version != 0 && version != 1) return false;
    if (!is_type(pickle, shape, "T") || (is_kind(pickle, shape, TSR_PICKLE_TUPLE) && !is_shape(pickle, shape))) return false;
    if (!is_type(pickle, dtype, "V") || !is_type(pickle, item(pickle, state, at + 2), "IBk")) return false;
    elements of = elements_of(pickle, dtype), flags = {.known = true, .size = 1};
    uint64_t size = is_kind(pickle, shape, TSR_PICKLE_TUPLE) ? element_count(pickle, shape) : UINT64_MAX;
    if (!is_data(pickle, data, size, &of)) return false;
    if (!masked || dtype_text(pickle, dtype).letter == 'V') return true; /* a mask of records has a flag per field */
    return is_data(pickle, item(pickle, state, 5), size, &flags);
}

static bool fits_scalar(const tsr_pickle *pickle, tsr_ref args)
{
    elements of = elements_of(pickle, item(pickle, args, 0));
    tsr_ref data = item(pickle, args, 1);
    uint64_t bytes = raw_bytes(pickle, data);
    if (!of.known || (tsr_pickle_count(pickle, args) < 2 && !of.objects)) return true;
    if (of.objects) return dtype_text(pickle, item(pickle, args, 0)).letter != 'O' && is_type(pickle, data, "a");
    return is_type(pickle, data, "SY") && (bytes == UINT64_MAX || bytes >= of.size);
}

/* _frombuffer(data, dtype, shape, order) */
static bool fits_buffer(const tsr_pickle *pickle, tsr_ref args)
{
    elements of = elements_of(pickle, item(pickle, args, 1));
    tsr_ref shape = item(pickle, args, 2);
    uint64_t bytes = raw_bytes(pickle, item(pickle, args, 0));
    uint64_t count = is_kind(pickle, shape, TSR_PICKLE_TUPLE) ? element_count(pickle, shape) : UINT64_MAX;
    if (!is_type(pickle, item(pickle, args, 0), "Ya") || of.objects) return false;
    if (!of.known || bytes == UINT64_MAX || count >= UINT64_MAX - 1) return true;
    return of.size && count <= bytes && bytes == count * of.size;
}

static bool fits_dtype(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_ref first = text_of(pickle, item(pickle, args, 0));
    return !is_text(pickle, first) || tsr_numpy_is_dtype(tsr_pickle_text(pickle, first));
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
    tsr_ref last = item(pickle, args, tsr_pickle_count(pickle, args) - 1), shape = item(pickle, args, tsr_pickle_count(pickle, args) - 2);
    if (is_kind(pickle, shape, TSR_PICKLE_TUPLE) && !is_shape(pickle, shape)) return false;
    last = text_of(pickle, last);
    return !is_text(pickle, last) || tsr_numpy_is_dtype(tsr_pickle_text(pickle, last));
}

/* ---- random generators ---- */

static const struct {
    const char *name, *keys, *state_keys; /* of the state, and of the dict "state" in it; numbers of 32 bits begin
                                           * with a '#', of 128 with a '%', arrays with a '@' */
} generators[] = {
    {"PCG64", "#has_uint32 #uinteger", "%state %inc"}, {"PCG64DXSM", "#has_uint32 #uinteger", "%state %inc"},
    {"SFC64", "#has_uint32 #uinteger", "@state"},      {"Philox", "@buffer #buffer_pos #has_uint32 #uinteger", "@counter @key"},
    {"MT19937", "", "@key #pos"},
};
enum { GENERATORS = sizeof generators / sizeof generators[0] };

/* The row of a name; GENERATORS for any other. */
static size_t generator_named(tsr_str name)
{
    size_t i = 0;
    while (i < GENERATORS && !tsr_str_equal(name, tsr_str_from(generators[i].name))) i++;
    return i;
}

/* That of what __bit_generator_ctor is given: a name, or since numpy 2 the class. */
static size_t generator_of(const tsr_pickle *pickle, tsr_ref args)
{
    tsr_ref first = item(pickle, args, 0);
    if (tsr_pickle_count(pickle, args) == 0) return GENERATORS - 1;
    return generator_named(is_kind(pickle, first, TSR_PICKLE_GLOBAL) ? tsr_pickle_name_of(pickle, first) : tsr_pickle_text(pickle, first));
}

/* Whether a value is what the first character of its key asks for. */
static bool is_number_for(const tsr_pickle *pickle, char sign, tsr_ref value)
{
    double number;
    if (sign == '@') return is_type(pickle, value, "aLT");
    if (sign != '#' && sign != '%') return true;
    if (!is_type(pickle, value, sign == '#' ? "IBk" : "IBJFk")) return false;
    return !tsr_torch_number(pickle, value, &number) || (number >= 0 && number < (sign == '#' ? 0x1p32 : 0x1p128));
}

static bool has_keys(const tsr_pickle *pickle, tsr_ref dict, const char *keys)
{
    char key[16];
    bool found = true;
    while (*keys && found) {
        char sign = *keys;
        keys += sign == '#' || sign == '%' || sign == '@';
        size_t size = strcspn(keys, " ");
        memcpy(key, keys, size);
        key[size] = '\0';
        tsr_ref value = tsr_pickle_get(pickle, dict, key, &found);
        found = found && is_number_for(pickle, sign, value);
        keys += size + (keys[size] == ' ');
    }
    return found;
}

/* The dict that a bit generator has as its state; with a seed behind it since numpy 2. */
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
    return is_kind(pickle, inner, TSR_PICKLE_OBJECT) || has_keys(pickle, inner, generators[row].state_keys);
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

/* What the three checksums stand for: the attributes of numpy's SeedSequence. */
static bool fits_seed(const tsr_pickle *pickle, tsr_ref args)
{
    static const int64_t checksums[] = {0x3eaa222, 0xc464c19, 0xf88304a};
    int64_t sum = tsr_pickle_int(pickle, item(pickle, args, 1));
    bool known = false;
    for (size_t i = 0; i < sizeof checksums / sizeof checksums[0]; i++) known |= sum == checksums[i];
    return known && tsr_str_equal(tsr_pickle_name_of(pickle, item(pickle, args, 0)), TSR_STR("SeedSequence"));
}

/* (entropy, how many were spawned, pool, its size, spawn key) */
static bool is_seed_state(const tsr_pickle *pickle, tsr_ref state)
{
    if (!is_kind(pickle, state, TSR_PICKLE_TUPLE)) return is_type(pickle, state, "");
    return tsr_pickle_count(pickle, state) == 5 && is_type(pickle, item(pickle, state, 1), "IB") &&
           is_type(pickle, item(pickle, state, 3), "IB") && is_type(pickle, item(pickle, state, 4), "TN");
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
    if (tsr_str_equal(name, TSR_STR("_reconstruct")) || tsr_str_equal(name, TSR_STR("ndarray")) || tsr_str_equal(name, TSR_STR("_frombuffer")))
        return tuple && is_array_state(pickle, state, false);
    if (tsr_str_equal(name, TSR_STR("_mareconstruct")) || tsr_str_equal(name, TSR_STR("MaskedConstant")))
        return tuple && is_array_state(pickle, state, true);
    if (tsr_str_equal(name, TSR_STR("dtype"))) return tuple && is_dtype_state(pickle, object, state);
    if (tsr_str_equal(name, TSR_STR("__bit_generator_ctor")))
        return is_generator_state(pickle, generator_of(pickle, tsr_pickle_args(pickle, object)), state);
    if (tsr_str_equal(name, TSR_STR("__randomstate_ctor"))) return is_generator_state(pickle, GENERATORS, state);
    if (tsr_str_equal(name, TSR_STR("__generator_ctor")))
        return !is_kind(pickle, state, TSR_PICKLE_DICT) || is_generator_state(pickle, GENERATORS, state);
    return !tsr_str_equal(name, TSR_STR("__pyx_unpickle_SeedSequence")) || is_seed_state(pickle, state);
}
