/* State dicts as bytes between the fuzzer's two sides: codec.py is the other end and describes the form. */
#ifndef TSR_TESTS_INTEROP_FUZZ_WIRE_H
#define TSR_TESTS_INTEROP_FUZZ_WIRE_H

#include "tessera/statedict.h"
#include "tessera/sys/vec.h"

typedef struct wire_in {
    const uint8_t *at, *end;
    tsr_state_dict *dict; /* what is read lives here, tensors in memory of their own */
    uint32_t rank;        /* of this process in every mesh */
    tsr_vec shared;       /* of const tsr_value *: tensors by number, which may occur in several places */
} wire_in;

tsr_status wire_read(wire_in *in, const tsr_value **out, tsr_error *err);

/* Appends to `bytes`, a tsr_vec of uint8_t. `arena` is for notes. */
tsr_status wire_write(tsr_vec *bytes, const tsr_value *value, tsr_arena *arena, tsr_error *err);

#endif
