/* Looks up 4-bit numbers by shuffling the bytes of a table, 16 numbers at a time. */
#ifndef TSR_NATIVE_PAIR_SHUFFLES_H
#define TSR_NATIVE_PAIR_SHUFFLES_H

#include "tessera/host.h"

/* The type of tsr_host.look_up_pairs. */
typedef void tsr_pair_shuffles(const tsr_pair_groups *groups, uint8_t *out);

/* NULL if this processor has no such instructions. */
tsr_pair_shuffles *tsr_native_pair_shuffles(void);

#endif
