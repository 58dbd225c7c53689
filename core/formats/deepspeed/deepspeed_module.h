/* The parts `model` and `module`: the weights by name. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_MODULE_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_MODULE_H

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_weights.h"

/* Adds the model of one column: the weights in `trained` (rows by name, from the flat buffers; may be empty), and what is
 * stored elsewhere, namely frozen weights, buffers, and second names of tied weights. Keeps the order of the module. */
tsr_status tsr_ds_model_add(tsr_ds_files *files, const tsr_ds_column *column, const tsr_ds_rows *trained, tsr_ds_rows *model,
                            tsr_error *err);

/* Sets *out to a DICT of the weights as stored in the model states, or in the files of a pipeline's layers; NULL if there
 * are none (ZeRO 3). */
tsr_status tsr_ds_module(const tsr_ds_files *files, const tsr_value **out, tsr_error *err);

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
 * each with different values. In later files, their names begin with the layer's number; see also deepspeed_parts.h. */

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

/* Mixtures of experts: each expert's weights are in a separate file, and the optimizer is partitioned by groups of
 * experts. */

/* For files with experts: finds out whether their float32 weights and states can be read (`experts_unread`). If not, rejects
 * or reports this, unless a part was requested that does not need them. Also reports missing files of experts. Fails with
 * TSR_E_UNSUPPORTED for the parts model and optim, or with TSR_E_NOMEM. */
tsr_status tsr_ds_experts_check(tsr_ds_files *files, tsr_error *err);
/* Adds the stored weights whose names were not added yet: frozen ones, which have no float32 weights. */
tsr_status tsr_ds_experts_add_rest(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err);

/* ZeRO 0: all ranks have the same data, so there is one file, unless there are experts. Its optimizer identifies parameters
 * by number. Their names are found by order and shape, and, if the optimizer keeps float32 copies, by values. */

/* An optimizer without names, and where its contents are added. */
typedef struct tsr_ds_plain {
    const tsr_ds_files *files;
    const tsr_ds_file *file; /* has "optimizer" */
    const tsr_value *module; /* the stored weights that it may train, a DICT in the order of the module; or NULL */
    const char *rank;        /* precedes the numbers of parameters without a name, or NULL */
    tsr_ds_rows *weights, *states;
} tsr_ds_plain;

/* Adds the float32 copies to `weights` (rows by name) and the states to `states` as rows (name, key), and sets *groups to the
 * param groups with names (NULL if there are none). Parameters that cannot be named keep their number, which in a pipeline
 * follows the name of their stage. If this happens to one with a float32 copy, the checkpoint is reported as unusable. Fails
 * if reading fails, or with TSR_E_NOMEM. */
tsr_status tsr_ds_plain_add(const tsr_ds_plain *from, const tsr_value **groups, tsr_error *err);

/* Sets *fits to whether the optimizer has one param group with the parameters of the module, as far as their number and shapes
 * show. Fails with TSR_E_NOMEM. */
tsr_status tsr_ds_plain_fits(const tsr_ds_plain *from, bool *fits, tsr_error *err);

/* A parameter of the optimizer. */
typedef struct tsr_ds_numbered {
    const tsr_entry *shaped; /* a tensor with its shape, or NULL if the shape is unknown */
    const tsr_entry *fp32;   /* its float32 copy, or NULL */
    uint32_t candidate;      /* number of the matching candidate, or UINT32_MAX if unknown */
    bool is_expert;          /* it is in a param group of experts, and can only match a candidate that is an expert */
} tsr_ds_numbered;

typedef struct tsr_ds_candidate {
    tsr_str name;
    const tsr_entry *tensor;
    bool taken;
    bool is_expert;   /* belongs to an expert, which is known to be in a param group of experts */
    uint64_t storage; /* identifies its storage among those of all files */
} tsr_ds_candidate;

/* deepspeed_check.c: sets `candidate` where it is UINT32_MAX, as far as shapes and values allow. Values are only read for
 * parameters with float32 copies that share their shape with others: first the beginning of each tensor, then all of it if
 * the beginnings are equal. */
tsr_status tsr_ds_match(tsr_checkpoint *checkpoint, tsr_ds_numbered *numbered, uint32_t count, tsr_ds_candidate *candidates,
                        uint32_t candidate_count, tsr_error *err);

/* deepspeed_check.c: sets *does to whether the first values of a float32 tensor, rounded, are those of a 16-bit weight of the
 * same shape. True if they cannot be compared. */
tsr_status tsr_ds_rounds_to(tsr_checkpoint *checkpoint, const tsr_entry *fp32, const tsr_entry *stored, bool *does,
                            tsr_error *err);

#endif
