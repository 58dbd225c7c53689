/* State dicts of a live model: a module tree (tessera/modules.h) with memory for its parameters and buffers. They are got
 * and set under canonical names, however the model is wrapped.
 *
 *   tsr_model ── get ──▶ {"fc.weight": tensor, …} ── tsr_state_dict_save ──▶ checkpoint
 *             ◀── set ──                          ◀── tsr_state_dict_load ──
 *
 * Results borrow the model's memory unless options gather or offload it. The names are the same whether the model is
 * wrapped by DDP, torch.compile or activation checkpointing, sharded over meshes (FSDP2, tensor parallel) or in FSDP1
 * units, or not distributed.
 *
 * Ranks. Functions that take a `comm` are collective, whatever the options. Ranks first check that their options agree and
 * that none of them has failed, and all return the same status. NULL is a communicator of one rank. Thread rule: one thread
 * per rank.
 *
 * Source of the behavior: torch/distributed/checkpoint/state_dict.py of PyTorch 2.13. Differences are described at each
 * function.
 *
 * Example:
 *
 *     tsr_state_options options = tsr_state_options_default();
 *     options.full_state_dict = true;
 *     const tsr_state_call call = {.comm = comm, .options = &options, .host = host, .arena = arena};
 *     status = tsr_get_model_state_dict(model, &call, dict, &err);
 *     if (status == TSR_OK) status = tsr_set_model_state_dict(model, tsr_state_dict_root(dict), &call, &err); */
#ifndef TESSERA_MODEL_STATE_H
#define TESSERA_MODEL_STATE_H

#include "tessera/fsdp_state.h"
#include "tessera/statedict.h"

TSR_API_BEGIN

/* A parameter or buffer of the tree, with the tensor that this rank holds for it. Shape and dtype must match the tree's,
 * where the tree gives them. */
typedef struct tsr_model_tensor {
    const tsr_module_tensor *of; /* in the tree; one of those with the same identity is enough. NULL: see `name` */
    tsr_tensor *tensor;          /* loading writes its memory, and allocates it first if the tensor is meta */
    const char *name;            /* used if `of` is NULL: a name that tsr_modules_find finds */
} tsr_model_tensor;

typedef struct tsr_model {
    const tsr_modules *modules;
    const tsr_model_tensor *tensors; /* every parameter and persistent buffer except those that FSDP1 units manage */
    size_t tensor_count;
    /* For a tree with FSDP1 units: its units, ignored, warn and at are used, and ctx for the last two. Its modules, comm,
     * plain and set_extra are ignored. NULL: no unit has a flat parameter. */
    const tsr_fsdp_tree *fsdp;
    /* Get and set the extra state of modules that have one (tsr_module.extra_state). `raw` is the raw state dict key, such
     * as "net._extra_state"; in a tree with units, the components of FSDP1 and checkpoint wrappers are removed from it.
     * get_extra makes the value in `arena`; set_extra borrows it until it returns. */
    tsr_status (*get_extra)(void *ctx, tsr_str raw, tsr_arena *arena, const tsr_value **out, tsr_error *err);
    tsr_status (*set_extra)(void *ctx, tsr_str raw, const tsr_value *value, tsr_error *err);
    void *ctx;
    tsr_state_dict *memory; /* owns the memory given to meta tensors, so it must outlive them. NULL: no tensor is meta */
    /* Receives this rank's warnings: those that PyTorch gives, and those about keys that a call ignores. Warnings about
     * FSDP1 units go to tsr_fsdp_tree.warn instead. A message is valid until `warn` returns. May be NULL. */
    void (*warn)(void *ctx, const char *message);
} tsr_model;

/* StateDictOptions. Its dsd_fqn_modifiers is a property of the module tree instead: put the result of the method that it
 * names into tsr_module.modifiers. A tree without modifiers is the same as naming a method that modules do not have. */
typedef struct tsr_state_options {
    size_t size; /* TSR_OPTIONS and tsr_state_options_default set it */
    bool full_state_dict;
    bool cpu_offload;
    bool ignore_frozen_params;
    bool keep_submodule_prefixes;
    bool strict;
    bool broadcast_from_rank0;
    bool flatten_optimizer_state_dict;
} tsr_state_options;
/* All options are false except keep_submodule_prefixes and strict. */
tsr_state_options tsr_state_options_default(void);

/* The keys that a load could not match, by canonical name: missing keys in the model's order, unexpected ones in the state
 * dict's. They live in the call's arena. Both lists are empty if there was nothing to load, as in PyTorch's
 * _IncompatibleKeys. */
