/* Saves and loads the model state dicts of FSDP1 in a program's own memory, as FullyShardedDataParallel's state_dict() and
 * load_state_dict() do, in their three forms.
 *
 *   FULL      every original whole, on all ranks or on rank 0 of each process group
 *   LOCAL     each unit's `_flat_param` as one sharded tensor, of which a rank has its slice without padding
 *   SHARDED   every original cut by torch.chunk on dim 0: in boxes (ShardedTensor), or over the unit's mesh (DTensor)
 *
 * The module tree (tessera/modules.h) describes the units, their originals, and the other parameters and buffers. The program
 * provides a rank's memory: one slice per unit, and a tensor for each other parameter or buffer. Keys are canonical: components
 * of FSDP1 and of checkpoint wrappers are gone, those of DDP and torch.compile stay. Originals under several names have them
 * all.
 *
 * Ranks. Saving and loading are collective over `comm`, which all units' communicators are parts of. Ranks first agree on the
 * units, their settings and the state; if a rank fails, all ranks fail with its message, and the model's memory is not written
 * before everything has been checked.
 *
 * Memory. Saving allocates its result, and FULL one unit's flat parameter more; SHARDED moves elements straight between
 * slices and rows. Units on a device are staged through host memory of the size of their slice. Extensions, transforms and
 * tensor parallelism need a unit's flat parameter for SHARDED, too, and for optimizers the whole state of the flat
 * parameters.
 *
 * Source: torch/distributed/fsdp/_state_dict_utils.py of PyTorch 2.13. Thread rule: one thread per rank.
 *
 * Example:
 *
 *     const tsr_fsdp_settings sharded = {.type = TSR_FSDP_SHARDED, .offload = true};
 *     tsr_fsdp_model *fsdp;
 *     status = tsr_fsdp_model_new(tree, host, &fsdp, &err);
 *     if (status == TSR_OK) status = tsr_fsdp_set_type(fsdp, 0, &sharded, NULL, &err);
 *     if (status == TSR_OK) status = tsr_fsdp_model_save(fsdp, dict, &err); */
#ifndef TESSERA_FSDP_STATE_H
#define TESSERA_FSDP_STATE_H

#include "tessera/modules.h"
#include "tessera/statedict.h"

TSR_API_BEGIN

typedef enum tsr_fsdp_type { TSR_FSDP_FULL = 0, TSR_FSDP_LOCAL, TSR_FSDP_SHARDED } tsr_fsdp_type;

/* StateDictType and its config. A unit begins with FULL and both options off. */
typedef struct tsr_fsdp_settings {
    tsr_fsdp_type type;
    bool offload;    /* results on the host; otherwise on the unit's device */
    bool rank0_only; /* FULL: other ranks of a unit's communicator get nothing of what it manages */
} tsr_fsdp_settings;

/* How a program cuts and joins originals itself (FSDPExtensions): parameters, and the states of an optimizer that have the
 * shape of their parameter. `fqn` is the parameter's in both. Called on all ranks of `comm`, in the same order, unless ranks
 * have other states; NULL members: as without. A failure on one rank becomes everybody's once all have returned. */
typedef struct tsr_fsdp_extensions {
    /* SHARDED save: the whole original → what this rank keeps of it, with its memory in `out`. */
    tsr_status (*chunk)(void *ctx, tsr_str fqn, const tsr_tensor *whole, tsr_comm *comm, tsr_state_dict *out,
                        const tsr_tensor **result, tsr_error *err);
    /* SHARDED load: what the state has → the whole original, in host memory, with its memory in `out`. */
    tsr_status (*gather)(void *ctx, tsr_str fqn, const tsr_tensor *sharded, tsr_comm *comm, tsr_state_dict *out,
                         const tsr_tensor **whole, tsr_error *err);
    void *ctx;
} tsr_fsdp_extensions;

