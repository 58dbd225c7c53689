/* The plan of a save: which rank writes which shard, and where in which file. */
#ifndef TSR_STATEDICT_STATE_SAVE_PLAN_H
#define TSR_STATEDICT_STATE_SAVE_PLAN_H

#include "statedict/saveload/state_flat.h"
#include "statedict/tensor/warn.h"
#include "tessera/comm.h"
#include "tessera/sys/dcp_item.h"

/* A box of a tensor in its owner's file. */
typedef struct tsr_save_piece {
    uint32_t entry;  /* index in the flat state dict */
    uint32_t owner;  /* rank that writes it */
    uint64_t number; /* index among the pieces of the tensor on the owner (tsr_tensor_pieces) */
    const uint64_t *offsets;
    const uint64_t *sizes;
    uint64_t bytes; /* size of the elements */
    /* Position of the item in the owner's file, its size, and that of its head. */
    uint64_t byte_offset, byte_length, head_length;
} tsr_save_piece;

/* An object in rank 0's file. Only rank 0 has the list. */
typedef struct tsr_save_object {
    uint32_t entry;
    tsr_vec bytes;
    uint64_t byte_offset;
} tsr_save_object;

typedef struct tsr_save_plan {
    tsr_flat flat;
    tsr_save_piece *pieces; /* by owner, then by name, then in the order of the shards */
    size_t piece_count;
    tsr_save_object *objects; /* only on rank 0 */
    size_t object_count;
    uint64_t *file_sizes; /* by rank */
} tsr_save_plan;

/* The ranks that plan. The plan lives in `arena`, except for the bytes of objects. */
typedef struct tsr_save_planner {
    tsr_comm *comm;
    const tsr_host *host;
    tsr_arena *arena;
} tsr_save_planner;

/* Makes the plan. All ranks must agree on the state, and on `call`, which describes the call in words; otherwise they get an
 * error. Collective. */
tsr_status tsr_save_plan_make(const tsr_save_planner *planner, const tsr_value *state, tsr_str call, tsr_save_plan *out,
                              tsr_error *err);
/* Finds objects whose values differ from those of rank 0, which are the ones that are saved. Collective. The names are those
 * of the plan. */
tsr_status tsr_save_plan_differences(const tsr_save_plan *plan, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
                                     tsr_name_tally *out, tsr_error *err);
void tsr_save_plan_free(tsr_save_plan *plan);

#endif
