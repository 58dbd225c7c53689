/* State dicts of a live model: its module tree (tessera/modules.h) with memory behind the parameters and buffers, saved and
 * loaded under canonical names, however the model is wrapped.
 *
 *   tsr_model ── get ──▶ {"fc.weight": tensor, …} ── tsr_state_dict_save ──▶ checkpoint
 *             ◀── set ──                          ◀── tsr_state_dict_load ──
 *
 * Results borrow the model's memory unless options gather or offload it. Wrapped by DDP, torch.compile or activation
 * checkpointing, sharded over meshes (FSDP2, tensor parallel), cut in FSDP1's units or not at all, the names are the same.
 *
 * Ranks. Functions that take a `comm` are collective, whatever the options: ranks first agree on the options and on whether a
 * rank has failed, and all return the same status. NULL is a communicator of one rank. Thread rule: one thread per rank.
 *
 * Source of the behaviour: torch/distributed/checkpoint/state_dict.py of PyTorch 2.13. Differences are described at each
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
#include "tessera/optim.h"
#include "tessera/statedict.h"

TSR_API_BEGIN

/* A parameter or buffer of the tree and what this rank has of it: shape and dtype as the tree says, where it says. */
typedef struct tsr_model_tensor {
    const tsr_module_tensor *of; /* the tree's own; of several with one identity, one is enough. NULL: see `name` */
    tsr_tensor *tensor;          /* loading writes its memory, and gives it some when it is meta */
    const char *name;            /* where `of` is NULL: a name that tsr_modules_find finds */
} tsr_model_tensor;

typedef struct tsr_model {
    const tsr_modules *modules;
    const tsr_model_tensor *tensors; /* every parameter and persistent buffer but what FSDP1's units manage */
    size_t tensor_count;
    /* Of a tree with FSDP1 units: these, ignored modules, warn and at. modules, comm, plain and set_extra are not looked at;
     * `ctx` is that of warn and at. NULL: no unit has a flat parameter. */
    const tsr_fsdp_tree *fsdp;
    /* Extra state of modules that have one (tsr_module.extra_state), by the raw name of the state dict key,
     * "net._extra_state" (without FSDP1's and checkpoint wrappers' components in a tree with units). `get` makes the value
     * in `arena`; `set` borrows it until it returns. */
    tsr_status (*get_extra)(void *ctx, tsr_str raw, tsr_arena *arena, const tsr_value **out, tsr_error *err);
    tsr_status (*set_extra)(void *ctx, tsr_str raw, const tsr_value *value, tsr_error *err);
    void *ctx;
    tsr_state_dict *memory; /* of tensors that were meta; must outlive their use. NULL: none is meta */
    /* Receives the warnings that PyTorch gives, and those about keys that a call ignores; each rank gets its own. May be NULL.
     * Warnings of FSDP1 units go to tsr_fsdp_tree.warn. */
    void (*warn)(void *ctx, const char *message);
} tsr_model;

/* What a load did not match, by canonical name: names of the model in its order, then of the state dict in its. Lives in
 * the arena of the call. (Empty lists for PyTorch's _IncompatibleKeys of a load that did nothing.) */
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
    /* Getting a model's state: only what lies below these; none: all of it. */
    const tsr_module_ref *submodules;
    size_t submodule_count;
    /* Setting: the host, whose limits count, and for models the arena that what is unmatched lives in. */
    const tsr_host *host;
    tsr_arena *arena;
    tsr_unmatched_keys *unmatched; /* or NULL */
} tsr_state_call;

/* get_model_state_dict: the model's state under canonical names, in the order of `model.state_dict()` (renamed keys last, as
 * PyTorch's), a shared parameter under each of its names. `submodules`: only what is below these (of the
 * root nothing, as there); without keep_submodule_prefixes under names relative to them.
 *   ignore_frozen_params   without parameters that require no gradient
 *   full_state_dict        distributed tensors gathered; with cpu_offload only rank 0 gets any
 *   cpu_offload            tensors in host memory
 * Asking for submodules warns, as PyTorch does: it is deprecated there.
 * FSDP1's units give their FULL state with full_state_dict, otherwise SHARDED (tessera/fsdp_state.h), in new memory.
 * Meta tensors are left out, with a warning: PyTorch did so up to 2.4, 2.13 keeps them. Two raw names with one canonical
 * one are TSR_E_FORMAT with both (PyTorch keeps the later), and so are names of several submodules that are the same
 * without their prefixes (PyTorch keeps the last). Errors: TSR_E_USAGE for a tensor without memory of its own in `model` or
 * of another shape or dtype than the tree's, options that contradict each other, ranks with other options; TSR_E_FORMAT for
 * an empty result where there should be one; those of tsr_fqn_resolve and tsr_state_dict_gather. */
tsr_status tsr_get_model_state_dict(const tsr_model *model, const tsr_state_call *call, tsr_state_dict *out, tsr_error *err);

/* set_model_state_dict: writes the tensors of `state` into the model.
 *   neither                tensors of the same dtype and shape; distributed ones lie over ranks as the model's do, or are
 *                          redistributed, also between meshes (PyTorch: within one)
 *   full_state_dict        each rank gives whole tensors and keeps its part
 *   broadcast_from_rank0   the same, but only rank 0's `state` counts (NULL elsewhere will do); needs full_state_dict
 *   cpu_offload            with broadcast_from_rank0 tensors that are meta get memory on the host, not on their device
 *   strict                 missing or unexpected keys are TSR_E_NOT_FOUND, with the first of them
 * `call->unmatched` is filled also then, the same on all ranks for a broadcast, as far as the call got. Nothing in
 * the model changes before all ranks have found that everything fits. FSDP1's units take FULL state with full_state_dict,
 * else SHARDED, and cast it; with broadcast_from_rank0 every rank holds all of it meanwhile, as in PyTorch. Tensors beside
 * them that are meta are TSR_E_UNSUPPORTED. Errors:
 * TSR_E_USAGE with both sides for a tensor of another shape or dtype (PyTorch converts dtypes) or whole on one side only,
 * TSR_E_FORMAT for an empty state dict where one is needed. PyTorch 2.13 counts no key as missing with full_state_dict,
 * unless broadcasting strictly: here it is one. */
tsr_status tsr_set_model_state_dict(const tsr_model *model, const tsr_value *state, const tsr_state_call *call, tsr_error *err);

TSR_API_END

#endif
