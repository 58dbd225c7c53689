/* DTensors and ShardedTensors as value trees, for torch.save archives of single ranks. */
#ifndef TSR_WRITE_DTENSOR_VALUE_H
#define TSR_WRITE_DTENSOR_VALUE_H

#include "tessera/mesh.h"
#include "tessera/value.h"

/* An int32 tensor of the mesh's ranks in order: the entry, whose bytes are in no file, and the bytes. */
tsr_status tsr_mesh_rank_map(const tsr_mesh *mesh, tsr_arena *arena, struct tsr_entry **entry, const uint8_t **bytes,
                             tsr_error *err);

/* A DeviceMesh as one rank has it. All DTensors of a file share the value. `rank_map` is an int32 tensor entry of all the
 * mesh's ranks in order. NULL and TSR_E_NOMEM on failure, as below. */
const tsr_value *tsr_mesh_value(const tsr_mesh *mesh, uint64_t rank, const struct tsr_entry *rank_map, tsr_arena *arena,
                                tsr_error *err);

/* A DTensor: `global` says type, size and flags, `local` is the entry of the rank's own part, `placements` one a dim of the
 * mesh behind `mesh_value`. */
typedef struct tsr_dtensor {
    const tsr_mesh *mesh;
    const tsr_value *mesh_value;
    const tsr_placement *placements;
    tsr_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;
    bool requires_grad;
    bool is_parameter;
    const struct tsr_entry *local;
} tsr_dtensor;

const tsr_value *tsr_dtensor_value(const tsr_dtensor *dtensor, tsr_arena *arena, tsr_error *err);

/* A flat parameter as FSDP1's LOCAL_STATE_DICT has it: a ShardedTensor of one dimension without the padding of slices, in
 * equal slices, of which the last ones may be shorter or missing. `local` is the rank's own, NULL where it has none. */
typedef struct tsr_sharded {
    tsr_dtype dtype;
    uint64_t numel, slice_numel;
    uint64_t ranks, rank;
    bool requires_grad;
    const struct tsr_entry *local;
} tsr_sharded;

/* Elements of a rank's slice; 0 behind the end. */
uint64_t tsr_sharded_size(const tsr_sharded *sharded, uint64_t rank);
const tsr_value *tsr_sharded_value(const tsr_sharded *sharded, tsr_arena *arena, tsr_error *err);

#endif
