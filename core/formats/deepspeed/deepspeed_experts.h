/* Mixtures of experts: each expert's weights are in a separate file, and the optimizer is partitioned by groups of
 * experts. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_EXPERTS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_EXPERTS_H

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_rows.h"

/* The length of a name up to the number of an expert, which follows "layer.deepspeed_moe.experts.deepspeed_experts.". 0 for
 * other names. */
size_t tsr_ds_expert_prefix(tsr_str name);

/* For files with experts: finds out whether their float32 weights and states can be read (`experts_unread`). If not, rejects
 * or reports this, unless a part was requested that does not need them. Also reports missing files of experts. Fails with
 * TSR_E_UNSUPPORTED for the parts model and optim, or with TSR_E_NOMEM. */
tsr_status tsr_ds_experts_check(tsr_ds_files *files, tsr_error *err);
/* Adds the stored weights of all experts under their names. */
tsr_status tsr_ds_experts_add(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err);
/* Adds the stored weights whose names were not added yet: frozen ones, which have no float32 weights. */
tsr_status tsr_ds_experts_add_rest(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err);

#endif
