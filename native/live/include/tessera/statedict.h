/* State dicts across ranks: nested values whose tensors live in this process's memory, and the operations that PyTorch
 * has for them in torch/distributed/_state_dict_utils.py (2.13).
 *
 *   a state dict    a tsr_value DICT: str or int keys; dicts, lists, tuples, numbers, strings, bytes, None; tensors
 *                   (tessera/tensor.h) as TSR_VALUE_TENSOR leaves
 *   a tsr_state_dict   owns what an operation made: the tree's nodes and the memory of new tensors
 *
 * Ranks. Operations with a `comm` are collective: all of its ranks call them. They first agree on the call: names, shapes,
 * dtypes, distributions and options. If ranks differ, every rank gets TSR_E_USAGE, and the message names the first difference
 * (by name) and the ranks. If a rank fails later, all ranks fail with its message. Dicts may list their keys in different
 * orders; collective steps follow the order of names.
 *
 * Memory. Besides its result an operation allocates at most `round_bytes` each for sending and receiving, and a few hundred
 * bytes per tensor and rank that holds it. Results share keys and the leaves that did not change with what they were made from
 * (plain tensors of a gather, numbers, strings), which must outlive them, as Python objects do.
 *
 * Errors of all operations: TSR_E_UNSUPPORTED ("type_check") for a value that DCP could not save; TSR_E_LIMIT for trees deeper
 * than limits.depth; TSR_E_NOMEM; messages name the value by its path. Thread rule: one thread per rank.
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

/* ---- ownership ---- */

typedef struct tsr_state_dict tsr_state_dict;

/* Receives the warnings of a call: about values that it ignores, and where PyTorch warns. Each is one sentence, valid until
 * `warn` returns. Every rank gets its own warnings, before the call returns. `warn` must not use the communicator. Zeroed: no
 * warnings. */
typedef struct tsr_warnings {
    void (*warn)(void *ctx, const char *message);
    void *ctx;
} tsr_warnings;

/* An empty dict. Borrows `host` until free. */
tsr_status tsr_state_dict_new(const tsr_host *host, tsr_state_dict **out, tsr_error *err);
void tsr_state_dict_free(tsr_state_dict *dict); /* accepts NULL */

/* The arena that the dict's nodes live in. The caller may allocate in it too. */
tsr_arena *tsr_state_dict_arena(tsr_state_dict *dict);

/* The tree: a DICT, unless the operation's input had another root. Valid until the next put. */
const tsr_value *tsr_state_dict_root(const tsr_state_dict *dict);
/* The value under a string key of the root, or NULL. O(1) for dicts made by put. */
const tsr_value *tsr_state_dict_get(const tsr_state_dict *dict, tsr_str key);
/* Sets root[key]; a new key goes last. `key` is copied, `value` borrowed. TSR_E_USAGE when the root is not such a dict. */
tsr_status tsr_state_dict_put(tsr_state_dict *dict, tsr_str key, const tsr_value *value, tsr_error *err);

/* A leaf for a tensor. Shape, mesh, placements and parts are copied into the dict, memory is borrowed. Errors: as
 * tsr_tensor_pieces. */
tsr_status tsr_state_dict_tensor(tsr_state_dict *dict, const tsr_tensor *tensor, const tsr_value **out, tsr_error *err);
/* The same, but the dict allocates the memory, on tensor->device. The memory and `meta` of `tensor` are ignored. */
tsr_status tsr_state_dict_allocate(tsr_state_dict *dict, const tsr_tensor *tensor, const tsr_value **out, tsr_error *err);

/* ---- gather ---- */

#define TSR_ROUND_BYTES_DEFAULT ((size_t)64 << 20)
#define TSR_ROUND_BYTES_MOST    ((size_t)1 << 30)

typedef struct tsr_gather_options {
    size_t size;                /* TSR_OPTIONS sets it */
    const tsr_value *companion; /* receives on the chosen ranks; nothing is allocated for what it has */
    const uint32_t *ranks_only; /* the chosen ranks, in any order; none: all ranks */
    size_t ranks_only_count;
    bool any_type;      /* keep values of types that DCP cannot save; otherwise they are TSR_E_UNSUPPORTED ("type_check") */
    bool offload;       /* results are on the host; otherwise on the device of the tensor */
    size_t round_bytes; /* 0: the default; at most TSR_ROUND_BYTES_MOST */
    tsr_warnings warnings;
} tsr_gather_options;

/* Turns every distributed tensor into a whole one on the chosen ranks; the list of these must be the same on all ranks.
 * Whole tensors are kept. Boxes must tile their tensor. Warns of values that any_type keeps. `options` may be NULL.
 * Collective. Source: _gather_state_dict. */
tsr_status tsr_state_dict_gather(const tsr_value *state, tsr_comm *comm, const tsr_gather_options *options,
                                 tsr_state_dict *out, tsr_error *err);

/* ---- operations on one rank ---- */

typedef struct tsr_offload_options {
    size_t size; /* TSR_OPTIONS sets it */
    const uint32_t *ranks_only;
    size_t ranks_only_count;
    bool any_type;
} tsr_offload_options;

/* Copies all tensors to host memory. Copies are started together and waited for once per device; tensors already on the host
 * are kept. `comm` is used only for this rank's number (NULL: 0). The options are as in a gather; `options` may be NULL.
 * Source: _offload_state_dict_to_cpu. */
tsr_status tsr_state_dict_offload(const tsr_value *state, tsr_comm *comm, const tsr_offload_options *options,
                                  tsr_state_dict *out, tsr_error *err);

/* Copies every tensor into the tensor at the same position of `target`, which must have the same structure and distributions,
 * but may be on another device. As with PyTorch's copy_, float types are converted to each other and integers to them, and
 * whole tensors are broadcast. The copies are done on return. The result has `target`'s tensors and `state`'s other values.
 * TSR_E_USAGE, stating both tensors, where there is no such copy. Source: _copy_state_dict. */
tsr_status tsr_state_dict_copy(const tsr_value *state, const tsr_value *target, bool any_type, tsr_state_dict *out,
                               tsr_error *err);

typedef struct tsr_create_options {
    size_t size;     /* TSR_OPTIONS sets it */
    tsr_device *pin; /* page-locks the memory for copies of this device; TSR_E_UNSUPPORTED if the device cannot do that */
    /* Allocates memory that other processes of this machine can access: those of all ranks of `share`, which must run on one
     * machine. Each rank has its own tensors, and accesses those of other ranks with tsr_state_dict_peer
     * (tessera/sys/statedict.h). Redistributing and gathering from or into such tensors takes one copy and no messages. The
     * call is then collective. */
    tsr_comm *share;
} tsr_create_options;

/* Creates the same structure with new tensors in host memory. Their content is undefined, except that 0-d tensors are 0. 0-d
 * tensors over a mesh, tensors in boxes of which this rank has none, and all other values are kept as they are. `options` may
 * be NULL. Source: _create_cpu_state_dict. */
tsr_status tsr_state_dict_create(const tsr_value *state, const tsr_create_options *options, tsr_state_dict *out,
                                 tsr_error *err);

TSR_API_END

#endif
