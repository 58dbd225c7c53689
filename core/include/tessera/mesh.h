/* Device meshes and placements: which rank holds which shard of a tensor.
 *
 * A mesh is an n-dimensional array of ranks in row-major order: the last dim varies fastest. A list of placements has one
 * placement per mesh dim.
 *
 *   shard(d)             Splits dim d as torch.chunk does, and gives the i-th of n ranks the i-th result. Each has
 *                        ceil(size / n) elements; the last ones may have fewer, or none.
 *   strided_shard(d, f)  Splits dim d into f, splits each of these among n ranks, and gives the i-th rank the i-th result of
 *                        each. A rank may therefore hold several runs.
 *
 * If several mesh dims split the same tensor dim, they do so from left to right: each splits the result of those before it.
 *
 * FSDP2 over tensor parallelism writes [strided_shard(d, f), shard(d), …], where f is the number of shards that the later
 * mesh dims make of d. It splits differently, however: by the later mesh dims first, and then by the first one as shard(d)
 * does. Both ways give the same shards if sizes divide evenly. Where they do not, tsr_strided selects one of them.
 *
 * Sources: torch.distributed.tensor 2.13 (Shard._split_tensor, _StridedShard._split_tensor, distribute_tensor) and FSDP2's
 * FSDPParam._init_sharding_spec_tp and _init_sharded_param; checked against the shards that their ranks hold.
 *
 * Example:
 *
 *     tsr_mesh grid;
 *     status = tsr_mesh_parse(TSR_STR("dp=4,tp=2"), arena, &grid, &err);
 *     if (status == TSR_OK) printf("%u dims\n", (unsigned)grid.dim_count); */
#ifndef TESSERA_MESH_H
#define TESSERA_MESH_H

#include "tessera/box.h"
#include "tessera/memory.h"

TSR_API_BEGIN

#define TSR_MESH_MAX_DIMS    16u
#define TSR_MESH_MAX_RANKS   (UINT64_C(1) << 31)
#define TSR_SPLIT_FACTOR_MAX (UINT64_C(1) << 20)

typedef struct tsr_mesh {
    uint32_t dim_count;
    const uint64_t *shape; /* ≥ 1 each; the product is at most TSR_MESH_MAX_RANKS */
    const tsr_str *names;  /* one per dim; empty where unnamed */
} tsr_mesh;

typedef enum tsr_placement_kind { TSR_REPLICATE, TSR_SHARD, TSR_STRIDED_SHARD, TSR_PARTIAL } tsr_placement_kind;

typedef struct tsr_placement {
    tsr_placement_kind kind;
    int32_t dim;           /* SHARD, STRIDED_SHARD: the tensor's dim; negative counts from the end */
    uint64_t split_factor; /* STRIDED_SHARD: 1 to TSR_SPLIT_FACTOR_MAX */
} tsr_placement;

/* Parses a mesh such as "dp=4,tp=2", or "4,2" without names. The result lives in `arena`. Errors: TSR_E_USAGE, with the byte
 * position in `text`, for a syntax error, a size of 0, a repeated name, or too many dims or ranks. */
tsr_status tsr_mesh_parse(tsr_str text, tsr_arena *arena, tsr_mesh *out, tsr_error *err);

/* How a strided shard is split where sizes do not divide evenly. */
typedef enum tsr_strided {
    TSR_STRIDED_FSDP = 0, /* as FSDP2 over tensor parallelism does */
    TSR_STRIDED_DTENSOR   /* left to right, as distribute_tensor does */
} tsr_strided;

/* How a tensor is distributed over a mesh; `placements` has mesh->dim_count items. */
typedef struct tsr_sharding {
    const tsr_mesh *mesh;
    const tsr_placement *placements;
    tsr_strided strided;
} tsr_sharding;

/* A half-open run of positions along one tensor dim. */
typedef struct tsr_span {
    uint64_t offset;
    uint64_t size;
} tsr_span;

/* One box of a rank's shard. */
typedef struct tsr_shard_box {
    const uint64_t *offsets; /* in the tensor */
    const uint64_t *sizes;
    const uint64_t *local_offsets; /* where the box starts in the rank's local tensor */
} tsr_shard_box;

/* The shard of a tensor that one rank holds. */
typedef struct tsr_shard {
    uint32_t ndim; /* of the tensor */
    const uint64_t *local_shape;
    const uint64_t *global_offsets; /* of the first element; the dim's size where the shard is empty, as in torch */
    const tsr_shard_box *boxes;     /* in row-major order of the local tensor; none when it is empty */
    uint64_t box_count;
} tsr_shard;

TSR_API_END

#endif
