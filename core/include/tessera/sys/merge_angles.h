/* What processes that share out the measuring of angles (tsr_merge_measure) tell each other.
 *
 * Example:
 *
 *     status = tsr_merge_measure(checkpoint, 0, 2, &err);
 *     if (status == TSR_OK) printf("%zu bytes for the other process\n", tsr_merge_angles(checkpoint).size); */
#ifndef TESSERA_SYS_MERGE_ANGLES_H
#define TESSERA_SYS_MERGE_ANGLES_H

#include "tessera/sys/merge.h"

TSR_API_BEGIN

/* What was measured, in the memory of `merged`, the same size in every process; and what another process measured. */
tsr_str tsr_merge_angles(tsr_checkpoint *merged);
void tsr_merge_take_angles(tsr_checkpoint *merged, tsr_str angles);

TSR_API_END

#endif
