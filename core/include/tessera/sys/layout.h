/* Shard layouts: the part of a tensor that each rank holds, for all ranks together.
 *
 * A layout over a mesh is symbolic: tensor dims are cut independently, so it is one table of runs per dim and a rank is
 * a position in each. Its size grows with the mesh dims that cut a dim, never with ranks × tensors:
 *
 *   shape [6, 4], mesh a=2,b=2, shard(0),shard(1)     dim 0: 0-3 | 3-6      rank 2 (a=1, b=0): 3-6 × 0-2
 *                                                     dim 1: 0-2 | 2-4
 *
 * An explicit layout lists the boxes of every rank (flat ranges of FSDP1 are such).
 *
 * Example:
 *
 *     const uint64_t shape[] = {10, 4};
 *     tsr_layout layout;
 *     tsr_shard shard;
 *     status = tsr_layout_over_mesh(&(tsr_sharding){&mesh, placements, TSR_STRIDED_FSDP}, (tsr_shape){2, shape}, arena,
 *                                   &layout, &err);
 *     if (status == TSR_OK) status = tsr_layout_shard(&layout, 0, arena, &shard, &err); */
#ifndef TESSERA_SYS_LAYOUT_H
#define TESSERA_SYS_LAYOUT_H

#include "tessera/mesh.h"
#include "tessera/sys/vec.h"

TSR_API_BEGIN

/* One tensor dim under a mesh. */
typedef struct tsr_dim_layout {
    uint32_t cut_count;                    /* mesh dims that cut this tensor dim */
    uint32_t mesh_dims[TSR_MESH_MAX_DIMS]; /* in mesh order; a position is row-major over their coordinates */
    uint64_t positions;
    const uint64_t *first; /* positions + 1 numbers: the runs of position p are [first[p], first[p + 1]) */
    const tsr_span *runs;
    const uint64_t *local; /* where each run begins in the local tensor */
} tsr_dim_layout;

typedef struct tsr_layout {
    uint32_t ndim; /* of the tensor */
    const uint64_t *shape;
    uint64_t ranks;
    /* Over a mesh; NULL for an explicit layout. */
    const tsr_mesh *mesh;
    const tsr_dim_layout *dims;
    uint64_t copies; /* ranks that hold each box: those that differ in mesh dims that cut nothing */
    uint32_t copy_dim_count;
    uint32_t copy_dims[TSR_MESH_MAX_DIMS];
    const tsr_shard *shards; /* explicit: one per rank */
    /* Explicit, and local tensors are 1-d: the elements of a box lie one after the other, in row-major order, from
     * local_offsets[0] on; the other local offsets are 0. local_shape is [numel, 1, …]. */
    bool flat;
} tsr_layout;

/* The layout of a shape under placements (mesh->dim_count of them). Borrows mesh and shape; tables live in `arena`.
 * Errors as tsr_mesh_shard. */
tsr_status tsr_layout_over_mesh(const tsr_sharding *how, tsr_shape shape, tsr_arena *arena, tsr_layout *out, tsr_error *err);
/* Borrows everything. Boxes of different ranks may be equal; they count as different shards. */
tsr_layout tsr_layout_explicit(uint64_t ranks, const tsr_shard *shards, uint32_t ndim, const uint64_t *shape);

/* The shard of rank `holder` (< layout->ranks), in the form of tsr_mesh_shard. */
tsr_status tsr_layout_shard(const tsr_layout *layout, uint64_t holder, tsr_arena *arena, tsr_shard *out, tsr_error *err);
/* Elements of it. O(tensor rank). */
uint64_t tsr_layout_elements(const tsr_layout *layout, uint64_t holder);
/* Every distinct shard has a first holder, the lowest rank that has it; its copies are holders 0 (the first) to
 * layout->copies - 1, ascending. */
bool tsr_layout_is_first(const tsr_layout *layout, uint64_t holder);
uint64_t tsr_layout_copy(const tsr_layout *layout, uint64_t first, uint64_t copy);

/* FSDP1: the parameters of one unit flattened, concatenated, padded and cut into equal slices.
 *
 *   | w0 ........ |pad| w1 ...... |pad| w2 .. | tail padding |
 *   |<- slice of rank 0 ->|<- slice of rank 1 ->|<- slice of rank 2 ->|
 *
 * With alignment (use_orig_params: 16 bytes) each parameter but the first begins at a multiple of it and the whole is
 * padded to a multiple of the world size; without, only the last slices are padded. Source: FlatParamHandle.
 * _init_flat_param_and_metadata and _get_shard of PyTorch 2.13. */
