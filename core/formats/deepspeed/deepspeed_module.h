/* The parts `model` and `module`: the weights by name. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_MODULE_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_MODULE_H

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_rows.h"

/* Adds the model of one column: the weights in `trained` (rows by name, from the flat buffers; may be empty), and what is
 * stored elsewhere, namely frozen weights, buffers, and second names of tied weights. Keeps the order of the module. */
tsr_status tsr_ds_model_add(tsr_ds_files *files, const tsr_ds_column *column, const tsr_ds_rows *trained, tsr_ds_rows *model,
                            tsr_error *err);

/* Sets *out to a DICT of the weights as stored in the model states, or in the files of a pipeline's layers; NULL if there
 * are none (ZeRO 3). */
tsr_status tsr_ds_module(const tsr_ds_files *files, const tsr_value **out, tsr_error *err);

#endif
