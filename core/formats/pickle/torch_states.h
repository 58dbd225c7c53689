/* Whether objects accept the state that BUILD gives them: those of Python and PyTorch, see torch_numpy.h for numpy's. */
#ifndef TSR_FORMATS_PICKLE_TORCH_STATES_H
#define TSR_FORMATS_PICKLE_TORCH_STATES_H

#include "formats/pickle/torch_names.h"

/* Whether PyTorch can set the attributes that _rebuild_from_type_v2 is given as a state. */
bool tsr_torch_are_attributes(const tsr_pickle *pickle, tsr_ref state);

#endif
