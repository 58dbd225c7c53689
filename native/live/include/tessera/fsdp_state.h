/* Saves and loads the model state dicts of FSDP1, working on a program's own memory, as FullyShardedDataParallel's
 * state_dict() and load_state_dict() do. There are three forms:
 *
 *   FULL      every original whole, on all ranks or on rank 0 of each process group
 *   LOCAL     each unit's `_flat_param` as one sharded tensor; each rank has its slice without padding
 *   SHARDED   every original split by torch.chunk on dim 0: in boxes (ShardedTensor), or over the unit's mesh (DTensor)
 *
 * The module tree (tessera/modules.h) describes the units, their originals, and all other parameters and buffers. The
 * program provides a rank's memory: one slice per unit, and a tensor for each other parameter or buffer. Keys are
 * canonical: the name components that FSDP1 and checkpoint wrappers add are removed, those of DDP and torch.compile are
 * kept. An original that has several names is saved under each of them.
 *
 * Ranks. Saving and loading are collective over `comm`, which contains the ranks of every unit's communicator. Ranks first
 * agree on the units, their settings and the state. If one rank fails, all ranks fail with its message. The model's memory
 * is not written until everything has been checked.
 *
 * Memory. Saving allocates its result, and for FULL also one unit's flat parameter. SHARDED moves elements directly between
 * slices and rows. A unit on a device is staged through host memory the size of its slice. With extensions, transforms or
 * tensor parallelism, SHARDED also needs a unit's whole flat parameter; for optimizers it needs the whole state of the flat
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

/* StateDictType and its config. Units start with FULL and both options off. */
typedef struct tsr_fsdp_settings {
    tsr_fsdp_type type;
    bool offload;    /* put results on the host; otherwise they are on the unit's device */
    bool rank0_only; /* FULL: only rank 0 of a unit's communicator gets the tensors that the unit manages */
} tsr_fsdp_settings;

/* Lets a program split and join originals itself (FSDPExtensions). The functions are called for parameters, and for
 * optimizer state that has the shape of its parameter; `fqn` is the parameter's name in both cases. All ranks of `comm`
 * call them in the same order, provided that they hold the same states. A NULL member means the default behavior. If a call
 * fails on one rank, all ranks fail once their calls have returned. */
typedef struct tsr_fsdp_extensions {
    /* SHARDED save: turns the whole original into this rank's shard, whose memory `out` owns. */
    tsr_status (*chunk)(void *ctx, tsr_str fqn, const tsr_tensor *whole, tsr_comm *comm, tsr_state_dict *out,
                        const tsr_tensor **result, tsr_error *err);
    /* SHARDED load: turns the tensor in the state into the whole original, in host memory that `out` owns. */
    tsr_status (*gather)(void *ctx, tsr_str fqn, const tsr_tensor *sharded, tsr_comm *comm, tsr_state_dict *out,
                         const tsr_tensor **whole, tsr_error *err);
    void *ctx;
} tsr_fsdp_extensions;

/* The other part of FSDPExtensions, for programs whose parameters are not the tensors that FSDP flattened. Called in the
 * same way as tsr_fsdp_extensions. */
typedef struct tsr_fsdp_transforms {
    /* FULL and SHARDED save: turns the tensor that was flattened, in host memory, into the program's own tensor, whose
     * memory `out` owns (post_unflatten_transform). The result is passed to tsr_fsdp_extensions.chunk. */
    tsr_status (*unflatten)(void *ctx, tsr_str fqn, const tsr_tensor *flattened, tsr_comm *comm, tsr_state_dict *out,
                            const tsr_tensor **result, tsr_error *err);
    /* FULL load: the inverse (pre_flatten_transform); memory as for tsr_fsdp_extensions.gather. */
    tsr_status (*flatten)(void *ctx, tsr_str fqn, const tsr_tensor *tensor, tsr_comm *comm, tsr_state_dict *out,
                          const tsr_tensor **flattened, tsr_error *err);
    void *ctx;
} tsr_fsdp_transforms;

/* The information that pre_flatten_transform removed from an original: a DTensorSpec, where the original is a DTensor over
 * tensor parallelism. The module tree has the shape of the tensor that was flattened. */
typedef struct tsr_fsdp_spec {
    uint32_t ndim;
    const uint64_t *shape;   /* of the whole parameter. NULL: nothing was removed; the parameter itself was flattened */
    tsr_placement placement; /* over the last dim of the root mesh */
} tsr_fsdp_spec;

