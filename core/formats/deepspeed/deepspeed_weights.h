/* The trained weights of one model-parallel rank: where each of them is in the flat buffers. `param_shapes` of the model states
 * decides, as for DeepSpeed's own zero_to_fp32: `param_slice_mappings` has another order under round_robin_gradients. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_WEIGHTS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_WEIGHTS_H

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_flat.h"
#include "formats/deepspeed/deepspeed_groups.h"
#include "formats/deepspeed/deepspeed_rows.h"

typedef struct tsr_ds_weight {
    tsr_str name;
    const uint64_t *shape;
    uint32_t ndim;
    uint32_t segment;
    uint64_t elements;
    uint64_t offset; /* ZeRO 1, 2: in the segment's buffer; ZeRO 3: in each rank's tensor of it */
    uint64_t share;  /* ZeRO 3: elements of each rank, padding included; otherwise 0 */
} tsr_ds_weight;

/* A group of parameters that was flattened: an optimizer's group, or under ZeRO 3 a sub-group of one. A group of experts is one
 * segment per expert-parallel rank. */
typedef struct tsr_ds_segment {
    tsr_ds_sharers sharers;  /* the ranks whose tensors these are */
    uint32_t first, count;   /* of the weights */
    uint64_t slice;          /* elements of a rank's float32 tensor: the most of any rank */
    tsr_ds_buffer fp32;      /* the ranks' tensors one behind the other */
} tsr_ds_segment;

typedef struct tsr_ds_weights {
    const tsr_ds_files *files;
    const tsr_ds_column *column;
    tsr_ds_weight *weights; /* in order of segments */
    uint32_t count;
    tsr_ds_segment *segments; /* in order of groups */
    uint32_t segment_count;
    uint32_t group_count;
} tsr_ds_weights;

/* Reads `param_shapes` of a column that has model states and is not ZeRO 0, and finds the float32 buffers. What does not add up
 * is reported as an incomplete save; *found is false where the weights cannot be placed then. Errors: TSR_E_FORMAT for what is
 * not a shape; TSR_E_LIMIT, TSR_E_NOMEM. */
tsr_status tsr_ds_weights_open(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_weights *out, bool *found, tsr_error *err);

/* Only names and shapes of a column that has model states: the segments are the dictionaries of `param_shapes`, without
 * buffers; and an empty list if the file has no such key. Errors as above. */
tsr_status tsr_ds_weights_by_shape(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_weights *out, tsr_error *err);

/* Adds the tensor that a buffer laid out as the segment's holds of each weight of the segment, as rows (name, key). */
tsr_status tsr_ds_weights_place(const tsr_ds_weights *weights, uint32_t segment, const tsr_ds_buffer *buffer, tsr_str key,
                                tsr_ds_rows *rows, tsr_error *err);

/* A torch.Size, or a LIST or TUPLE of ints, into the arena. */
tsr_status tsr_ds_shape(tsr_arena *arena, const tsr_value *value, const uint64_t **shape, uint32_t *ndim, uint64_t *elements,
                        tsr_error *err);

/* What the sharer `rank` has of the states of a segment: a DICT, or NULL. */
const tsr_value *tsr_ds_state_of(const tsr_ds_weights *weights, uint32_t rank, uint32_t segment);
/* The part of an optimizer file that has "state" and "param_groups"; NULL where there is none. */
const tsr_value *tsr_ds_base_state(const tsr_ds_files *files, const tsr_ds_file *file);

#endif
