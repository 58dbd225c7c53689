/* Tensors as boxes of a source's chunks, and what steps make of them. Nothing here reads a byte of a tensor.
 *
 *   source chunk, 4 × 6          the box [1:3, 0:6] of a tensor: element (i, j) is element
 *   in row-major order           base + i·strides[0] + j·strides[1] of that order
 */
#ifndef TSR_MAPPING_MAPPING_BOXES_H
#define TSR_MAPPING_MAPPING_BOXES_H

#include "mapping/mapping_rules.h"
#include "tessera/mesh.h"
#include "tessera/sys/vec.h"

/* Where the elements of a box are. */
typedef struct tsr_source_box {
    const tsr_entry *entry; /* of the source, or NULL: they are in a computed file */
    const tsr_chunk *chunk;
    uint32_t file;          /* of the mapped store, where entry is NULL */
    bool whole;             /* the chunk just as it is: same box, same order */
    bool replica;
    uint64_t base;
    uint64_t *offsets, *sizes, *strides; /* of the tensor, in elements; strides and base count the chunk's row-major elements */
} tsr_source_box;

typedef struct tsr_mapped_tensor {
    tsr_str name; /* of what it was made of, for messages */
    tsr_dtype dtype;
    uint32_t ndim;
    uint64_t *shape;
    const tsr_source_box *boxes;
    size_t box_count;
} tsr_mapped_tensor;

/* Memory for boxes, and how many there may still be. */
typedef struct tsr_box_maker {
    tsr_arena *arena;
    const tsr_allocator *allocator;
    uint64_t left;
    tsr_error *err;
} tsr_box_maker;

/* All of them leave `in` as it is; `out` may be `in`. Errors: TSR_E_NOMEM, TSR_E_LIMIT, and TSR_E_FORMAT naming the tensor where a
 * size does not fit. Dims are below ndim unless an error is documented. */
tsr_status tsr_boxes_of_entry(tsr_box_maker *maker, const tsr_entry *entry, tsr_mapped_tensor *out);
/* One box over a computed file; `stride` 0 repeats its only element. */
tsr_status tsr_boxes_of_file(tsr_box_maker *maker, uint32_t file, bool repeats, tsr_mapped_tensor *out);
tsr_status tsr_boxes_slice(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_span range, tsr_mapped_tensor *out);
/* One behind the other along a dim. TSR_E_FORMAT where dtypes or other sizes differ. */
tsr_status tsr_boxes_concat(tsr_box_maker *maker, const tsr_mapped_tensor *in, size_t count, uint32_t dim, tsr_mapped_tensor *out);
/* A new dim of size 1 before `dim` (≤ ndim); and such a dim removed. */
tsr_status tsr_boxes_add_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_mapped_tensor *out);
tsr_status tsr_boxes_remove_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_mapped_tensor *out);
tsr_status tsr_boxes_transpose(tsr_box_maker *maker, const tsr_mapped_tensor *in, const uint32_t *order, tsr_mapped_tensor *out);

/* mapping_reshape.c: a dim as several whose sizes have its product, and several as one. */
tsr_status tsr_boxes_split_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, const uint64_t *factors,
                               uint32_t count, tsr_mapped_tensor *out);
tsr_status tsr_boxes_merge_dims(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, uint32_t count,
                                tsr_mapped_tensor *out);
/* TSR_E_FORMAT where the numbers of elements differ. */
tsr_status tsr_boxes_reshape(tsr_box_maker *maker, const tsr_mapped_tensor *in, const uint64_t *shape, uint32_t ndim,
                             tsr_mapped_tensor *out);

/* For these functions: boxes are collected, then moved into the arena. */
typedef struct tsr_box_list {
    tsr_box_maker *maker;
    tsr_vec boxes; /* of tsr_source_box */
    uint32_t ndim;
} tsr_box_list;
void tsr_box_list_open(tsr_box_list *list, tsr_box_maker *maker, uint32_t ndim);
/* A copy of `like` with numbers of its own, all 0, for `ndim` dims; NULL: out of memory, or too many. */
tsr_source_box *tsr_box_list_add(tsr_box_list *list, const tsr_source_box *like);
/* Frees the list; on success the boxes are `out`'s. */
tsr_status tsr_box_list_close(tsr_box_list *list, tsr_status status, tsr_mapped_tensor *out);
/* Puts the shape as text, "[2, 3]". */
typedef struct tsr_shape_text {
    char text[160];
} tsr_shape_text;
tsr_shape_text tsr_shape_of(const tsr_mapped_tensor *tensor);

#endif
