/* Reads the checksums at the end of files (tessera/sys/end_sum.h). */
#ifndef TSR_FORMATS_COMMON_END_SUM_H
#define TSR_FORMATS_COMMON_END_SUM_H

#include "formats/common/reader.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/end_sum.h"

/* Whether these bytes are a checksum, a damaged one too: one that differs in a single byte. */
bool tsr_end_sum_is(tsr_str bytes);
/* Passes on the bytes before the checksum as an extent with their CRC, if there is one; a damaged one is passed on so that it differs.
 * For TSR_NO_FILE does nothing. */
tsr_status tsr_end_sum_extent(tsr_store *store, uint32_t file,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err);

#endif
