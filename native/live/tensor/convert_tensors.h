/* Copies between tensors of different dtypes and shapes, as PyTorch's copy_ does. */
#ifndef TSR_STATEDICT_CONVERT_TENSORS_H
#define TSR_STATEDICT_CONVERT_TENSORS_H

#include "tessera/statedict.h"

/* Whether elements of `from` can be converted to `to`: between float types, and from integers to float types. */
bool tsr_convert_possible(tsr_dtype from, tsr_dtype to);

/* Copies and converts elements between tensors with the same shape and distribution, on any devices. The copy is done on
 * return. */
tsr_status tsr_tensor_convert(const tsr_tensor *from, const tsr_tensor *to, tsr_arena *passing, tsr_error *err);

/* Copies `from` into `to` if its dtype can be converted and its shape is the same or, of whole tensors, can be broadcast;
 * otherwise sets *done to false. `out` is only used for temporary memory. */
tsr_status tsr_tensor_copy_into(const tsr_tensor *from, const tsr_tensor *to, tsr_state_dict *out, bool *done,
                                tsr_error *err);

#endif
