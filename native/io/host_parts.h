/* What processors of this kind do faster than portable code: parts of the native host. */
#ifndef TSR_IO_HOST_PARTS_H
#define TSR_IO_HOST_PARTS_H

#include "tessera/host.h"

/* ---- Searches for NaNs and infinities with wider vectors than the architecture's baseline. ---- */

/* The type of tsr_host.carries. */
typedef bool tsr_wide_scan(const void *data, size_t size, uint32_t item_bytes, uint64_t lowest);

/* NULL if this processor has none; the loop in core is then as fast. */
tsr_wide_scan *tsr_native_wide_scan(void);

/* ---- Looks up 4-bit numbers by shuffling the bytes of a table, 16 numbers at a time. ---- */

/* The type of tsr_host.look_up_pairs. */
typedef void tsr_pair_shuffles(const tsr_pair_groups *groups, uint8_t *out);

/* NULL if this processor has no such instructions. */
tsr_pair_shuffles *tsr_native_pair_shuffles(void);

#endif
