/* The torch.save file of a value tree, laid out: for writing it, and for reading it without its being written. */
#ifndef TSR_WRITE_TREE_PLAN_H
#define TSR_WRITE_TREE_PLAN_H

#include "tessera/sys/write_tree.h"
#include "write/torch_plan.h"

/* Lays out the file that tsr_write_tree writes of `root` and `of`. The plan and what it refers to live in `arena`. Errors
 * as tsr_write_tree, but for those of writing. */
tsr_status tsr_tree_plan(tsr_checkpoint *checkpoint, const tsr_value *root, const tsr_mesh_rank *of, tsr_arena *arena,
                         tsr_torch_plan *out, tsr_error *err);

#endif
