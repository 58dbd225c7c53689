/* Reading at any position of a zstd stream that lies in a range of a file. Positions that rise cost one pass; going back
 * starts over. One thread at a time. */
#ifndef TSR_STREAM_UNZSTD_H
#define TSR_STREAM_UNZSTD_H

#include "tessera/sys/store_read.h"

typedef struct tsr_unzstd tsr_unzstd;

/* TSR_E_UNSUPPORTED when the host has no zstd. Borrows all. */
tsr_status tsr_unzstd_open(tsr_range in, const tsr_host *host, tsr_unzstd **out, tsr_error *err);
void tsr_unzstd_close(tsr_unzstd *stream); /* takes NULL */
/* Exactly `size` plain bytes at `position`. TSR_E_FORMAT when the stream is damaged or ends before. */
tsr_status tsr_unzstd_read(tsr_unzstd *stream, uint64_t position, void *buffer, size_t size, tsr_error *err);

#endif
