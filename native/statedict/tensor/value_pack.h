/* Values as bytes, for other ranks of the same build: numbers lie as in memory. */
#ifndef TSR_STATEDICT_VALUE_PACK_H
#define TSR_STATEDICT_VALUE_PACK_H

#include "tessera/sys/vec.h"
#include "tessera/tensor.h"

/* Appends to `out` (of bytes). Of tensors at most `tensors_at` containers deep only dtype and shape are packed. 0-d ones and
 * those further down are parts of a value: their bytes, which are on the host or are fetched, are packed, too.
 * TSR_E_UNSUPPORTED for any tensor with `tensors_at` 0: such values need not be of live tensors. */
tsr_status tsr_value_pack(const tsr_value *value, uint32_t tensors_at, tsr_vec *out, tsr_error *err);
/* The value again, in `arena`; `bytes` must live as long. Tensors are whole, and meta unless their bytes were packed: then
 * these are in the arena. TSR_E_FORMAT for bytes that are none. */
tsr_status tsr_value_unpack(tsr_str bytes, tsr_arena *arena, const tsr_value **out, tsr_error *err);

/* A deep copy in `arena`, for values of a checkpoint that is to be closed. TSR_E_UNSUPPORTED for values that name tensors. */
tsr_status tsr_value_copy(const tsr_value *value, tsr_arena *arena, const tsr_value **out, tsr_error *err);

#endif
