/* Tensors as boxes of a source's chunks, and what steps make of them. No function here reads tensor data.
 *
 *   source chunk, 4 × 6          the box [1:3, 0:6] of a tensor: element (i, j) is element
 *   in row-major order           base + i·strides[0] + j·strides[1] of that order */
#ifndef TSR_MAPPING_MAPPING_BOXES_H
#define TSR_MAPPING_MAPPING_BOXES_H

#include "mapping/mapping_rules.h"
#include "tessera/mesh.h"
#include "tessera/sys/vec.h"

/* The source of a box's elements. */
typedef struct tsr_source_box {
    const tsr_entry *entry; /* in the source; NULL if the elements are in a computed file */
    const tsr_chunk *chunk;
    uint32_t file; /* in the mapped store, if `entry` is NULL */
    bool whole;    /* the box is the entire chunk in its own order */
    bool replica;
    uint64_t base;
    uint64_t *offsets, *sizes, *strides; /* of the tensor, in elements; strides and base count elements in the chunk's
                                          * row-major order */
} tsr_source_box;

typedef struct tsr_mapped_tensor {
    tsr_str name; /* the source's name, for messages */
    tsr_dtype dtype;
    uint32_t ndim;
    uint64_t *shape;
    const tsr_source_box *boxes;
    size_t box_count;
} tsr_mapped_tensor;

/* Memory for boxes, and how many more may be made. */
typedef struct tsr_box_maker {
    tsr_arena *arena;
    const tsr_allocator *allocator;
    uint64_t left;
    tsr_error *err;
} tsr_box_maker;

/* The functions below do not change `in`, and `out` may be the same as `in`. Dims must be below ndim unless stated
 * otherwise. Errors: TSR_E_NOMEM; TSR_E_LIMIT for too many boxes; TSR_E_FORMAT, naming the tensor, if a size does not
 * fit. */
tsr_status tsr_boxes_of_entry(tsr_box_maker *maker, const tsr_entry *entry, tsr_mapped_tensor *out);
/* Makes one box over a computed file for a tensor whose shape is set. If it `repeats`, all its elements are the file's only
 * element. */
tsr_status tsr_boxes_of_file(tsr_box_maker *maker, uint32_t file, bool repeats, tsr_mapped_tensor *out);
tsr_status tsr_boxes_slice(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_span range,
                           tsr_mapped_tensor *out);
/* Concatenates tensors along a dim. TSR_E_FORMAT if their dtypes or their other sizes differ. */
tsr_status tsr_boxes_concat(tsr_box_maker *maker, const tsr_mapped_tensor *in, size_t count, uint32_t dim,
                            tsr_mapped_tensor *out);
/* Insert a new dim of size 1 before `dim`, which may be ndim, and remove such a dim. */
tsr_status tsr_boxes_add_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_mapped_tensor *out);
tsr_status tsr_boxes_remove_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_mapped_tensor *out);
tsr_status tsr_boxes_transpose(tsr_box_maker *maker, const tsr_mapped_tensor *in, const uint32_t *order,
                               tsr_mapped_tensor *out);

/* mapping_boxes.c: split a dim into `count` dims whose sizes have the same product, and merge `count` dims into one. */
tsr_status tsr_boxes_split_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, const uint64_t *factors,
                               uint32_t count, tsr_mapped_tensor *out);
tsr_status tsr_boxes_merge_dims(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, uint32_t count,
                                tsr_mapped_tensor *out);
/* Changes the shape. TSR_E_FORMAT if the number of elements would change. */
tsr_status tsr_boxes_reshape(tsr_box_maker *maker, const tsr_mapped_tensor *in, const uint64_t *shape, uint32_t ndim,
                             tsr_mapped_tensor *out);

/* For the functions above: collects boxes, and then moves them into the arena. */
typedef struct tsr_box_list {
    tsr_box_maker *maker;
    tsr_vec boxes; /* of tsr_source_box */
    uint32_t ndim;
} tsr_box_list;
/* A shape as text, such as "[2, 3]", for messages. */
typedef struct tsr_shape_text {
    char text[160];
} tsr_shape_text;
tsr_shape_text tsr_shape_of(const tsr_mapped_tensor *tensor);

#endif
