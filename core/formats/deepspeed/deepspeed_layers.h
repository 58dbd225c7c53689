/* The layers of a PipelineModule, whose engine stores weights in a file per layer and none in the model states:
 *
 *   layer_04-model_states.pt            {"weight": …}, for the weight that the module calls "4.weight"
 *   layer_04-model_01-model_states.pt   what tensor-parallel rank 1 holds of it
 *   mp_rank_01_model_states.pt          of pipeline stage 1: module None; buffer_names ["4.seen"]; param_shapes by full names
 *
 * Layers that are functions have no file. The file of a tied layer has the number of its first use, but the module calls its weights
 * "tied_modules.KEY.weight": under ZeRO `param_shapes` has these names, and the key belongs to the file that holds weights of these
 * names and shapes and is of no other layer. Later uses with a function of their own have no file; those without have a copy. Without
 * ZeRO and bfloat16 (deepspeed_slices.h) no name is stored: the layer's number stands for it, and every stage has an optimizer of its
 * own in its model states, whose parameters count from 0. What a tied module has besides its tied weights, as an embedding's positions,
 * is under one name in several stages, each with values of its own. A later file keeps the layer's number for those; see also
 * deepspeed_stages.h. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_LAYERS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_LAYERS_H

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_rows.h"

/* Finds the names of the layers, once: files->layers. The others need it, and do nothing where there are no files of layers. Errors: those
 * of reading; TSR_E_NOMEM. */
tsr_status tsr_ds_layers_open(tsr_ds_files *files, tsr_error *err);
/* Adds what the files of layers hold to the stored weights. TSR_E_NOMEM. */
tsr_status tsr_ds_layers_add(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err);
/* Adds those whose name the model does not have yet: buffers and frozen weights; without ZeRO all. */
tsr_status tsr_ds_layers_add_rest(const tsr_ds_files *files, tsr_ds_rows *model, tsr_error *err);
/* Reports layers whose file is missing, as far as the names of trained weights and buffers, or the shapes of the optimizers' states,
 * tell. */
tsr_status tsr_ds_layers_check(const tsr_ds_files *files, tsr_error *err);

/* The shapes of a column's trained weights in the form of `param_shapes`, for optimizer files that have their names alone
 * (deepspeed_slices.h): a LIST of DICTs. NULL in *out where names or files are missing. Errors as above. */
tsr_status tsr_ds_layers_shapes(const tsr_ds_files *files, uint32_t column, const tsr_value **out, tsr_error *err);

#endif
