/* Whether objects accept the state that BUILD gives them: those of Python and PyTorch, see torch_numpy.h for numpy's. */
#ifndef TSR_FORMATS_PICKLE_TORCH_STATES_H
#define TSR_FORMATS_PICKLE_TORCH_STATES_H

#include "formats/pickle/torch_names.h"

/* False when an object of the listed class `name`, which has the number `id`, raises for the state. */
bool tsr_torch_fits_state(const tsr_pickle *pickle, uint32_t id, tsr_str name, tsr_ref state);

/* Whether PyTorch can set the attributes that _rebuild_from_type_v2 is given as a state. */
bool tsr_torch_are_attributes(const tsr_pickle *pickle, tsr_ref state);

#endif
