/* Compares how many steps the optimizer files of a DeepSpeed checkpoint count with the number in the model states. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_STEPS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_STEPS_H

#include "formats/deepspeed/deepspeed_files.h"

/* The first step that an optimizer file states, a number or a tensor. NULL if it counts no steps, like SGD's. */
const tsr_value *tsr_ds_step_of(const tsr_ds_files *files, const tsr_ds_file *file);

/* The first "step" in the dictionaries of a LIST, or in those that are the values of a DICT; otherwise NULL. */
const tsr_value *tsr_ds_step_in(const tsr_value *states);

/* The result of comparing a step with a number of steps. UNKNOWN: the step is neither a number nor a 0-d float32 tensor. */
typedef enum tsr_ds_steps { TSR_DS_STEPS_UNKNOWN = 0, TSR_DS_STEPS_SAME, TSR_DS_STEPS_OTHER } tsr_ds_steps;

/* For ZeRO 3, whose model states have no weights to compare with the float32 ones. Reports an optimizer file that counts
 * other steps, or has other learning rates, than the model states of its column, and one that counts no steps. Does not
 * reject the checkpoint, since the optimizer may have been restarted. Fails if reading fails, or with TSR_E_NOMEM. */
tsr_status tsr_ds_check_steps(const tsr_ds_files *files, const tsr_ds_column *column, tsr_error *err);

#endif
