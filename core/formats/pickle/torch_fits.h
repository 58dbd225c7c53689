/* Whether the values of arguments are such that Python's own types accept them: a signature (torch_signature.h) tells the
 * types only. */
#ifndef TSR_FORMATS_PICKLE_TORCH_FITS_H
#define TSR_FORMATS_PICKLE_TORCH_FITS_H

#include "formats/pickle/torch_names.h"

/* Whether int() takes the text. */
bool tsr_torch_is_int_text(tsr_str text);

/* Whether bytearray.append() takes each item. */
bool tsr_torch_are_bytes(const tsr_pickle *pickle, tsr_ref list);

/* False when the class or function `name` raises with the values in the TUPLE `args`, of which the types fit. */
bool tsr_torch_fits(const tsr_pickle *pickle, tsr_str name, tsr_ref args);

#endif
