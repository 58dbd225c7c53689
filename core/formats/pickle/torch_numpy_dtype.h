/* The text of numpy's dtypes. */
#ifndef TSR_FORMATS_PICKLE_TORCH_NUMPY_DTYPE_H
#define TSR_FORMATS_PICKLE_TORCH_NUMPY_DTYPE_H

#include "tessera/str.h"

typedef struct tsr_numpy_dtype {
    char letter;   /* of numpy's kinds of types: 'f', 'i', 'S', 'M', 'O', …; 'V' for several fields; 0: it names none */
    uint64_t size; /* bytes of an element; 0 where the text does not tell */
} tsr_numpy_dtype;

/* Of "<f8", "M8[ns]", "float32", "i4,(2,)f4". */
tsr_numpy_dtype tsr_numpy_dtype_from(tsr_str text);

/* Whether the text is a unit of time: "ns", "D", "generic". */
bool tsr_numpy_is_unit(tsr_str text);

#endif
