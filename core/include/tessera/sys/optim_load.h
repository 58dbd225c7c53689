/* The reads that give a rank its part of a saved sharded optimizer state: 1-D (data parallel) or 2-D (FSDP over tensor
 * parallel), from a checkpoint of any world size.
 *
 *   global tensor     the tensor-parallel slice of this rank's group    its data-parallel part ("column-wise" = dim 0)
 *   ┌─────┬─────┐     ┌─────┐ offset (0, 6), size (8, 6)                ┌─────┐ rows 3–5 of the slice, global (3, 6)
 *   │     │█████│     │█████│                                          │▒▒▒▒▒│
 *   │     │█████│     │█████│                                          └─────┘
 *   └─────┴─────┘     └─────┘
 *
 * All offsets and sizes in elements. Pure. Source: torch/distributed/checkpoint/optimizer.py of PyTorch 2.13.
 *
 * Example:
 *
 *     const tsr_optim_mesh ranks = {.data_rank = comm->rank, .data_world = comm->size};
 *     tsr_optim_reads reads;
 *     status = tsr_optim_load(catalog, TSR_STR("optim"), &ranks, arena, &reads, &err); */
#ifndef TESSERA_SYS_OPTIM_LOAD_H
#define TESSERA_SYS_OPTIM_LOAD_H

#include "tessera/catalog.h"

TSR_API_BEGIN

/* A rank's part of `size` rows in equal parts of ceil(size / world): [*begin, *end), empty for trailing ranks, whose begin
 * is then still rank × part as in torch's ChunkShardingSpec (clamped to `size` with `clamp`, as torch.chunk). */
void tsr_rows_of_rank(uint64_t size, uint32_t world, uint32_t rank, bool clamp, uint64_t *begin, uint64_t *end);

/* The part of a parameter that this rank's data-parallel group has, as the model's sharded state shows it. */
typedef struct tsr_tp_slice {
    tsr_str fqn;
    uint32_t ndim;
    const uint64_t *offsets; /* NULL: not tensor parallel; then `sizes` is the whole */
    const uint64_t *sizes;
    const uint64_t *shape; /* of the whole parameter, which its state must have too; NULL: not compared */
} tsr_tp_slice;

typedef enum tsr_optim_read_kind {
    TSR_READ_OBJECT, /* an object: as it is */
    TSR_READ_WHOLE,  /* one element, on every rank */
    TSR_READ_BOX     /* a box, perhaps empty */
} tsr_optim_read_kind;

/* One entry of the optimizer as a rank reads it. Sizes are in torch's count: a float4 tensor is one of pairs. */
typedef struct tsr_optim_read {
    const tsr_entry *entry; /* the catalog's; of an empty dict in a torch.save file one in the plan's arena */
    tsr_optim_read_kind kind;
    const uint64_t *storage_offsets; /* BOX: in the global tensor */
    const uint64_t *dest_offsets;    /* BOX: in the tensor-parallel slice (1-D: the same) */
    const uint64_t *sizes;
    const uint64_t *dest_size; /* BOX: of the sharded destination tensor: the slice's sizes, or the whole shape */
    bool has_shard;            /* BOX: PyTorch has a local shard here, perhaps an empty one */
    tsr_dtype dtype;           /* of tensors, */
    const uint64_t *shape;     /* and their global shape */
    const tsr_path_item *path; /* where the entry belongs: optimizer, "state", FQN, name */
    uint32_t path_length;
    tsr_str parameter; /* the FQN; empty for state that belongs to no parameter */
    bool is_unknown;   /* no slice is this parameter's */
} tsr_optim_read;

typedef struct tsr_optim_mesh {
    uint32_t data_rank, data_world; /* of the data-parallel group */
    bool tensor_parallel;           /* 2-D: `slices` count, and every rank has a shard */
    const tsr_tp_slice *slices;
    size_t slice_count;
} tsr_optim_mesh;

/* The reads of every entry below `optimizer_key`, in the catalog's order; empty dicts come last. An entry's path says where
 * it belongs. An entry whose name is a flat key ("optim.state.fc.weight.exp_avg", as in safetensors) is split: its parameter
 * is the longest of the slices' FQNs that fits, otherwise everything before the last dot. The parameter of an entry is the
 * third item of its path. A slice is one box; several boxes, or slices of slices, do not occur. Errors: TSR_E_FORMAT for
 * state whose shape is not its parameter's, for a slice whose ndim is not its tensor's or that is beyond it, and for a path
 * without a parameter; TSR_E_NOT_FOUND, with the names in the checkpoint, if nothing is below the key; TSR_E_NOMEM. Results
 * live in `arena`. */
typedef struct tsr_optim_reads {
    tsr_optim_read *reads;
    size_t count;
} tsr_optim_reads;
tsr_status tsr_optim_load(const tsr_catalog *catalog, tsr_str optimizer_key, const tsr_optim_mesh *mesh, tsr_arena *arena,
                          tsr_optim_reads *out, tsr_error *err);

TSR_API_END

#endif
