/* How many steps the optimizer files of a DeepSpeed checkpoint count, against what the model states say. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_STEPS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_STEPS_H

#include "formats/deepspeed/deepspeed_files.h"

/* The first step that an optimizer file states: a number or a tensor. NULL: it counts none, as SGD's. */
const tsr_value *tsr_ds_step_of(const tsr_ds_files *files, const tsr_ds_file *file);

/* How a step compares with a number of steps. UNKNOWN: it is neither a number nor a 0-d float32 tensor. */
typedef enum tsr_ds_steps { TSR_DS_STEPS_UNKNOWN = 0, TSR_DS_STEPS_SAME, TSR_DS_STEPS_OTHER } tsr_ds_steps;
/* The CRC-32 of a tensor decides where there is one, without reading. Errors: those of reading. */
tsr_status tsr_ds_compare_step(const tsr_ds_files *files, const tsr_value *step, uint64_t made, tsr_ds_steps *out, tsr_error *err);

/* For ZeRO 3, whose model states have no weights that could be compared with the float32 ones: reports optimizer files that count other
 * steps, or have other learning rates, than the model states of their column, and files that count nothing at all. Does not refuse the
 * checkpoint, as an optimizer may have been started again. Errors: those of reading; TSR_E_NOMEM. */
tsr_status tsr_ds_check_steps(const tsr_ds_files *files, const tsr_ds_column *column, tsr_error *err);

#endif
