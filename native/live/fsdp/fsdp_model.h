/* What a model with FSDP1 units saves, listed in PyTorch's order, and what saving and loading share. */
#ifndef TSR_STATEDICT_FSDP_MODEL_H
#define TSR_STATEDICT_FSDP_MODEL_H

#include "live/tensor/state_dict.h"
#include "tessera/fsdp_state.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/flat_ranks.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/map.h"
#include "tessera/sys/module_tree.h"

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
tsr_status tsr_fsdp_stage(const tsr_fsdp_model *model, const tsr_fsdp_node *node, bool copy_in, void **slice, void **staged,
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

#endif
