/* Searches for NaNs and infinities with wider vectors than the architecture's baseline. */
#ifndef TSR_NATIVE_WIDE_SCAN_H
#define TSR_NATIVE_WIDE_SCAN_H

#include "tessera/host.h"

/* The type of tsr_host.carries. */
typedef bool tsr_wide_scan(const void *data, size_t size, uint32_t item_bytes, uint64_t lowest);

/* NULL if this processor has none; the loop in core is then as fast. */
tsr_wide_scan *tsr_native_wide_scan(void);

#endif
