/* What numpy's pickles say, and whether numpy takes it: dtypes, arrays, scalars and random generators. Source: numpy 2.4,
 * numpy/_core/src/multiarray/{descriptor,methods,multiarraymodule}.c, numpy/random/_pickle.py, bit_generator.pyx; and what
 * numpy 1.26 wrote. */
#ifndef TSR_FORMATS_PICKLE_TORCH_NUMPY_H
#define TSR_FORMATS_PICKLE_TORCH_NUMPY_H

#include "formats/pickle/torch_fits.h"
#include "formats/pickle/torch_names.h"
#include "tessera/str.h"

/* False when numpy's function or class `name` raises with the values in the TUPLE `args`, of which the types fit. */
bool tsr_numpy_fits(const tsr_pickle *pickle, tsr_str name, tsr_ref args);

/* False when what numpy's `name` has made raises for the state that `object` gets. */
bool tsr_numpy_accepts_state(const tsr_pickle *pickle, tsr_str name, tsr_ref object);

/* ---- The text of numpy's dtypes. ---- */

typedef struct tsr_numpy_dtype {
    char letter;   /* of numpy's kinds of types: 'f', 'i', 'S', 'M', 'O', …; 'V' for several fields; 0: it names none */
    uint64_t size; /* bytes of an element; 0 where the text does not tell */
} tsr_numpy_dtype;

/* Of "<f8", "M8[ns]", "float32", "i4,(2,)f4". */
tsr_numpy_dtype tsr_numpy_dtype_from(tsr_str text);

/* Whether the text is a unit of time: "ns", "D", "generic". */
bool tsr_numpy_is_unit(tsr_str text);

/* What a numpy.dtype object of a pickle tells about the elements of an array. */

/* What is known of the elements of an array. */
typedef struct tsr_numpy_elements {
    bool known;
    bool objects;  /* pickled as a list */
    bool unsafe;   /* the dtype's flags contradict its type: numpy would take raw bytes for pointers, or the reverse */
    bool called;   /* the flags ask for a function that reads an element, which only some dtypes have: no scalar is made */
    uint64_t size; /* bytes of each otherwise */
} tsr_numpy_elements;

/* The letter of a dtype's type, as numpy has it; 0 where `dtype` is not a numpy.dtype whose type is known. */
char tsr_numpy_letter(const tsr_pickle *pickle, tsr_ref dtype);

/* The type (torch_fits.h) of a scalar of that dtype: some are subclasses of Python's own. */
char tsr_numpy_scalar_type(const tsr_pickle *pickle, tsr_ref dtype);

/* The elements of arrays of a dtype, an OBJECT that numpy.dtype and BUILD have made. */
tsr_numpy_elements tsr_numpy_elements_of(const tsr_pickle *pickle, tsr_ref dtype);

/* The STR or BYTES that a value is; for what _codecs.encode makes of text, that text. */
tsr_ref tsr_numpy_text_of(const tsr_pickle *pickle, tsr_ref ref);

/* Whether a value is STR or BYTES. */
bool tsr_numpy_is_text(const tsr_pickle *pickle, tsr_ref ref);

/* ---- Short names for what the checks of numpy's objects ask in nearly every line. ---- */

TSR_INLINE tsr_ref item(const tsr_pickle *pickle, tsr_ref tuple, size_t at)
{
    return tsr_pickle_item(pickle, tuple, at);
}

TSR_INLINE bool is_kind(const tsr_pickle *pickle, tsr_ref ref, tsr_pickle_kind kind)
{
    return tsr_pickle_kind_of(pickle, ref) == kind;
}

TSR_INLINE bool is_type(const tsr_pickle *pickle, tsr_ref ref, const char *types)
{
    return tsr_torch_is_one_of(pickle, ref, types);
}

#endif