/* What else FSDPExtensions do: a program whose parameters are other tensors than those that FSDP flattened. Called as the
 * extensions are. */
typedef struct tsr_fsdp_transforms {
    /* Saving, FULL and SHARDED: what was flattened, in host memory → the tensor as the program has it, with its memory in
     * `out` (post_unflatten_transform). tsr_fsdp_extensions.chunk is given its result. */
    tsr_status (*unflatten)(void *ctx, tsr_str fqn, const tsr_tensor *flattened, tsr_comm *comm, tsr_state_dict *out,
                            const tsr_tensor **result, tsr_error *err);
    /* FULL load: the way back, as tsr_fsdp_extensions.gather (pre_flatten_transform). */
    tsr_status (*flatten)(void *ctx, tsr_str fqn, const tsr_tensor *tensor, tsr_comm *comm, tsr_state_dict *out,
                          const tsr_tensor **flattened, tsr_error *err);
    void *ctx;
} tsr_fsdp_transforms;

/* What pre_flatten_transform took off an original, so that the module tree has the shape of what was flattened (a
 * DTensorSpec, where the original is a DTensor over tensor parallelism). */
typedef struct tsr_fsdp_spec {
    uint32_t ndim;
    const uint64_t *shape;   /* of the whole parameter. NULL: nothing was taken off; the parameter is what was flattened */
    tsr_placement placement; /* over the last dim of the root mesh */
} tsr_fsdp_spec;

/* One unit with a flat parameter, as this rank has it. Everything is borrowed. */
typedef struct tsr_fsdp_unit {
    tsr_module_ref module; /* the node whose wrapper is TSR_WRAPPER_FSDP1 */
    tsr_comm *comm;        /* one rank per slice: all ranks, or one replica of HYBRID strategies */
    bool no_shard;         /* NO_SHARD: `slice` is the whole flat parameter. Of itself so for one slice */
    const tsr_mesh *mesh;  /* given to FSDP as device_mesh: one dim (shard), or replicate, shard; NULL: none */
    tsr_dtype dtype;
    tsr_device *device; /* NULL: host */
    void *slice;        /* tsr_flat_layout.slice_numel elements, padding last */
    bool cast_buffers;  /* MixedPrecision(buffer_dtype): buffers are saved in the type that the tree has for them */
    const tsr_fsdp_extensions *extensions; /* or NULL */
    const tsr_fsdp_transforms *transforms; /* or NULL */
    /* FSDP over tensor parallelism: the mesh that `mesh` is a slice of. It has the dims of `mesh`, and last that of tensor
     * parallelism; its ranks are those of the tree's communicator. Originals with a spec are then DTensors over it: FULL has
     * them with all dims but the last replicated, SHARDED with shard(0) over the dim before the last. Extensions and
     * transforms of the program's own take the place of this. NULL: none */
    const tsr_mesh *root_mesh;
    const tsr_fsdp_spec *specs; /* one per original of the flat parameter, in its order; or NULL: all without */
} tsr_fsdp_unit;

typedef enum tsr_fsdp_moment {
    TSR_FSDP_BEFORE_SAVE,
    TSR_FSDP_AFTER_SAVE,
    TSR_FSDP_BEFORE_LOAD,
    TSR_FSDP_AFTER_LOAD
} tsr_fsdp_moment;

typedef struct tsr_fsdp_tree {
    const tsr_modules *modules;
    tsr_comm *comm; /* all ranks */
    const tsr_fsdp_unit *units;
    size_t unit_count;
    /* Everything else that is saved: canonical FQN → tensor (buffers, ignored parameters, parameters outside of units; in
     * this rank's memory), or any value for extra state. */
    const tsr_value *plain;
    const tsr_str *ignored; /* canonical FQNs of ignored modules: their buffers are not cast */
    size_t ignored_count;
    void (*warn)(void *ctx, const char *message); /* or NULL */
    /* Before a unit's subtree is saved or loaded and after it, nested ones within; `fqn` of the root is "". Or NULL. */
    void (*at)(void *ctx, tsr_fsdp_moment moment, tsr_str fqn);
    /* Receives extra state that was loaded. NULL: extra state stays as it is. */
    tsr_status (*set_extra)(void *ctx, tsr_str fqn, const tsr_value *value, tsr_error *err);
    void *ctx;
} tsr_fsdp_tree;

