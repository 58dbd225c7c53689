/* Mixtures of experts: each expert's weights are a file of its own, and the optimizer is cut by groups of experts. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_EXPERTS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_EXPERTS_H

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_rows.h"

/* How much of a name is before the number of an expert: "layer.deepspeed_moe.experts.deepspeed_experts." has that number behind it.
 * 0 for other names. */
size_t tsr_ds_expert_prefix(tsr_str name);

/* For files with experts: finds out whether their float32 weights and states can be read (`experts_unread`), refuses or reports
 * where they cannot, unless a part was asked for that does not need them, and reports files of experts that are missing. Errors: TSR_E_UNSUPPORTED for the parts model and optim; TSR_E_NOMEM. */
tsr_status tsr_ds_experts_check(tsr_ds_files *files, tsr_error *err);
/* Adds the stored weights of all experts under their names. */
tsr_status tsr_ds_experts_add(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err);
/* Adds those whose names are not there yet: frozen ones, which have no float32 weights. */
tsr_status tsr_ds_experts_add_rest(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err);

#endif
