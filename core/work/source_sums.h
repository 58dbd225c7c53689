/* Whether the bytes that were written are those that the source's archives state CRCs of. Nothing is read again: the CRCs of
 * a tensor's pieces, summed up while they were written, are joined in row-major order, and so are those that the source
 * states of its chunks.
 *
 *   written   [ piece of rank 0      ][ piece of rank 1      ][ rank 2 ]   joined: CRC of the tensor's bytes
 *   stated    [ chunk ][ chunk ][ chunk ][ chunk ][ chunk ][ chunk ]       joined: the same, or the source is damaged
 *
 * Tensors that were cast, that are cut otherwise than by rows on either side, or of which a chunk has no stated CRC are
 * passed over. */
#ifndef TSR_WORK_SOURCE_SUMS_H
#define TSR_WORK_SOURCE_SUMS_H

#include "write/blit.h"

typedef struct tsr_source_sums tsr_source_sums;

/* `ahead`: NULL, or what is known of the chunks. */
tsr_status tsr_source_sums_new(tsr_checkpoint *checkpoint, tsr_ahead *ahead, tsr_source_sums **out, tsr_error *err);
void tsr_source_sums_free(tsr_source_sums *sums); /* takes NULL */

/* Adds blits that were written, with their CRCs; a tensor's pieces must come in the order of their rows to count. */
tsr_status tsr_source_sums_add(tsr_source_sums *sums, const tsr_blit *blits, size_t count, tsr_error *err);
/* TSR_E_FORMAT for a tensor whose CRCs differ. */
tsr_status tsr_source_sums_check(const tsr_source_sums *sums, tsr_error *err);

#endif
