/* Lays out the torch.save file of a value tree, either to write it or to read it without writing it. */
#ifndef TSR_WRITE_TREE_PLAN_H
#define TSR_WRITE_TREE_PLAN_H

#include "tessera/sys/write_tree.h"
#include "write/torch_plan.h"

/* Lays out the file that tsr_write_tree would write for `root` and `of`. The plan and everything it refers to are allocated
 * in `arena`. Fails like tsr_write_tree, except that nothing is written. */
tsr_status tsr_tree_plan(tsr_checkpoint *checkpoint, const tsr_value *root, const tsr_mesh_rank *of, tsr_arena *arena,
                         tsr_torch_plan *out, tsr_error *err);

#endif
