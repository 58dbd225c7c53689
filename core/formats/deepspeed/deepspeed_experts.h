/* Mixtures of experts: each expert's weights are a file of its own, and the optimizer is cut by groups of experts. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_EXPERTS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_EXPERTS_H

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_rows.h"

/* For files with experts: refuses or reports what is not supported, unless a part was asked for that does not need it, and reports
 * files of experts that are missing. Errors: TSR_E_UNSUPPORTED for the parts model and optim; TSR_E_NOMEM. */
tsr_status tsr_ds_experts_check(const tsr_ds_files *files, tsr_error *err);
/* Adds the weights of all experts under their names. */
tsr_status tsr_ds_experts_add(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err);

#endif
