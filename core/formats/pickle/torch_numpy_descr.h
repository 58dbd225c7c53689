/* numpy.dtype objects of a pickle: whether numpy makes them. */
#ifndef TSR_FORMATS_PICKLE_TORCH_NUMPY_DESCR_H
#define TSR_FORMATS_PICKLE_TORCH_NUMPY_DESCR_H

#include "formats/pickle/torch_names.h"

/* Whether numpy.dtype(ref) gives a dtype. */
bool tsr_numpy_names_dtype(const tsr_pickle *pickle, tsr_ref ref);

/* Whether numpy accepts the state of `dtype`, a TUPLE. */
bool tsr_numpy_is_dtype_state(const tsr_pickle *pickle, tsr_ref dtype, tsr_ref state);

#endif