/* One unit with a flat parameter, as seen by this rank. All pointers are borrowed. */
typedef struct tsr_fsdp_unit {
    tsr_module_ref module; /* the node whose wrapper is TSR_WRAPPER_FSDP1 */
    tsr_comm *comm;        /* one rank per slice: all ranks, or those of one replica (HYBRID strategies) */
    bool no_shard;         /* NO_SHARD: `slice` is the whole flat parameter; implied if `comm` has one rank */
    const tsr_mesh *mesh;  /* FSDP's device_mesh: one dim (shard) or two (replicate, shard); NULL: none */
    tsr_dtype dtype;
    tsr_device *device;                    /* NULL: host */
    void *slice;                           /* tsr_flat_layout.slice_numel elements, padding at the end */
    bool cast_buffers;                     /* MixedPrecision(buffer_dtype): save buffers in the dtype that the tree gives */
    const tsr_fsdp_extensions *extensions; /* or NULL */
    const tsr_fsdp_transforms *transforms; /* or NULL */
    /* FSDP over tensor parallelism: the mesh that `mesh` is a slice of. It has the dims of `mesh` followed by the tensor
     * parallel dim; its ranks are those of the tree's communicator. Originals with a spec are then DTensors over this mesh:
     * FULL replicates them over all dims but the last, SHARDED has shard(0) over the second-to-last dim. The program's own
     * extensions and transforms replace this. NULL: no tensor parallelism */
    const tsr_mesh *root_mesh;
    const tsr_fsdp_spec *specs; /* one per original of the flat parameter, in its order; NULL: no original has one */
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
    /* DICT of everything that units do not manage, by canonical FQN: tensors in this rank's memory (buffers, ignored
     * parameters, parameters outside units), and extra state, which may be any value. */
    const tsr_value *plain;
    const tsr_str *ignored; /* canonical FQNs of ignored modules: their buffers are not cast */
    size_t ignored_count;
    void (*warn)(void *ctx, const char *message); /* or NULL; a message is valid until it returns */
    /* Called before and after a unit's subtree is saved or loaded; calls for nested units come in between. The root's `fqn`
     * is ""; it is valid until `at` returns. May be NULL. */
    void (*at)(void *ctx, tsr_fsdp_moment moment, tsr_str fqn);
    /* Receives loaded extra state. NULL: extra state is not loaded. */
    tsr_status (*set_extra)(void *ctx, tsr_str fqn, const tsr_value *value, tsr_error *err);
    void *ctx;
} tsr_fsdp_tree;

typedef struct tsr_fsdp_model tsr_fsdp_model;

/* Checks the description and lists what is saved. Borrows `host` and everything that `tree` points to until free. Does not
 * communicate. Errors: TSR_E_USAGE for a unit that is not an FSDP1 node with a flat parameter, such a node without a unit, a
 * mesh that does not fit the communicators, and a tensor that is missing from `plain` or has a different shape there;
 * TSR_E_LIMIT; TSR_E_NOMEM. */
tsr_status tsr_fsdp_model_new(const tsr_fsdp_tree *tree, const tsr_host *host, tsr_fsdp_model **out, tsr_error *err);
void tsr_fsdp_model_free(tsr_fsdp_model *model); /* accepts NULL */

/* Sets or gets the settings of all units at and below `module` (0: the root), with or without a flat parameter. set stores
 * the old settings in `previous` (may be NULL), for restoring them later. Errors: TSR_E_USAGE if these units' settings
 * differ, naming two of the units; no unit is changed then. In a tree without units, get returns FULL. Source:
 * set_state_dict_type, state_dict_type. */
tsr_status tsr_fsdp_set_type(tsr_fsdp_model *model, tsr_module_ref module, const tsr_fsdp_settings *settings,
                             tsr_fsdp_settings *previous, tsr_error *err);
tsr_status tsr_fsdp_get_type(const tsr_fsdp_model *model, tsr_module_ref module, tsr_fsdp_settings *out, tsr_error *err);

/* Puts the model's state into the empty dict `out`, in PyTorch's order. The originals of FULL and SHARDED, buffers that were
 * cast, and tensors that were offloaded from a device get new memory; all other tensors, LOCAL slices included, are the
 * model's own memory. Collective.
 *
 * The state of a NO_SHARD unit is always FULL with both options off, and a warning says so. In LOCAL, a
 * unit with use_orig_params has slices of its originals in addition to `_flat_param`, as in PyTorch.
 *
 * Errors: TSR_E_USAGE for LOCAL over a mesh, and for ranks that differ; TSR_E_UNSUPPORTED for LOCAL of HYBRID units (PyTorch
 * fails too) and for SHARDED originals without dimensions; those of the communicator and the device.
 * Source: _pre_state_dict_hook, _post_state_dict_hook. */
tsr_status tsr_fsdp_model_save(tsr_fsdp_model *model, tsr_state_dict *out, tsr_error *err);

/* Keys that are only in the model (missing) or only in the state (unexpected), by canonical name: missing keys in the
 * model's order, unexpected ones in the state's. Lives in the arena that was passed to load. */
typedef struct tsr_fsdp_keys {
    const tsr_str *missing;
    size_t missing_count;
    const tsr_str *unexpected;
    size_t unexpected_count;
} tsr_fsdp_keys;

/* Loads `state`, a DICT in the form that the units are set to, into the model's memory. Tensors are cast where dtypes
 * differ and a cast exists. Tensors without a key in the state keep their values. `keys` (may be NULL) receives the keys
 * that did not match, which live in `arena`. If a ShardedTensor has no shard on a rank that needs one, that rank warns and
 * gets zeros, as in PyTorch. Collective.
 *
 * Errors are found before anything is written. TSR_E_USAGE lists everything that is wrong: missing or unexpected keys (if
 * `strict`), a different shape or form, padding in LOCAL shards, ranks that differ. In LOCAL, units with use_orig_params
 * load the slices of their originals, and `_flat_param`, which must be there, is an unexpected key, as in PyTorch.
 * Source: _pre_load_state_dict_hook, Module.load_state_dict. */
tsr_status tsr_fsdp_model_load(tsr_fsdp_model *model, const tsr_value *state, bool strict, tsr_arena *arena,
                               tsr_fsdp_keys *keys, tsr_error *err);

TSR_API_END

#endif
