/* The layers of a PipelineModule. Its engine stores the weights in one file per layer, and none in the model states:
 *
 *   layer_04-model_states.pt            {"weight": …}, for the weight that the module calls "4.weight"
 *   layer_04-model_01-model_states.pt   the shard of tensor-parallel rank 1
 *   mp_rank_01_model_states.pt          of pipeline stage 1: module None; buffer_names ["4.seen"]; param_shapes by full names
 *
 * Layers that are functions have no file. The file of a tied layer has the number of its first use, but the module calls its
 * weights "tied_modules.KEY.weight". Under ZeRO, `param_shapes` has these names, and a key belongs to the file that has
 * weights with these names and shapes and is not the file of another layer. Later uses have no file if they have a forward
 * function of their own; otherwise they have a copy.
 *
 * Without ZeRO and bfloat16 (deepspeed_layers.c), no names are stored. Then names begin with the layer's number, and every
 * stage has its own optimizer in its model states, with parameters numbered from 0.
 *
 * A tied module may have weights that are not tied, such as an embedding's positions. They have one name in several stages,
 * each with different values. In later files, their names begin with the layer's number; see also deepspeed_stages.h. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_LAYERS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_LAYERS_H

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_rows.h"

/* Finds the names of the layers and sets files->layers, which the functions below need. They do nothing if there are no
 * files of layers. Fails if reading fails, or with TSR_E_NOMEM. */
tsr_status tsr_ds_layers_open(tsr_ds_files *files, tsr_error *err);
/* Adds the contents of the files of layers to the stored weights. TSR_E_NOMEM. */
tsr_status tsr_ds_layers_add(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err);
/* Adds the values whose names the model does not have yet: buffers and frozen weights; without ZeRO, everything. */
tsr_status tsr_ds_layers_add_rest(const tsr_ds_files *files, tsr_ds_rows *model, tsr_error *err);
/* Reports layers whose files are missing, as far as the names of trained weights and buffers, or the shapes of the
 * optimizers' states, reveal them. */
tsr_status tsr_ds_layers_check(const tsr_ds_files *files, tsr_error *err);

/* The shapes of a column's trained weights in the same form as `param_shapes`, a LIST of DICTs, for optimizer files that
 * only have the names (deepspeed_layers.c). *out is NULL if names or files are missing. Errors as above. */
tsr_status tsr_ds_layers_shapes(const tsr_ds_files *files, uint32_t column, const tsr_value **out, tsr_error *err);

#endif
