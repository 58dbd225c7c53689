/* What numpy's pickles say, and whether numpy takes it: dtypes, arrays, scalars and random generators. Source: numpy 2.4,
 * numpy/_core/src/multiarray/{descriptor,methods,multiarraymodule}.c, numpy/random/_pickle.py, bit_generator.pyx; and what
 * numpy 1.26 wrote. */
#ifndef TSR_FORMATS_PICKLE_TORCH_NUMPY_H
#define TSR_FORMATS_PICKLE_TORCH_NUMPY_H

#include "formats/pickle/torch_names.h"

/* False when numpy's function or class `name` raises with the values in the TUPLE `args`, of which the types fit. */
bool tsr_numpy_fits(const tsr_pickle *pickle, tsr_str name, tsr_ref args);

/* False when what numpy's `name` has made raises for the state that `object` gets. */
bool tsr_numpy_accepts_state(const tsr_pickle *pickle, tsr_str name, tsr_ref object);

#endif
