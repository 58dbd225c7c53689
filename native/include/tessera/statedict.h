/* State dicts across ranks: nested values whose tensors live in this process's memory, and the operations that PyTorch
 * has for them in torch/distributed/_state_dict_utils.py (2.13).
 *
 *   a state dict    a tsr_value DICT: str or int keys; dicts, lists, tuples, numbers, strings, bytes, None; tensors
 *                   (tessera/tensor.h) as TSR_VALUE_TENSOR leaves
 *   a tsr_state_dict   owns what an operation made: the tree's nodes and the memory of new tensors
 *
 * Ranks. Operations with a `comm` are collective: all of its ranks call them. They first agree on the call: names, shapes,
 * dtypes, distributions and options. Where ranks differ every rank gets TSR_E_USAGE, with the first difference (by name)
 * and the ranks in the message; a rank that fails later makes all fail with its message. Dicts may list their keys in
 * different orders. What ranks have to do together is done in the order of names.
 *
 * Memory. Besides its result an operation allocates at most `round_bytes` each for sending and receiving, and a few hundred
 * bytes a tensor and rank that holds it. Results share the leaves that did not change with what they were made from (plain
 * tensors of a gather, numbers, strings), which must outlive them, as Python objects do.
 *
 * Errors of all: TSR_E_UNSUPPORTED ("type_check") for a value that DCP could not save; TSR_E_LIMIT for trees deeper than
 * limits.depth; TSR_E_NOMEM; messages name the value by its path. Thread rule: one thread a rank.
 *
 * Example:
 *
 *     tsr_state_dict *full;
 *     const tsr_gather_options to_host = {.offload = true};
 *     status = tsr_state_dict_new(host, &full, &err);
 *     if (status == TSR_OK) status = tsr_state_dict_gather(tsr_state_dict_root(dict), comm, &to_host, full, &err);
 *     if (status == TSR_OK) weight = tsr_tensor_of(tsr_state_dict_get(full, TSR_STR("fc.weight"))); */
#ifndef TESSERA_STATEDICT_H
#define TESSERA_STATEDICT_H

#include "tessera/comm.h"
#include "tessera/tensor.h"

TSR_API_BEGIN

/* ---- owning ---- */

typedef struct tsr_state_dict tsr_state_dict;

/* Receives the warnings of a call: what it passes over, and what PyTorch warns of. Each is one sentence, valid until `warn`
 * returns. Every rank gets its own, before the call returns. `warn` must not use the communicator. Zeroed: no warnings. */
typedef struct tsr_warnings {
    void (*warn)(void *ctx, const char *message);
    void *ctx;
} tsr_warnings;

/* An empty dict. Borrows `host` until free. */
tsr_status tsr_state_dict_new(const tsr_host *host, tsr_state_dict **out, tsr_error *err);
void tsr_state_dict_free(tsr_state_dict *dict); /* accepts NULL */

/* Where its nodes live; more may be put there. */
tsr_arena *tsr_state_dict_arena(tsr_state_dict *dict);

/* The tree: a DICT, unless the operation's input had another root. Valid until the next put. */
const tsr_value *tsr_state_dict_root(const tsr_state_dict *dict);
/* The value under a string key of the root, or NULL. O(1) for dicts made by put. */
const tsr_value *tsr_state_dict_get(const tsr_state_dict *dict, tsr_str key);
/* Sets root[key]; a new key goes last. `key` is copied, `value` borrowed. TSR_E_USAGE when the root is not such a dict. */
tsr_status tsr_state_dict_put(tsr_state_dict *dict, tsr_str key, const tsr_value *value, tsr_error *err);
/* Makes `root` the tree; its nodes must live as long. */
void tsr_state_dict_set_root(tsr_state_dict *dict, const tsr_value *root);

/* A leaf for a tensor. Shape, mesh, placements and parts are copied into the dict, memory is borrowed. Errors: as
 * tsr_tensor_pieces. */
tsr_status tsr_state_dict_tensor(tsr_state_dict *dict, const tsr_tensor *tensor, const tsr_value **out, tsr_error *err);
/* The same with memory of its own, on tensor->device; what `tensor` says of memory is not looked at, nor is `meta`. */
tsr_status tsr_state_dict_allocate(tsr_state_dict *dict, const tsr_tensor *tensor, const tsr_value **out, tsr_error *err);

/* ---- D1: iterate ---- */

/* What becomes of a tensor: `*result` is a tensor, often the same, with its memory in `out` if it is new. `companion` is the
 * companion's tensor in the same place, or NULL. */
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

