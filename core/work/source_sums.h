/* Checks whether the bytes that were written match the CRCs stated in the source's archives. Nothing is read again: the CRCs
 * of a tensor's pieces, computed while they were written, are combined in row-major order, and so are the CRCs that the
 * source states for its chunks.
 *
 *   written   [ piece of rank 0      ][ piece of rank 1      ][ rank 2 ]   joined: CRC of the tensor's bytes
 *   stated    [ chunk ][ chunk ][ chunk ][ chunk ][ chunk ][ chunk ]       joined: the same, or the source is damaged
 *
 * Skips tensors that were cast, that are not split by rows in the source or the destination, or that have a chunk without a
 * stated CRC. */
#ifndef TSR_WORK_SOURCE_SUMS_H
#define TSR_WORK_SOURCE_SUMS_H

#include "write/blit.h"

typedef struct tsr_source_sums tsr_source_sums;

/* `ahead` has what is already known about the chunks, or is NULL. */
tsr_status tsr_source_sums_new(tsr_checkpoint *checkpoint, tsr_ahead *ahead, tsr_source_sums **out, tsr_error *err);
void tsr_source_sums_free(tsr_source_sums *sums); /* accepts NULL */

/* Adds blits that were written, with their CRCs. A tensor's pieces only count if they are added in the order of their
 * rows. */
tsr_status tsr_source_sums_add(tsr_source_sums *sums, const tsr_blit *blits, size_t count, tsr_error *err);
/* Fails with TSR_E_FORMAT for a tensor whose CRCs differ. */
tsr_status tsr_source_sums_check(const tsr_source_sums *sums, tsr_error *err);

#endif
