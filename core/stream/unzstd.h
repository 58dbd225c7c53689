/* Reads at any position of a zstd stream in a range of a file. Reads at rising positions take one pass in total; going back
 * starts over. One thread at a time. */
#ifndef TSR_STREAM_UNZSTD_H
#define TSR_STREAM_UNZSTD_H

#include "tessera/sys/store_read.h"

typedef struct tsr_unzstd tsr_unzstd;

void tsr_unzstd_close(tsr_unzstd *stream); /* accepts NULL */

#endif