/* ---- D2: gather ---- */

#define TSR_ROUND_BYTES_DEFAULT ((size_t)64 << 20)
#define TSR_ROUND_BYTES_MOST    ((size_t)1 << 30)

typedef struct tsr_gather_options {
    size_t size; /* TSR_OPTIONS sets it */
    const tsr_value *companion; /* receives on the chosen ranks; nothing is allocated for what it has */
    const uint32_t *ranks_only;
    size_t ranks_only_count;
    bool any_type;
    bool offload;       /* results on the host; otherwise on the device of the tensor */
    size_t round_bytes; /* 0: the default; at most TSR_ROUND_BYTES_MOST */
    tsr_warnings warnings;
} tsr_gather_options;

/* Every distributed tensor becomes a whole one on the chosen ranks, which must be equal lists everywhere; whole tensors are
 * kept. Boxes must tile their tensor. Warns of values that any_type keeps. `options` may be NULL. Collective. Source:
 * _gather_state_dict. */
tsr_status tsr_state_dict_gather(const tsr_value *state, tsr_comm *comm, const tsr_gather_options *options,
                                 tsr_state_dict *out, tsr_error *err);

/* ---- D3 to D6: on one rank ---- */

typedef struct tsr_offload_options {
    size_t size; /* TSR_OPTIONS sets it */
    const uint32_t *ranks_only;
    size_t ranks_only_count;
    bool any_type;
} tsr_offload_options;

/* All tensors in host memory: copies are started together and waited for once a device; those on the host already are
 * kept. `comm` and the options as in tsr_iterate; `options` may be NULL. Source: _offload_state_dict_to_cpu. */
tsr_status tsr_state_dict_offload(const tsr_value *state, tsr_comm *comm, const tsr_offload_options *options,
                                  tsr_state_dict *out, tsr_error *err);

/* Copies every tensor into the one at the same place of `target`, whose structure, dtypes and distributions are the same,
 * also between devices; done when it returns. The result has `target`'s tensors and `state`'s other values. Source:
 * _copy_state_dict. */
tsr_status tsr_state_dict_copy(const tsr_value *state, const tsr_value *target, bool any_type, tsr_state_dict *out,
                               tsr_error *err);

typedef struct tsr_create_options {
    size_t size; /* TSR_OPTIONS sets it */
    tsr_device *pin; /* page-locked for copies of this device; a device that cannot pin is TSR_E_UNSUPPORTED */
    /* Memory that other processes of this machine see too: all ranks of `share`, which must run on one machine, get the
     * state dict; each rank's tensors are its own, and tsr_state_dict_peer reaches the others'. Redistributing and gathering
     * from or into such tensors takes one copy and no messages. Collective then. */
    tsr_comm *share;
} tsr_create_options;

/* The same structure with new tensors in host memory, of undefined content but for 0-d ones, which are 0. 0-d tensors over
 * a mesh, and tensors in boxes of which this rank has none, are kept as they are, other values too. `options` may be NULL.
 * Source: _create_cpu_state_dict. */
tsr_status tsr_state_dict_create(const tsr_value *state, const tsr_create_options *options, tsr_state_dict *out,
                                 tsr_error *err);
/* Rank `peer`'s memory of the tensor that is `mine` here (its first part if it is in boxes), in a dict created with
 * `share`: borrowed until free. *data is NULL where the peer holds nothing. TSR_E_USAGE for other dicts, tensors or
 * ranks. The caller orders reading after writing (tsr_comm_barrier). */
tsr_status tsr_state_dict_peer(const tsr_state_dict *dict, uint32_t peer, const tsr_tensor *mine, void **data,
                               uint64_t *bytes, tsr_error *err);

/* Whether both have the same structure, and tensors of the same shape and dtype in the same places; distributed ones also
 * the same distribution. Values that are not tensors are not compared. *same false: `difference` (may be NULL) says the
 * first, with its path. PyTorch's copies the tensors of `state` into `other` as well; this does not. Source:
 * _check_state_dict_similarity. */
tsr_status tsr_state_dict_similar(const tsr_value *state, const tsr_value *other, const tsr_host *host, bool *same,
                                  tsr_error *difference, tsr_error *err);

/* ---- D7, D8: full state → what ranks hold ---- */

typedef struct tsr_broadcast_options {
    size_t size; /* TSR_OPTIONS sets it */
    bool strict;        /* keys that only `local` has are left out of the result */
    bool offload;       /* new tensors on the host instead of the local tensor's device */
    size_t round_bytes; /* 0: the default; bytes in flight at once */
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
