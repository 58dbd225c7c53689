/* The writers behind tsr_convert with a plan, one a container: as those of convert_to.h. */
#ifndef TSR_CONVERT_RESHARD_TO_H
#define TSR_CONVERT_RESHARD_TO_H

#include "convert/convert_to.h"
#include "tessera/plan.h"

tsr_status tsr_reshard_to_dcp(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err); /* Megatron's, too */
tsr_status tsr_reshard_to_safetensors(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err);
tsr_status tsr_reshard_to_torch(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err);

/* The row of an entry that is written, or NULL. */
tsr_converted *tsr_row_of(const tsr_chosen *chosen, const tsr_entry *entry);
/* Tensors that the plan does not have are not written. */
tsr_status tsr_leave_unplanned(const tsr_chosen *chosen, const tsr_plan *plan, tsr_error *err);

#endif
