/* Reads at any position of a zstd stream in a range of a file. Reads at rising positions take one pass in total; going back
 * starts over. One thread at a time. */
#ifndef TSR_STREAM_UNZSTD_H
#define TSR_STREAM_UNZSTD_H

#include "tessera/sys/store_read.h"

typedef struct tsr_unzstd tsr_unzstd;

/* TSR_E_UNSUPPORTED if the host has no zstd. Borrows `host` and the store. Close *out with tsr_unzstd_close. */
tsr_status tsr_unzstd_open(tsr_range in, const tsr_host *host, tsr_unzstd **out, tsr_error *err);
void tsr_unzstd_close(tsr_unzstd *stream); /* accepts NULL */
/* Reads exactly `size` decompressed bytes at `position`. TSR_E_FORMAT if the stream is damaged or too short. */
tsr_status tsr_unzstd_read(tsr_unzstd *stream, uint64_t position, void *buffer, size_t size, tsr_error *err);

#endif
