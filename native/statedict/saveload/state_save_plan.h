/* Who writes which shard, and where in which file. */
#ifndef TSR_STATEDICT_STATE_SAVE_PLAN_H
#define TSR_STATEDICT_STATE_SAVE_PLAN_H

#include "statedict/saveload/state_flat.h"
#include "statedict/tensor/warn.h"
#include "tessera/comm.h"
#include "tessera/sys/dcp_item.h"

/* A box of a tensor in its owner's file. */
typedef struct tsr_save_piece {
    uint32_t entry;  /* number in the flat state dict */
    uint32_t owner;  /* rank */
    uint64_t number; /* of the owner's pieces of the tensor (tsr_tensor_pieces) */
    const uint64_t *offsets;
    const uint64_t *sizes;
    uint64_t bytes;                                 /* of the elements */
    uint64_t byte_offset, byte_length, head_length; /* of the item, in the owner's file */
} tsr_save_piece;

/* An object in rank 0's file; only rank 0 has them. */
typedef struct tsr_save_object {
    uint32_t entry;
    tsr_vec bytes;
    uint64_t byte_offset;
} tsr_save_object;

typedef struct tsr_save_plan {
    tsr_flat flat;
    tsr_save_piece *pieces; /* by owner, then by name, then in the order of the shard */
    size_t piece_count;
    tsr_save_object *objects; /* rank 0 */
    size_t object_count;
    uint64_t *file_sizes; /* by rank */
} tsr_save_plan;

/* Who plans. The plan lives in `arena`, but for the objects' bytes. */
typedef struct tsr_save_planner {
    tsr_comm *comm;
    const tsr_host *host;
    tsr_arena *arena;
} tsr_save_planner;

/* All ranks agree on the state, and on the `call` in words, or get an error. Collective. */
tsr_status tsr_save_plan_make(const tsr_save_planner *planner, const tsr_value *state, tsr_str call, tsr_save_plan *out,
                              tsr_error *err);
/* Objects whose values differ from rank 0's, which is the one that is saved. Collective; names are the plan's. */
tsr_status tsr_save_plan_differences(const tsr_save_plan *plan, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
                                     tsr_name_tally *out, tsr_error *err);
void tsr_save_plan_free(tsr_save_plan *plan);

#endif
