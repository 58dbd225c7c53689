/* State dicts in memory, and how ranks exchange them. */
#ifndef TESSERA_SYS_STATEDICT_H
#define TESSERA_SYS_STATEDICT_H

#include "tessera/model_state.h"
#include "tessera/optimizer_state.h"
#include "tessera/redistribute.h"
#include "tessera/statedict.h"

TSR_API_BEGIN

/* Lower-level operations on state dicts (tessera/statedict.h): visiting every tensor, comparing the structure of two state
 * dicts, and giving each rank its part of a full state, which is how models and optimizers are set.
 *
 * Example:
 *
 *     bool same;
 *     status = tsr_state_dict_similar(tsr_state_dict_root(dict), state, host, &same, NULL, &err);
 *     if (status == TSR_OK && same) status = tsr_state_dict_distribute(state, tsr_state_dict_root(dict), dict, &err); */

/* Makes `root` the tree of the dict. Its nodes must live as long as the dict. */
void tsr_state_dict_set_root(tsr_state_dict *dict, const tsr_value *root);

/* ---- iterate ---- */

/* Returns in `*result` the tensor to use in place of `tensor`, often the same one; the memory of a new one is in `out`.
 * `companion` is the companion's tensor at the same position, or NULL. */
typedef tsr_status tsr_tensor_function(void *ctx, const tsr_tensor *tensor, const tsr_tensor *companion, tsr_state_dict *out,
                                       const tsr_tensor **result, tsr_error *err);

typedef struct tsr_iterate {
    tsr_tensor_function *whole, *over_mesh, *in_boxes; /* NULL: the tensor is kept */
    void *ctx;
    tsr_comm *comm; /* only its rank is used; NULL: rank 0 */
    /* A tree of the same structure: dicts have the same keys, lists and tuples the same lengths. Results are copied into its
     * tensors (same dtype, shape and distribution), and these take the place of the results. NULL: none. */
    const tsr_value *companion;
    const uint32_t *ranks_only; /* other ranks get an empty dict, or None if the root is not a dict; empty: all ranks */
    size_t ranks_only_count;
    bool any_type; /* no type_check: values of other types are kept, with a warning */
    bool offload;  /* results are on the host; cannot be combined with a companion */
    tsr_warnings warnings;
} tsr_iterate;

/* Makes a new tree of the same structure in `out`. Does not communicate. Errors besides those above: TSR_E_USAGE if the
 * companion differs, with the path and both sides. Source: _iterate_state_dict. */
tsr_status tsr_state_dict_iterate(const tsr_value *state, const tsr_iterate *how, tsr_state_dict *out, tsr_error *err);

/* ---- shared memory, and comparing ---- */

/* In a dict created with `share`: returns the memory that rank `peer` has for the tensor that is `mine` on this rank (for
 * the first part if it is in boxes). It is borrowed until the dict is freed. *data is NULL if the peer has no memory for
 * it. TSR_E_USAGE for other dicts, tensors or ranks. The caller must make sure that reading follows writing
 * (tsr_comm_barrier). */
tsr_status tsr_state_dict_peer(const tsr_state_dict *dict, uint32_t peer, const tsr_tensor *mine, void **data,
                               uint64_t *bytes, tsr_error *err);

/* Whether both have the same structure, with tensors of the same shape, dtype and distribution at the same positions. Values
 * that are not tensors are not compared. If *same is false, `difference` (may be NULL) describes the first difference, with
 * its path. PyTorch's function also copies the tensors of `state` into `other`; this one does not. Source:
 * _check_state_dict_similarity. */
tsr_status tsr_state_dict_similar(const tsr_value *state, const tsr_value *other, const tsr_host *host, bool *same,
                                  tsr_error *difference, tsr_error *err);

/* ---- from a full state to the parts of ranks ---- */

typedef struct tsr_broadcast_options {
    size_t size;        /* TSR_OPTIONS sets it */
    bool strict;        /* keys that only `local` has are left out of the result */
    bool offload;       /* new tensors are on the host instead of the local tensor's device */
    size_t round_bytes; /* bytes that are in flight at the same time; 0: the default */
    tsr_warnings warnings;
} tsr_broadcast_options;

/* Copies rank 0's `full` into the tensors of `local`. `full` is ignored on other ranks, and must be flat: its values are
 * tensors, or contain none. Whole tensors receive everything, distributed ones their part; meta tensors get memory in `out`.
 * Names and shapes are sent first, then tensors in groups of round_bytes. The result has the keys of `local`. Values stay if
 * `full` does not have their key (see strict); values that are not tensors are rank 0's. Keys that only `full` has are
 * ignored. Warns of these keys, and of those that only `local` has. If the dtype of a tensor differs from that of the local
 * one, or its shape from that of a whole local one, the result is new memory in `out`, without a cast (PyTorch casts into
 * local DTensors). If the shape of a distributed tensor differs, TSR_E_USAGE describes both. Collective. Source:
 * _broadcast_state_dict, _broadcast_tensors. */
tsr_status tsr_state_dict_broadcast(const tsr_value *full, const tsr_value *local, tsr_comm *comm,
                                    const tsr_broadcast_options *options, tsr_state_dict *out, tsr_error *err);

