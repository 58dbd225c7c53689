/* A value tree as a torch.save file, its tensors streamed from where their chunks lie. (core/write) */
#ifndef TESSERA_WRITE_TREE_H
#define TESSERA_WRITE_TREE_H

#include "tessera/mesh.h"
#include "tessera/output.h"
#include "tessera/read.h"

TSR_API_BEGIN

/* A file of an output, and what writes it. */
typedef struct tsr_tree_file {
    tsr_output *output;
    tsr_str name; /* in the output; "": the destination itself */
    tsr_ring *ring;
    const tsr_progress *progress; /* bytes of this file; may be NULL */
    uint32_t number;              /* out: of the file in the output */
    uint64_t bytes;               /* out: the file's size */
} tsr_tree_file;

/* A rank of a mesh; `placements` has one a mesh dim. */
typedef struct tsr_mesh_rank {
    const tsr_mesh *mesh;
    const tsr_placement *placements;
    uint64_t rank;
} tsr_mesh_rank;

/* Writes `root`. Leaves that are one entry stay one tensor, leaves that shared storage in the source share it still.
 * `checkpoint` reads the leaves' bytes. With `of` (NULL: the tree as it is) the file is what that rank saves: leaves whose
 * entry has a distribution are DTensors, of which the file has the rank's part; the entry's chunks must hold that part.
 * Does not publish. Memory: the tree and the ring. Errors: TSR_E_UNSUPPORTED for values that torch.save files cannot hold,
 * those of reading and writing, TSR_E_CANCELLED by the progress. */
tsr_status tsr_write_tree(tsr_checkpoint *checkpoint, const tsr_value *root, const tsr_mesh_rank *of, tsr_tree_file *file,
                          tsr_error *err);

TSR_API_END

#endif
