/* The list of what a model with FSDP1 units saves, in PyTorch's order, and what saving and loading have in common. */
#ifndef TSR_STATEDICT_FSDP_MODEL_H
#define TSR_STATEDICT_FSDP_MODEL_H

#include "statedict/tensor/state_dict.h"
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
    const tsr_fsdp_unit *unit; /* NULL: nothing is flattened here */
    const tsr_module_flat *flat;
    tsr_flat_layout layout;
    tsr_flat_unit cut; /* the same, for moving slices */
    uint32_t itemsize;
    uint32_t world_rank; /* of the tree's communicator */
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
    uint32_t node;     /* innermost; TSR_NO_UNIT: outside of all */
    uint32_t original; /* ORIGINAL */
    bool buffer, ignored;
    const tsr_module_tensor *tensor; /* PLAIN; FLAT and ORIGINAL where the tree has it as a parameter */
    const tsr_value *value;          /* PLAIN, EXTRA */
} tsr_fsdp_item;

/* The value for a name of what units do not manage, in place of tsr_fsdp_tree.plain; `tensor` NULL: extra state. */
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
/* A name without the components of FSDP1 and checkpoint wrappers. data NULL on TSR_E_NOMEM. */
tsr_str tsr_fsdp_clean(tsr_str name, tsr_arena *arena, tsr_error *err);

/* Units of the tree, their layouts, and the items. */
tsr_status tsr_fsdp_list(tsr_fsdp_model *model, tsr_error *err);

/* Settings that count: a unit that is not sharded is saved FULL. */
tsr_fsdp_settings tsr_fsdp_effective(const tsr_fsdp_node *node);
/* Whether the item has a key under its unit's type. */
bool tsr_fsdp_is_saved(const tsr_fsdp_model *model, const tsr_fsdp_item *item);
/* What both directions do first: refusals by type, agreement of all ranks about units, settings and `state` (NULL: none),
 * warnings for NO_SHARD. */
tsr_status tsr_fsdp_begin(const tsr_fsdp_model *model, const char *call, const tsr_value *state, tsr_error *err);
void tsr_fsdp_warn(const tsr_fsdp_model *model, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
void tsr_fsdp_tell(const tsr_fsdp_model *model, const tsr_fsdp_item *item, bool saving);

/* A unit's slice in host memory: its own, or a copy (`*staged`, of tsr_fsdp_slice_bytes, to be freed). */
uint64_t tsr_fsdp_slice_bytes(const tsr_fsdp_node *node);
tsr_status tsr_fsdp_stage(const tsr_fsdp_model *model, const tsr_fsdp_node *node, bool copy_in, void **slice, void **staged,
                          tsr_error *err);
/* Gives it back, written to the device before with `copy_out`. */
tsr_status tsr_fsdp_unstage(const tsr_fsdp_model *model, const tsr_fsdp_node *node, void *staged, bool copy_out,
                            tsr_error *err);

/* An original as a whole tensor without memory. */
tsr_tensor tsr_fsdp_original(const tsr_fsdp_node *node, uint32_t original);
/* The rows of an original, by torch.chunk, that a rank of the unit's communicator has. */
void tsr_fsdp_rows_here(const tsr_fsdp_node *node, uint32_t original, uint64_t *begin, uint64_t *end);
/* The elements of the flat parameter, padding between originals included, that this rank has. */
tsr_span tsr_fsdp_valid(const tsr_fsdp_node *node);
/* The last item of a unit that begins at `enter`. */
size_t tsr_fsdp_leave(const tsr_fsdp_model *model, size_t enter);
/* Placements over a unit's mesh: replicate in all dims but the last, which is shard(0). */
tsr_status tsr_fsdp_placements(const tsr_mesh *mesh, tsr_arena *arena, tsr_placement **out, tsr_error *err);

#endif
