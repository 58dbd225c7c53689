/* The angles that processes exchange when they share the measuring (tsr_merge_measure).
 *
 * Example:
 *
 *     status = tsr_merge_measure(checkpoint, 0, 2, &err);
 *     if (status == TSR_OK) printf("%zu bytes for the other process\n", tsr_merge_angles(checkpoint).size); */
#ifndef TESSERA_SYS_MERGE_ANGLES_H
#define TESSERA_SYS_MERGE_ANGLES_H

#include "tessera/sys/merge.h"

TSR_API_BEGIN

/* tsr_merge_angles returns the angles that this process measured, in the memory of `merged`; the size is the same in every
 * process. tsr_merge_take_angles adds those that another process measured. */
tsr_str tsr_merge_angles(tsr_checkpoint *merged);
void tsr_merge_take_angles(tsr_checkpoint *merged, tsr_str angles);

TSR_API_END

#endif
