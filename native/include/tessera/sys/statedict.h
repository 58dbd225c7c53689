/* State dicts (tessera/statedict.h) below what programs call: every tensor in turn, whether two have the same structure, and a whole
 * state cut to what ranks hold, which is how models and optimizers are set.
 *
 * Example:
 *
 *     bool same;
 *     status = tsr_state_dict_similar(tsr_state_dict_root(dict), state, host, &same, NULL, &err);
 *     if (status == TSR_OK && same) status = tsr_state_dict_distribute(state, tsr_state_dict_root(dict), dict, &err); */
#ifndef TESSERA_SYS_STATEDICT_H
#define TESSERA_SYS_STATEDICT_H

#include "tessera/statedict.h"

TSR_API_BEGIN

/* Makes `root` the tree; its nodes must live as long. */
void tsr_state_dict_set_root(tsr_state_dict *dict, const tsr_value *root);

/* ---- D1: iterate ---- */

/* Maps a tensor to another: `*result` is a tensor, often the same one, with its memory in `out` if it is new. `companion` is
 * the companion's tensor in the same place, or NULL. */
typedef tsr_status tsr_tensor_function(void *ctx, const tsr_tensor *tensor, const tsr_tensor *companion, tsr_state_dict *out,
                                       const tsr_tensor **result, tsr_error *err);

typedef struct tsr_iterate {
    tsr_tensor_function *whole, *over_mesh, *in_boxes; /* NULL: the tensor itself */
    void *ctx;
    tsr_comm *comm; /* for its rank; NULL: rank 0 */
    /* Of the same structure: dicts have the same keys, lists and tuples the same lengths. Results are copied into its
     * tensors (same dtype, shape and distribution), which take their place. NULL: none. */
    const tsr_value *companion;
    const uint32_t *ranks_only; /* others get an empty dict, or None for another root; none listed: all ranks */
    size_t ranks_only_count;
    bool any_type; /* no type_check: values of other kinds are kept as they are, with a warning */
    bool offload;  /* results go to the host; not with a companion */
    tsr_warnings warnings;
} tsr_iterate;

/* A new tree of the same structure in `out`. No communication of its own. Errors besides those above: TSR_E_USAGE where the
 * companion differs, with the path and both sides. Source: _iterate_state_dict. */
tsr_status tsr_state_dict_iterate(const tsr_value *state, const tsr_iterate *how, tsr_state_dict *out, tsr_error *err);

/* ---- D5, D6 ---- */

/* Rank `peer`'s memory of the tensor that is `mine` here (its first part if it is in boxes), in a dict created with
 * `share`: borrowed until free. *data is NULL where the peer holds nothing. TSR_E_USAGE for other dicts, tensors or
 * ranks. The caller orders reading after writing (tsr_comm_barrier). */
tsr_status tsr_state_dict_peer(const tsr_state_dict *dict, uint32_t peer, const tsr_tensor *mine, void **data,
                               uint64_t *bytes, tsr_error *err);

/* Whether both have the same structure, and tensors of the same shape and dtype in the same places; distributed ones also
 * the same distribution. Values that are not tensors are not compared. *same false: `difference` (may be NULL) gets the
 * first difference, with its path. PyTorch's function copies the tensors of `state` into `other` as well; this does not.
 * Source: _check_state_dict_similarity. */
tsr_status tsr_state_dict_similar(const tsr_value *state, const tsr_value *other, const tsr_host *host, bool *same,
                                  tsr_error *difference, tsr_error *err);

/* ---- D7, D8: full state → what ranks hold ---- */

typedef struct tsr_broadcast_options {
    size_t size; /* TSR_OPTIONS sets it */
    bool strict;        /* keys that only `local` has are left out of the result */
    bool offload;       /* new tensors on the host instead of the local tensor's device */
    size_t round_bytes; /* 0: the default; bytes in flight at the same time */
    tsr_warnings warnings;
} tsr_broadcast_options;

/* Rank 0's `full` (not looked at elsewhere; flat: its values are tensors, or hold none) into the tensors of `local`: whole
 * ones get all of it, distributed ones their part; meta ones get memory in `out`. Names and shapes go first, then tensors
 * in groups of round_bytes. The result has the keys of `local`: what `full` has no key for stays (see strict), values that
 * are not tensors are rank 0's. Keys of `full` that `local` lacks are passed over. Warns of these keys, and of those that
 * only `local` has. A tensor of another dtype than the local one, or of another shape than a whole one, goes to new memory
 * in `out`, as it is (PyTorch casts into local DTensors). A distributed tensor of another shape is TSR_E_USAGE with both.
 * Collective. Source: _broadcast_state_dict, _broadcast_tensors. */
tsr_status tsr_state_dict_broadcast(const tsr_value *full, const tsr_value *local, tsr_comm *comm,
                                    const tsr_broadcast_options *options, tsr_state_dict *out, tsr_error *err);

/* Each rank's own `full` → its part: the tensors of `local` over a mesh or in boxes are filled (meta ones get memory),
 * whole ones are `full`'s. No communication: PyTorch's distribute_tensor takes rank 0's values, this takes each rank's own.
 * Values of `full` that are not tensors, and 0-d tensors, are in the result even if `local` has no such key; other tensors
 * without one are left out; keys that only `local` has stay. Source: _distribute_state_dict. */
tsr_status tsr_state_dict_distribute(const tsr_value *full, const tsr_value *local, tsr_state_dict *out, tsr_error *err);

TSR_API_END

#endif
