/* The writers that tsr_convert uses with a plan, one per container, like those in convert_to.h. */
#ifndef TSR_CONVERT_RESHARD_TO_H
#define TSR_CONVERT_RESHARD_TO_H

#include "convert/convert_to.h"
#include "tessera/plan.h"

/* Also Megatron's. */
tsr_status tsr_reshard_to_dcp(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err);
tsr_status tsr_reshard_to_safetensors(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err);
tsr_status tsr_reshard_to_torch(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err);

/* The row of an entry if it is written; otherwise NULL. */
tsr_converted *tsr_row_of(const tsr_chosen *chosen, const tsr_entry *entry);
/* Marks tensors that the plan does not have as not written. */
tsr_status tsr_leave_unplanned(const tsr_chosen *chosen, const tsr_plan *plan, tsr_error *err);

#endif
