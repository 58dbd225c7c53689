/* Whether the files of a DeepSpeed checkpoint are all there, and of one save. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_CHECK_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_CHECK_H

#include "formats/deepspeed/deepspeed_files.h"

/* Reports, each with a file's name: ranks whose files are missing; ranks that are too many; files that speak of another number of
 * ranks; files whose step, or whose parameter groups, are not those of the first rank. Errors: those of reading; TSR_E_NOMEM. */
tsr_status tsr_ds_check(const tsr_ds_files *files, tsr_error *err);

#endif
