/* The trained weights of one model-parallel rank, and where they are in the flat buffers. This is decided by `param_shapes`
 * of the model states, as in DeepSpeed's zero_to_fp32: `param_slice_mappings` has a different order with
 * round_robin_gradients. */
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
    uint64_t offset; /* ZeRO 1, 2: in the segment's buffer; ZeRO 3: in each rank's tensor of the segment */
    uint64_t share;  /* ZeRO 3: elements per rank, including padding; otherwise 0 */
} tsr_ds_weight;

/* A group of parameters that was flattened: a param group of the optimizer, or under ZeRO 3 a sub-group of one. A group of
 * experts becomes one segment per expert-parallel rank. */
typedef struct tsr_ds_segment {
    tsr_ds_sharers sharers; /* the ranks whose tensors these are */
    uint32_t first, count;  /* range in the weights */
    uint64_t slice;         /* elements of a rank's float32 tensor; the maximum over the ranks */
    tsr_ds_buffer fp32;     /* the ranks' tensors, concatenated */
} tsr_ds_segment;

typedef struct tsr_ds_weights {
    const tsr_ds_files *files;
    const tsr_ds_column *column;
    tsr_ds_weight *weights; /* sorted by segment */
    uint32_t count;
    tsr_ds_segment *segments; /* sorted by group */
    uint32_t segment_count;
    uint32_t group_count;
} tsr_ds_weights;

/* Reads `param_shapes` of a column that has model states and is not ZeRO 0, and finds the float32 buffers. Contradictions
 * are reported as an incomplete save; *found is false if the weights cannot be located because of them. Fails with
 * TSR_E_FORMAT for an invalid shape, TSR_E_LIMIT or TSR_E_NOMEM. */
tsr_status tsr_ds_weights_open(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_weights *out, bool *found,
                               tsr_error *err);

/* The same for names and shapes only, for a column that has model states: the segments are the dictionaries of
 * `param_shapes`, without buffers. If the file has no such key, the list is empty. Errors as above. */
tsr_status tsr_ds_weights_by_shape(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_weights *out,
                                   tsr_error *err);

/* For a buffer with the same layout as the segment's, adds the tensor of each weight of the segment as a row (name, key). */
tsr_status tsr_ds_weights_place(const tsr_ds_weights *weights, uint32_t segment, const tsr_ds_buffer *buffer, tsr_str key,
                                tsr_ds_rows *rows, tsr_error *err);

/* Reads a torch.Size, or a LIST or TUPLE of ints, into the arena. */
tsr_status tsr_ds_shape(tsr_arena *arena, const tsr_value *value, const uint64_t **shape, uint32_t *ndim, uint64_t *elements,
                        tsr_error *err);

/* The states that rank `rank` of the sharers has for a segment: a DICT, or NULL. */
const tsr_value *tsr_ds_state_of(const tsr_ds_weights *weights, uint32_t rank, uint32_t segment);
/* The part of an optimizer file that has "state" and "param_groups"; NULL if there is none. */
const tsr_value *tsr_ds_base_state(const tsr_ds_files *files, const tsr_ds_file *file);

#endif
