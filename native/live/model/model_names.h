/* The items of a live model's state dict, in the order of `model.state_dict()` and with canonical names; and what getting
 * and setting share. */
#ifndef TSR_LIVE_MODEL_MODEL_NAMES_H
#define TSR_LIVE_MODEL_MODEL_NAMES_H

#include "live/fsdp/fsdp_model.h"
#include "live/tensor/state_dict.h"
#include "tessera/model_state.h"
#include "tessera/redistribute.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/statedict.h"

typedef struct tsr_model_item {
    tsr_str raw; /* the name in nn.Module.state_dict(), with the components of all wrappers */
    tsr_str fqn;
    bool renamed; /* PyTorch finds it under another key of model.state_dict() */
    bool unit;    /* a unit of FSDP1 manages it */
    tsr_state_kind kind;
    tsr_tensor *tensor; /* NULL: extra state */
} tsr_model_item;

typedef struct tsr_model_items {
    tsr_model_item *items;
    size_t count;
    tsr_map *index; /* FQN → index in `items` */
} tsr_model_items;

/* Everything except the index lives in `arena`. Errors: those of tsr_get_model_state_dict. */
tsr_status tsr_model_items_of(const tsr_model *model, const tsr_host *host, tsr_arena *arena, tsr_model_items *out,
                              tsr_error *err);
void tsr_model_items_free(tsr_model_items *items); /* takes a zeroed one */

/* Numbers the tensors of a module tree. Tensors with the same identity (shared ones) have the same number. */
typedef struct tsr_tensor_ids {
    tsr_map *map;
    const tsr_module_tensor **keys;
    uint32_t count; /* number of ids */
} tsr_tensor_ids;
#define TSR_NO_ID UINT32_MAX
tsr_status tsr_tensor_ids_of(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_tensor_ids *out,
                             tsr_error *err);
uint32_t tsr_tensor_ids_get(const tsr_tensor_ids *ids, const tsr_module_tensor *const *of);
void tsr_tensor_ids_free(tsr_tensor_ids *ids);

/* The model's live tensors by id; NULL where the model has none. */
tsr_status tsr_model_held(const tsr_model *model, const tsr_tensor_ids *ids, tsr_arena *arena, tsr_tensor ***out,
                          tsr_error *err);

/* The canonical name of a raw name, which must have exactly one. *renamed (may be NULL): a component was removed other
 * than that of activation checkpointing, which is never part of a state dict's keys. */
tsr_status tsr_model_fqn(const tsr_modules *modules, tsr_str raw, tsr_arena *arena, tsr_str *fqn, bool *renamed,
                         tsr_error *err);

/* Adds the canonical names that getting leaves out with ignore_frozen_params: as in PyTorch the first name of a frozen
 * parameter, and all originals of a flat one. */
tsr_status tsr_model_frozen(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_map *names,
                            tsr_error *err);

/* Fails on all ranks if one of them has failed so far, or if their options or numbers of optimizers differ. Collective. */
tsr_status tsr_options_agree(tsr_comm *comm, const char *call, const tsr_state_options *options, size_t optimizers,
                             tsr_status mine, tsr_error *err);
/* A call with its missing fields filled in. */
typedef struct tsr_call {
    tsr_state_call given; /* its comm is never NULL */
    tsr_state_options options;
    tsr_comm *self; /* a communicator made for a call without one; or NULL */
} tsr_call;
/* Errors: those of TSR_OPTIONS_COPY, and of making a communicator of one process. */
tsr_status tsr_call_open(tsr_call *call, const tsr_state_call *given, const tsr_host *host, tsr_error *err);
void tsr_call_close(tsr_call *call);

/* Checks a model's state dict that is about to be saved or loaded. */
tsr_status tsr_model_verify(const tsr_state_options *options, const tsr_value *state, bool submodules, tsr_arena *arena,
                            tsr_error *err);
/* Gathers the tensors of `root`, copies them to the host, or leaves them as they are, according to the options. The nodes
 * live as long as `out`. */
