/* Whether two ranks stored the same tensor, where no checksum decides it. */
#ifndef TSR_FORMATS_COMMON_RANK_BYTES_H
#define TSR_FORMATS_COMMON_RANK_BYTES_H

#include "formats/common/reader.h"

/* Compares the elements of two tensors of the same dtype and shape, each stored as one chunk that covers it. Bit for bit:
 * NaNs are equal only with equal payloads. Reads at most a few times what is stored: two tensors whose elements repeat or
 * overlap stored ones in different ways, far beyond their bytes, count as different without being compared, and so do a
 * conjugated or negated view and a plain one. Fails only where reading fails (TSR_E_IO) or with TSR_E_NOMEM. */
tsr_status tsr_rank_bytes_match(const tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *same,
                                tsr_error *err);

#endif
