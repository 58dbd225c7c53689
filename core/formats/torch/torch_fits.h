/* Whether the values of arguments are such that Python's own types accept them: a signature (torch_signature.h) tells the
 * types only. */
#ifndef TSR_FORMATS_TORCH_TORCH_FITS_H
#define TSR_FORMATS_TORCH_TORCH_FITS_H

#include "formats/torch/torch_names.h"

/* False when the class or function `name` raises with the values in the TUPLE `args`, of which the types fit. */
bool tsr_torch_fits(const tsr_pickle *pickle, tsr_str name, tsr_ref args);

/* The same for the state that BUILD gives to an object of the class `name`. */
bool tsr_torch_fits_state(const tsr_pickle *pickle, tsr_str name, tsr_ref state);

/* How many items the tuple torch.return_types.NAME has; 0 for other names. */
size_t tsr_torch_return_size(tsr_str name);

#endif
