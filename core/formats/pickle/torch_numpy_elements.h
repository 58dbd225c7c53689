/* What a numpy.dtype object of a pickle tells about the elements of an array. Whether numpy makes the dtype: torch_numpy_descr.h. */
#ifndef TSR_FORMATS_PICKLE_TORCH_NUMPY_ELEMENTS_H
#define TSR_FORMATS_PICKLE_TORCH_NUMPY_ELEMENTS_H

#include "formats/pickle/torch_names.h"

/* What is known of the elements of an array. */
typedef struct tsr_numpy_elements {
    bool known;
    bool objects;  /* pickled as a list */
    bool unsafe;   /* the dtype's flags contradict its type: numpy would take raw bytes for pointers, or the reverse */
    bool called;   /* the flags ask for a function that reads an element, which only some dtypes have: no scalar is made */
    uint64_t size; /* bytes of each otherwise */
} tsr_numpy_elements;

/* The letter of a dtype's type, as in torch_numpy_dtype.h; 0 where `dtype` is not a numpy.dtype whose type is known. */
char tsr_numpy_letter(const tsr_pickle *pickle, tsr_ref dtype);

/* The type (torch_type.h) of a scalar of that dtype: some are subclasses of Python's own. */
char tsr_numpy_scalar_type(const tsr_pickle *pickle, tsr_ref dtype);

/* The elements of arrays of a dtype, an OBJECT that numpy.dtype and BUILD have made. */
tsr_numpy_elements tsr_numpy_elements_of(const tsr_pickle *pickle, tsr_ref dtype);

/* The STR or BYTES that a value is; for what _codecs.encode makes of text, that text. */
tsr_ref tsr_numpy_text_of(const tsr_pickle *pickle, tsr_ref ref);

/* Whether a value is STR or BYTES. */
bool tsr_numpy_is_text(const tsr_pickle *pickle, tsr_ref ref);

#endif
