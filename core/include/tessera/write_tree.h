/* A value tree as a torch.save file, its tensors streamed from where their chunks lie. (core/exec) */
#ifndef TESSERA_WRITE_TREE_H
#define TESSERA_WRITE_TREE_H

#include "tessera/mesh.h"
#include "tessera/output.h"
#include "tessera/read.h"

TSR_API_BEGIN

/* Writes `root` as the file `name` of `output` ("": the destination itself). Leaves that are one entry stay one tensor,
 * leaves that shared storage in the source share it still. `checkpoint` reads the leaves' bytes. `*bytes` grows by the
 * file's size. Does not publish; `*file` is the output's number of the file. Memory: the tree and the ring. Errors:
 * TSR_E_UNSUPPORTED for values that torch.save files cannot hold, those of reading and writing, TSR_E_CANCELLED by
 * `progress` (may be NULL; bytes of this file). */
tsr_status tsr_write_tree(tsr_checkpoint *checkpoint, const tsr_value *root, tsr_output *output, tsr_str name,
                          tsr_ring *ring, const tsr_progress *progress, uint32_t *file, uint64_t *bytes, tsr_error *err);

/* The same as one rank of a mesh saves it: leaves whose entry has a distribution are DTensors of `placements` (one a mesh
 * dim), of which the file has the rank's part; the entry's chunks must hold that part. */
typedef struct tsr_mesh_rank {
    const tsr_mesh *mesh;
    const tsr_placement *placements;
    uint64_t rank;
} tsr_mesh_rank;
tsr_status tsr_write_rank_tree(tsr_checkpoint *checkpoint, const tsr_value *root, const tsr_mesh_rank *of,
                               tsr_output *output, tsr_str name, tsr_ring *ring, const tsr_progress *progress,
                               uint32_t *file, uint64_t *bytes, tsr_error *err);

TSR_API_END

#endif
