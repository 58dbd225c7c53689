/* Builds DTensors and ShardedTensors as value trees, for torch.save archives of single ranks. */
#ifndef TSR_WRITE_DTENSOR_VALUE_H
#define TSR_WRITE_DTENSOR_VALUE_H

#include "tessera/mesh.h"
#include "tessera/value.h"

/* Makes an int32 tensor with the mesh's ranks in order: the entry, whose bytes are in no file, and the bytes. */
tsr_status tsr_mesh_rank_map(const tsr_mesh *mesh, tsr_arena *arena, struct tsr_entry **entry, const uint8_t **bytes,
                             tsr_error *err);

/* A DeviceMesh as seen by one rank. All DTensors of a file share this value. `rank_map` is the entry of an int32 tensor with
 * all of the mesh's ranks in order. This and the functions below return NULL, with TSR_E_NOMEM, on failure. */
const tsr_value *tsr_mesh_value(const tsr_mesh *mesh, uint64_t rank, const struct tsr_entry *rank_map, tsr_arena *arena,
                                tsr_error *err);

/* A DTensor: its dtype, size and flags, the entry of the rank's local tensor, and one placement per dim of the mesh of
 * `mesh_value`. */
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

/* A flat parameter in the form of FSDP1's LOCAL_STATE_DICT: a 1-d ShardedTensor without the padding of slices, in equal
 * slices, the last of which may be shorter or missing. `local` is the rank's own slice, or NULL. */
typedef struct tsr_sharded {
    tsr_dtype dtype;
    uint64_t numel, slice_numel;
    uint64_t ranks, rank;
    bool requires_grad;
    const struct tsr_entry *local;
} tsr_sharded;

/* The number of elements in a rank's slice; 0 beyond the end. */
uint64_t tsr_sharded_size(const tsr_sharded *sharded, uint64_t rank);
const tsr_value *tsr_sharded_value(const tsr_sharded *sharded, tsr_arena *arena, tsr_error *err);

#endif
