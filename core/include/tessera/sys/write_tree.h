/* Value trees as torch.save files, written or read in place. Tensors are streamed from where their chunks are. (core/write)
 *
 * Example:
 *
 *     tsr_tree_file to = {.output = output, .name = TSR_STR("optim.pt"), .ring = ring};
 *     status = tsr_write_tree(checkpoint, state, NULL, &to, &err);
 *     if (status == TSR_OK) status = output->publish(output, to.number, &err); */
#ifndef TESSERA_SYS_WRITE_TREE_H
#define TESSERA_SYS_WRITE_TREE_H

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
    bool unsummed;                /* write 0 for every CRC-32 */
    uint32_t number;              /* out: of the file in the output */
    uint64_t bytes;               /* out: the file's size */
} tsr_tree_file;

/* A rank of a mesh; `placements` has one per mesh dim. */
typedef struct tsr_mesh_rank {
    const tsr_mesh *mesh;
    const tsr_placement *placements;
    uint64_t rank;
} tsr_mesh_rank;

/* Writes `root`. Leaves that are the same entry remain one tensor, and leaves that shared storage in the source still share
 * it. `checkpoint` reads the leaves' bytes. With `of` (NULL: the tree as it is) the file is what that rank saves: leaves
 * whose entry has a distribution are DTensors, and the file contains the rank's part of them, which the entry's chunks must
 * hold. Does not publish. Memory: the tree and the ring. Errors: TSR_E_UNSUPPORTED for values that torch.save files cannot
 * hold, those of reading and writing, TSR_E_CANCELLED by the progress. */
tsr_status tsr_write_tree(tsr_checkpoint *checkpoint, const tsr_value *root, const tsr_mesh_rank *of, tsr_tree_file *file,
                          tsr_error *err);

/* A file of a tree store. */
typedef struct tsr_stored_tree {
    tsr_str name;
    const tsr_value *root;
    const tsr_mesh_rank *of; /* as in tsr_write_tree; may be NULL */
} tsr_stored_tree;

/* A store of the files that tsr_write_tree would write of `count` trees. What surrounds the tensors is made now and kept, the
 * tensors are read from `checkpoint` when their bytes are asked for. The files differ from the written ones in their
 * checksums alone, all of which are 0. Copies names; borrows the checkpoint, the trees and their meshes until the store is
 * closed. The primary file is the only one, or none. Errors: as tsr_write_tree, but for those of writing; TSR_E_USAGE for a
 * name that occurs twice. */
tsr_status tsr_tree_store_new(tsr_checkpoint *checkpoint, const tsr_stored_tree *trees, uint32_t count, tsr_store **out,
                              tsr_error *err);

TSR_API_END

#endif