tsr_status tsr_full_or_cpu(const tsr_value *root, tsr_comm *comm, const tsr_state_options *options, tsr_state_dict *out,
                           tsr_error *err);

/* ---- fsdp bind ---- */

/* A tsr_model with FSDP1 units, in the form that fsdp_state.h needs. */

typedef struct tsr_fsdp_bound {
    const tsr_model *model;
    const tsr_host *host;
    tsr_arena *arena; /* for the fields below */
    tsr_tensor_ids ids;
    tsr_tensor **held;      /* by id: the model's tensors */
    tsr_state_dict *out;    /* owns the result's leaves and extra state; NULL without a result */
    tsr_state_dict *leaves; /* `out`, or a state dict of its own */
    tsr_fsdp_model *units;
} tsr_fsdp_bound;

/* Whether the tree has FSDP1 nodes. */
bool tsr_fsdp_is_in(const tsr_modules *modules);
/* Binds this rank's model; the ranks compare their results afterwards. `given` has the model, the host, the arena and
 * `out`. */
tsr_status tsr_fsdp_bind(const tsr_fsdp_bound *given, tsr_comm *comm, tsr_fsdp_bound **bound, tsr_error *err);
void tsr_fsdp_unbind(tsr_fsdp_bound *bound); /* takes NULL */

/* Sets all units to FULL or SHARDED, according to the options. */
tsr_status tsr_fsdp_choose(const tsr_fsdp_bound *bound, const tsr_state_options *options, tsr_error *err);

/* Lists what units save, with canonical names. `raw` is FSDP1's key; the `tensor` of an original is a whole meta tensor.
 * The index is made as by tsr_model_items_of. */
tsr_status tsr_fsdp_model_items(const tsr_fsdp_bound *bound, tsr_arena *arena, tsr_model_items *out, tsr_error *err);

/* tsr_full_or_cpu for the state dict of a model with units. Only tensors that units do not manage can still be
 * distributed, even in a FULL state dict. */
tsr_status tsr_fsdp_full_or_cpu(const tsr_value *root, tsr_comm *comm, const tsr_state_options *options, tsr_state_dict *out,
                                tsr_error *err);

/* ---- model setting ---- */

/* tsr_set_model_state_dict in two steps, so that tsr_set_state_dict writes nothing unless the optimizers' state fits, too. */

typedef struct tsr_model_setting {
    const tsr_model *model;
    tsr_call call;
    const tsr_state_options *options; /* the call's */
    const tsr_host *host;
    tsr_comm *comm;
    tsr_arena *passing, *arena;
    const tsr_value *state; /* NULL: this rank receives another rank's state */
    tsr_unmatched_keys *unmatched, own;
    tsr_model_items items;
    tsr_fsdp_bound *bound;    /* of a tree with FSDP1's units */
    tsr_fsdp_loading loading; /* of them */
    const tsr_value **values; /* by item; NULL: none */
    bool *matched;            /* by item */
    tsr_dtype *dtypes;        /* of a broadcast into units, by item: rank 0's */
    tsr_move *moves;          /* tensors with different layouts in the state dict and in the model */
    size_t move_count;
    bool any_moves; /* on any rank */
    bool nothing;   /* no rank has anything to load */
    tsr_state_dict *scratch;
} tsr_model_setting;

/* Checks everything that can be wrong, and changes nothing in the model. Collective, with the same status on all ranks.
 * `setting` must be closed with tsr_model_setting_close whatever this returns. It borrows `model`, `state` and what
 * `call` points to. */
tsr_status tsr_model_setting_open(tsr_model_setting *setting, const tsr_model *model, const tsr_value *state,
                                  const tsr_state_call *call, tsr_error *err);
/* Loads the state that was checked. Collective. */
tsr_status tsr_model_setting_write(tsr_model_setting *setting, tsr_error *err);
void tsr_model_setting_close(tsr_model_setting *setting);

#endif
