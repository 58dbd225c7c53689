/* Originals as a program has them, whole or cut: what FSDP flattened, and what extensions and DTensors over tensor
 * parallelism make of it. */
#ifndef TSR_STATEDICT_FSDP_CUT_H
#define TSR_STATEDICT_FSDP_CUT_H

#include "statedict/fsdp/fsdp_model.h"
#include "tessera/redistribute.h"

/* What has to move between ranks before tensors are complete. Moves of both lists are made together: first all ranks agree
 * on them. */
typedef struct tsr_fsdp_moves {
    tsr_comm *world;
    tsr_comm *data;          /* the ranks of one place in tensor parallelism; NULL: everything moves among all */
    tsr_vec across;          /* of tsr_move, among all ranks */
    tsr_vec apart;           /* of tsr_move, among those of `data` */
    tsr_state_dict *passing; /* what moves point to, and tensors that are needed for a while */
} tsr_fsdp_moves;

tsr_fsdp_moves tsr_fsdp_moves_of(tsr_comm *world, tsr_comm *data, const tsr_host *host, tsr_state_dict *passing);
/* Collective over `world`; `mine` is this rank's status so far. Frees the lists. */
tsr_status tsr_fsdp_moves_run(tsr_fsdp_moves *moves, tsr_status mine, tsr_error *err);

/* Whether originals of the unit are tensors over its root mesh. */
static inline bool tsr_fsdp_is_2d(const tsr_fsdp_node *node)
{
    return node->unit && node->unit->root_mesh && !node->unit->extensions && !node->unit->transforms;
}
/* Whether a program's originals are other tensors than those that FSDP flattened. */
static inline bool tsr_fsdp_is_transformed(const tsr_fsdp_node *node)
{
    return tsr_fsdp_is_2d(node) || (node->unit && node->unit->transforms && node->unit->transforms->unflatten);
}
/* How many ranks the last dim of the unit's root mesh has; 1 without one. */
uint32_t tsr_fsdp_tp_size(const tsr_fsdp_unit *unit);

/* Whether the specs fit what was flattened, the root mesh the mesh and the communicators. */
tsr_status tsr_fsdp_check_root_mesh(const tsr_fsdp_model *model, const tsr_fsdp_node *node, tsr_error *err);
tsr_status tsr_fsdp_check_specs(const tsr_fsdp_model *model, const tsr_fsdp_node *node, tsr_error *err);

/* An original as the program has it, without memory and of the unit's type: of its own shape, and over the root mesh where
 * it is a DTensor. `sharded`: as SHARDED has it, which is over the root mesh always; of units that are 2-D. Placements live
 * in `arena`. */
tsr_status tsr_fsdp_parameter(const tsr_fsdp_node *node, uint32_t original, bool sharded, tsr_arena *arena, tsr_tensor *out,
                              tsr_error *err);

/* A whole tensor in host memory, cut by torch.chunk on dim 0 as a unit does whose mesh is not 2-D: a new one in `out`. */
tsr_status tsr_fsdp_cut_rows(const tsr_fsdp_node *node, const tsr_tensor *whole, tsr_device *device, tsr_state_dict *out,
                             const tsr_value **value, tsr_error *err);

/* This rank's part of a whole tensor, a new one in `out` that is distributed as `part`. Sets the root of `out`. */
tsr_status tsr_fsdp_cut_whole(const tsr_tensor *whole, const tsr_tensor *part, tsr_state_dict *out, const tsr_value **value,
                              tsr_error *err);

/* What a unit's extensions make of an original, or of state like it. */
typedef struct tsr_fsdp_making {
    const tsr_fsdp_node *node;
    bool sharded;            /* cut, too */
    bool on_host;            /* else on the unit's device, where the program does not cut it */
    tsr_state_dict *passing; /* for what is needed until it is cut; NULL: nothing is unflattened */
    tsr_state_dict *out;
} tsr_fsdp_making;
tsr_status tsr_fsdp_make(const tsr_fsdp_making *making, tsr_str fqn, const tsr_tensor *flattened, const tsr_value **value,
                         tsr_error *err);

/* `to`, which is sharded as tsr_fsdp_parameter says and has memory, gets its part of `local`: what was flattened of the
 * original, in host memory of its type. At once, or once the moves are made. */
tsr_status tsr_fsdp_chunk_2d(const tsr_fsdp_node *node, uint32_t original, const void *local, const tsr_tensor *to,
                             tsr_fsdp_moves *moves, tsr_error *err);
/* The way back: `*local` (of the type of `given`, in host memory that moves->passing owns) is what would be flattened of
 * `given`, a whole tensor of the parameter's shape or one over the root mesh. Complete once the moves are made. */
tsr_status tsr_fsdp_gather_2d(const tsr_fsdp_node *node, uint32_t original, const tsr_tensor *given,
                              tsr_fsdp_moves *moves, const void **local, tsr_error *err);

#endif