typedef struct tsr_unmatched_keys {
    const tsr_str *missing; /* in the model but not in the state dict */
    size_t missing_count;
    const tsr_str *unexpected;
    size_t unexpected_count;
} tsr_unmatched_keys;

/* Common arguments of the functions here and in tessera/optimizer_state.h: the ranks and the options for getting and setting
 * state. */
typedef struct tsr_state_call {
    size_t size;                      /* TSR_OPTIONS sets it */
    tsr_comm *comm;                   /* NULL: one process */
    const tsr_state_options *options; /* NULL: tsr_state_options_default */
    /* Getting a model's state: only the state below these modules; none given: all of it. */
    const tsr_module_ref *submodules;
    size_t submodule_count;
    /* Needed for setting: the host, whose limits apply, and for models the arena in which `unmatched` is allocated. */
    const tsr_host *host;
    tsr_arena *arena;
    tsr_unmatched_keys *unmatched; /* or NULL */
} tsr_state_call;

/* get_model_state_dict: puts the model's state into `out` under canonical names, in the order of `model.state_dict()`
 * (renamed keys come last, as in PyTorch). A shared parameter is under each of its names.
 *
 *   ignore_frozen_params      leave out parameters that do not require gradients
 *   full_state_dict           gather distributed tensors; with cpu_offload, only rank 0 gets a state
 *   cpu_offload               put tensors in host memory
 *   keep_submodule_prefixes   if false, names are relative to the submodules in the call
 *
 * With `submodules`, only the state below these modules is included (nothing for the root, as in PyTorch). PyTorch
 * deprecates this, so it warns here too. FSDP1 units give their FULL state with full_state_dict, otherwise SHARDED
 * (tessera/fsdp_state.h), in new memory. Meta tensors are left out with a warning, as PyTorch did up to 2.4; 2.13 keeps
 * them.
 *
 * Errors: TSR_E_USAGE for a tensor of the model that has no memory, or whose shape or dtype is not the tree's, for options
 * that contradict each other, and for ranks whose options differ. TSR_E_FORMAT, with both names, if two raw names have the
 * same canonical name (PyTorch keeps the later one) or names of several submodules are the same without their prefixes
 * (PyTorch keeps the last one), and for a result that is unexpectedly empty. Also those of tsr_fqn_resolve and
 * tsr_state_dict_gather. */
tsr_status tsr_get_model_state_dict(const tsr_model *model, const tsr_state_call *call, tsr_state_dict *out, tsr_error *err);

/* set_model_state_dict: writes the tensors of `state` into the model. Shapes must be the model's. Dtypes must be, too,
 * except that float16, bfloat16 and float32 are loaded into a wider float type, which holds them exactly.
 *
 *   full_state_dict        each rank passes whole tensors and keeps its shard; without this option, distributed tensors are
 *                          redistributed if need be, also between meshes (PyTorch: only within one mesh)
 *   broadcast_from_rank0   use only rank 0's `state`; other ranks may pass NULL; needs full_state_dict
 *   cpu_offload            with broadcast_from_rank0, meta tensors get memory on the host, not on their device
 *   strict                 fail with TSR_E_NOT_FOUND on missing or unexpected keys, naming the first
 *   ignore_frozen_params   with full_state_dict and without broadcast_from_rank0, frozen parameters may be missing: they
 *                          keep their values
 *
 * `call->unmatched` is filled as far as the call got, even if it fails; in a broadcast it is the same on all ranks. PyTorch
 * 2.13 reports missing keys with full_state_dict only if broadcast_from_rank0 and strict are set too; here they are always
 * reported. The model is not changed until all ranks have found that everything fits.
 *
 * FSDP1 units accept FULL state with full_state_dict, otherwise SHARDED, and cast it. With broadcast_from_rank0 every rank
 * temporarily holds the whole state, as in PyTorch.
 *
 * Errors: TSR_E_USAGE, stating both sides, for a tensor whose shape or dtype does not fit the model's (PyTorch converts all
 * dtypes) or that is whole on one side only; TSR_E_FORMAT for an empty state dict where one is needed; TSR_E_UNSUPPORTED for
 * meta tensors outside the units of a model that has FSDP1 units. */
tsr_status tsr_set_model_state_dict(const tsr_model *model, const tsr_value *state, const tsr_state_call *call,
                                    tsr_error *err);

TSR_API_END

#endif
