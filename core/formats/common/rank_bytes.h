/* Compares what two ranks stored for one tensor, when no checksum decides whether it is the same. */
#ifndef TSR_FORMATS_COMMON_RANK_BYTES_H
#define TSR_FORMATS_COMMON_RANK_BYTES_H

#include "formats/common/reader.h"

/* Compares the elements of two tensors of the same dtype and shape, each stored as one chunk that covers it. The comparison
 * is bitwise, so NaNs are equal only if their payloads are. Reads at most a few times the stored bytes: strided views that
 * repeat or overlap stored elements far more often than that count as different without a comparison. So do a conjugated or
 * negated view and a plain one. Fails only if reading fails (TSR_E_IO) or with TSR_E_NOMEM. */
tsr_status tsr_rank_bytes_match(const tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *same,
                                tsr_error *err);

#endif
