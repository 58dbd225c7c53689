#include "formats/pickle/torch_numpy_elements.h"

#include "formats/pickle/pickle_short.h"
#include "formats/pickle/torch_names.h"
#include "formats/pickle/torch_numpy_dtype.h"

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