typedef struct tsr_fsdp_model tsr_fsdp_model;

/* Checks the description and lists what is saved. Borrows all that `tree` points to, and `host`, until free. No
 * communication. Errors: TSR_E_USAGE for a unit that is not an FSDP1 node with a flat parameter, or one of these without a
 * unit, a mesh that is not the communicator's, a tensor that `plain` lacks or has in another shape; TSR_E_LIMIT;
 * TSR_E_NOMEM. */
tsr_status tsr_fsdp_model_new(const tsr_fsdp_tree *tree, const tsr_host *host, tsr_fsdp_model **out, tsr_error *err);
void tsr_fsdp_model_free(tsr_fsdp_model *model); /* accepts NULL */

/* Settings of all units at and below `module` (0: the root), whether they have a flat parameter or not. set: `previous` (may
 * be NULL) is what to set afterwards to restore them. Errors: TSR_E_USAGE when they differ among these units, naming two of
 * them; no unit is changed then. `*out` of a tree without units is FULL. Source: set_state_dict_type, state_dict_type. */
tsr_status tsr_fsdp_set_type(tsr_fsdp_model *model, tsr_module_ref module, const tsr_fsdp_settings *settings,
                             tsr_fsdp_settings *previous, tsr_error *err);
tsr_status tsr_fsdp_get_type(const tsr_fsdp_model *model, tsr_module_ref module, tsr_fsdp_settings *out, tsr_error *err);

/* The model's state in PyTorch's order, put into the empty dict `out`. New memory: originals of FULL and SHARDED, buffers
 * that were cast, all that is offloaded from a device; other tensors are the model's own memory, LOCAL slices too.
 * Collective. Errors: TSR_E_USAGE for LOCAL over a mesh, and ranks that differ; TSR_E_UNSUPPORTED for LOCAL of HYBRID units
 * (PyTorch fails) and SHARDED originals without dimensions; those of communicator and device. Warns where NO_SHARD makes a
 * unit's state FULL, with no other settings. Units of original parameters have slices of these beside `_flat_param` in
 * LOCAL, as in PyTorch. Source: _pre_state_dict_hook, _post_state_dict_hook. */
tsr_status tsr_fsdp_model_save(tsr_fsdp_model *model, tsr_state_dict *out, tsr_error *err);

/* Keys that did not fit, canonical, in the arena that load was given: missing ones in the model's order, others in the
 * state's. */
typedef struct tsr_fsdp_keys {
    const tsr_str *missing;
    size_t missing_count;
    const tsr_str *unexpected;
    size_t unexpected_count;
} tsr_fsdp_keys;

/* `state`, a DICT of the form that the units are set to, into the model's memory. Tensors are cast where types differ and a
 * cast exists. Tensors without a key in the state keep their values. Collective; `arena` and `keys` (NULL: not wanted) as
 * above. Errors, before anything is written: TSR_E_USAGE with all that is wrong: keys that did not fit (`strict`), other shapes
 * or forms, padding in LOCAL shards, LOCAL into units of original parameters, ranks that differ. A rank whose ShardedTensor
 * lacks its shard is warned and gets zeros, as in PyTorch. Source: _pre_load_state_dict_hook, Module.load_state_dict. */
tsr_status tsr_fsdp_model_load(tsr_fsdp_model *model, const tsr_value *state, bool strict, tsr_arena *arena,
                               tsr_fsdp_keys *keys, tsr_error *err);

TSR_API_END

#endif
