/* The look for NaNs and infinities with wider vectors than the architecture's least ones. */
#ifndef TSR_NATIVE_WIDE_SCAN_H
#define TSR_NATIVE_WIDE_SCAN_H

#include "tessera/host.h"

/* `carries` of tsr_host. */
typedef bool tsr_wide_scan(const void *data, size_t size, uint32_t item_bytes, uint64_t lowest);

/* NULL where this processor has none: the core's own loop is as fast then. */
tsr_wide_scan *tsr_native_wide_scan(void);

#endif
