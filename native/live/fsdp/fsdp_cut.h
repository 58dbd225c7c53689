/* Original parameters as the program has them, whole or sharded. They differ from what FSDP flattened where extensions or
 * tensor parallelism transform them. */
#ifndef TSR_STATEDICT_FSDP_CUT_H
#define TSR_STATEDICT_FSDP_CUT_H

#include "live/fsdp/fsdp_model.h"
#include "tessera/redistribute.h"

/* Data that must be sent between ranks before tensors are complete. The moves of both lists are made together, once all
 * ranks have agreed on them. */
typedef struct tsr_fsdp_moves {
    tsr_comm *world;
    tsr_comm *data;          /* the ranks with the same tensor parallel coordinate; NULL: everything moves among all ranks */
    tsr_vec across;          /* of tsr_move, among all ranks */
    tsr_vec apart;           /* of tsr_move, among the ranks of `data` */
    tsr_state_dict *passing; /* owns the tensors that moves point to, and temporary ones */
} tsr_fsdp_moves;

tsr_fsdp_moves tsr_fsdp_moves_of(tsr_comm *world, tsr_comm *data, const tsr_host *host, tsr_state_dict *passing);
/* Collective over `world`; `mine` is this rank's status so far. Frees the lists. */
tsr_status tsr_fsdp_moves_run(tsr_fsdp_moves *moves, tsr_status mine, tsr_error *err);

/* Whether the unit's original parameters are DTensors over its root mesh. */
static inline bool tsr_fsdp_is_2d(const tsr_fsdp_node *node)
{
    return node->unit && node->unit->root_mesh && !node->unit->extensions && !node->unit->transforms;
}
/* Whether the program's original parameters are not the tensors that FSDP flattened. */
static inline bool tsr_fsdp_is_transformed(const tsr_fsdp_node *node)
{
    return tsr_fsdp_is_2d(node) || (node->unit && node->unit->transforms && node->unit->transforms->unflatten);
}
/* The size of the last dim of the unit's root mesh, which is that of tensor parallelism; 1 without a root mesh. */
uint32_t tsr_fsdp_tp_size(const tsr_fsdp_unit *unit);

/* Describes an original parameter as the program has it (a meta tensor of the unit's dtype): its own shape, and over the
 * root mesh if it is a DTensor. `sharded`, for 2-D units only: as in a SHARDED state dict, where it is always over the
 * root mesh. Placements live in `arena`. */
tsr_status tsr_fsdp_parameter(const tsr_fsdp_node *node, uint32_t original, bool sharded, tsr_arena *arena, tsr_tensor *out,
                              tsr_error *err);

/* Shards a whole tensor in host memory with torch.chunk on dim 0, as units without a 2-D mesh do. The result is a new
 * tensor in `out`. */
tsr_status tsr_fsdp_cut_rows(const tsr_fsdp_node *node, const tsr_tensor *whole, tsr_device *device, tsr_state_dict *out,
                             const tsr_value **value, tsr_error *err);

/* Takes this rank's part of a whole tensor: a new tensor in `out` with the distribution of `part`. Sets the root of
 * `out`. */
tsr_status tsr_fsdp_cut_whole(const tsr_tensor *whole, const tsr_tensor *part, tsr_state_dict *out, const tsr_value **value,
                              tsr_error *err);

/* How a unit's extensions convert an original parameter, or optimizer state of its shape. */
typedef struct tsr_fsdp_making {
    const tsr_fsdp_node *node;
    bool sharded;            /* the result is sharded as well */
    bool on_host;            /* the result is in host memory; otherwise on the unit's device, unless the program shards it */
    tsr_state_dict *passing; /* owns temporary tensors; NULL: no tensor is unflattened */
    tsr_state_dict *out;
} tsr_fsdp_making;
tsr_status tsr_fsdp_make(const tsr_fsdp_making *making, tsr_str fqn, const tsr_tensor *flattened, const tsr_value **value,
                         tsr_error *err);

/* Fills `to`, a tensor with memory and the distribution that tsr_fsdp_parameter describes, with its part of `local`. That
 * is what FSDP flattened of the original, in host memory and with the dtype of `to`. Unless moves are added, `to` is
 * complete on return; otherwise after the moves. */
tsr_status tsr_fsdp_chunk_2d(const tsr_fsdp_node *node, uint32_t original, const void *local, const tsr_tensor *to,
                             tsr_fsdp_moves *moves, tsr_error *err);
/* The opposite direction: `*local` is what FSDP would flatten of `given`, which is a whole tensor of the parameter's
 * shape or a DTensor over the root mesh. It has the dtype of `given`, and host memory that moves->passing owns. Complete
 * once the moves have been made. */
tsr_status tsr_fsdp_gather_2d(const tsr_fsdp_node *node, uint32_t original, const tsr_tensor *given, tsr_fsdp_moves *moves,
                              const void **local, tsr_error *err);

#endif
