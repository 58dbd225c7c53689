/* How the tensors of several tensor-parallel ranks form whole ones, as the model states say themselves: DeepSpeed's AutoTP, and
 * trainers that prepare their checkpoints for ds_to_universal, store `universal_checkpoint_info`.
 *
 *   affine_map                               for each parameter the boxes that the ranks hold of it (DeepSpeed ≥ 0.19)
 *   tp_replicated_parameter_patterns         lists of regular expressions for names:
 *   parameter_with_row_parallelism_patterns    parameters that are concatenated along dim 1 instead of dim 0
 *   vocabulary_parameter_patterns              … cut to original_vocab_size
 *   parameter_with_2_sub_params_cat_dim_0      … whose halves are concatenated, each for itself
 *   parameter_with_sub_params                  the same for any number of parts; sub_param_shard_widths has their sizes
 *   parameter_to_average_patterns            parameters of which every rank has its own version
 *
 * Source: deepspeed.checkpoint.ds_to_universal.merge_tp_slices and checkpoint.affine of DeepSpeed 0.19. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_LAYOUTS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_LAYOUTS_H

#include "formats/deepspeed/deepspeed_rows.h"

/* What the model states say, or nothing. Close it in any case. */
typedef struct tsr_ds_layouts tsr_ds_layouts;

/* Reads `universal_checkpoint_info` if there are several tensor-parallel ranks; otherwise *out is NULL. If it is not understood,
 * *out is NULL, too, and a note says why. Errors: TSR_E_NOMEM. */
tsr_status tsr_ds_layouts_open(const tsr_ds_files *files, tsr_ds_layouts **out, tsr_error *err);
void tsr_ds_layouts_close(tsr_ds_layouts *layouts); /* accepts NULL */

/* Makes whole tensors of those rows that list what each rank holds. Equal boxes of several ranks become replicas. Rows that the
 * layouts do not describe, whose parts a number has to be multiplied with, or that do not fit the description, stay as they are.
 * `layouts` may be NULL. Errors: TSR_E_NOMEM; those of reading. */
tsr_status tsr_ds_layouts_join(tsr_ds_layouts *layouts, tsr_ds_rows *rows, tsr_error *err);

#endif
