/* What a model with FSDP1 units saves, listed in PyTorch's order, and what saving and loading share. */
#ifndef TSR_LIVE_FSDP_FSDP_MODEL_H
#define TSR_LIVE_FSDP_FSDP_MODEL_H

#include "live/tensor/state_dict.h"
#include "tessera/fsdp_state.h"
#include "tessera/redistribute.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/optimizer.h"

#define TSR_NO_UNIT UINT32_MAX

/* An FSDP1 node. */
typedef struct tsr_fsdp_node {
    tsr_module_ref module;
    tsr_str fqn;
    const tsr_fsdp_unit *unit; /* NULL: the node flattens nothing */
    const tsr_module_flat *flat;
    tsr_flat_layout layout;
    tsr_flat_unit cut; /* the same layout, in the form that moving slices needs */
    uint32_t itemsize;
    uint32_t world_rank; /* this rank in the tree's communicator */
    bool sharded;
    tsr_fsdp_settings settings;
} tsr_fsdp_node;

typedef enum tsr_fsdp_item_kind {
    TSR_ITEM_ENTER,
    TSR_ITEM_LEAVE,
    TSR_ITEM_ORIGINAL,
    TSR_ITEM_FLAT,
    TSR_ITEM_PLAIN,
    TSR_ITEM_EXTRA
} tsr_fsdp_item_kind;

typedef struct tsr_fsdp_item {
    tsr_fsdp_item_kind kind;
    tsr_str fqn;
    uint32_t node;     /* the innermost node around it; TSR_NO_UNIT: none */
    uint32_t original; /* for ORIGINAL: its index in the unit */
    bool buffer, ignored;
    const tsr_module_tensor *tensor; /* for PLAIN; for FLAT and ORIGINAL if the module tree has it as a parameter */
    const tsr_value *value;          /* for PLAIN and EXTRA */
} tsr_fsdp_item;

/* Finds the value of a name that units do not manage, instead of tsr_fsdp_tree.plain. `tensor` NULL: the name is that of
 * extra state. */
typedef struct tsr_fsdp_finder {
    tsr_status (*find)(void *ctx, tsr_str fqn, const tsr_module_tensor *tensor, const tsr_value **out, tsr_error *err);
    void *ctx;
} tsr_fsdp_finder;

struct tsr_fsdp_model {
    tsr_fsdp_tree tree;
    tsr_fsdp_finder finder;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec nodes; /* of tsr_fsdp_node */
    tsr_vec items; /* of tsr_fsdp_item */
};

static inline tsr_fsdp_node *tsr_fsdp_nodes(const tsr_fsdp_model *model)
{
    return (tsr_fsdp_node *)model->nodes.items;
}
static inline const tsr_fsdp_item *tsr_fsdp_items(const tsr_fsdp_model *model)
{
    return (const tsr_fsdp_item *)model->items.items;
}

/* As tsr_fsdp_model_new. */
tsr_status tsr_fsdp_model_open(const tsr_fsdp_tree *tree, tsr_fsdp_finder finder, const tsr_host *host, tsr_fsdp_model **out,
                               tsr_error *err);
/* Removes the components of FSDP1's and checkpoint wrappers from a name. data NULL on TSR_E_NOMEM. */
tsr_str tsr_fsdp_clean(tsr_str name, tsr_arena *arena, tsr_error *err);

/* Lists the tree's units with their layouts, and the items. */
tsr_status tsr_fsdp_list(tsr_fsdp_model *model, tsr_error *err);

/* The settings that take effect: a unit that is not sharded is saved as FULL. */
tsr_fsdp_settings tsr_fsdp_effective(const tsr_fsdp_node *node);
/* Whether the item has a key in the state dict, which depends on its unit's state dict type. */
bool tsr_fsdp_is_saved(const tsr_fsdp_model *model, const tsr_fsdp_item *item);
/* The first step of saving and of loading: refuses types that are not supported, makes all ranks agree on units, settings
 * and `state` (NULL: none), and warns of NO_SHARD. Collective. */
tsr_status tsr_fsdp_begin(const tsr_fsdp_model *model, const char *call, const tsr_value *state, tsr_error *err);
void tsr_fsdp_warn(const tsr_fsdp_model *model, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
void tsr_fsdp_tell(const tsr_fsdp_model *model, const tsr_fsdp_item *item, bool saving);

/* A unit's slice in host memory: its own, or a copy (`*staged`, of tsr_fsdp_slice_bytes, to be freed). */
uint64_t tsr_fsdp_slice_bytes(const tsr_fsdp_node *node);
tsr_status tsr_fsdp_stage(const tsr_fsdp_model *model, const tsr_fsdp_node *node, void **slice, void **staged,
                          tsr_error *err);
/* Releases the copy. With `copy_out` it is written to the device first. */
tsr_status tsr_fsdp_unstage(const tsr_fsdp_model *model, const tsr_fsdp_node *node, void *staged, bool copy_out,
                            tsr_error *err);

/* An original parameter as a whole meta tensor. */
tsr_tensor tsr_fsdp_original(const tsr_fsdp_node *node, uint32_t original);
/* The rows of an original, as torch.chunk cuts it, that this rank of the unit's communicator has. */
void tsr_fsdp_rows_here(const tsr_fsdp_node *node, uint32_t original, uint64_t *begin, uint64_t *end);
/* The elements of the flat parameter that this rank has, including padding between originals. */
tsr_span tsr_fsdp_valid(const tsr_fsdp_node *node);
/* The last item of a unit that begins at `enter`. */
size_t tsr_fsdp_leave(const tsr_fsdp_model *model, size_t enter);
/* Placements over a unit's mesh: replicate in all dims but the last, which is shard(0). */
tsr_status tsr_fsdp_placements(const tsr_mesh *mesh, tsr_arena *arena, tsr_placement **out, tsr_error *err);

/* ---- fsdp cut ---- */

/* Original parameters as the program has them, whole or sharded. They differ from what FSDP flattened where extensions or
 * tensor parallelism transform them. */

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

/* ---- fsdp load ---- */

/* Loading the state of a model with FSDP1 units: first everything is checked, then everything is written. */

typedef struct tsr_fsdp_loading {
    const tsr_fsdp_model *model;
    const tsr_value *state;
    bool strict;
    tsr_arena *arena;         /* the caller's; `keys` live in it */
    const tsr_value **values; /* one per item; NULL: the state has none for it */
    tsr_str *missing, *unexpected;
    tsr_fsdp_keys keys;
} tsr_fsdp_loading;

/* tsr_fsdp_model_load in two steps, for callers that have more to check between them. Both are collective. Needs `model`,
 * `state`, `strict` and `arena` of `loading`; writes nothing of the model. */
tsr_status tsr_fsdp_load_check(tsr_fsdp_loading *loading, tsr_error *err);
/* Writes what tsr_fsdp_load_check has checked. */
tsr_status tsr_fsdp_load_write(const tsr_fsdp_loading *loading, tsr_error *err);

#endif
