/* Whether the copies of a tensor's boxes are equal. Ranks of a replicated DTensor hold one each, and only one of them is
 * written. */
#ifndef TSR_WORK_COPIES_H
#define TSR_WORK_COPIES_H

#include "tessera/read.h"

/* TSR_E_FORMAT, with the entry and the file, when a replica of `entry` does not have the elements of the chunk whose box it
 * has. Copies with equal CRCs are not read; the others are, with their chunk, so this costs at most twice the bytes of what is
 * replicated. Errors: those of reading. */
tsr_status tsr_check_copies(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_error *err);

#endif
