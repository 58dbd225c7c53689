/* Checks whether all copies of a tensor's boxes are equal. The ranks of a replicated DTensor have one copy each, and only
 * one of them is written. */
#ifndef TSR_WORK_COPIES_H
#define TSR_WORK_COPIES_H

#include "tessera/read.h"

/* Fails with TSR_E_FORMAT, naming the entry and the file, if a replica of `entry` does not have the same elements as the
 * chunk with the same box. Copies with equal CRCs are not read. All others are read along with their chunks, so this costs
 * at most twice the replicated bytes. Also fails if reading fails. */
tsr_status tsr_check_copies(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_error *err);

#endif
