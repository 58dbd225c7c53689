/* Checks whether the files of a DeepSpeed checkpoint are complete and from one save. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_CHECK_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_CHECK_H

#include "formats/deepspeed/deepspeed_files.h"

/* Reports, with the names of the files: ranks whose files are missing; ranks beyond the number of ranks; files that state a
 * different number of ranks; files whose step or param groups differ from those of the other ranks. Fails if reading fails,
 * or with TSR_E_NOMEM. */
tsr_status tsr_ds_check(const tsr_ds_files *files, tsr_error *err);

/* Sets *same to whether two values of different files are equal, or are 0-d tensors with equal values. True if one is NULL, or
 * if a tensor has dimensions. Fails only if reading fails. */
tsr_status tsr_ds_same_scalar(const tsr_ds_files *files, const tsr_value *a, const tsr_value *b, bool *same, tsr_error *err);

#endif
