/* Checks whether the optimizer files of ZeRO 1 and 2 belong to the model states and to the files of experts, which store the
 * same weights, rounded. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_AGREE_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_AGREE_H

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_rows.h"

/* Compares a few values of each optimizer file of a column with the stored weights, and reports files that are from another
 * step. Reads values only in three cases: there are experts, whose files state no step; the optimizer's step differs from
 * the number of steps in the model states (which is legitimate if the optimizer was restarted); or the optimizer does not
 * count steps, such as SGD. `trained` has the column's float32 weights. Fails if reading fails, or with TSR_E_NOMEM. */
tsr_status tsr_ds_agree(const tsr_ds_files *files, const tsr_ds_column *column, const tsr_ds_rows *trained, tsr_error *err);

#endif
