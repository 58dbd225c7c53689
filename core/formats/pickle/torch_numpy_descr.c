/* Source: numpy 2.4, numpy/_core/src/multiarray/descriptor.c (arraydescr_new, arraydescr_setstate), datetime.c
 * (convert_datetime_metadata_tuple_to_datetime_metadata, convert_datetime_divisor_to_multiple). */
#include "formats/pickle/torch_numpy_descr.h"

#include "formats/pickle/pickle_short.h"
#include "formats/pickle/torch_numpy_dtype.h"
#include "formats/pickle/torch_numpy_elements.h"
#include "formats/pickle/torch_type.h"

/* Limits on the names, fields and sizes of a dtype that are checked. Many objects may share one dtype, and each checks it
 * again. */
enum { MOST_NAMES = 64, MOST_DIMS = 64 };

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

bool tsr_numpy_names_dtype(const tsr_pickle *pickle, tsr_ref ref)
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

bool tsr_numpy_is_dtype_state(const tsr_pickle *pickle, tsr_ref dtype, tsr_ref state)
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
