/* Converts state dicts to bytes that the fuzzer's two sides exchange. codec.py is the other side and describes the
 * format. */
#ifndef TSR_TESTS_INTEROP_FUZZ_WIRE_H
#define TSR_TESTS_INTEROP_FUZZ_WIRE_H

#include "tessera/statedict.h"
#include "tessera/sys/containers.h"

typedef struct wire_in {
    const uint8_t *at, *end;
    tsr_state_dict *dict; /* owns what is read; tensors have separate memory */
    uint32_t rank;        /* the rank of this process in every mesh */
    tsr_vec shared;       /* of const tsr_value *: tensors by number, each of which may occur several times */
} wire_in;

tsr_status wire_read(wire_in *in, const tsr_value **out, tsr_error *err);

/* Appends to `bytes`, a tsr_vec of uint8_t. Uses `arena` for temporary memory. */
tsr_status wire_write(tsr_vec *bytes, const tsr_value *value, tsr_arena *arena, tsr_error *err);

#endif
