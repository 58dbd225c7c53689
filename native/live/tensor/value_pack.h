/* Values as bytes, for other ranks that run the same build: numbers are in native byte order. */
#ifndef TSR_STATEDICT_VALUE_PACK_H
#define TSR_STATEDICT_VALUE_PACK_H

#include "tessera/sys/vec.h"
#include "tessera/tensor.h"

/* Appends a value to `out` (of char). Of tensors that are at most `tensors_at` containers deep, only dtype and shape are
 * packed. 0-d tensors and those further down belong to a value, so their bytes are packed, too, and copied from the device
 * if necessary. With `tensors_at` 0, any tensor is TSR_E_UNSUPPORTED. */
tsr_status tsr_value_pack(const tsr_value *value, uint32_t tensors_at, tsr_vec *out, tsr_error *err);
/* Unpacks a value into `arena`; it borrows `bytes`. Tensors are whole. They are meta unless their bytes were packed; these
 * are in the arena. TSR_E_FORMAT if the bytes are not a packed value. */
tsr_status tsr_value_unpack(tsr_str bytes, tsr_arena *arena, const tsr_value **out, tsr_error *err);

/* Makes a deep copy in `arena`, for values of a checkpoint that will be closed. TSR_E_UNSUPPORTED for values that name
 * tensors. */
tsr_status tsr_value_copy(const tsr_value *value, tsr_arena *arena, const tsr_value **out, tsr_error *err);

#endif