/* Gives each rank its part of its own `full`: fills the tensors of `local` that are over a mesh or in boxes (meta tensors
 * get memory), and takes whole tensors from `full`. Does not communicate: PyTorch's distribute_tensor uses the values of
 * rank 0, this uses each rank's own. Values of `full` that are not tensors, and 0-d tensors, are in the result even if
 * `local` does not have their key; other tensors without a local key are left out. Keys that only `local` has stay. Source:
 * _distribute_state_dict. */
tsr_status tsr_state_dict_distribute(const tsr_value *full, const tsr_value *local, tsr_state_dict *out, tsr_error *err);

/* The state of a model or its optimizers behind a pair of functions, for code that knows only these.
 *
 * Example:
 *
 *     tsr_bound_state bound = {.model = model, .comm = comm, .options = tsr_state_options_default(), .host = host};
 *     const tsr_state_calls calls = tsr_model_state_calls(&bound);
 *     status = calls.state_dict(calls.ctx, dict, &err); */

/* Functions that a program's ordinary save and load call instead of its own (PyTorch's patched state_dict and
 * load_state_dict). They use canonical names, whatever wraps the model. `calls` borrows `bound`. */
typedef struct tsr_state_calls {
    tsr_status (*state_dict)(void *ctx, tsr_state_dict *out, tsr_error *err);
    tsr_status (*load_state_dict)(void *ctx, const tsr_value *state, tsr_error *err);
    void *ctx;
} tsr_state_calls;

typedef struct tsr_bound_state {
    const tsr_model *model;
    tsr_optimizers optimizers; /* for the optimizers' calls */
    tsr_comm *comm;
    tsr_state_options options;
    const tsr_host *host;
} tsr_bound_state;

/* The calls for the model, and those for its optimizers. Collective, as the functions above. They borrow `bound`. */
tsr_state_calls tsr_model_state_calls(tsr_bound_state *bound);
tsr_state_calls tsr_optimizer_state_calls(tsr_bound_state *bound);

/* The memory of a state dict (tessera/statedict.h) and of its tensors.
 *
 * Example:
 *
 *     printf("%llu bytes are the dict's own\n", (unsigned long long)tsr_state_dict_owned(dict)); */

/* The host that the dict was created with. */
const tsr_host *tsr_state_dict_host(const tsr_state_dict *dict);

/* The number of bytes that the dict has allocated for tensors. */
uint64_t tsr_state_dict_owned(const tsr_state_dict *dict);

/* The shape of the local tensor (WHOLE: of the tensor itself; TSR_E_USAGE for IN_BOXES), and its number of bytes. `*shape`
 * may be in `arena`. */
tsr_status tsr_tensor_local(const tsr_tensor *tensor, tsr_arena *arena, const uint64_t **shape, uint64_t *bytes,
                            tsr_error *err);

/* Joins the states of several modules into one (tessera/model_state.h).
 *
 * Example:
 *
 *     const tsr_module_state part = {0, state};
 *     const tsr_value *joined;
 *     status = tsr_model_state_join(modules, (tsr_module_states){&part, 1}, host, arena, &joined, &err); */

/* Joins the states of several modules, each with keys relative to its module, into one state for tsr_set_model_state_dict.
 * (PyTorch accepts them directly, as a Dict[nn.Module, Dict], but deprecates it.) Keys are in the order of `parts`; if a
 * key occurs twice, the last value is used. The result lives in `arena` and shares the values. A shared module's state is
 * under its first name. The root's keys are unchanged (PyTorch puts a dot before them, and then finds none of them).
 *
 * Errors: TSR_E_USAGE for a module that is not in the tree, and for a state that is not a dict with string keys; those of
 * tsr_fqn_resolve. Does not communicate. */
typedef struct tsr_module_state {
    tsr_module_ref module;
    const tsr_value *state;
} tsr_module_state;
typedef struct tsr_module_states {
    const tsr_module_state *items;
    size_t count;
} tsr_module_states;
tsr_status tsr_model_state_join(const tsr_modules *modules, tsr_module_states parts, const tsr_host *host, tsr_arena *arena,
                                const tsr_value **out, tsr_error *err);

/* Moves single tensors as tsr_state_dict_redistribute does (tessera/redistribute.h).
 *
 * Example:
 *
 *     const tsr_move move = {.from = by_rows, .to = by_columns};
 *     status = tsr_redistribute(comm, &move, 1, 0, host, &err); */

/* One tensor to move. Both sides have the same shape and dtype, in any distribution: over meshes of the communicator's size,
 * in boxes, or whole. `to` is filled. Their memory must not overlap. */
typedef struct tsr_move {
    const tsr_tensor *from;
    const tsr_tensor *to;
} tsr_move;

/* Moves all of these tensors. Every rank passes the same tensors in the same order, which is checked (see
 * tessera/statedict.h). Errors: TSR_E_USAGE if sides or ranks differ, or if `from` is in boxes and an element that `to`
 * wants is not in the box of exactly one rank. Besides the tensors the call needs at most round_bytes (0: the default) each
 * for sending and receiving. Shared memory stays with the communicator as after tsr_state_dict_redistribute. Collective. */
tsr_status tsr_redistribute(tsr_comm *comm, const tsr_move *moves, size_t count, size_t round_bytes, const tsr_host *host,
                            tsr_error *err);

TSR_API_END

#endif
