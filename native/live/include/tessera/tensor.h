/* A live tensor: the elements of a tensor that a rank holds in its memory.
 *
 *   TSR_WHOLE      torch.Tensor    every rank has all of it, in `data`
 *   TSR_OVER_MESH  DTensor         mesh + placements define the shard; `data` is the local tensor
 *   TSR_IN_BOXES   ShardedTensor   this rank has the boxes `parts`, each in its own memory; boxes of ranks do not overlap
 *
 * Local memory is contiguous, row-major, in this machine's byte order. A tensor begins with a tsr_entry, so a value tree
 * (tessera/value.h) holds it as TSR_VALUE_TENSOR and everything that core does with trees works on live ones: flattening,
 * optimizer state, comparison. tsr_tensor_of converts such a leaf back; use it only on trees of live tensors.
 *
 * Example:
 *
 *     const uint64_t shape[] = {10, 4};
 *     uint64_t bytes;
 *     const tsr_tensor rows = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, NULL), &mesh, placements, comm->rank);
 *     status = tsr_tensor_held(&rows, arena, &bytes, &err); */
#ifndef TESSERA_TENSOR_H
#define TESSERA_TENSOR_H

#include "tessera/catalog.h"
#include "tessera/device.h"
#include "tessera/mesh.h"

TSR_API_BEGIN

typedef enum tsr_spread { TSR_WHOLE = 0, TSR_OVER_MESH, TSR_IN_BOXES } tsr_spread;

/* A box of a tensor and its memory. */
typedef struct tsr_tensor_part {
    const uint64_t *offsets; /* position in the tensor, in elements */
    const uint64_t *sizes;
    void *data;
} tsr_tensor_part;

typedef struct tsr_tensor {
    tsr_entry entry; /* must be first; dtype, ndim, shape (of the whole tensor), requires_grad, is_parameter; no chunks */
    tsr_spread spread;
    bool meta;          /* no memory: only shape and dtype, as on torch's meta device */
    tsr_device *device; /* the device of all its memory; NULL: the host */
    void *data;         /* WHOLE, OVER_MESH; may be NULL if there are no elements */
    /* OVER_MESH. The mesh spans the communicator of the operation: ranks have the same numbers in both. */
    const tsr_mesh *mesh;
    const tsr_placement *placements; /* one per mesh dim */
    tsr_strided strided;
    uint64_t mesh_rank; /* rank of this process in the mesh */
    /* IN_BOXES */
    const tsr_tensor_part *parts;
    uint32_t part_count;
    /* If not NULL, its memory is buffer `shared_index` of the memory that the processes of a machine share. Set by
     * tsr_state_dict_create, and valid only for that memory. */
    const struct tsr_shared *shared;
    size_t shared_index;
    /* IN_BOXES: the ranks that hold its boxes (PyTorch's _process_group); NULL: those of the communicator of the operation.
     * Borrowed. Used only by tsr_state_dict_layout_2d. */
    struct tsr_comm *group;
    /* FSDP over tensor parallel: describes the first part (IN_BOXES) or the local tensor (OVER_MESH) if that is itself
     * distributed; its own memory is not used then. NULL: plain memory. Used by tsr_state_dict_layout_2d
     * (tessera/sharded_optimizer.h); other operations refuse such tensors. */
    const struct tsr_tensor *nested;
} tsr_tensor;

/* Describes a tensor; arrays are borrowed. `shape` is that of the whole tensor. */
static inline tsr_tensor tsr_tensor_whole(tsr_dtype dtype, uint32_t ndim, const uint64_t *shape, void *data)
{
    tsr_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.entry.kind = TSR_ENTRY_TENSOR;
    tensor.entry.dtype = dtype;
    tensor.entry.ndim = ndim;
    tensor.entry.shape = shape;
    tensor.data = data;
    return tensor;
}
/* Describes a shard over a mesh. `whole` is made by tsr_tensor_whole, except that `data` is the memory of this rank's
 * shard. */
static inline tsr_tensor tsr_tensor_over_mesh(tsr_tensor whole, const tsr_mesh *mesh, const tsr_placement *placements,
                                              uint64_t mesh_rank)
{
    tsr_tensor tensor = whole;
    tensor.spread = TSR_OVER_MESH;
    tensor.mesh = mesh;
    tensor.placements = placements;
    tensor.mesh_rank = mesh_rank;
    return tensor;
}
static inline tsr_tensor tsr_tensor_in_boxes(tsr_dtype dtype, uint32_t ndim, const uint64_t *shape,
                                             const tsr_tensor_part *parts, uint32_t part_count)
{
    tsr_tensor tensor = tsr_tensor_whole(dtype, ndim, shape, NULL);
    tensor.spread = TSR_IN_BOXES;
    tensor.parts = parts;
    tensor.part_count = part_count;
    return tensor;
}

/* The live tensor of a TSR_VALUE_TENSOR leaf; NULL for other values. */
static inline const tsr_tensor *tsr_tensor_of(const tsr_value *value)
{
    return value->kind == TSR_VALUE_TENSOR ? (const tsr_tensor *)value->as.tensor : NULL;
}

/* Where a box of a tensor is in this rank's memory: at `local_offsets` in a buffer of shape `buffer_sizes`. Each array has one
 * number per dimension, in elements. */
typedef struct tsr_piece {
    const uint64_t *offsets; /* position in the tensor */
    const uint64_t *sizes;
    const uint64_t *local_offsets;
    const uint64_t *buffer_sizes;
    void *data; /* start of the buffer */
} tsr_piece;

/* Everything this rank holds, in order; pieces without elements are left out. Lives in `arena`. Errors: TSR_E_USAGE for a
 * dtype without whole bytes, placements that do not fit or hold `partial`, a rank outside the mesh, boxes beyond the
 * tensor; TSR_E_LIMIT on overflow. */
tsr_status tsr_tensor_pieces(const tsr_tensor *tensor, tsr_arena *arena, const tsr_piece **out, uint64_t *count,
                             tsr_error *err);

/* Computes the bytes of this rank's memory for the tensor, all parts together. `arena` is used for temporary data. */
tsr_status tsr_tensor_held(const tsr_tensor *tensor, tsr_arena *arena, uint64_t *bytes, tsr_error *err);

TSR_API_END

#endif