typedef struct tsr_flat_layout {
    uint64_t count;               /* parameters */
    const uint64_t *flat_offsets; /* where each begins, in numel */
    const uint64_t *numels;
    uint64_t flat_numel;  /* with the padding between and behind them, without the padding of slices */
    uint64_t slice_numel; /* of every rank, padding included */
    uint64_t ranks;
} tsr_flat_layout;

typedef struct tsr_flat_numels {
    const uint64_t *numels;
    uint64_t count;
    uint64_t alignment; /* in numel, 0: none */
} tsr_flat_numels;
/* Errors: TSR_E_LIMIT on overflow. */
tsr_status tsr_flat_layout_make(tsr_flat_numels of, uint64_t ranks, tsr_arena *arena, tsr_flat_layout *out, tsr_error *err);
/* The elements of parameter `index` that `holder` has, as a range of the flattened parameter; size 0: none. torch's
 * [start, end] with end inclusive is {start, end - start + 1}. */
tsr_span tsr_flat_layout_range(const tsr_flat_layout *flat, uint64_t index, uint64_t holder);

/* The part of parameter `index` (a tensor of `shape`) that each rank holds: its range as boxes, in a 1-d local tensor. In
 * `arena`; borrows shape. */
tsr_status tsr_layout_flat(const tsr_flat_layout *flat, uint64_t index, tsr_shape shape, tsr_arena *arena, tsr_layout *out,
                           tsr_error *err);

/* A row-major range [range) of a tensor's elements as boxes, in order: at most 2 × ndim - 1. A 1-d local tensor holds
 * them one after another, so their local offsets are 1-d too and not given. `offsets` and `sizes` have room for
 * (2 × ndim - 1) × ndim numbers each (at least 1); returns the number of boxes. The range is within the tensor. */
uint32_t tsr_range_boxes(uint32_t ndim, const uint64_t *shape, tsr_span range, uint64_t *offsets, uint64_t *sizes);

/* The tensor dim that a placement cuts: false when it cuts none (replicate, partial) or none of this tensor's. */
bool tsr_placement_dim(const tsr_placement *placement, uint32_t ndim, uint32_t *dim);

/* The runs along one tensor dim of `size` that a rank at `coordinate` holds, ascending and disjoint, appended to `spans`
 * (of tsr_span). Neighboring runs are joined. Pieces of tsr_mesh_shard, for layouts that tabulate them. */
tsr_status tsr_mesh_spans(const tsr_sharding *how, tsr_shape shape, uint32_t dim, const uint64_t *coordinate, tsr_vec *spans,
                          tsr_error *err);

/* `coordinate` has room for dim_count numbers; `rank` < tsr_mesh_ranks. And back. */
void tsr_mesh_coordinate(const tsr_mesh *mesh, uint64_t rank, uint64_t *coordinate);
uint64_t tsr_mesh_rank_at(const tsr_mesh *mesh, const uint64_t *coordinate);

/* The texts that tsr_mesh_parse and tsr_placements_parse read; data NULL on TSR_E_NOMEM. */
tsr_str tsr_mesh_text(const tsr_mesh *mesh, tsr_arena *arena, tsr_error *err);
tsr_str tsr_placements_text(const tsr_placement *placements, uint32_t count, tsr_arena *arena, tsr_error *err);

/* Parses placements such as "shard(0),replicate", separated by top-level commas. Each is replicate, partial, shard(d) or
 * strided_shard(d, f). The result lives in `arena`. Errors: TSR_E_USAGE, with the byte position in `text`. */
tsr_status tsr_placements_parse(tsr_str text, tsr_arena *arena, tsr_placement **out, uint32_t *count, tsr_error *err);

/* The number of ranks of a mesh: the product of its sizes. */
uint64_t tsr_mesh_ranks(const tsr_mesh *mesh);

/* Computes the shard of mesh rank `mesh_rank` (< tsr_mesh_ranks), in O(mesh dims × boxes). A `partial` placement has the
 * boxes of `replicate`, although its values are only summands. Errors: TSR_E_USAGE if a placement names a dim that the
 * tensor does not have; TSR_E_LIMIT for more than TSR_MAX_NDIM dims or too many boxes. */
tsr_status tsr_mesh_shard(const tsr_sharding *how, tsr_shape shape, uint64_t mesh_rank, tsr_arena *arena, tsr_shard *out,
                          tsr_error *err);

TSR_API_END

#endif
